"""What a training run hands to a save and gets back from a restore.

What this module guarantees:

- A source marks the *beginning* of a mutation before the first byte changes (its mark becomes odd) and the end after
  the last one (even again). Whoever reads the same even mark before and after a copy has copied no torn byte.
- A mutation that an error interrupted leaves its mark odd: half-changed bytes are no state, until a restore has
  replaced them.
- `State.adopt` looks at everything first and then swaps in at once: what does not fit leaves the live run untouched.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from .boxes import Box, Shape, whole
from .dtypes import Array
from .errors import Incompatible


class VersionSource(Protocol):
    """Where the versions of a state come from: its own marks and counters, never the caller's step."""

    def read(self) -> Mapping[str, int]:
        """The mark of every source: moved on by each mutation, odd while one is under way."""

    def timeline(self) -> Mapping[str, int]:
        """The run's counters: attempts, updates, skips, cursor and whatever else the contract names."""

    def adopt(self, timeline: Mapping[str, int]) -> None:
        """Take over the counters of a restored cut, and call every source whole again."""


class Versioned:
    """Marks and counters for a trainer that says when it mutates.

        versions = Versioned({"attempts": 0, "updates": 0, "cursor": 0})
        with versions.mutation():
            parameters -= step
            versions.advance(attempts=1, updates=1, cursor=2)

    Args:
        counters: the counters of the timeline and where they begin.
        sources: what is marked on its own; items name one of them as their `source`.
    """

    def __init__(self, counters: Mapping[str, int], *, sources: Sequence[str] = ("model",)) -> None:
        self._lock = threading.Lock()
        self._counters = dict(counters)
        self._marks = dict.fromkeys(sources, 0)
        self._open = dict.fromkeys(sources, 0)

    def __getitem__(self, name: str) -> int:
        return self._counters[name]

    def read(self) -> Mapping[str, int]:
        """The mark of every source; odd while it is being mutated."""
        with self._lock:
            return dict(self._marks)

    def timeline(self) -> Mapping[str, int]:
        """The counters as they are now."""
        with self._lock:
            return dict(self._counters)

    @contextmanager
    def mutation(self, *sources: str) -> Iterator[None]:
        """The body changes bytes or counters of these sources; of all, when none is named.

        An error in the body leaves the marks odd: nothing is saved until a restore has made the state whole.
        """
        self.begin(*sources)
        yield
        self.end(*sources)

    def begin(self, *sources: str) -> None:
        """Mark the beginning, before the first byte changes."""
        self._check("source", sources, self._marks)
        with self._lock:
            for source in sources or tuple(self._marks):
                if self._open[source] == 0:
                    self._marks[source] += 1
                self._open[source] += 1

    def end(self, *sources: str) -> None:
        """Mark the end, after the last byte; of mutations side by side, the last one ends it."""
        with self._lock:
            for source in sources or tuple(self._marks):
                if self._open[source] == 0:
                    raise ValueError(f"The mutation of {source!r} ends without having begun: begin comes first.")
                self._open[source] -= 1
                if self._open[source] == 0:
                    self._marks[source] += 1

    def advance(self, **by: int) -> None:
        """Move counters on, inside of a mutation."""
        with self._lock:
            if not any(self._open.values()):
                raise ValueError("Counters move inside of a mutation: `with versions.mutation(): ...`.")
            self._check("counter", by, self._counters)
            for name, steps in by.items():
                self._counters[name] += steps

    @staticmethod
    def _check(what: str, named: Iterable[str], known: Iterable[str]) -> None:
        if unknown := sorted(set(named) - set(known)):
            raise ValueError(
                f"There is no {what} {', '.join(unknown)}: there is {', '.join(known)}. Nothing was moved."
            )

    def set(self, **values: int) -> None:
        """Give counters another value, inside of a mutation: what is drained goes back to 0."""
        with self._lock:
            if not any(self._open.values()):
                raise ValueError("Counters move inside of a mutation: `with versions.mutation(): ...`.")
            self._counters.update(values)

    def adopt(self, timeline: Mapping[str, int]) -> None:
        """Take over a restored cut's counters; every source is whole again, with a mark it never had."""
        with self._lock:
            self._counters.update(timeline)
            for source, mark in self._marks.items():
                self._open[source] = 0
                self._marks[source] = mark + 2 - mark % 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One array of a state.

    Attributes:
        role: the contract's role of it: param, moment_m, rng ...
        array: the live array, any shape and memory order; a restore writes into it, and converts nothing. Its dtype is
            bool, (u)int8 to 64, float16, float32, float64, complex64, complex128, or ml_dtypes' bfloat16, float8_e4m3fn
            or float8_e5m2, little-endian: another one is `ManifestInvalid` at the save.
        box: the part of the whole that a sharded item holds, (first, behind the last) per axis, of the array's shape;
            None: all of it. Boxes that leave a gap or overlap are `CoverageError` at the save.
        global_shape: the shape of the whole; None: the array's own.
        source: the version source whose marks speak for it; None: nobody marks its mutations, and a capture takes its
            digest before and after instead.
    """

    role: str
    array: Array
    box: Box | None = None
    global_shape: Shape | None = None
    source: str | None = None

    @property
    def shape(self) -> Shape:
        """The shape of the whole."""
        return self.array.shape if self.global_shape is None else tuple(self.global_shape)

    @property
    def part(self) -> Box:
        """The part of the whole that the array is."""
        return whole(self.array.shape) if self.box is None else self.box


def _ready() -> None:
    """Work on the processor is done when its call returns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything of one contributor that a cut keeps.

    Attributes:
        items: the arrays by name.
        versions: their marks and the run's counters.
        values: small values in JSON's types (and floats, exactly; numpy's numbers are refused), changed in place by the
            trainer and by a restore. A value's name is its role in the contract, up to the first "/".
        wait_ready: returns when the device has done what was asked of it; a barrier does not say so.
    """

    items: Mapping[str, Item]
    versions: VersionSource
    values: MutableMapping[str, Any] = field(default_factory=dict)
    wait_ready: Callable[[], None] = _ready

    def facing(self, stored: Mapping[str, tuple[str, Shape]]) -> "State":
        """The state as it would take a checkpoint: what makes arrays as late as in the first update has places here.

        Args:
            stored: the checkpoint's items: name -> dtype and global shape.
        """
        del stored
        return self

    def check(self, arrays: Mapping[str, Array], *, values: Mapping[str, Any], keep: Collection[str] = ()) -> None:
        """Whether these arrays and values could be swapped in.

        Args:
            arrays: by item name.
            values: by name; here any will do.
            keep: items that stay as they are, and need no array.

        Raises:
            Incompatible: every difference at once.
        """
        del values
        items = self.items
        expected = items.keys() - set(keep)
        different = [
            *(f"{name}: not in the checkpoint" for name in sorted(expected - arrays.keys())),
            *(f"{name}: not in the state" for name in sorted(arrays.keys() - expected)),
        ]
        for name in sorted(expected & arrays.keys()):
            live, new = items[name].array, arrays[name]
            if live.shape != new.shape or live.dtype != new.dtype:
                different.append(
                    f"{name}: {new.dtype}{list(new.shape)} in the checkpoint, {live.dtype}{list(live.shape)} here"
                )
            elif not live.flags.writeable:
                different.append(f"{name}: the array cannot be written")
        if different:
            raise differing(different)

    def adopt(
        self,
        *,
        arrays: Mapping[str, Array],
        versions: Mapping[str, int],
        values: Mapping[str, Any],
        keep: Collection[str] = (),
    ) -> None:
        """Swap a restored cut in: all of it or, when anything does not fit, nothing.

        Raises:
            Incompatible: every difference at once; the live state is as it was.
        """
        self.check(arrays, values=values, keep=keep)
        for name, array in arrays.items():
            np.copyto(self.items[name].array, array, casting="no")
        self.values.clear()
        self.values.update(values)
        self.versions.adopt(versions)


def differing(differences: Sequence[str]) -> Incompatible:
    """The error that names all of them."""
    return Incompatible(
        f"The checkpoint does not fit: {'; '.join(differences)}. The live state is untouched; give the state what was "
        "saved, or allow a difference by its name.",
        differences=tuple(differences),
    )
