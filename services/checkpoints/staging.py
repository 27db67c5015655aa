"""Staging: the memory that a capture copies into, aligned for unbuffered writes and used again by the next capture.

Fresh memory costs a page fault for every 4096 bytes, which is what a trainer would wait for; memory that is used again
costs the copy alone. One capture's bytes stay until the next `lay_out`: whoever writes them finishes before that.
"""

import mmap
from collections.abc import Sequence
from typing import Final

# What unbuffered writes want on every disk that we know, and the size of a page.
ALIGNMENT: Final = 4096


def padded(nbytes: int) -> int:
    """The next multiple of the alignment."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


class Staging:
    """One region of memory, grown when a capture needs more and never given back before the session ends."""

    def __init__(self) -> None:
        self._region: mmap.mmap | None = None

    @property
    def capacity_bytes(self) -> int:
        """How much the region holds."""
        return 0 if self._region is None else len(self._region)

    def lay_out(self, sizes: Sequence[int]) -> tuple[memoryview, ...]:
        """A place for each size, in order, each beginning at a multiple of the alignment.

        The bytes of an earlier layout are gone.
        """
        needed = sum(padded(size) for size in sizes)
        if self._region is None or needed > self.capacity_bytes:
            # An anonymous map begins at a page. The old one is freed when its last view is.
            self._region = mmap.mmap(-1, max(needed, ALIGNMENT))
        places, at = [], 0
        for size in sizes:
            places.append(memoryview(self._region)[at : at + size])
            at += padded(size)
        return tuple(places)
