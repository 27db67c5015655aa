"""One save: declared, captured by all, released, written by each, committed by the coordinator or by nobody.

    declare -> captured.<n> (all) -> release | abort -> <n>.json | failed.<n> (all) -> commit -> outcome

What this module guarantees:

- The trainer is blocked until every contributor has captured, and no longer: what is written is the copy.
- A contributor that fails, or that does not report, ends the save for all by name; nothing is published.
- Contributors wait longer than the coordinator does, so that nobody calls a coordinator lost that is alive.
- A contributor that lost its coordinator after the release reads the intended slot: what happened there is the truth,
  and where nothing did, the outcome is unknown and not "not committed".
- The bytes of a save that failed before its manifest was begun are removed, by whoever wrote them; where a record may
  name them, or who wrote them has not heard, they stay for retention.
- A failure in the background that nobody saw is raised by the next save, by `wait` and on close.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from .capture import Captured, capture
from .commit import commit
from .contract import CONTRIBUTORS, Contract
from .contribution import write_contribution
from .delays import At
from .errors import (
    CheckpointError,
    CommitFailed,
    CommitUnknown,
    CoordinatorLost,
    CutVersionMismatch,
    FencedWriter,
    InvariantViolation,
)
from .group import COORDINATOR, MEET, Body, Group, error_body, error_of, missing, told_by, until
from .layout import Run, data_name, record_name, save_folder, slot_name
from .log import Epoch, read_slot
from .manifest import Intent
from .staging import Staging
from .state import State

DECLARATION: Final = "counterfoil-checkpoint-declaration-1"
UNNAMED: Final = "unnamed"  # of a failed save's outcome: no manifest was begun, so that no record ever names its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long is waited.

    Attributes:
        entry_seconds: a contributor that called a collective waits so long for the coordinator to begin it.
        capture_seconds: from the declaration until every contributor has captured.
        persist_seconds: from the release until every contributor has written; also for verifying in a restore.
        margin_seconds: so much longer do contributors wait than the coordinator.
    """

    entry_seconds: float = 120.0
    capture_seconds: float = 120.0
    persist_seconds: float = 1800.0
    margin_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the coordinator writes into every manifest beside the cut.

    Attributes:
        config: settings that the next update depends on.
        lineage: what the run descends from.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    lineage: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that is committed.

    Attributes:
        sequence: its place in the run's log.
        digest: of its manifest.
        save_id: 128 bits that no other save has.
        versions: the counters of this contributor's copy.
        blocked_seconds: how long the trainer waited for all captures.
        persist_seconds: from the release to the outcome.
        nbytes: what this contributor captured.
    """

    sequence: int
    digest: str
    save_id: str
    versions: Mapping[str, int]
    blocked_seconds: float
    persist_seconds: float
    nbytes: int


@dataclass(slots=True, kw_only=True)
class Took:
    """How long a save took so far, each by the clock of whoever says it.

    Attributes:
        blocked: from the trainer's call to the release.
        release: from the declaration to the release.
        released: when that was, by this process's clock.
        updates: of the cut.
        captures: by contributor, from when it knew the declaration until its copy was whole; at the coordinator.
        records: by contributor, from the release until its record was seen; at the coordinator.
        next_update: from the release until the trainer said that it stands at a later update.
    """

    blocked: float
    release: float
    released: float
    updates: int | None
    captures: Mapping[str, float]
    records: dict[str, float] = field(default_factory=dict)
    next_update: float | None = None

    def timing(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        later = {} if self.next_update is None else {"next_update_seconds": self.next_update}
        return {
            "blocked_seconds": self.blocked,
            "persist_seconds": time.monotonic() - self.released,
            "release_seconds": self.release,
            "capture_seconds": dict(self.captures),
            "record_seconds": dict(sorted(self.records.items())),
            **later,
        }


class Save:
    """A save under way: all have captured, and the trainer goes on."""

    def __init__(self, save_id: str) -> None:
        self.save_id = save_id
        self._over = threading.Event()
        self._result: Saved | None = None
        self._error: BaseException | None = None
        self.seen = False

    def run(self, work: Callable[[], Saved]) -> None:
        """Do the work in the background; its result or error is kept until somebody asks."""

        def target() -> None:
            try:
                self._result = work()
            except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
                self._error = error
            finally:
                self._over.set()

        # A process whose trainer is done waits for its save in `close`, and not in the interpreter's exit.
        threading.Thread(target=target, name=f"checkpoint-{self.save_id[:8]}", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it is over, in one way or the other."""
        return self._over.is_set()

    @property
    def error(self) -> BaseException | None:
        """How it failed, if it did."""
        return self._error

    @property
    def unseen(self) -> BaseException | None:
        """Its failure, when it is over and nobody was told."""
        return None if self.seen or not self.done else self._error

    def settle(self) -> None:
        """Wait until it is over, without asking how it ended."""
        self._over.wait()

    def wait(self, timeout_seconds: float | None = None) -> Saved:
        """Wait for the commit.

        Raises:
            TimeoutError: it is not over yet; it goes on.
            CheckpointError: it failed, and how.
        """
        if not self._over.wait(timeout_seconds):
            raise TimeoutError(f"The save is not over after {timeout_seconds} s. It goes on: wait again.")
        self.seen = True
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101 - over without an error
        return self._result


class Saver:
    """What one contributor does to save.

    Args:
        run: the run's folders.
        group: the contributors of this launch.
        epoch: the coordinator's right to write; at the others, its number alone counts.
        contract: what a cut must be.
        deadlines: how long is waited.
        facts: what goes into every manifest.
        at: where a test may hold us.

    Attributes:
        parent: the checkpoint that this launch restored from or committed before.
    """

    def __init__(
        self, *, run: Run, group: Group, epoch: Epoch, contract: Contract, deadlines: Deadlines, facts: Facts, at: At
    ) -> None:
        self._run = run
        self._group = group
        self._epoch = epoch
        self._contract = contract
        self._deadlines = deadlines
        self._facts = facts
        self._at = at
        self._staging = Staging()
        self._number = 0
        self._took: Took | None = None
        self.parent: int | None = None

    @property
    def _leads(self) -> bool:
        return self._group.rank == COORDINATOR

    def refuse(self, error: BaseException) -> None:
        """This contributor does not take part in the next save, and says why: the others need not wait for it."""
        self._number += 1
        known = error if isinstance(error, CheckpointError) else CommitFailed(str(error))
        word = error_body(known, who=f"contributor {self._group.rank}: ")
        self._group.publish(MEET, f"absent.{self._number}.{self._group.rank}", word)
        if self._leads:
            self._group.publish(MEET, f"save.{self._number}", word)

    def begin(self, state: State, *, kind: str, effects: Body | None) -> Save:
        """Capture with all others, and go on in the background.

        Args:
            state: the live state.
            kind: full, or weights_only.
            effects: the journal's watermark, at the coordinator.

        Raises:
            Refused: no cut was captured; every contributor gets the same error.
        """
        started = time.monotonic()
        self._number += 1
        self._at("entered")
        declared = self._declare(kind, effects) if self._leads else self._hear_declaration()
        place = declared["place"]
        known = time.monotonic()
        self._at("declared")
        captured: Captured | None = None
        try:
            captured = capture(state, self._staging, self._contract, at=self._at)
            word: Body = {"versions": dict(captured.versions), "seconds": time.monotonic() - known}
        except CheckpointError as error:
            word = error_body(error)
        except Exception as error:  # noqa: BLE001 - the trainer's own code ran: the others are told, then it is raised
            word = error_body(CommitFailed(f"the capture ended with {type(error).__name__}: {error}"))
        self._at("captured")
        try:
            words = self._agree(declared, word)
        except CheckpointError:
            self._group.leave(place)
            raise
        assert captured is not None  # noqa: S101 - a word with an error is agreed to by nobody
        released = time.monotonic()
        took = Took(blocked=released - started, release=released - known, released=released,
                    updates=captured.versions.get("updates"),
                    captures={contributor_id(rank): words[rank]["seconds"] for rank in sorted(words)})  # fmt: skip
        self._took = took
        self._at("released")
        save = Save(declared["save_id"])
        save.run(lambda: self._persist(declared, captured, took))
        return save

    def went_on(self, updates: int) -> None:
        """The trainer stands at this update: the first one after the cut of a save under way is a part of its times."""
        took = self._took
        if took is not None and took.updates is not None and took.next_update is None and updates > took.updates:
            took.next_update = time.monotonic() - took.released

    def _declare(self, kind: str, effects: Body | None) -> Body:
        save_id = secrets.token_hex(16)
        place = save_folder(self._epoch.number, save_id)
        body: Body = {
            "format": DECLARATION,
            "save_id": save_id,
            "place": place,
            "epoch": self._epoch.number,
            "sequence": self._epoch.slot + 1,
            "contract": self._contract.digest,
            "world": self._group.world,
            "capture_seconds": self._deadlines.capture_seconds,
            "persist_seconds": self._deadlines.persist_seconds,
            "kind": kind,
            "parent": self.parent,
            "effects": effects,
        }
        try:
            self._run.save(self._epoch.number, save_id, create=True).close()
        except OSError as error:
            failure = CommitFailed(f"no folder could be made for the save: {error}. Nothing was published.")
            self._group.publish(MEET, f"save.{self._number}", error_body(failure))
            raise failure from error
        self._group.publish(place, "declare", body)
        self._group.publish(MEET, f"save.{self._number}", {"save_id": save_id, "place": place})
        return body

    def _hear_declaration(self) -> Body:
        seconds = self._deadlines.entry_seconds + self._deadlines.margin_seconds
        word = self._group.broadcast(MEET, f"save.{self._number}", None, seconds=seconds)
        if (error := error_of(word)) is not None:
            raise error
        declared = self._group.look(word["place"], "declare")
        if declared is None or declared.get("epoch") != self._epoch.number:
            raise CoordinatorLost("The save's declaration is not there. Nothing was published; start all again.")
        return declared

    def _agree(self, declared: Body, word: Body) -> Mapping[int, Body]:
        """All have captured one cut, or nobody goes on; at the coordinator, what each has said of its capture."""
        # As declared: by a shorter one of its own a contributor would call a coordinator lost that waits for others.
        seconds = declared["capture_seconds"]
        place = declared["place"]
        if not self._leads:
            self._group.gather(place, "captured", word, seconds=seconds)
            # It began to wait after the declaration, so that it waits longer than the coordinator, by the margin.
            heard = self._group.wait(place, ("release", "abort"), seconds=seconds + self._deadlines.margin_seconds)
            if heard is None:
                lost = CoordinatorLost(
                    f"The coordinator (contributor 0) ended, or did not release the save within {seconds:g} s. "
                    "Nothing was published and the previous checkpoint stands: start all contributors again."
                )
                self._group.publish(place, f"failed.{self._group.rank}", error_body(lost))
                raise lost
            if (error := error_of(heard[1])) is not None:
                raise error
            return {}
        try:
            words = self._group.gather(
                place, "captured", word, seconds=seconds, absent=(MEET, f"absent.{self._number}")
            )
            check_one_cut(words, self._contract)
        except CheckpointError as error:
            self._group.publish(place, "abort", error_body(error))
            raise
        self._group.publish(place, "release", {})
        return words

    def _persist(self, declared: Body, captured: Captured, took: Took) -> Saved:
        """In the background: write, and commit or hear of it."""
        place, save_id = declared["place"], declared["save_id"]
        try:
            if self._leads:
                sequence, digest = self._commit(declared, captured, took)
            else:
                sequence, digest = self._contribute(declared, captured)
        finally:
            self._group.leave(place)
        return Saved(
            sequence=sequence,
            digest=digest,
            save_id=save_id,
            versions=captured.versions,
            blocked_seconds=took.blocked,
            persist_seconds=time.monotonic() - took.released,
            nbytes=captured.nbytes,
        )

    def _write(self, declared: Body, captured: Captured) -> None:
        rank = self._group.rank
        items = captured.staged()
        self._at("staged")
        with self._run.save(self._epoch.number, declared["save_id"]) as folder:
            write_contribution(
                folder,
                save_id=declared["save_id"],
                contributor=contributor_id(rank),
                lowest=rank == COORDINATOR,
                items=items,
                versions=captured.versions,
                values=captured.values,
            )
        self._at("written")

    def _await_records(self, declared: Body, took: Took) -> None:
        """At the coordinator: every record is there, or why not."""
        place, others = declared["place"], set(range(self._group.world)) - {COORDINATOR}
        failures: list[CheckpointError] = []
        gone: set[int] = set()

        def look() -> bool:
            for rank in sorted(others):
                if self._group.gone(rank):  # before its record: one that it has just written counts
                    gone.add(rank)
                if (word := self._group.look(place, f"failed.{rank}")) is not None:
                    failures.append(error_of(word) or CommitFailed(f"contributor {rank} failed"))
                    return True
                if folder.has(record_name(contributor_id(rank))):
                    others.discard(rank)
                    took.records[contributor_id(rank)] = time.monotonic() - took.released
            return not others or bool(gone & others)

        seconds = declared["persist_seconds"]
        with self._run.save(self._epoch.number, declared["save_id"]) as folder:
            reported = until(look, seconds=seconds)
        if failures:
            raise failures[0]
        if gone & others:
            raise missing(gone & others, "ended and had written no record")
        if not reported:
            raise missing(others, f"wrote no record within {seconds:g} s")

    def _contribute(self, declared: Body, captured: Captured) -> tuple[int, str]:
        """At the others: write, or say why not; then hear how it ended."""
        try:
            self._write(declared, captured)
        except Exception as error:  # the coordinator is told whatever it was: it would wait in vain
            told = _named(error, f"contributor {self._group.rank} could not write its part")
            self._tell(declared["place"], f"failed.{self._group.rank}", error_body(told))
            raise told from error
        return self._outcome(declared)

    def _commit(self, declared: Body, captured: Captured, took: Took) -> tuple[int, str]:
        """At the coordinator: write, wait for all, publish, and say how it ended."""
        place, written, named = declared["place"], False, False
        try:
            self._write(declared, captured)
            written = True
            took.records[contributor_id(self._group.rank)] = time.monotonic() - took.released
            self._await_records(declared, took)
            self._at("recorded")
            named = True  # from here on a manifest or a record may name the bytes, whatever is raised
            committed = commit(self._run, self._epoch, self._contract, self._intent(declared), timing=took.timing())
            self.parent = committed.sequence
            self._at("committed")
        except Exception as error:
            told = _named(error, "the coordinator could not finish the save")
            self._tell(place, "outcome", {**error_body(told), UNNAMED: not named})
            if written and not named:
                self._give_back(declared)
            raise told from error
        self._tell(place, "outcome", {"sequence": committed.sequence, "digest": committed.digest})
        return committed.sequence, committed.digest

    def _give_back(self, declared: Body) -> None:
        """Nothing names what this contributor wrote, and nothing will: its room is for the next save."""
        with suppress(OSError, CheckpointError), self._run.save(self._epoch.number, declared["save_id"]) as folder:
            folder.remove(data_name(contributor_id(self._group.rank)))

    def _tell(self, place: str, name: str, body: Body) -> None:
        """How it ended, to the others: a hint, which a full disk may refuse; what happened has happened."""
        with suppress(OSError, CheckpointError):
            self._group.publish(place, name, body)

    def _intent(self, declared: Body) -> Intent:
        return Intent(
            save_id=declared["save_id"],
            world=tuple(contributor_id(rank) for rank in range(self._group.world)),
            kind=declared["kind"],
            parent=declared["parent"],
            config=self._facts.config,
            lineage=self._facts.lineage,
            effects=declared["effects"],
        )

    def _outcome(self, declared: Body) -> tuple[int, str]:
        """At the others: what the coordinator says, or else what the slot says."""
        place, sequence, margin = declared["place"], declared["sequence"], self._deadlines.margin_seconds
        seconds = declared["persist_seconds"] + margin
        heard = self._group.wait(
            place, ("outcome",), seconds=seconds, over=lambda: self._run.log.has(slot_name(sequence))
        ) or self._group.wait(place, ("outcome",), seconds=margin)  # who links a record says so soon after
        if heard is not None:
            if (error := error_of(heard[1])) is not None:
                if heard[1].get(UNNAMED) is True:
                    self._give_back(declared)
                raise error
            return heard[1]["sequence"], heard[1]["digest"]
        try:
            found = read_slot(self._run, sequence)
            self._run.log.sync()  # its coordinator may have died between the link and this
        except FileNotFoundError:
            raise CommitUnknown(
                f"The coordinator (contributor 0) was lost after the release, and slot {sequence} is free: it may "
                "still be taken. End this session; the next start reads what is there."
            ) from None
        except OSError as error:
            raise CommitUnknown(
                f"The coordinator (contributor 0) was lost after the release, and slot {sequence} cannot be made sure "
                f"of: {error}. End this session; the next start reads what is there."
            ) from error
        if found.save_id == declared["save_id"] and found.manifest is not None:
            return sequence, found.manifest
        raise FencedWriter(
            f"slot {sequence} holds {found.kind} of epoch {found.epoch}: another coordinator has the run, and this "
            "save is not published. Earlier checkpoints stand; end this process."
        )


def contributor_id(rank: int) -> str:
    """A contributor's id in file names and records."""
    return str(rank)


def check_one_cut(words: Mapping[int, Body], contract: Contract) -> None:
    """What all contributors captured is one cut, as far as its versions say: the rest is checked from the records.

    Raises:
        CheckpointError: a contributor's own error, with its rank.
        CutVersionMismatch: two stand at different positions.
        InvariantViolation: a relation of the contract is false.
    """
    for rank in sorted(words):
        if (error := error_of(words[rank])) is not None:
            raise told_by(rank, error)
    check_positions(contract, {contributor_id(rank): words[rank]["versions"] for rank in sorted(words)})


def check_positions(contract: Contract, stated: Mapping[str, Mapping[str, int]]) -> None:
    """All contributors stand at one position, and the contract's relations are true of it.

    Args:
        contract: what a cut is.
        stated: by contributor, in the order of the world, the versions of its copy.

    Raises:
        CutVersionMismatch: two stand at different positions; both numbers are named.
        InvariantViolation: a relation is false; both numbers are named.
    """
    names: dict[str, int | Mapping[str, int]] = {CONTRIBUTORS: len(stated), **contract.constants}
    for name, scope in contract.versions.items():
        own = {who: versions[name] for who, versions in stated.items() if name in versions}
        if scope == "shared" and own:
            _, expected = next(iter(own.items()))
            for who, value in own.items():
                if value != expected:
                    raise CutVersionMismatch(
                        f"rank {who}: {name} {value} != {expected}; nothing was published and the previous checkpoint "
                        "stands: save when all contributors are at the same boundary."
                    )
            names[name] = expected
        elif own:
            names[name] = own
    for relation in contract.relations:
        if not relation.value(names):
            raise InvariantViolation(
                f"{relation.why_false(names)} (the contract says {relation.text}); nothing was published and the "
                "previous checkpoint stands: save at the contract's boundary."
            )


def _named(error: Exception, what: str) -> CheckpointError:
    if isinstance(error, CheckpointError):
        return error
    return CommitFailed(
        f"{what}: {type(error).__name__}: {error}. Nothing was published and the previous checkpoint stands: "
        "look at the disk, then save again."
    )
