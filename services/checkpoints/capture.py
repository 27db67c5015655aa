"""Capture: the copy of one contributor's state at one moment, or no copy at all.

What this module guarantees:

- Every source's mark is read before the first copy and after the last one. A mark that moved, or that is odd, refuses
  the whole capture: items that are each stable in themselves may still be of two moments.
- What nobody marks is digested before and after all copies, and each copy's digest equals both.
- The counters are the source's own, read at both ends like the marks.
- Only what a view shows is copied, in C order; its digest and the scan for NaN are taken from the copy.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from blake3 import blake3

from .boxes import Box, Shape, shape_of, whole
from .contribution import StagedItem
from .delays import At, nowhere
from .dtypes import Array, dtype_of, is_finite, name_of
from .errors import CoverageError, ManifestInvalid, SourceChanged
from .records import canonical, parse
from .staging import Staging
from .state import Item, State
from .versions import check_versions

# Below this, starting threads costs more than they bring.
_THREADS_FROM_BYTES = 4 << 20


class Placements(Protocol):
    """What a capture asks a contract: where a role's item is placed."""

    def placement_of(self, role: str, name: str) -> str:
        """sharded, replicated, per_contributor or global."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One item's bytes, already apart from the live array."""

    name: str
    role: str
    placement: str
    dtype: str
    global_shape: Shape
    box: Box
    buffer: memoryview

    def staged(self) -> StagedItem:
        """The item with its digest and whether it is finite, both from the copy."""
        array = np.frombuffer(self.buffer, dtype=dtype_of(self.dtype))
        return StagedItem(
            name=self.name,
            role=self.role,
            placement=self.placement,
            dtype=self.dtype,
            global_shape=self.global_shape,
            box=self.box,
            buffer=self.buffer,
            digest=_digest(self.buffer),
            finite=is_finite(array),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """One contributor's part of a cut; the trainer may mutate again.

    Attributes:
        copies: the items, in the order of their names.
        versions: the run's counters at that moment.
        values: the small values at that moment.
    """

    copies: tuple[Copy, ...]
    versions: Mapping[str, int]
    values: Mapping[str, Any]

    @property
    def nbytes(self) -> int:
        """The bytes of all items."""
        return sum(copy.buffer.nbytes for copy in self.copies)

    def staged(self) -> tuple[StagedItem, ...]:
        """The items as they are written; this reads every byte once, while the trainer already goes on."""
        return tuple(copy.staged() for copy in self.copies)


def capture(state: State, staging: Staging, placements: Placements, *, at: At = nowhere) -> Captured:
    """Copy a state.

    Args:
        state: the live state.
        staging: where the copies go; what an earlier capture left there is overwritten.
        placements: the contract.
        at: where a test may hold us.

    Raises:
        SourceChanged: something was being mutated, or was mutated meanwhile; nothing was published.
        ManifestInvalid: an item that no record can hold: its type, its name's role, its box.
        CoverageError: a box that is not as large as its array.
    """
    state.wait_ready()
    at("ready")
    marks, versions, values = _read(state)
    items = state.items  # once, between the readings: a state may have to fetch them from a device
    names = sorted(items)
    unmarked = [name for name in names if _is_unmarked(name, items[name], marks)]
    before = {name: _digest_of_live(items[name].array) for name in unmarked}
    at("marks-read")
    copies = []
    places = staging.lay_out([items[name].array.nbytes for name in names])
    for name, place in zip(names, places, strict=True):
        copies.append(_copy(name, items[name], placements, place))
        at("item-copied")
    at("copied")
    for copy in copies:
        if copy.name in before and _digest(copy.buffer) != before[copy.name]:
            raise _changed(f"item {copy.name} changed between being looked at and being copied")
    for name in unmarked:
        if _digest_of_live(items[name].array) != before[name]:
            raise _changed(f"item {name} changed while the others were copied")
    marks_after, versions_after, values_after = _read(state)
    _compare("source", marks, marks_after)
    _compare("version", versions, versions_after)
    if canonical(values) != canonical(values_after):
        raise _changed("the values changed while the items were copied")
    return Captured(copies=tuple(copies), versions=versions, values=values)


def _read(state: State) -> tuple[dict[str, int], dict[str, int], dict[str, Any]]:
    """Marks, counters and values, apart from the live ones."""
    marks = dict(state.versions.read())
    odd = sorted(source for source, mark in marks.items() if mark % 2)
    if odd:
        raise _changed(f"source {', '.join(odd)} is being mutated (its mark is odd)")
    try:
        values = parse(canonical(state.values))
    except ValueError as error:
        raise ManifestInvalid(f"the values cannot be written down: {error}; nothing was published") from error
    return marks, check_versions(state.versions.timeline()), values


def _is_unmarked(name: str, item: Item, marks: Mapping[str, int]) -> bool:
    if item.source is not None and item.source not in marks:
        raise ManifestInvalid(
            f"item {name} says that source {item.source!r} marks it, and there is none: "
            f"the sources are {', '.join(sorted(marks)) or 'none'}; nothing was published"
        )
    return item.source is None


def _compare(what: str, before: Mapping[str, int], after: Mapping[str, int]) -> None:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            raise _changed(f"{what} {name} moved from {before.get(name)} to {after.get(name)} while items were copied")


def _changed(what: str) -> SourceChanged:
    return SourceChanged(
        f"{what}; nothing was published and the previous checkpoint stands: "
        "save at the boundary, when nothing mutates the state."
    )


def _copy(name: str, item: Item, placements: Placements, place: memoryview) -> Copy:
    dtype = name_of(item.array)
    if shape_of(item.part) != item.array.shape:
        raise CoverageError(
            f"item {name}: box {item.part} has shape {shape_of(item.part)} and the array has {item.array.shape}; "
            "nothing was published: give the box that the array holds."
        )
    target = np.frombuffer(place, dtype=dtype_of(dtype)).reshape(item.array.shape)
    np.copyto(target, item.array, casting="no")
    return Copy(
        name=name,
        role=item.role,
        placement=placements.placement_of(item.role, name),
        dtype=dtype,
        global_shape=tuple(item.shape),
        box=item.part if item.box is not None else whole(item.array.shape),
        buffer=place,
    )


def _digest(buffer: memoryview) -> str:
    threads = blake3.AUTO if buffer.nbytes >= _THREADS_FROM_BYTES else 1
    return blake3(buffer, max_threads=threads).hexdigest()


def _digest_of_live(array: Array) -> str:
    """The digest that the array's copy will have; an array that is not C-contiguous is gathered for it."""
    return _digest(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))
