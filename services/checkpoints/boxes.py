"""Boxes: which part of an array a contributor holds, as half-open ranges, one per dimension.

Boxes tile a shape when every element is in exactly one of them. The indicator function of a box is determined by its
signed corners, so that a sum of boxes is the whole if and only if their corners cancel but for the whole's own: exact,
and linear in the number of boxes, where a comparison of all pairs is not.
"""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from .errors import CoverageError, ManifestInvalid

Box = tuple[tuple[int, int], ...]
Shape = tuple[int, ...]

DIMENSIONS: Final = 32
SHARDED_DIMENSIONS: Final = 6  # a box has 2**n corners; arrays are sharded along one or two dimensions
LARGEST_BYTES: Final = 2**62


def whole(shape: Sequence[int]) -> Box:
    """The box of a whole array."""
    return tuple((0, length) for length in shape)


def shape_of(box: Box) -> Shape:
    """How large a box is."""
    return tuple(stop - start for start, stop in box)


def count_of(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)


def check_shape(raw: object) -> Shape:
    """A shape as it stands in a record."""
    if not isinstance(raw, list | tuple) or len(raw) > DIMENSIONS:
        raise ManifestInvalid(f"a shape is a list of at most {DIMENSIONS} lengths")
    if any(type(length) is not int or not 0 <= length <= LARGEST_BYTES for length in raw):
        raise ManifestInvalid(f"shape {raw!r} has a length that is not a non-negative integer")
    return tuple(raw)


def check_box(raw: object, shape: Shape) -> Box:
    """A box as it stands in a record: inside its shape."""
    if not isinstance(raw, list | tuple) or len(raw) != len(shape):
        raise ManifestInvalid(f"box {raw!r} has not one range for each of the {len(shape)} dimensions")
    ranges = []
    for each, length in zip(raw, shape, strict=True):
        if not isinstance(each, list | tuple) or [type(bound) for bound in each] != [int, int]:
            raise ManifestInvalid(f"box {raw!r} is not made of [start, stop]")
        start, stop = each
        if not 0 <= start <= stop <= length:
            raise ManifestInvalid(f"box {raw!r} is not inside shape {list(shape)}")
        ranges.append((start, stop))
    return tuple(ranges)


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes share, or None."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return None if any(start >= stop for start, stop in shared) else shared


def slices(box: Box, origin: Box) -> tuple[slice, ...]:
    """Where a box lies inside an array that holds `origin`."""
    return tuple(slice(start - first, stop - first) for (start, stop), (first, _) in zip(box, origin, strict=True))


def check_tiling(shape: Sequence[int], boxes: Sequence[Box], *, what: str = "the boxes") -> None:
    """Every element of the shape is in exactly one box.

    Raises:
        CoverageError: a gap, an overlap, or a box outside; the message names the first element.
    """
    for box in boxes:
        if len(box) != len(shape) or any(
            not 0 <= start <= stop <= length for (start, stop), length in zip(box, shape, strict=True)
        ):
            raise CoverageError(f"{what}: box {box} is not inside shape {tuple(shape)}; nothing was published")
    if count_of(shape) == 0:
        return
    # A dimension that every box spans divides nothing: most arrays keep one or two.
    kept = [axis for axis, length in enumerate(shape) if any(box[axis] != (0, length) for box in boxes)]
    if len(kept) > SHARDED_DIMENSIONS:
        raise CoverageError(f"{what}: more than {SHARDED_DIMENSIONS} dimensions are sharded")
    corners: Counter[tuple[int, ...]] = Counter()
    for box in boxes:
        _add(corners, tuple(box[axis] for axis in kept), 1)
    _add(corners, whole([shape[axis] for axis in kept]), -1)
    wrong = sorted(corner for corner, count in corners.items() if count)
    if not wrong:
        return
    at = [0] * len(shape)
    for axis, index in zip(kept, wrong[0], strict=True):
        at[axis] = index
    times = sum(all(start <= index < stop for index, (start, stop) in zip(at, box, strict=True)) for box in boxes)
    raise CoverageError(
        f"{what}: element {tuple(at)} of shape {tuple(shape)} is in {times} boxes and must be in exactly one; "
        "nothing was published: correct the boxes that the contributors declare"
    )


def _add(corners: Counter[tuple[int, ...]], box: Box, weight: int) -> None:
    if any(start == stop for start, stop in box):
        return
    for ends in itertools.product((0, 1), repeat=len(box)):
        sign = -1 if sum(ends) % 2 else 1
        corners[tuple(bounds[end] for bounds, end in zip(box, ends, strict=True))] += sign * weight
