"""What a supervisor and a contributor say to each other over one socket: small framed messages.

gather   bytes of this contributor, answered with everybody's in the contributors' order
tell     one JSON object for the supervisor, not answered
point    the name of a place in the program, answered when the contributor may go on
"""

import json
import socket
import struct
import threading
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

_HEADER: Final = struct.Struct(">cI")
_COUNT: Final = struct.Struct(">I")
MESSAGE_BYTES: Final = 64 << 20  # more than any partial sum or report takes: what says otherwise is no message


class Kind(Enum):
    """What a message is."""

    GATHER = b"g"
    TELL = b"t"
    POINT = b"p"


class Closed(ConnectionError):
    """The other side is gone."""


def send(connection: socket.socket, kind: Kind, payload: bytes) -> None:
    """Send one message."""
    connection.sendall(_HEADER.pack(kind.value, len(payload)) + payload)


def receive(connection: socket.socket) -> tuple[Kind, bytes]:
    """The next message.

    Raises:
        Closed: the other side has closed, or what it sends is no message.
    """
    kind, length = _HEADER.unpack(_exactly(connection, _HEADER.size))
    if length > MESSAGE_BYTES:
        raise Closed(f"a message of {length} bytes is none of ours")
    return Kind(kind), _exactly(connection, length)


def pack(parts: Sequence[bytes]) -> bytes:
    """Several byte strings as one."""
    return b"".join(_COUNT.pack(len(part)) + part for part in parts)


def unpack(packed: bytes) -> list[bytes]:
    """What was packed."""
    parts, at = [], 0
    while at < len(packed):
        (length,) = _COUNT.unpack_from(packed, at)
        at += _COUNT.size
        if at + length > len(packed):
            raise ValueError("a part is cut off")
        parts.append(packed[at : at + length])
        at += length
    return parts


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts, missing = [], count
    while missing:
        try:
            part = connection.recv(min(missing, 1 << 20))
        except ConnectionError as error:
            raise Closed(str(error)) from error
        if not part:
            raise Closed("the other side has closed")
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class Line:
    """A contributor's side.

    Args:
        connection: for the trainer's thread: gathering and telling.
        points: for whichever thread comes to a point.
    """

    def __init__(self, connection: socket.socket, points: socket.socket) -> None:
        self._connection = connection
        self._points = points
        self._one_at_a_time = threading.Lock()

    def gather(self, own: bytes) -> Sequence[bytes]:
        """Give this contributor's bytes to all; everybody's in the contributors' order."""
        send(self._connection, Kind.GATHER, own)
        _, answer = receive(self._connection)
        return unpack(answer)

    def tell(self, **what: Any) -> None:
        """Say something to the supervisor."""
        send(self._connection, Kind.TELL, json.dumps(what).encode())

    def point(self, name: str) -> None:
        """Say where this contributor is, and wait until it may go on."""
        with self._one_at_a_time:
            send(self._points, Kind.POINT, name.encode())
            receive(self._points)
