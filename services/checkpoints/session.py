"""A session: what one contributor of a training run does with its checkpoints, from its start to its end.

    with Session.open("/ckpt", run="r1", rank=rank, world=world, launch=launch, contract=contract) as session:
        if session.resume(state):
            print(session.report)
        while updates < total:
            train_step()
            stop = session.agree_stop(updates)
            if stop or updates % 100 == 0:
                save = session.save_async(state)
            if stop:
                save.wait()
                break

What this module guarantees:

- Collectives (open, resume, restore, save, agree_stop) are called by all contributors in the same order, and give all
  the same answer or the same named error; one that fails leaves the next one in step.
- A save that failed in the background and was seen by nobody is raised by the next save, by `wait` and on close.
- After another coordinator took the run over, or when a commit's outcome is not known, the session is over.
"""

import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from .contract import Contract
from .delays import At, nowhere
from .errors import (
    CheckpointError,
    CommitFailed,
    CommitUnknown,
    CutVersionMismatch,
    FencedWriter,
    Incompatible,
    ManifestInvalid,
)
from .fit import FRESH
from .group import COORDINATOR, MEET, Body, Group, error_body, error_of, told_by
from .layout import Run
from .log import Epoch, open_epoch
from .meeting import Meeting
from .reading import Found, Skipped, latest
from .restoring import Report, Restorer, Resumable, Terms, Weights
from .retention import FEWEST, GRACE_SECONDS, Pruned, pin, prune
from .saving import Deadlines, Facts, Save, Saved, Saver
from .state import State
from .watermark import read_watermark

T = TypeVar("T")
PROFILES: Final = ("resume", "weights")
KINDS: Final = ("full", "weights_only")
OVER: Final = (FencedWriter, CommitUnknown)
_NOT_IN_AN_ID: Final = re.compile(r"[^a-z0-9-]")


class Session:
    """One contributor's session; `open` makes it.

    Attributes:
        report: what the last resume did; None before.
        epoch: the number of the coordinator's `open` record in the log.
    """

    def __init__(
        self,
        *,
        run: Run,
        group: Group,
        epoch: Epoch,
        contract: Contract,
        deadlines: Deadlines,
        facts: Facts,
        in_flight: Literal["wait", "refuse"],
        at: At,
    ) -> None:
        self.report: Report | None = None
        self.epoch = epoch.number
        self._run = run
        self._group = group
        self._epoch = epoch
        self._deadlines = deadlines
        self._in_flight = in_flight
        self._saver = Saver(
            run=run, group=group, epoch=epoch, contract=contract, deadlines=deadlines, facts=facts, at=at
        )
        self._restorer = Restorer(run=run, group=group, contract=contract, deadlines=deadlines, facts=facts, at=at)
        self._save: Save | None = None
        self._over: CheckpointError | None = None
        self._stop_asked = False  # no Event: a second signal inside of the first one's `set` would wait for ever
        self._looks = 0
        self._closed = False
        self._handlers: dict[int, Any] = {}

    @classmethod
    def open(
        cls,
        root: str | Path,
        *,
        run: str,
        rank: int,
        world: int,
        contract: Contract,
        launch: str | None = None,
        group: Callable[[Run], Group] | None = None,
        deadlines: Deadlines | None = None,
        config: Mapping[str, Any] | None = None,
        lineage: Mapping[str, Any] | None = None,
        writer: str | None = None,
        in_flight: Literal["wait", "refuse"] = "wait",
        stop_signals: Collection[signal.Signals] = (signal.SIGTERM,),
        at: At = nowhere,
    ) -> Self:
        """Meet the others of this launch, and take the run over from whoever had it.

        Args:
            root: the store's root folder, the same for all contributors; made if it is not there.
            run: the run's id.
            rank: this contributor's number, 0 to world - 1; 0 is the coordinator.
            world: how many contributors there are.
            contract: what a cut of this run is; the same for all.
            launch: 32 hexadecimal digits from whoever started the contributors: equal on all, fresh at every start.
            group: makes another way to meet than files; then it may do without a launch.
            deadlines: how long is waited for others.
            config: settings that the next update depends on; another value at a restore is refused by its name.
            lineage: what the run descends from.
            writer: who this is, in records; the host's name and the process id otherwise.
            in_flight: whether a save waits for the one before it, or is refused while that one is under way.
            stop_signals: what asks for a stop, when this is called in the main thread; `agree_stop` says so to all.
            at: where a test may hold us.

        Raises:
            ContributorMissing: a contributor did not come in time.
            CoordinatorLost: the coordinator did not.
            DuplicateContributor: two processes have this rank.
            Incompatible: the contributors were started with different contracts or worlds.
            ManifestInvalid: the run, rank or launch is none, or the log lacks a record.
            OSError: the system does not let the root be made or read.
        """
        deadlines = deadlines or Deadlines()
        _check_word("in_flight", in_flight, ("wait", "refuse"))
        if not isinstance(contract, Contract):
            raise TypeError(f"contract is a {type(contract).__name__}: give Contract.load(...). Nothing was opened.")
        if not 0 <= rank < world:
            raise ManifestInvalid(f"Rank {rank} is not one of a world of {world}: ranks are 0 to {world - 1}.")
        if launch is None and group is None:
            raise ManifestInvalid(
                "A launch is needed: 32 hexadecimal digits from whoever starts the contributors, equal on all and "
                "fresh at every start (secrets.token_hex(16)). Without it the words of a dead start could be read."
            )
        opened = Run.open(root, run, create=True)
        try:
            if group is not None:
                meeting = group(opened)
            else:
                meeting = Meeting(opened, launch=launch or "", rank=rank, world=world)
            epoch = _meet(opened, meeting, contract, deadlines, launch=launch, writer=writer or _writer())
        except BaseException:
            opened.close()
            raise
        session = cls(
            run=opened, group=meeting, epoch=epoch, contract=contract, deadlines=deadlines,
            facts=Facts(config=config or {}, lineage=lineage or {}), in_flight=in_flight, at=at,
        )  # fmt: skip
        session._listen(stop_signals)
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        with suppress(CheckpointError):  # the error that is under way says more
            self.close()

    def close(self) -> None:
        """Wait for the save under way and give everything back.

        Raises:
            CheckpointError: a save failed and nobody was told.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if self._save is not None:
                self._save.settle()
                if self._save.unseen is not None:
                    self._save.wait()
        finally:
            # Until here a stop signal is a wish: it would kill the writer in the middle of the last save.
            for number, handler in self._handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            self._handlers = {}
            self._group.close()
            self._run.close()

    def resume(
        self,
        state: State,
        *,
        strict: bool = False,
        allow: Collection[str] = (),
        layout_policy: str | None = None,
        budget_bytes: int | None = None,
        watermark: Mapping[str, Any] | None = None,
        allow_pending: bool = False,
    ) -> bool:
        """Put the newest whole checkpoint into the state; a collective.

        Args:
            state: the live state; arrays of the shapes and dtypes that were saved, values and counters to be replaced.
            strict: raise damage instead of going back to an older checkpoint.
            allow: differences that are wanted, by name, such as `config.schedule`.
            layout_policy: "fresh": what is each contributor's own begins anew, as the state has it, when the number of
                contributors changed; None: that is refused.
            budget_bytes: the most that the new arrays may take beside the live ones.
            watermark: the journal's of this moment, where the checkpoint carries one; the coordinator's counts.
            allow_pending: go on over effects that were pending at the cut and are pending still.

        Returns:
            Whether there was a checkpoint; `report` says which, and what was passed over.

        Raises:
            Incompatible: it does not fit; every difference is named and the live state is untouched.
            LayoutChanged: what is each contributor's own has no place among as many contributors.
            Damaged: no checkpoint is left that could be restored.
            JournalBehind: the checkpoint carries a journal's watermark, and this journal is older, or none was given.
            JournalForked: it is another journal.
        """
        _check_word("layout_policy", layout_policy, (None, FRESH))
        terms = Terms(
            strict=strict, allow=allow, layout_policy=layout_policy, budget_bytes=budget_bytes, journal=watermark,
            beside_journal=True, allow_pending=allow_pending,
        )  # fmt: skip
        resumable = self._ask(lambda: self._restorer.resumable(state, terms))
        if resumable is None:
            return False
        self.take(resumable, state)
        return True

    def restore(
        self,
        state: State,
        *,
        profile: Literal["resume", "weights"] = "resume",
        sequence: int | None = None,
        strict: bool = False,
        allow: Collection[str] = (),
        layout_policy: str | None = None,
        budget_bytes: int | None = None,
        watermark: Mapping[str, Any] | None = None,
        allow_pending: bool = False,
    ) -> Resumable | Weights | None:
        """Read and verify a checkpoint without changing anything; a collective.

        Args:
            state: says which items, and which part of them, this contributor takes.
            profile: resume, or weights: the latter gives no state that could be resumed.
            sequence: this checkpoint; None: the newest that serves the profile.
            strict: raise damage instead of going back to an older checkpoint.
            allow: differences that are wanted, by name.
            layout_policy: as for `resume`.
            budget_bytes: the most that the new arrays may take.
            watermark: the journal's of this moment: then it is compared with the checkpoint's, as `resume` always does.
            allow_pending: as for `resume`.

        Returns:
            What was read, in new arrays of the shapes and dtypes that the state has; None when there is no checkpoint.

        Raises:
            Retired: the sequence that was asked for is no checkpoint, or was pruned.
            Damaged: it is not what was committed, or none is left that is.
            Incompatible: it does not fit the state; every difference is named.
            WeightsOnly: with a sequence: it lacks what the profile needs.
        """
        _check_word("profile", profile, PROFILES)
        _check_word("layout_policy", layout_policy, (None, FRESH))
        terms = Terms(
            profile=profile, strict=strict, allow=allow, layout_policy=layout_policy, budget_bytes=budget_bytes,
            sequence=sequence, journal=watermark, allow_pending=allow_pending,
        )  # fmt: skip
        if profile == "weights":
            return self._ask(lambda: self._restorer.weights(state, terms))
        return self._ask(lambda: self._restorer.resumable(state, terms))

    def take(self, resumable: Resumable, state: State) -> None:
        """Swap a verified checkpoint into the live state; all contributors do so.

        Raises:
            TypeError: weights are no state that training could go on from.
        """
        if not isinstance(resumable, Resumable):
            raise TypeError(f"{type(resumable).__name__} lacks what the next update needs: resume takes a Resumable.")
        resumable.swap_in(state)
        self.report = resumable.report
        self._saver.parent = resumable.report.sequence

    def save(
        self,
        state: State,
        *,
        kind: Literal["full", "weights_only"] = "full",
        watermark: Mapping[str, Any] | None = None,
    ) -> Saved:
        """Save, and return when it is committed; a collective. Arguments and errors are those of `save_async`.

        Raises:
            CommitFailed: nothing was published; the previous checkpoint stands.
            CommitUnknown: it may be committed: end this session, the next start reads what is there.
            FencedWriter: another coordinator has the run: this session is over.
        """
        return self.save_async(state, kind=kind, watermark=watermark).wait()

    def save_async(
        self,
        state: State,
        *,
        kind: Literal["full", "weights_only"] = "full",
        watermark: Mapping[str, Any] | None = None,
    ) -> Save:
        """Save, and return when all contributors have captured; a collective.

        Args:
            state: the live state, at the contract's boundary: nothing mutates it until this returns.
            kind: full, or weights_only where what the next update needs is left out on purpose.
            watermark: the journal's, read after the boundary was reached; the coordinator's counts.

        Returns:
            The save under way: `wait` says how it ended.

        Raises:
            Refused: no cut was captured, by the name of what is wrong.
            ManifestInvalid: an item, a value or the watermark is of a type that no record holds; it is named.
            ValueError: the kind is misspelt, or the session is closed.
            CheckpointError: the save before it failed and nobody was told; the others are.
        """
        self._check_over()
        _check_word("kind", kind, KINDS)
        refusal = None if self._save is None else self._refusal(self._save)
        if refusal is None and watermark is not None and self._group.rank == COORDINATOR:
            try:
                read_watermark(watermark)
            except ManifestInvalid as error:  # now, and not at every restore of what was saved with it
                refusal = error
        if refusal is not None:
            self._saver.refuse(refusal)  # the others need not wait for a deadline
            raise refusal
        self._save = self._ask(
            lambda: self._saver.begin(state, kind=kind, effects=None if watermark is None else dict(watermark))
        )
        return self._save

    def _refusal(self, previous: Save) -> BaseException | None:
        """Why the next save cannot begin, as far as the one before it says."""
        # Only the coordinator refuses: its save is over before the others have heard of it, and they must agree.
        if not previous.done and self._in_flight == "refuse" and self._group.rank == COORDINATOR:
            return CommitFailed(
                "The save before is still being written, and in_flight='refuse' was chosen. It goes on and nothing is "
                "lost: save again later."
            )
        previous.settle()
        unseen = previous.unseen
        previous.seen = True
        if isinstance(unseen, OVER):
            self._over = unseen
        return unseen

    def request_stop(self) -> None:
        """Ask all contributors to stop at the next look; a signal handler may call it."""
        self._stop_asked = True

    def agree_stop(self, updates: int) -> bool:
        """Whether to stop, the same answer on all ranks; a collective, called once per iteration.

        Args:
            updates: where this contributor stands.

        Raises:
            CutVersionMismatch: the contributors do not stand at the same update.
            FencedWriter, CommitUnknown: the session is over; all are told, also who has not heard of it from its save.
        """
        self._looks += 1
        look = self._looks
        word: Body = {"stop": self._stop_asked, "updates": updates}
        try:
            self._check_over()
        except OVER as over:
            name = f"go-on.{look}" if self._group.rank == COORDINATOR else f"stop.{look}.{self._group.rank}"
            with suppress(CheckpointError):
                self._group.publish(MEET, name, error_body(over))
            raise
        seconds = self._deadlines.entry_seconds
        answer: Body | None = None
        if self._group.rank == COORDINATOR:
            try:
                words = self._group.gather(MEET, f"stop.{look}", word, seconds=seconds)
                if look > 1 and len(words) == self._group.world:  # all have spoken since: all have read it
                    self._group.forget(MEET, f"go-on.{look - 1}")
                for rank in sorted(words):
                    if (error := error_of(words[rank])) is not None:
                        raise told_by(rank, error)
                    if words[rank]["updates"] != updates:
                        raise CutVersionMismatch(
                            f"rank {rank}: updates {words[rank]['updates']} != {updates} when asked whether to stop. "
                            "Committed checkpoints stand: call agree_stop once per iteration on every rank."
                        )
                answer = {"stop": any(each["stop"] for each in words.values())}
            except CheckpointError as refusal:
                answer = error_body(refusal)
        else:
            self._group.gather(MEET, f"stop.{look}", word, seconds=seconds)
        heard = self._group.broadcast(MEET, f"go-on.{look}", answer, seconds=seconds + self._deadlines.margin_seconds)
        self._group.forget(MEET, f"stop.{look}.{self._group.rank}")
        if (error := error_of(heard)) is not None:
            if isinstance(error, OVER):
                self._over = error
            raise error
        return bool(heard["stop"])

    def latest(
        self, *, profile: Literal["resume", "weights"] = "resume", strict: bool = False
    ) -> tuple[Found | None, tuple[Skipped, ...]]:
        """The newest checkpoint that serves a profile, and which newer ones were passed over; read from the log now."""
        self._check_open()
        _check_word("profile", profile, PROFILES)
        return latest(self._run, profile=profile, strict=strict)

    def prune(
        self, *, keep: int = FEWEST, every: int | None = None, grace_seconds: float = GRACE_SECONDS
    ) -> Pruned | None:
        """Mark what is not kept, and remove what was marked a grace ago; at the coordinator, None elsewhere.

        Args:
            keep: how many of the newest are kept, at least 2, each verified by reading it back.
            every: also keep each whose number of updates is a multiple of this.
            grace_seconds: between mark and removal.

        Raises:
            FencedWriter: another coordinator has the run; nothing was removed.
        """
        self._check_over()
        if self._group.rank != COORDINATOR:
            return None
        return prune(self._run, self._epoch, keep=keep, every=every, grace_seconds=grace_seconds)

    def pin(self, sequence: int) -> None:
        """Keep a checkpoint from retention; any contributor may.

        Raises:
            Retired: it is marked already.
        """
        self._check_open()
        pin(self._run, sequence)

    def _ask(self, collective: Callable[[], T]) -> T:
        self._check_over()
        try:
            return collective()
        except OVER as error:
            self._over = error
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("The session is closed: open another one, with a fresh launch. What is committed stands.")

    def _check_over(self) -> None:
        self._check_open()
        if self._over is None and self._save is not None and self._save.done:
            ended = self._save.error
            if isinstance(ended, OVER):
                self._save.seen = True
                self._over = ended
        if self._over is not None:
            raise self._over

    def _listen(self, stop_signals: Collection[signal.Signals]) -> None:
        if threading.current_thread() is not threading.main_thread():
            return

        def asked(number: int, frame: FrameType | None) -> None:
            del number, frame
            self.request_stop()

        for each in stop_signals:
            self._handlers[each] = signal.signal(each, asked)


def _meet(
    run: Run, group: Group, contract: Contract, deadlines: Deadlines, *, launch: str | None, writer: str
) -> Epoch:
    """Everybody is here with the same contract; then, and only then, whoever had the run is fenced."""
    word: Body = {"contract": contract.digest, "world": group.world}
    opened: Body | None = None
    epoch: Epoch | None = None
    if group.rank == COORDINATOR:
        try:
            words = group.gather(MEET, "joined", word, seconds=deadlines.entry_seconds)
            different = [
                f"contributor {rank}: {name} {told[name]!r} != {word[name]!r}"
                for rank, told in sorted(words.items())
                for name in sorted(word)
                if told[name] != word[name]
            ]
            if different:
                raise _different(different)
            epoch = open_epoch(run, launch or os.urandom(16).hex(), writer)
            opened = {"epoch": epoch.number, "launch": epoch.launch, **word}
        except CheckpointError as refusal:
            opened = error_body(refusal)
    else:
        group.gather(MEET, "joined", word, seconds=deadlines.entry_seconds)
    seconds = deadlines.entry_seconds + deadlines.margin_seconds
    heard = group.broadcast(MEET, "open", opened, seconds=seconds)
    if (error := error_of(heard)) is not None:
        raise error
    if any(heard[name] != word[name] for name in word):  # a rank beyond the coordinator's world is asked by nobody
        raise _different([f"the coordinator: {name} {heard[name]!r} != {word[name]!r}" for name in sorted(word)])
    number = heard["epoch"]
    return epoch or Epoch(number=number, launch=heard["launch"], writer=writer, slot=number)


def _different(differences: list[str]) -> Incompatible:
    return Incompatible(
        f"The contributors were started differently: {'; '.join(differences)}. This one opened nothing: start all with "
        "one contract and one world.",
        differences=tuple(differences),
    )


def _check_word(what: str, given: object, words: tuple[str | None, ...]) -> None:
    """A misspelt word is an error of the program, the same on all ranks: it is no refusal, and nothing began."""
    if given not in words:
        raise ValueError(f"{what} is {given!r}, and it is one of {', '.join(map(repr, words))}. Nothing was changed.")


def _writer() -> str:
    host = _NOT_IN_AN_ID.sub("-", socket.gethostname().partition(".")[0].lower())[:40]
    return f"pid-{os.getpid()}-{host}".rstrip("-")
