"""What differs between two checkpoints: versions, values, settings, and the items, element by element.

What this module guarantees:

- Elements are compared as bits: a NaN equals the same NaN, and -0.0 is not 0.0. How far two are apart stands beside it.
- Items whose recorded bytes are equal are not read. Where they differ, both are verified before anything is said.
- However large an item is and however its parts are cut, a piece of `BLOCK_BYTES` of either is in memory.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from . import fs
from .boxes import Box, count_of, overlap, shape_of, slices
from .contribution import RecordedItem
from .dtypes import Array, dtype_of
from .layout import Run, data_name
from .reading import Found, verify_items
from .records import canonical

BLOCK_BYTES: Final = 1 << 20  # small, because an element of one byte becomes one of eight where distances are taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two: a checkpoint, and the open run that it is in."""

    run: Run
    found: Found


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDifference:
    """How one item differs.

    Attributes:
        name: the item.
        contributor: whose, where it is each contributor's own.
        what: in words, where it cannot be compared element by element.
        count: elements whose bits differ.
        of: elements that it has.
        max_abs: the largest absolute difference between two finite elements; exact for integers.
        not_finite: differing elements of which at least one is NaN or infinite.
        first: the index of the first differing element of the first part that has one.
    """

    name: str
    contributor: str | None = None
    what: str | None = None
    count: int = 0
    of: int = 0
    max_abs: float | int | None = None
    not_finite: int = 0
    first: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """Everything that differs.

    Attributes:
        versions: by name, what each side states.
        values: by name and member.
        settings: kind, contract, and members of config and lineage.
        items: those that differ.
        equal: how many items are equal.
    """

    versions: Mapping[str, tuple[Any, Any]]
    values: Mapping[str, tuple[Any, Any]]
    settings: Mapping[str, tuple[Any, Any]]
    items: tuple[ItemDifference, ...]
    equal: int

    @property
    def none(self) -> bool:
        """Whether the two are one state."""
        return not (self.versions or self.values or self.settings or self.items)


def compare(one: Side, other: Side) -> Differences:
    """What differs.

    Raises:
        Damaged: an item is not what was committed; nothing is said of the two.
    """
    items: list[ItemDifference] = []
    equal = 0
    ours, theirs = _held(one.found), _held(other.found)
    for name, contributor in sorted(ours.keys() | theirs.keys(), key=lambda key: (key[0], key[1] or "")):
        key = name, contributor
        if key not in ours or key not in theirs:
            side = "first" if key in ours else "second"
            items.append(ItemDifference(name=name, contributor=contributor, what=f"in the {side} only"))
        elif (found := _item(one, other, key, ours[key], theirs[key])) is not None:
            items.append(found)
        else:
            equal += 1
    return Differences(
        versions=_members(_versions(one.found), _versions(other.found)),
        values=_members(_values(one.found), _values(other.found)),
        settings=_members(_settings(one.found), _settings(other.found)),
        items=tuple(items),
        equal=equal,
    )


_Parts = Sequence[tuple[str, RecordedItem]]
_Key = tuple[str, str | None]  # an item, and whose it is where it is each contributor's own


def _held(found: Found) -> dict[_Key, _Parts]:
    held: dict[_Key, _Parts] = {}
    for name, parts in found.cut.items.items():
        if parts[0][1].placement == "per_contributor":
            held |= {(name, part[0]): (part,) for part in parts}
        else:
            held[name, None] = parts
    return held


def _item(one: Side, other: Side, key: _Key, ours: _Parts, theirs: _Parts) -> ItemDifference | None:
    (name, contributor), a, b = key, ours[0][1], theirs[0][1]
    stated: tuple[tuple[str, Any, Any], ...] = (
        ("role", a.role, b.role), ("dtype", a.dtype, b.dtype), ("shape", a.global_shape, b.global_shape),
    )  # fmt: skip
    for what, this, that in stated:
        if this != that:
            return ItemDifference(name=name, contributor=contributor, what=f"{what} {this} != {that}")
    if {(item.box, item.digest) for _, item in ours} == {(item.box, item.digest) for _, item in theirs}:
        return None
    for side in (one, other):
        verify_items(side.run, side.found, [name])
    tally = _Tally()
    with (
        one.run.save(one.found.manifest.epoch, one.found.manifest.save_id) as here,
        other.run.save(other.found.manifest.epoch, other.found.manifest.save_id) as there,
    ):
        for (owner, mine), (holder, its) in itertools.product(ours, theirs):
            shared = overlap(mine.box, its.box)
            if shared is None or (mine.box == its.box and mine.digest == its.digest):
                continue
            with here.open(data_name(owner)) as left, there.open(data_name(holder)) as right:
                for block in _blocks(shared, mine.box, its.box, dtype_of(a.dtype).itemsize):
                    tally.add(_read(left, mine, block), _read(right, its, block), block)
    if not tally.count:
        return None
    return ItemDifference(
        name=name, contributor=contributor, count=tally.count, of=count_of(a.global_shape), max_abs=tally.max_abs,
        not_finite=tally.not_finite, first=tally.first,
    )  # fmt: skip


def _blocks(shared: Box, one: Box, other: Box, itemsize: int) -> Iterator[Box]:
    """Boxes that make up `shared`, in order; each lies within `BLOCK_BYTES` of either part's bytes."""

    def row_bytes(axis: int) -> int:
        """What one step along an axis spans in the wider of the two parts."""
        return max(count_of(shape_of(part)[axis + 1 :]) for part in (one, other)) * itemsize

    axis = next((each for each in range(len(shared)) if row_bytes(each) <= BLOCK_BYTES), None)
    if axis is None:  # a single number
        yield shared
        return
    step = BLOCK_BYTES // row_bytes(axis)
    for index in itertools.product(*(range(start, stop) for start, stop in shared[:axis])):
        fixed = tuple((at, at + 1) for at in index)
        for start in range(shared[axis][0], shared[axis][1], step):
            yield (*fixed, (start, min(start + step, shared[axis][1])), *shared[axis + 1 :])


def _read(file: fs.ReadFile, item: RecordedItem, block: Box) -> Array:
    """A block of one part: the span of its rows is read, and what is not the block's is left out."""
    dtype, shape = dtype_of(item.dtype), shape_of(item.box)
    axis = next((each for each, (start, stop) in enumerate(block) if stop - start > 1), max(len(block) - 1, 0))
    row = count_of(shape[axis + 1 :])
    at = [start - first for (start, _), (first, _) in zip(block, item.box, strict=True)]
    begin = sum(index * count_of(shape[each + 1 :]) for each, index in enumerate(at[: axis + 1]))
    rows = block[axis][1] - block[axis][0] if block else 1
    raw = np.empty(rows * row * dtype.itemsize, np.uint8)
    file.read_into(raw.data, (item.offset or 0) + begin * dtype.itemsize)
    if not block:
        return raw.view(dtype).reshape(())
    spanned = (*block[: axis + 1], *item.box[axis + 1 :])
    return raw.view(dtype).reshape(shape_of(spanned))[slices(block, spanned)]


class _Tally:
    """What was found so far in one item."""

    def __init__(self) -> None:
        self.count = 0
        self.not_finite = 0
        self.max_abs: float | int | None = None
        self.first: tuple[int, ...] | None = None

    def add(self, one: Array, other: Array, block: Box) -> None:
        """Compare a block."""
        width = one.dtype.itemsize
        bits = [np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, width) for each in (one, other)]
        differs = (bits[0] != bits[1]).any(axis=1)
        found = int(np.count_nonzero(differs))
        if not found:
            return
        if self.first is None:
            inside = np.unravel_index(int(np.argmax(differs)), one.shape)
            self.first = tuple(int(at) + start for at, (start, _) in zip(inside, block, strict=True))
        self.count += found
        apart, not_finite = _apart(one.reshape(-1)[differs], other.reshape(-1)[differs])
        self.not_finite += not_finite
        if apart is not None:
            self.max_abs = apart if self.max_abs is None else max(self.max_abs, apart)


def _apart(one: Array, other: Array) -> tuple[float | int | None, int]:
    """The largest distance of two finite elements, and how many pairs are not finite."""
    kind = one.dtype.kind
    if kind in "iu":
        high, low = np.maximum(one, other), np.minimum(one, other)
        distances = high.astype(np.uint64) - low.astype(np.uint64)  # modulo 2**64, within which the true distance lies
        return int(distances.max()), 0
    if kind == "b":
        return 1, 0
    wide = np.complex128 if kind == "c" else np.float64
    with np.errstate(all="ignore"):
        left, right = one.astype(wide), other.astype(wide)
        finite = np.isfinite(left) & np.isfinite(right)
        distances = np.abs(left[finite] - right[finite])
    largest = float(distances.max()) if distances.size else None
    return largest, int(np.count_nonzero(~finite))


def _versions(found: Found) -> dict[str, Any]:
    own = {f"{name}.{who}": value for name, each in found.cut.per_contributor.items() for who, value in each.items()}
    return {**found.cut.versions, **own}


def _values(found: Found) -> dict[str, Any]:
    values = dict(_leaves(found.cut.values, ""))
    for who, each in found.contributions.items():
        own = {name: value for name, value in each.values.items() if name not in found.cut.values}
        values |= {f"{name}@{who}": value for name, value in _leaves(own, "")}
    return values


def _settings(found: Found) -> dict[str, Any]:
    manifest = found.manifest
    return {
        "kind": manifest.kind, "contract": manifest.contract_digest,
        **{f"config.{name}": value for name, value in manifest.config.items()},
        **{f"lineage.{name}": value for name, value in manifest.lineage.items()},
    }  # fmt: skip


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _leaves(each, f"{path}.{name}" if path else str(name))
    elif path:
        yield path, value


def _members(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if canonical([name in one, one.get(name)]) != canonical([name in other, other.get(name)])
    }


def document(found: Differences) -> dict[str, Any]:
    """For programs: JSON has neither infinity nor NaN, which are texts here."""
    return {
        "equal": found.none, "equal_items": found.equal,
        **{
            name: {each: [_plain(value) for value in pair] for each, pair in getattr(found, name).items()}
            for name in ("versions", "values", "settings")
        },
        "items": [
            {"name": each.name, "contributor": each.contributor, "what": each.what, "count": each.count, "of": each.of,
             "max_abs": _plain(each.max_abs), "not_finite": each.not_finite,
             "first": None if each.first is None else list(each.first)}
            for each in found.items
        ],
    }  # fmt: skip


def _plain(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return repr(value)
        case Mapping():
            return {name: _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return value
