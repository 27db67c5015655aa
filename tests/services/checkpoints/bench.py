"""What the tests of the store are made with: a contract, arrays, and the parent's side of a real writer process."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from services.checkpoints.contract import Contract
from tests.services.checkpoints.crew import nursery

ROOT = Path(__file__).parents[3]
LAUNCH = "a" * 32

DOCUMENT: dict[str, Any] = {
    "format": "counterfoil-contract-1",
    "name": "test",
    "boundary": "after an update, applied or skipped",
    "versions": {
        "attempts": "shared", "updates": "shared", "skips": "shared", "scheduler": "shared", "cursor": "shared",
        "microbatch": "shared", "in_flight": "shared", "fetched": "per_contributor",
    },
    "constants": {"start": 0, "batch": 2},
    "roles": {
        "param": {"required": True, "placement": "sharded", "versions": ["updates"]},
        "moment_m": {"required": True, "placement": "sharded", "versions": ["updates"], "absent_if": "updates == 0"},
        "buffer": {"placement": "replicated", "finite": "allow"},
        "rng": {"placement": "per_contributor"},
        "scheduler": {"placement": "global", "agrees": {"last": "scheduler"}},
        "cursor": {"required": True, "placement": "global", "agrees": {"": "cursor"}},
        "master": {"placement": "sharded"},
    },
    "relations": [
        "updates + skips == attempts", "scheduler == updates", "cursor == start + attempts * batch",
        "sum(fetched) >= cursor",
    ],
    "profiles": {"resume": ["param", "moment_m", "cursor"], "weights": ["param"]},
    "reproducibility": "exact",
}  # fmt: skip


def contract(**changes: Any) -> Contract:
    """The tests' contract, with members exchanged."""
    return Contract.load({**DOCUMENT, **changes})


def versions(updates: int, *, skips: int = 0, **changes: int) -> dict[str, int]:
    """What a contributor states after so many updates."""
    attempts = updates + skips
    return {
        "attempts": attempts, "updates": updates, "skips": skips, "scheduler": updates, "cursor": 2 * attempts,
        "microbatch": 0, "in_flight": 0, "fetched": 2 * attempts, **changes,
    }  # fmt: skip


def item(
    name: str,
    array: Any,
    *,
    role: str = "param",
    placement: str = "sharded",
    dtype: str = "float64",
    box: Sequence[Sequence[int]] | None = None,
    shape: Sequence[int] | None = None,
    finite: bool = True,
) -> dict[str, Any]:
    """An item as a writer process is told it."""
    data = np.asarray(array, np.float64)
    shape = list(data.shape) if shape is None else list(shape)
    return {
        "name": name, "role": role, "placement": placement, "dtype": dtype, "shape": shape, "data": data.tolist(),
        "box": [[0, length] for length in shape] if box is None else box, "finite": finite,
    }  # fmt: skip


def rows(array: Any, world: int) -> list[tuple[list[list[int]], Any]]:
    """An array's rows, shared out unevenly: the first contributors have one more."""
    data = np.asarray(array)
    cuts = [round(len(data) * rank / world) for rank in range(world + 1)]
    rest = [[0, length] for length in data.shape[1:]]
    return [
        ([[start, stop], *rest], data[start:stop]) for start, stop in itertools.pairwise(cuts)
    ]  # fmt: skip


class Answered(Exception):
    """A writer process answered with an error."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class Forked:
    """A writer process that was forked, with what a `Popen` has: it costs milliseconds, and no import."""

    def __init__(self, root: Path, run: str) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="counterfoil-writer-"))
        pipes = [self._folder / name for name in ("commands", "answers")]
        for pipe in pipes:
            os.mkfifo(pipe)
        told = {"root": str(root), "run": run, "commands": str(pipes[0]), "answers": str(pipes[1])}
        self.pid: int = nursery().ask(story="writer", told=told, output=str(self._folder / "said"))["pid"]
        self.stdin, self.stdout = pipes[0].open("w"), pipes[1].open()
        self.returncode: int | None = None

    def kill(self) -> None:
        """SIGKILL; it keeps its id until it is waited for."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """How it ended."""
        if self.returncode is None:
            self.returncode = int(nursery().ask(wait=self.pid, seconds=timeout)["returncode"])
            sys.stderr.write(self._folder.joinpath("said.err").read_text())
            shutil.rmtree(self._folder)
        return self.returncode


class Writer:
    """A real process that does with the store what it is told, one line a command."""

    def __init__(self, root: Path, run: str = "r1", *, under: Sequence[str] = ()) -> None:
        self.process: Forked | subprocess.Popen[str]
        if not under:
            self.process = Forked(root, run)
            return
        self.process = subprocess.Popen(
            [*under, sys.executable, "-m", "tests.services.checkpoints.writer", str(root), run],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def tell(self, do: str, **what: Any) -> None:
        """Send a command and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **what}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The next line it says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EOFError(f"the writer ended with {self.process.wait(timeout=60)}")
        said = json.loads(line)
        if "error" in said:
            raise Answered(said["error"], said["message"])
        return said["ok"]

    def ask(self, do: str, **what: Any) -> Any:
        """A command and its answer."""
        self.tell(do, **what)
        return self.answer()

    def save(
        self,
        save_id: str,
        parts: Mapping[str, Sequence[dict[str, Any]]],
        at: Mapping[str, int],
        **changes: Any,
    ) -> int:
        """All contributors' records by this one process, and the commit."""
        self.contribute(save_id, parts, at)
        return int(self.ask("commit", save_id=save_id, world=list(parts), **changes)["sequence"])

    def contribute(self, save_id: str, parts: Mapping[str, Sequence[dict[str, Any]]], at: Mapping[str, int]) -> None:
        """All contributors' records by this one process."""
        self.ask("declare", save_id=save_id)
        for number, (contributor, items) in enumerate(parts.items()):
            values = {"cursor": at["cursor"]} if number == 0 else {}
            self.ask(
                "contribute", save_id=save_id, contributor=contributor, lowest=number == 0, items=list(items),
                versions=dict(at), values=values,
            )  # fmt: skip

    def close(self) -> int:
        """End it by the end of its commands."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """End it by SIGKILL, if it lives."""
        if self.process.returncode is None:
            self.process.kill()
        self.close()


@contextmanager
def writer(root: Path, run: str = "r1", *, under: Sequence[str] = ()) -> Iterator[Writer]:
    """A writer process for the length of a test; `under` is the beginning of a command that starts it."""
    process = Writer(root, run, under=under)
    try:
        yield process
    finally:
        process.kill()


def save_id(number: int) -> str:
    """A save id that a person can tell from another."""
    return f"{number:032x}"


def one(updates: int, value: float | None = None, size: int = 4) -> dict[str, list[dict[str, Any]]]:
    """One contributor's items after so many updates."""
    filled = float(updates) if value is None else value
    return {
        "0": [
            item("w", np.full((size, 2), filled)),
            *([item("m.w", np.full((size, 2), filled / 2), role="moment_m")] if updates else []),
        ]
    }


def many(updates: int, world: int, whole: Any) -> dict[str, list[dict[str, Any]]]:
    """Several contributors' items: rows of one array and of its moment."""
    shape = np.asarray(whole).shape
    return {
        str(rank): [
            item("w", part, box=box, shape=shape),
            *([item("m.w", part / 2, role="moment_m", box=box, shape=shape)] if updates else []),
        ]
        for rank, (box, part) in enumerate(rows(whole, world))
    }
