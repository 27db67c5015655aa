"""Opening a journal for one command."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from services.database import check_schema, open_engine
from services.journal.store import Journal


@contextmanager
def open_journal(url: str, *, who: str) -> Iterator[Journal]:
    """The journal at this URL, its schema checked; closed when the block ends.

    Raises:
        DatabaseError: it cannot be used; says why and what to run.
    """
    engine = open_engine(url)
    try:
        check_schema("journal", engine)
        yield Journal(engine, recorded_by=f"{who} {os.getpid()}@{socket.gethostname()}")
    finally:
        engine.dispose()
