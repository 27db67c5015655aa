"""Boxes tile their shape exactly once, or the first element that they do not is named."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.boxes import Box, check_box, check_shape, check_tiling, overlap, shape_of, slices, whole
from services.checkpoints.errors import CoverageError, ManifestInvalid


@st.composite
def arrangements(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A small shape, and boxes that may or may not tile it."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))

    def cut(box: Box, depth: int) -> list[Box]:
        axes = [axis for axis, (start, stop) in enumerate(box) if stop - start > 1]
        if depth == 0 or not axes or draw(st.booleans()):
            return [box]
        axis = draw(st.sampled_from(axes))
        at = draw(st.integers(box[axis][0] + 1, box[axis][1] - 1))
        halves = (
            (*box[:axis], (box[axis][0], at), *box[axis + 1 :]),
            (*box[:axis], (at, box[axis][1]), *box[axis + 1 :]),
        )
        return [each for half in halves for each in cut(half, depth - 1)]

    boxes = cut(whole(shape), 3)
    if draw(st.booleans()):
        one = tuple(sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n)))) for n in shape)
        boxes = [*boxes, tuple((bounds[0], bounds[1]) for bounds in one)]
    if draw(st.booleans()) and boxes:
        boxes.pop(draw(st.integers(0, len(boxes) - 1)))
    return shape, draw(st.permutations(boxes))


@given(arrangements())
def test_the_check_says_what_counting_every_element_says(arranged: tuple[tuple[int, ...], list[Box]]) -> None:
    """C50: for every shape and every arrangement; and the element it names is a wrong one."""
    shape, boxes = arranged
    counted = np.zeros(shape, int)
    for box in boxes:
        counted[slices(box, whole(shape))] += 1
    if bool((counted == 1).all()):
        check_tiling(shape, boxes)
        return
    with pytest.raises(CoverageError) as caught:
        check_tiling(shape, boxes)
    at = np.argwhere(counted != 1)[0]
    assert f"element {tuple(int(index) for index in at)} " in str(caught.value)
    assert f"is in {counted[tuple(at)]} boxes" in str(caught.value)


def test_many_boxes_are_checked_without_comparing_all_pairs() -> None:
    """C50: 40,000 rows; pairs would be 800 million."""
    rows = [((at, at + 1), (0, 8)) for at in range(40_000)]
    check_tiling((40_000, 8), rows)
    with pytest.raises(CoverageError, match=r"element \(20000, 0\)"):
        check_tiling((40_000, 8), rows[:20_000] + rows[20_001:])


def test_a_gap_and_an_overlap_of_one_size_do_not_cancel() -> None:
    """The volumes agree and the boxes do not."""
    with pytest.raises(CoverageError, match=r"element \(1,\).* in 2 boxes"):
        check_tiling((4,), [((0, 2),), ((1, 3),)])


def test_a_contributor_may_hold_nothing_of_an_array() -> None:
    """Uneven rows: five contributors and three rows."""
    check_tiling((3, 2), [((0, 1), (0, 2)), ((1, 1), (0, 2)), ((1, 3), (0, 2))])
    check_tiling((0, 2), [])
    check_tiling((), [()])
    with pytest.raises(CoverageError):
        check_tiling((), [])
    with pytest.raises(CoverageError):
        check_tiling((), [(), ()])


@pytest.mark.parametrize("box", [((0, 3),), ((-1, 1),), ((1, 0),), (), ((0, 1), (0, 1))])
def test_a_box_outside_is_named(box: Box) -> None:
    """It would be written, and nobody would read it."""
    with pytest.raises(CoverageError, match="not inside"):
        check_tiling((2,), [box])


@pytest.mark.parametrize("raw", [[[0, 3]], [[0]], [[0, True]], [0, 1], "ab", [[1, 0]], [[0, 1], [0, 1]], [[-1, 1]]])
def test_a_recorded_box_is_inside_its_shape(raw: Any) -> None:
    """Before anything is calculated with it."""
    with pytest.raises(ManifestInvalid):
        check_box(raw, (2,))


@pytest.mark.parametrize("raw", [[-1], [True], [1.0], "12", [1] * 33, None, [2**70]])
def test_a_recorded_shape_is_made_of_lengths(raw: Any) -> None:
    """And of not too many."""
    with pytest.raises(ManifestInvalid):
        check_shape(raw)


def test_overlaps_and_slices_say_where_one_box_lies_in_another() -> None:
    """All pairs of ranges within four."""
    ranges = [(start, stop) for start in range(5) for stop in range(start + 1, 5)]
    for one, other in itertools.product(ranges, repeat=2):
        shared = overlap((one,), (other,))
        expected = sorted(set(range(*one)) & set(range(*other)))
        assert expected == ([] if shared is None else list(range(*shared[0])))
        if shared is not None:
            (part,) = slices(shared, (one,))
            assert list(range(*one)[part]) == expected
            assert shape_of(shared) == (len(expected),)
