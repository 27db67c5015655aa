"""Contributors of a small training run, each saving and resuming through a session of its own."""

import dataclasses
import os
import resource
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.checkpoints import fs
from services.checkpoints.capture import Captured
from services.checkpoints.contract import Contract
from services.checkpoints.contribution import StagedItem
from services.checkpoints.delays import SAVE, At, Hold, Late, fingerprint, mixed, wait_for
from services.checkpoints.errors import CheckpointError
from services.checkpoints.restoring import Resumable, Weights
from services.checkpoints.saving import Deadlines, Save
from services.checkpoints.session import Session
from services.checkpoints.state import Item, State, Versioned

Say = Callable[..., None]

ROWS, COLUMNS = 7, 3

CONTRACT: dict[str, Any] = {
    "format": "counterfoil-contract-1",
    "name": "small",
    "boundary": "after an update",
    "versions": {"attempts": "shared", "updates": "shared", "cursor": "shared"},
    "constants": {"batch": 2},
    "roles": {
        "param": {"required": True, "placement": "sharded", "versions": ["updates"]},
        "moment_m": {"required": True, "placement": "sharded", "absent_if": "updates == 0"},
        "buffer": {"placement": "replicated"},
        "rng": {"placement": "per_contributor"},
        "cursor": {"placement": "per_contributor", "patterns": {"cursor": "replicated"}},
        "history": {"placement": "global"},
    },
    "relations": ["attempts == updates", "cursor == updates * batch"],
    "profiles": {"resume": ["param", "moment_m", "buffer", "rng", "cursor", "history"], "weights": ["param"]},
}


def rows_of(rank: int, world: int) -> tuple[int, int]:
    """The rows of a contributor: uneven where the world does not divide them."""
    return ROWS * rank // world, ROWS * (rank + 1) // world


class Trainer:
    """A run whose arrays are functions of the update: parameters w = u, moments m = 10 u, a buffer b = 100 u."""

    def __init__(self, rank: int, world: int, *, ballast_bytes: int = 0) -> None:
        low, high = rows_of(rank, world)
        self.rank = rank
        self.w = np.zeros((high - low, COLUMNS))
        self.m = np.zeros((high - low, COLUMNS), np.float32)
        self.b = np.zeros(5, np.int64)
        self.rng = np.full(2, 1000 * rank, np.uint64)
        self.versions = Versioned({"attempts": 0, "updates": 0, "cursor": 0})
        self.values: dict[str, Any] = {"cursor": 0, "cursor/own": 220 + rank}
        if rank == 0:
            self.values["history"] = []
        box, whole = ((low, high), (0, COLUMNS)), (ROWS, COLUMNS)
        self.items = {
            "w": Item(role="param", array=self.w, box=box, global_shape=whole, source="model"),
            "m": Item(role="moment_m", array=self.m, box=box, global_shape=whole, source="model"),
            "b": Item(role="buffer", array=self.b, source="model"),
            "rng": Item(role="rng", array=self.rng),
        }
        if ballast_bytes:
            self.items["z"] = Item(role="buffer", array=np.ones(ballast_bytes, np.uint8), source="model")
        self.state = State(items=self.items, versions=self.versions, values=self.values)

    @property
    def updates(self) -> int:
        """Where it stands."""
        return self.versions["updates"]

    def update(self) -> None:
        """One update."""
        with self.versions.mutation():
            self.w += 1
            self.m += 10
            self.b += 100
            self.rng += np.uint64(1)
            self.versions.advance(attempts=1, updates=1, cursor=2)
            self.values["cursor"] = self.versions["cursor"]
            if self.rank == 0:
                self.values["history"].append(0.5 * self.updates)

    def until(self, updates: int) -> None:
        """Updates until it stands there."""
        while self.updates < updates:
            self.update()

    def fingerprint(self) -> dict[str, str]:
        """The digests of the live arrays."""
        return fingerprint({name: item.array for name, item in self.items.items()})

    def bytes(self) -> tuple[dict[str, str], dict[str, int], str]:
        """Everything that a restore may change."""
        return self.fingerprint(), dict(self.versions.timeline()), repr(self.values)

    def told(self) -> dict[str, Any]:
        """Everything of it, for the test."""
        return {
            "w": sorted(set(self.w.ravel().tolist())),
            "m": sorted(set(self.m.ravel().tolist())),
            "b": sorted(set(self.b.tolist())),
            "rng": self.rng.tolist(),
            "values": dict(self.values),
            "versions": dict(self.versions.timeline()),
        }


def whole(updates: int, rank: int, *, rng_of: int | None = None) -> dict[str, Any]:
    """What a contributor tells that stands at an update, all of it."""
    values: dict[str, Any] = {"cursor": 2 * updates, "cursor/own": 220 + rank}
    if rank == 0:
        values["history"] = [0.5 * each for each in range(1, updates + 1)]
    owner = rank if rng_of is None else rng_of
    return {
        "w": [updates], "m": [10 * updates], "b": [100 * updates], "rng": [1000 * owner + updates] * 2,
        "values": values, "versions": {"attempts": updates, "updates": updates, "cursor": 2 * updates},
    }  # fmt: skip


def opened(
    *, root: str, launch: str, rank: int, world: int, folder: str,
    hold: Sequence[str] = (), late: Mapping[str, float] | None = None, at: At | None = None,
    deadlines: Mapping[str, float] | None = None, contract: Mapping[str, Any] | None = None, **given: Any,
) -> Session:  # fmt: skip
    """A session of the small run."""
    known = {key: given[key] for key in ("config", "lineage", "in_flight") if key in given}
    if at is None:
        at = Late(seconds=late) if late else Hold(folder=Path(folder), who=str(rank), points=frozenset(hold))
    limits = {"entry_seconds": 30.0, "capture_seconds": 30.0, "persist_seconds": 30.0, "margin_seconds": 1.0}
    return Session.open(
        root, run="r1", rank=rank, world=world, launch=launch, contract=Contract.load({**CONTRACT, **(contract or {})}),
        deadlines=Deadlines(**{**limits, **(deadlines or {})}), at=at, **known,
    )  # fmt: skip


def die_at(call: int, moment: str) -> None:
    """Die by SIGKILL before or after a file-system call, counted from now on."""
    count = {"before": 0, "after": 0}

    def hook(number: int, now: str, told: str) -> None:
        del number, told
        count[now] += 1
        if now == moment and count[now] == call:
            os.kill(os.getpid(), signal.SIGKILL)

    fs.on_mutation = hook


class Script:
    """Steps that a contributor goes through; what each gave, or its named error, is said."""

    def __init__(self, say: Say, session: Session, trainer: Trainer, folder: Path) -> None:
        self._say = say
        self._session = session
        self._trainer = trainer
        self._folder = folder
        self._save: Save | None = None
        self._calls: list[str] = []

    def play(self, steps: Sequence[Sequence[Any]]) -> None:
        """All of them; an error is said and the next step is played."""
        for name, *given in steps:
            try:
                told = getattr(self, f"do_{name.replace('-', '_')}")(*given)
            except (CheckpointError, TypeError) as error:
                told = {"error": type(error).__name__, "message": str(error)}
            if told is not None:
                self._say(step=name, **told)

    def do_update(self, count: int = 1) -> None:
        """Updates."""
        for _ in range(count):
            self._trainer.update()

    def do_save(self, kind: str = "full") -> dict[str, Any]:
        """Save and wait."""
        assert kind in {"full", "weights_only"}
        saved = self._session.save(self._trainer.state, kind="full" if kind == "full" else "weights_only")
        return {"saved": saved.sequence, "updates": saved.versions["updates"], "save_id": saved.save_id}

    def do_save_beside(self, watermark: Mapping[str, Any]) -> dict[str, Any]:
        """Save, with a journal's watermark; only the coordinator's counts."""
        given = watermark if self._trainer.rank == 0 else None
        return {"saved": self._session.save(self._trainer.state, watermark=given).sequence}

    def do_async(self) -> dict[str, Any]:
        """Begin a save."""
        self._save = self._session.save_async(self._trainer.state)
        return {"released": True, "save_id": self._save.save_id}

    def do_wait(self) -> dict[str, Any]:
        """Wait for it."""
        assert self._save is not None
        saved = self._save.wait()
        return {"saved": saved.sequence, "updates": saved.versions["updates"]}

    def do_settle(self) -> None:
        """Wait until it is over, without looking how."""
        assert self._save is not None
        self._save.settle()

    def do_resume(self, asked: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Resume, and tell the state."""
        before = self._trainer.bytes()
        try:
            there = self._session.resume(self._trainer.state, **(asked or {}))
        except CheckpointError as error:
            return {"error": type(error).__name__, "message": str(error), "untouched": before == self._trainer.bytes()}
        report = self._session.report
        if not there or report is None:
            return {"there": False, "untouched": before == self._trainer.bytes()}
        skipped = [[each.sequence, each.reason] for each in report.skipped]
        if report.not_undone is not None:
            self._say(step="not-undone", **report.not_undone)
        return {"there": True, "sequence": report.sequence, "state": self._trainer.told(), "skipped": skipped}

    def do_weights(self) -> dict[str, Any]:
        """The weights alone; then try to train on from them."""
        weights = self._session.restore(self._trainer.state, profile="weights")
        assert isinstance(weights, Weights)
        self._say(names=sorted(weights.arrays), sequence=weights.report.sequence)
        # What a type checker refuses, the running program refuses as well.
        self._session.take(weights, self._trainer.state)  # type: ignore[arg-type]
        return {"taken": True}

    def do_read_back(self) -> dict[str, Any]:
        """What the newest checkpoint holds, beside the live state."""
        found = self._session.restore(self._trainer.state)
        assert isinstance(found, Resumable)
        arrays = {name: sorted(set(array.ravel().tolist())) for name, array in found.arrays.items() if name != "rng"}
        return {"arrays": arrays, "live": self._trainer.updates, "versions": dict(found.versions)}

    def do_latest(self) -> dict[str, Any]:
        """What the log says now."""
        found, skipped = self._session.latest()
        return {"latest": found.sequence if found else None, "skipped": [each.sequence for each in skipped]}

    def do_patience(self, seconds: Mapping[str, float]) -> None:
        """Other deadlines for this contributor from here on: short ones only where a test is about their end."""
        deadlines = dataclasses.replace(self._session._deadlines, **seconds)
        self._session._deadlines = self._session._saver._deadlines = deadlines

    def do_stop(self) -> dict[str, Any]:
        """One look."""
        return {"stop": self._session.agree_stop(self._trainer.updates)}

    def do_signal(self) -> None:
        """The signal comes now, to this process."""
        os.kill(os.getpid(), signal.SIGTERM)

    def do_fail(self, call: str, number: int) -> None:
        """File-system calls whose description begins and ends so fail from now on."""
        begin, _, end = call.partition("*")

        def hook(count: int, moment: str, told: str) -> None:
            del count
            verb, _, path = told.partition(" ")
            if moment == "before" and verb == begin and path.partition(" ")[0].endswith(end):
                raise OSError(number, os.strerror(number))

        fs.on_mutation = hook

    def do_record(self) -> None:
        """Record the file-system calls from now on."""
        self._calls.clear()

        def hook(number: int, moment: str, told: str) -> None:
            del number
            if moment == "before":
                self._calls.append(told.partition(" ")[0])

        fs.on_mutation = hook

    def do_calls(self) -> dict[str, Any]:
        """What they were."""
        return {"calls": list(self._calls)}

    def do_die(self, call: int, moment: str) -> None:
        """Die by SIGKILL before or after a file-system call, counted from now on."""
        die_at(call, moment)

    def do_limit(self, nbytes: int) -> None:
        """No file of this process may grow beyond that: the kernel's own refusal, as of a disk that is full."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, resource.RLIM_INFINITY))

    def do_mend(self) -> None:
        """They work again."""
        fs.on_mutation = None
        self.do_limit(resource.RLIM_INFINITY)

    def do_tear(self) -> None:
        """A mutation begins, and does not end."""
        self._trainer.versions.begin("model")
        self._trainer.w[:1] += 1

    def do_whole(self) -> None:
        """It ends, undone."""
        self._trainer.w[:1] -= 1
        self._trainer.versions.end("model")

    def do_nan(self, value: float | None = None) -> None:
        """A weight is not a number, or a number again."""
        self._trainer.w[0, 0] = float("nan") if value is None else value

    def do_big_endian(self) -> None:
        """The live weights have their bytes in the other order, which no checkpoint has."""
        self._trainer.items["w"] = dataclasses.replace(self._trainer.items["w"], array=self._trainer.w.astype(">f8"))

    def do_advance(self, by: Mapping[str, int]) -> None:
        """Counters move alone."""
        with self._trainer.versions.mutation():
            self._trainer.versions.advance(**by)

    def do_await(self, name: str) -> None:
        """Wait for the test."""
        assert wait_for(self._folder / name, longest_seconds=60)

    def do_touch(self, name: str) -> None:
        """The test is told."""
        self._folder.joinpath(name).touch()

    def do_tell(self) -> dict[str, Any]:
        """The live state."""
        return {"state": self._trainer.told()}

    def do_pin(self, sequence: int) -> None:
        """Keep a checkpoint."""
        self._session.pin(sequence)

    def do_prune(self) -> dict[str, Any]:
        """Mark what is not kept, and remove what was marked."""
        pruned = self._session.prune(keep=2, grace_seconds=0)
        return {"pruned": None if pruned is None else {"kept": pruned.kept, "marked": pruned.marked}}

    def do_even(self) -> None:
        """What was each contributor's own is the same everywhere."""
        self._trainer.rng[:] = 7
        self._trainer.values["cursor/own"] = 7

    def do_fetched(self, count: int) -> None:
        """Samples were read ahead."""
        with self._trainer.versions.mutation():
            self._trainer.versions.set(fetched=count)

    def do_draw(self, count: int) -> dict[str, Any]:
        """Numbers of this contributor's own generator, whose state is a value (two integers of 128 bits)."""
        generator = np.random.Generator(np.random.PCG64(self._trainer.rank))
        if "config/generator" in self._trainer.values:
            generator.bit_generator.state = self._trainer.values["config/generator"]
        numbers = generator.integers(0, 1 << 30, count).tolist()
        self._trainer.values["config/generator"] = dict(generator.bit_generator.state)
        return {"numbers": numbers}


def script(say: Say, *, steps: Sequence[Sequence[Any]], **given: Any) -> None:
    """Open a session and play the steps in it; an error of opening or closing is said, too."""
    trainer = Trainer(given["rank"], given["world"], ballast_bytes=given.pop("ballast_bytes", 0))
    if "die_at" in given:
        die_at(*given.pop("die_at"))
    try:
        with opened(**given) as session:
            say(epoch=session.epoch)
            Script(say, session, trainer, Path(given["folder"])).play(steps)
    except CheckpointError as error:
        say(step="session", error=type(error).__name__, message=str(error))


def until_stopped(say: Say, *, signalled: Sequence[int] = (), **given: Any) -> None:
    """Train until all agree to stop, with a signal to one contributor between its look and its next update."""
    trainer = Trainer(given["rank"], given["world"])
    with opened(**given) as session:
        while True:
            trainer.update()
            stop = session.agree_stop(trainer.updates)
            if trainer.updates in signalled:
                os.kill(os.getpid(), signal.SIGTERM)
            save = session.save_async(trainer.state) if stop or trainer.updates % 4 == 0 else None
            if stop and save is not None:
                say(stopped=trainer.updates, saved=save.wait().versions["updates"])
                return


def signalled_in_close(say: Say, **given: Any) -> None:
    """The stop signal comes while `close` waits for the last save."""
    trainer = Trainer(given["rank"], given["world"])
    session = opened(**given)
    trainer.update()
    save = session.save_async(trainer.state)
    settle = save.settle

    def signalled() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        settle()

    setattr(save, "settle", signalled)  # noqa: B010 - the moment that is to be met
    session.close()
    say(saved=save.wait().sequence, handler=signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)


def live_writer(say: Say, **given: Any) -> None:
    """A writer that reads the live arrays late: its digests and file names are valid, its bytes of two moments."""
    trainer = Trainer(given["rank"], given["world"])
    moments = {}

    def staged_late(captured: Captured) -> tuple[StagedItem, ...]:
        items = []
        for copy in captured.copies:
            trainer.update()
            moments[trainer.updates] = trainer.fingerprint()
            buffer = memoryview(trainer.items[copy.name].array.tobytes())
            items.append(dataclasses.replace(copy, buffer=buffer).staged())
        return tuple(items)

    if given.pop("late"):
        setattr(Captured, "staged", staged_late)  # noqa: B010 - the fault that is to be found
    with opened(**given) as session:
        trainer.update()
        moments[trainer.updates] = trainer.fingerprint()
        saved = session.save(trainer.state)
        found = session.restore(trainer.state, sequence=saved.sequence, allow=("contract",))
        assert isinstance(found, Resumable)
        say(mixed=mixed(fingerprint(found.arrays), moments))


def delays(say: Say, **given: Any) -> None:
    """Every point of a save, this contributor late at it or not, and updates as soon as the trainer may."""
    trainer = Trainer(given["rank"], given["world"])
    turn: dict[str, Any] = {"point": None, "rank": None}
    pause = threading.Event()

    def late(point: str) -> None:
        if (point, given["rank"]) == (turn["point"], turn["rank"]):
            pause.wait(0.03)

    with opened(at=late, **given) as session:
        for point in SAVE:
            for rank in range(given["world"]):
                turn.update(point=point, rank=rank)
                trainer.update()
                at = trainer.updates
                save = session.save_async(trainer.state)
                trainer.update()
                saved = save.wait()
                found = session.restore(trainer.state, sequence=saved.sequence)
                assert isinstance(found, Resumable)
                read = {name: sorted(set(array.ravel().tolist())) for name, array in found.arrays.items()}
                mine = [1000 * given["rank"] + at]
                whole_one = read == {"w": [at], "m": [10 * at], "b": [100 * at], "rng": mine}
                say(point=point, late=rank, whole=whole_one, versions=found.versions["updates"] == at)


def mutations(say: Say, **given: Any) -> None:
    """Every point of a save, and an update of one contributor alone at it: how the save ends, and what it holds."""
    trainer = Trainer(given["rank"], given["world"])
    turn: dict[str, Any] = {"point": None, "rank": None}

    def mutate(point: str) -> None:
        if (point, given["rank"]) == (turn["point"], turn["rank"]):
            turn["point"] = None
            trainer.update()

    with opened(at=mutate, **given) as session:
        for point in SAVE:
            for rank in range(given["world"]):
                trainer.until(trainer.updates + 1)
                at = trainer.updates
                turn.update(point=point, rank=rank)
                try:
                    saved = session.save(trainer.state)
                except CheckpointError as error:
                    ended, whole_one = type(error).__name__, True
                else:
                    found = session.restore(trainer.state, sequence=saved.sequence)
                    assert isinstance(found, Resumable)
                    read = {name: set(array.ravel().tolist()) for name, array in found.arrays.items() if name != "rng"}
                    ended = "committed"
                    whole_one = read == {"w": {at}, "m": {10 * at}, "b": {100 * at}}
                trainer.until(at + 1)
                say(point=point, by=rank, ended=ended, whole=whole_one)


STORIES: dict[str, Callable[..., None]] = {
    "mutations": mutations,
    "script": script,
    "until-stopped": until_stopped,
    "signalled-in-close": signalled_in_close,
    "live-writer": live_writer,
    "delays": delays,
}
