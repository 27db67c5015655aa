"""How a command that reads checkpoints for long says so: on stderr, now and then."""

import time
from collections.abc import Callable
from typing import Final

from services.cli.output import Output

EVERY_SECONDS: Final = 5.0
_MIB: Final = 1 << 20
_GIB: Final = 1 << 30


class Progress:
    """Told of each piece that was read, it says how much that is by now; nothing of what is done sooner.

    Args:
        output: the command's.
        clock: the monotonic one.
    """

    def __init__(self, output: Output, clock: Callable[[], float] = time.monotonic) -> None:
        self._output = output
        self._clock = clock
        self._said = clock()
        self._read = 0

    def __call__(self, nbytes: int) -> None:
        """So many bytes more were read; 0: something small was."""
        self._read += nbytes
        now = self._clock()
        if now - self._said >= EVERY_SECONDS:
            self._said = now
            self._output.note(f"{_words(self._read)} read.")


def _words(nbytes: int) -> str:
    return f"{nbytes / _GIB:,.1f} GiB" if nbytes >= _GIB else f"{nbytes / _MIB:,.1f} MiB"
