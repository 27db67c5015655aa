"""A process that uses the store as it is told, so that commits, fences and removals are those of real processes.

It reads one JSON command a line and answers one line. `hold` stops it before a file-system call that matches, says so
and waits for a line; `fail` lets such a call fail; `die` kills it by SIGKILL before or after the call of a number.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from services.checkpoints import fs
from services.checkpoints.commit import commit
from services.checkpoints.contribution import StagedItem, write_contribution
from services.checkpoints.dtypes import dtype_of
from services.checkpoints.errors import CheckpointError
from services.checkpoints.importing import import_files
from services.checkpoints.layout import Run
from services.checkpoints.log import Epoch, open_epoch
from services.checkpoints.manifest import Intent
from services.checkpoints.reading import Want, latest, load, read_items, verify
from services.checkpoints.records import canonical, digest_of, sealed
from services.checkpoints.retention import check_idle, pin, prune, unpin
from tests.services.checkpoints.bench import contract


def say(**what: Any) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


class Writer:
    """One process's state: the run, its epoch, and what is to happen at which call."""

    def __init__(self, root: str, run: str) -> None:
        self.root = root
        self.epoch: Epoch | None = None
        self.holds: list[str] = []
        self.fails: list[tuple[str, int]] = []
        self.dies: tuple[int, str] | None = None
        self.calls: list[str] = []
        fs.on_mutation = self.hook
        self.run = Run.open(root, run, create=True)

    def hook(self, _number: int, moment: str, call: str) -> None:
        """What the tests do at a file-system call."""
        if moment == "before":
            self.calls.append(call)
        if self.dies == (len(self.calls), moment):
            os.kill(os.getpid(), signal.SIGKILL)
        if moment != "before":
            return
        for pattern in self.holds:
            if re.search(pattern, call):
                self.holds.remove(pattern)
                say(ok={"held": call})
                sys.stdin.readline()
                break
        for pattern, code in self.fails:
            if re.search(pattern, call):
                raise OSError(code, os.strerror(code))

    def do(self, command: dict[str, Any]) -> Any:
        """One command."""
        method: Callable[..., Any] = getattr(self, "do_" + command.pop("do"))
        return method(**command)

    def do_hold(self, call: str) -> None:
        """Stop before the next call that matches."""
        self.holds.append(call)

    def do_fail(self, call: str, code: int) -> None:
        """Let every call that matches fail."""
        self.fails.append((call, code))

    def do_die(self, number: int, moment: str) -> None:
        """Die at the call of a number, counted from here."""
        self.calls.clear()
        self.dies = (number, moment)

    def do_calls(self) -> list[str]:
        """The calls since the last time that this was asked."""
        said, self.calls = self.calls, []
        return said

    def do_open(self, writer: str, launch: str) -> int:
        """Take the right to write."""
        self.epoch = open_epoch(self.run, launch, writer)
        return self.epoch.number

    def do_declare(self, save_id: str) -> None:
        """The folder of a save, and the slot it intends to have."""
        assert self.epoch is not None
        with self.run.save(self.epoch.number, save_id, create=True) as folder:
            body = {"format": "counterfoil-declare-1", "save_id": save_id, "sequence": self.epoch.slot + 1}
            folder.publish("declare", canonical(sealed(body)), durable=False)

    def do_contribute(self, save_id: str, contributor: str, lowest: bool, items: list[Any], **rest: Any) -> str:
        """One contributor's bytes and record."""
        assert self.epoch is not None
        staged = []
        for each in items:
            box = tuple((start, stop) for start, stop in each["box"])
            array = np.asarray(each["data"], np.float64).astype(dtype_of(each["dtype"]))
            if "fill" in each:  # a large one, that no line could hold
                array = np.full([stop - start for start, stop in box], each["fill"], array.dtype)
            data = array.tobytes()
            staged.append(
                StagedItem(
                    name=each["name"],
                    role=each["role"],
                    placement=each["placement"],
                    dtype=each["dtype"],
                    global_shape=tuple(each["shape"]),
                    box=box,
                    buffer=memoryview(data),
                    digest=digest_of(data),
                    finite=each["finite"],
                )
            )
        with self.run.save(self.epoch.number, save_id) as folder:
            return write_contribution(
                folder, save_id=save_id, contributor=contributor, lowest=lowest, items=staged, **rest
            )  # fmt: skip

    def do_commit(self, save_id: str, world: list[str], digests: dict[str, str] | None = None, **rest: Any) -> Any:
        """Publish a save."""
        assert self.epoch is not None
        rules = contract(**rest.pop("contract", {}))
        intent = Intent(save_id=save_id, world=tuple(world), config={"schedule": 1000}, lineage={}, **rest)
        done = commit(self.run, self.epoch, rules, intent, digests=digests, timing={"blocked_seconds": 0.5})
        return {"sequence": done.sequence, "digest": done.digest}

    def do_latest(self, **rest: Any) -> Any:
        """What a restore would choose, and its first item."""
        found, skipped = latest(self.run, **rest)
        passed = [[each.sequence, each.reason] for each in skipped]
        if found is None:
            return {"sequence": None, "skipped": passed}
        first = read_items(self.run, found, [Want(name="w")])["w"]
        return {
            "sequence": found.sequence, "skipped": passed, "updates": found.manifest.versions["updates"],
            "w": first.astype(float).tolist(),
        }  # fmt: skip

    def do_load(self, sequence: int) -> Any:
        """Open a checkpoint, wait for a line, and read it."""
        found = load(self.run, sequence)
        say(ok="loaded")
        sys.stdin.readline()
        return read_items(self.run, found, [Want(name="w")])["w"].astype(float).tolist()

    def do_prune(self, **rest: Any) -> Any:
        """Retention by this process's epoch."""
        assert self.epoch is not None
        done = prune(self.run, self.epoch, **rest)
        return {"kept": done.kept, "marked": done.marked, "removed": done.removed, "abandoned": done.abandoned,
                "damaged": done.damaged}  # fmt: skip

    def do_idle(self, take_it_over: bool, writer: str) -> int:
        """An epoch for a command from outside."""
        self.epoch = check_idle(self.run, take_it_over=take_it_over, writer=writer)
        return self.epoch.number

    def do_import(self, paths: list[str], run: str, **rest: Any) -> Any:
        """Files become a checkpoint of a run."""
        done = import_files(self.root, run, [Path(each) for each in paths], **rest)
        return {
            "sequence": None if done.committed is None else done.committed.sequence, "kind": done.kind,
            "profiles": done.profiles, "versions": dict(done.versions), "items": done.items,
        }  # fmt: skip

    def do_pin(self, sequence: int) -> None:
        """Pin."""
        pin(self.run, sequence)

    def do_unpin(self, sequence: int) -> None:
        """Unpin."""
        unpin(self.run, sequence)

    def do_verify(self, **rest: Any) -> Any:
        """All damages."""
        return [[each.sequence, each.reason, each.usable] for each in verify(self.run, **rest)]

    def do_race(self, writer: str, launch: str, rounds: int, first: int) -> Any:
        """Open and commit so often; what became of each."""
        outcome: list[list[Any]] = []
        for number in range(rounds):
            name = f"{first + number:032x}"
            try:
                if self.epoch is None:
                    outcome.append(["open", self.do_open(writer, launch)])
                self.do_declare(name)
                items = [
                    {"name": n, "role": r, "placement": "sharded", "dtype": "float32", "shape": [1], "box": [[0, 1]],
                     "data": [1.0], "finite": True} for n, r in (("w", "param"), ("m.w", "moment_m"))
                ]  # fmt: skip
                at = {"attempts": 1, "updates": 1, "skips": 0, "scheduler": 1, "cursor": 2, "microbatch": 0,
                      "in_flight": 0, "fetched": 2}  # fmt: skip
                self.do_contribute(name, "0", True, items, versions=at, values={"cursor": 2})
                outcome.append(["commit", self.do_commit(name, ["0"])["sequence"], name])
            except CheckpointError as error:
                outcome.append([type(error).__name__])
                self.epoch = None
        return outcome


def main(root: str, run: str) -> None:
    """Until the commands end."""
    this = Writer(root, run)
    for line in sys.stdin:
        try:
            say(ok=this.do(json.loads(line)))
        except (CheckpointError, OSError) as error:
            say(error=type(error).__name__, message=str(error))


def forked(_say: Callable[..., None], *, root: str, run: str, commands: str, answers: str) -> None:
    """The same in a process that was forked: its commands and answers go through pipes that have names."""
    sys.stdin, sys.stdout = Path(commands).open(), Path(answers).open("w")  # noqa: SIM115 - open until its end
    main(root, run)


STORIES = {"writer": forked}

if __name__ == "__main__":
    main(*sys.argv[1:])
