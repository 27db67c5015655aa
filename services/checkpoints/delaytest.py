"""The delay test: a trainer of one's own, run once per point and contributor, one of them late, and judged by bytes.

What this module guarantees:

- The trainer is the user's, started by the user's command; what goes on elsewhere while one contributor is late is its
  own training.
- What was committed is judged by its bytes: the digests of all items of all contributors, each verified against the
  file, must be those of one boundary of the undelayed run, and that boundary must be the update that the record names.
- A point that was not reached, a run that failed without a name and a trainer whose undelayed boundaries are not those
  of its delayed runs are none of them a pass.
"""

import json
import os
import secrets
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from . import errors, reading
from .delays import SAVE, mixed
from .errors import CheckpointError, Incompatible, Retired
from .group import COORDINATOR
from .layout import Run
from .log import LogRecord, read_log
from .probe import VARIABLE, Delay

LEADERS: Final = ("recorded", "committed")  # points that the coordinator alone comes to
WAITED, REFUSED, MIXED = "waited", "refused by name", "MIXED"
NOT_REACHED, FAILED, UNJUDGED = "NOT REACHED", "FAILED", "NOT JUDGED"
PASSES: Final = (WAITED, REFUSED)
_TAIL: Final = 400  # characters of what a failed trainer said last


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What to run.

    Attributes:
        command: of the trainer, with {root}, {launch}, {world} and perhaps {rank}: with {rank} it is started once for
            each contributor, without it once, and starts its contributors itself.
        world: how many contributors.
        run: the id of the run that it saves.
        points: of a save, at which somebody is late.
        seconds: how late.
        longest_seconds: of one run of the trainer.
    """

    command: str
    world: int
    run: str
    points: tuple[str, ...] = SAVE
    seconds: float = 0.5
    longest_seconds: float = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of the trainer.

    Attributes:
        point: at which a contributor was late; None: the undelayed run.
        rank: which one.
        verdict: waited, refused by name, or in capitals what is wrong.
        says: what was seen.
        checkpoints: how many were committed and judged.
    """

    point: str | None
    rank: int | None
    verdict: str
    says: str
    checkpoints: int

    @property
    def passed(self) -> bool:
        """Waited, or refused by name."""
        return self.verdict in PASSES


@dataclass(slots=True, kw_only=True)
class _Seen:
    """What one run of the trainer left."""

    returncode: int | None
    said: str
    late: bool = False
    refused: list[str] = field(default_factory=list)
    moments: dict[int, dict[str, str]] = field(default_factory=dict)
    updates: dict[int, int] = field(default_factory=dict)
    taken: list[tuple[int, int | None, dict[str, str]]] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def delay_test(trial: Trial, progress: Callable[[Cell], None] = lambda _cell: None) -> tuple[Cell, ...]:
    """Run the trainer undelayed, then once for each point and contributor.

    Raises:
        Incompatible: the command cannot be started, or its undelayed run shows nothing that could be judged.
    """
    if unknown := [point for point in trial.points if point not in SAVE]:
        raise Incompatible(f"No save has a point {unknown[0]!r}: its points are {', '.join(SAVE)}.")
    if not shlex.split(trial.command):
        raise Incompatible("The command is empty: give the one that starts the trainer.")
    whole = _ran(trial, None, 0)
    if whole.returncode != 0:
        raise Incompatible(f"The trainer does not come to its end undelayed: {_ended(whole)}")
    if not whole.moments or not whole.taken:
        raise Incompatible(
            f"The undelayed run of {trial.run} left {len(whole.moments)} boundaries and {len(whole.taken)} "
            "checkpoints: the trainer has to call resume(state), agree_stop(updates) once per iteration and save or "
            "save_async(state), and {root} has to be its store."
        )
    cells = [_judged(whole, whole, None, None)]
    progress(cells[0])
    for point in trial.points:
        for rank in range(1 if point in LEADERS else trial.world):
            cells.append(_judged(_ran(trial, point, rank), whole, point, rank))
            progress(cells[-1])
    return tuple(cells)


def _judged(seen: _Seen, whole: _Seen, point: str | None, rank: int | None) -> Cell:
    """What the run of a cell was."""

    def cell(verdict: str, says: str) -> Cell:
        return Cell(point=point, rank=rank, verdict=verdict, says=says, checkpoints=len(seen.taken))

    different = [look for look in seen.moments if seen.moments[look] != whole.moments.get(look)]
    if different and not seen.damaged:
        at = seen.updates[different[0]]
        return cell(UNJUDGED, f"at update {at} the trainer's own arrays were not those of its undelayed run")
    wrong = [*seen.damaged, *_mixtures(seen, whole)]
    if wrong:
        return cell(MIXED, "; ".join(wrong))
    if point is not None and not seen.late:
        return cell(NOT_REACHED, f"contributor {rank} never came to {point}; {_ended(seen)}")
    named = list(dict.fromkeys([*seen.refused, *_names(seen.said)] if seen.returncode else seen.refused))
    if named:
        return cell(REFUSED, ", ".join(named))
    if seen.returncode != 0:
        return cell(FAILED, _ended(seen))
    if len(seen.taken) < len(whole.taken):
        return cell(FAILED, f"{len(seen.taken)} checkpoints, {len(whole.taken)} undelayed, and no error was raised")
    return cell(WAITED, "every checkpoint is of one boundary")


def _mixtures(seen: _Seen, whole: _Seen) -> Iterator[str]:
    for sequence, updates, taken in seen.taken:
        wrong = mixed(taken, {f"update {whole.updates[look]}": each for look, each in whole.moments.items()})
        if wrong is not None:
            yield f"checkpoint {sequence}: {wrong}"
            continue
        of = sorted({whole.updates[look] for look, each in whole.moments.items() if each == taken})
        if updates is not None and updates not in of:
            yield f"checkpoint {sequence} says update {updates} and has the bytes of {' or '.join(map(str, of))}"


def _ran(trial: Trial, point: str | None, rank: int) -> _Seen:
    """Run the trainer once, in folders of its own."""
    with tempfile.TemporaryDirectory(prefix="counterfoil-delay-") as place:
        root, left = Path(place, "store"), Path(place, "left")
        left.mkdir()
        delay = Delay(folder=str(left), point=point, rank=rank, seconds=trial.seconds)
        returncode, said = _run_command(trial, root, os.environ | {VARIABLE: delay.told()})
        seen = _Seen(returncode=returncode, said=said)
        _hear(seen, left, trial.world)
        _read(seen, root, trial.run)
    return seen


def _run_command(trial: Trial, root: Path, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """How the trainer ended: 0, the first other code of its processes, or None when it did not; and what it said."""
    names = {"root": str(root), "world": str(trial.world), "launch": secrets.token_hex(16)}
    each_rank = "{rank}" in trial.command
    started: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryFile() as told:
        try:
            for rank in range(trial.world if each_rank else 1):
                arguments = _filled(trial.command, names | {"rank": str(rank)})
                started.append(
                    subprocess.Popen(  # noqa: S603 - the user's own command, and no shell
                        arguments, env=dict(environment), stdin=subprocess.DEVNULL, stdout=told, stderr=told,
                        start_new_session=True,
                    )
                )  # fmt: skip
            codes: list[int | None] = [process.wait(trial.longest_seconds) for process in started]
        except subprocess.TimeoutExpired:
            codes = [None]
        except OSError as error:
            raise Incompatible(f"The command cannot be started: {error}.") from error
        finally:
            for process in started:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # with those that it has started
                process.wait()
        told.seek(0)
        said = told.read().decode(errors="replace")
    return next((code for code in codes if code != 0), 0), said


def _filled(command: str, names: Mapping[str, str]) -> list[str]:
    """The command's words; only what stands in braces by these names is replaced."""
    words = []
    for word in shlex.split(command):
        filled = word
        for name, value in names.items():
            filled = filled.replace(f"{{{name}}}", value)
        words.append(filled)
    return words


def _hear(seen: _Seen, left: Path, world: int) -> None:
    """What the sessions left: boundaries at which all contributors stood, and what was refused."""
    parts: dict[int, dict[int, dict[str, Any]]] = {}
    for rank in range(world):
        file = left / f"{rank}.jsonl"
        for line in file.read_text().splitlines() if file.exists() else ():
            told = json.loads(line)
            seen.late = seen.late or "late" in told
            if "refused" in told and told["refused"] not in seen.refused:
                seen.refused.append(told["refused"])
            if "look" in told:
                parts.setdefault(told["look"], {})[rank] = told
    for look, ranks in sorted(parts.items()):
        if len(ranks) == world:
            seen.updates[look] = ranks[COORDINATOR]["updates"]
            seen.moments[look] = {
                f"{name} of {rank}": digest for rank, told in ranks.items() for name, digest in told["items"].items()
            }


def _read(seen: _Seen, root: Path, run_id: str) -> None:
    """Every checkpoint that was committed, its bytes verified."""
    if not (root / "runs" / run_id).exists():
        return
    with Run.open(root, run_id) as run:
        for sequence, record in enumerate(read_log(run), 1):
            if isinstance(record, LogRecord) and record.kind != "commit":
                continue
            try:
                found = reading.load(run, sequence)
                reading.verify_items(run, found)
            except Retired:
                continue
            except CheckpointError as error:
                seen.damaged.append(f"checkpoint {sequence} is not what its record says: {type(error).__name__}")
                continue
            taken = {
                f"{item.name} of {who}": item.digest for who, each in found.contributions.items() for item in each.items
            }
            seen.taken.append((sequence, found.manifest.versions.get("updates"), taken))


_NAMED: Final = frozenset(
    name for name, each in vars(errors).items()
    if isinstance(each, type) and issubclass(each, CheckpointError) and each is not CheckpointError
)  # fmt: skip


def _names(said: str) -> list[str]:
    """The store's errors that a trainer's traceback ends with."""
    heads = [line.partition(":")[0].rpartition(".")[2] for line in said.splitlines()]
    return [name for name in dict.fromkeys(heads) if name in _NAMED]


def _ended(seen: _Seen) -> str:
    how = "it did not end in time" if seen.returncode is None else f"it ended with {seen.returncode}"
    tail = seen.said.strip()[-_TAIL:]
    return f"{how}{': ' if tail else ''}{tail}"


def document(cells: Sequence[Cell]) -> dict[str, Any]:
    """The report as JSON has it."""
    return {"passed": all(cell.passed for cell in cells), "cells": [asdict(cell) for cell in cells]}
