"""CPU time of real process trees, and how much of the machine others used meanwhile. Linux only: it reads /proc.

What is counted for a process tree is each member's own time and that of its children that have ended and were waited
for. A process that ends between two readings is therefore found in its parent's figures, and none is counted twice.
"""

import os
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    parent: int
    own_seconds: float
    ended_children_seconds: float


def _processes() -> dict[int, _Process]:
    found = {}
    for folder in _PROC.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # it has ended meanwhile
                found[int(folder.name)] = _parse((folder / "stat").read_text())
    return found


def _parse(stat: str) -> _Process:
    fields = stat[stat.rindex(")") + 2 :].split()  # a program's name may hold spaces and brackets
    own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return _Process(
        parent=int(fields[1]),
        own_seconds=own / _TICKS_PER_SECOND,
        ended_children_seconds=ended / _TICKS_PER_SECOND,
    )


def _tree_seconds(processes: Mapping[int, _Process], root: int) -> float:
    children = defaultdict(list)
    for pid, process in processes.items():
        children[process.parent].append(pid)
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        if pid in processes:
            total += processes[pid].own_seconds + processes[pid].ended_children_seconds
            todo += children[pid]
    return total


def tree_seconds(pid: int) -> float:
    """CPU seconds, user and system, of a process and all its descendants."""
    return _tree_seconds(_processes(), pid)


def _machine() -> tuple[float, int]:
    """CPU seconds that the whole machine has been busy, and the number of its processors."""
    lines = [line.split() for line in (_PROC / "stat").read_text().splitlines() if line.startswith("cpu")]
    user, nice, system, _idle, _waits, irq, softirq, steal, *_guest = map(int, lines[0][1:])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_SECOND, len(lines) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What was used between two readings.

    Attributes:
        seconds: on the wall.
        cpu_seconds: by part; `starter` is this process itself.
        others: the share of the whole machine that was used by neither this process nor a descendant of it.
    """

    seconds: float
    cpu_seconds: dict[str, float]
    others: float

    @property
    def total_cpu_seconds(self) -> float:
        """All parts together."""
        return sum(self.cpu_seconds.values())


class Meter:
    """Reads the CPU time of this process and of its parts; a part is a process and its descendants.

    Args:
        parts: each part's name and process id.
    """

    def __init__(self, parts: Mapping[str, int]) -> None:
        self._parts = dict(parts)
        self.restart()

    def restart(self) -> None:
        """Measure from now on."""
        self._began = time.perf_counter()
        self._cpu_seconds, self._tree_seconds = self._read()
        self._busy_seconds, self._processors = _machine()

    def usage(self) -> Usage:
        """What was used since the last start."""
        seconds = time.perf_counter() - self._began
        by_part, tree_seconds = self._read()
        foreign_seconds = _machine()[0] - self._busy_seconds - (tree_seconds - self._tree_seconds)
        return Usage(
            seconds=seconds,
            cpu_seconds={name: now - self._cpu_seconds[name] for name, now in by_part.items()},
            others=min(max(foreign_seconds / (seconds * self._processors), 0.0), 1.0),
        )

    def _read(self) -> tuple[dict[str, float], float]:
        """By part, and this process with everything that it has started."""
        processes, own = _processes(), os.getpid()
        parts = {name: _tree_seconds(processes, pid) for name, pid in self._parts.items()}
        return parts | {"starter": processes[own].own_seconds}, _tree_seconds(processes, own)
