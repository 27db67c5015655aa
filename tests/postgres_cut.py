"""A TCP proxy before PostgreSQL that cuts one connection inside a COMMIT, on either side of it."""

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

import sqlalchemy as sa

# As psycopg sends it: a simple query of its own.
_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"


class Side(Enum):
    """Where the connection is cut as the client's COMMIT passes."""

    BEFORE = "the server never hears of it"
    AFTER = "the server commits, and its answer is swallowed"
    LATE = "the client is cut off, and the server hears of it when `release` is called"


class Cut:
    """The proxy's switch.

    Attributes:
        url: the database's, through the proxy.
        reached: set when a COMMIT was cut and its client cut off.
    """

    def __init__(self, url: str, listener: socket.socket) -> None:
        parsed = sa.make_url(url)
        self.url = parsed.set(host="127.0.0.1", port=listener.getsockname()[1]).render_as_string(hide_password=False)
        self._server = (str(parsed.host), int(parsed.port or 5432))
        self._listener = listener
        self._side: Side | None = None
        self._passing = 0
        self._holding = b""
        self.reached = threading.Event()
        self._released, self._arrived = threading.Event(), threading.Event()

    def arm(self, side: Side, *, passing: int = 0, holding: bytes = b"") -> None:
        """Cut one COMMIT: the next, or the one after so many that pass; of a transaction in which these bytes went."""
        for event in (self.reached, self._released, self._arrived):
            event.clear()
        self._side, self._passing, self._holding = side, passing, holding

    def release(self) -> None:
        """Let a late COMMIT arrive, and wait for the server's answer to it."""
        self._released.set()
        assert self._arrived.wait(30), "no COMMIT was held back"

    def serve(self) -> None:
        """Take connections until the listener ends."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._connection, args=(client,), daemon=True).start()

    def _connection(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server, suppress(OSError):
            holds = False  # whether the bytes asked for went in this transaction
            while True:
                for source in select.select([client, server], [], [])[0]:
                    data = source.recv(65536)
                    if not data:
                        return
                    if source is client:
                        holds = holds or self._holding in data
                        commits = data.endswith(_COMMIT)
                        if commits and holds and (side := self._taken()):
                            self._cut(side, data, client, server)
                            return
                        holds = holds and not commits
                    (server if source is client else client).sendall(data)

    def _taken(self) -> Side | None:
        """How this COMMIT is to be cut, if it is to be."""
        if self._side is None or self._passing > 0:
            self._passing -= 1
            return None
        side, self._side = self._side, None
        return side

    def _cut(self, side: Side, commit: bytes, client: socket.socket, server: socket.socket) -> None:
        if side is Side.AFTER:
            self._deliver(commit, server)
        client.close()
        self.reached.set()
        if side is Side.LATE:
            self._released.wait()
            self._deliver(commit, server)

    def _deliver(self, commit: bytes, server: socket.socket) -> None:
        server.sendall(commit)
        server.recv(65536)  # all that was sent before has been answered, so this is the answer to it
        self._arrived.set()


@contextmanager
def cutting(url: str) -> Iterator[Cut]:
    """A proxy before the database of a URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        cut = Cut(url, listener)
        thread = threading.Thread(target=cut.serve)
        thread.start()
        try:
            yield cut
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
