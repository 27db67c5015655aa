"""The delay kit: named points of a save and a restore at which a contributor can be held, and what is read off it.

A save that is only right when nobody is late is not right. Whoever tests a trainer with this store holds any
contributor at any of these points, mutates something elsewhere, and looks at what was committed: the answer is waited
for or refused by name, and never mixed. Nothing is held unless a session was opened with `at=`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .dtypes import Array
from .records import digest_of

CAPTURE: Final = (
    "ready",  # the device is done; nothing was read yet
    "marks-read",  # the first reading of all sources
    "item-copied",  # after each item
    "copied",  # all items, and nothing was read again yet
)
SAVE: Final = (
    "entered",  # the trainer called save; nothing was said to anybody
    "declared",  # the save is known by its id
    *CAPTURE,
    "captured",  # the copies are whole; the others have not heard of it
    "released",  # all have captured: training goes on from here
    "staged",  # digests taken from staging; nothing was written
    "written",  # this contributor's record is durable
    "recorded",  # at the coordinator: all records are there
    "committed",  # at the coordinator: linked and read back, nobody was told
)
RESTORE: Final = (
    "offered",  # which checkpoint is known
    "verified",  # this contributor's part was read into new arrays
    "voted",  # and the coordinator told
    "agreed",  # the verdict is known; nothing was swapped in
)
POINTS: Final = (*SAVE, *RESTORE)

At = Callable[[str], None]


def nowhere(point: str) -> None:
    """Hold nobody."""


@dataclass(slots=True, kw_only=True)
class Hold:
    """Hold this process at a point until another process lets it go.

    It leaves `<point>.<who>.held` in the folder and waits for `<point>.<who>.go` there.

    Attributes:
        folder: where both files are; every process of a test knows it.
        who: this process, in the files' names.
        points: where to hold, each once.
        longest_seconds: after that it goes on by itself, so that a failing test ends.
    """

    folder: Path
    who: str
    points: frozenset[str]
    longest_seconds: float = 60.0
    passed: list[str] = field(default_factory=list)

    def __call__(self, point: str) -> None:
        """Be held, when this is a point to be held at."""
        first = point not in self.passed
        self.passed.append(point)
        if point not in self.points or not first:
            return
        self.folder.joinpath(f"{point}.{self.who}.held").touch()
        wait_for(self.folder / f"{point}.{self.who}.go", longest_seconds=self.longest_seconds)


@dataclass(slots=True, kw_only=True)
class Late:
    """Come late to points, by so many seconds."""

    seconds: Mapping[str, float]

    def __call__(self, point: str) -> None:
        """Be late."""
        if seconds := self.seconds.get(point):
            threading.Event().wait(seconds)


@dataclass(slots=True, kw_only=True)
class Then:
    """Do something of the trainer's at points: a mutation while a save is under way."""

    actions: Mapping[str, Callable[[], None]]

    def __call__(self, point: str) -> None:
        """Do it, each time the point is reached."""
        if action := self.actions.get(point):
            action()


def wait_for(path: Path, *, longest_seconds: float) -> bool:
    """Wait until a file is there; says whether it came in time."""
    end = time.monotonic() + longest_seconds
    pause = threading.Event()
    while not path.exists():
        if time.monotonic() > end:
            return False
        pause.wait(0.002)
    return True


def fingerprint(arrays: Mapping[str, Array]) -> dict[str, str]:
    """The digest of every array's bytes, as they are at this moment."""
    return {name: digest_of(array.tobytes()) for name, array in arrays.items()}


def mixed(taken: Mapping[str, str], moments: Mapping[Any, Mapping[str, str]]) -> str | None:
    """Whether arrays are those of one moment, judged by the bytes and not by what their file says of itself.

    Args:
        taken: what `fingerprint` says of the arrays that came back.
        moments: what it said of the live arrays at each update of the run.

    Returns:
        None when one moment has exactly these bytes; else a sentence about which array is of which moment.
    """
    if any(taken == dict(moment) for moment in moments.values()):
        return None
    told = []
    for name, digest in sorted(taken.items()):
        of = [str(key) for key, moment in moments.items() if moment.get(name) == digest]
        told.append(f"{name} is of {' or '.join(of) or 'no moment'}")
    return "The checkpoint is of no one moment: " + ", ".join(told)
