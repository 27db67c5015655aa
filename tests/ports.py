"""Ports of the machine, as tests need them."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def nobody_listening() -> Iterator[int]:
    """A port at which connections are refused until the block ends: it is taken, so that nobody else is given it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield int(taken.getsockname()[1])
