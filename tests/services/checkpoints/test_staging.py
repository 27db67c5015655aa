"""Staging memory: aligned, apart, and used again."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.staging import ALIGNMENT, Staging, padded


def address(place: memoryview) -> int:
    """Where a place begins."""
    return int(np.frombuffer(place, np.uint8).ctypes.data)


@given(st.lists(st.integers(0, 20_000), max_size=12))
def test_places_are_aligned_as_large_as_asked_and_apart(sizes: list[int]) -> None:
    """An unbuffered write takes each as it is, and none reaches into another."""
    places = Staging().lay_out(sizes)
    assert [len(place) for place in places] == sizes
    for number, place in enumerate(places):
        if len(place):
            assert address(place) % ALIGNMENT == 0
        place[:] = bytes([number + 1]) * len(place)
    assert all(set(place) <= {number + 1} for number, place in enumerate(places))


def test_the_same_memory_is_used_again_and_grows_when_more_is_needed() -> None:
    """A second capture of the same sizes pays for no fresh pages."""
    staging = Staging()
    (first,) = staging.lay_out([5000])
    (second,) = staging.lay_out([5000])
    assert address(first) == address(second)
    staging.lay_out([5000, 5000])
    assert staging.capacity_bytes == 4 * ALIGNMENT
    staging.lay_out([1])
    assert staging.capacity_bytes == 4 * ALIGNMENT


def test_lengths_are_padded_to_whole_blocks() -> None:
    """Nothing stays nothing."""
    assert [padded(nbytes) for nbytes in (0, 1, 4096, 4097)] == [0, 4096, 4096, 8192]
