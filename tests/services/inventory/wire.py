"""A caller that speaks in bytes: what no HTTP library would send, and what came back for it."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import httpx

ALWAYS = {"receipt-outcome", "idempotency-replayed", "cache-control", "x-request-id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> str:
        """The type of the problem document that this must be."""
        assert self.headers["content-type"] == "application/problem+json"
        assert set(self.headers) >= ALWAYS
        document: dict[str, Any] = json.loads(self.body)
        assert document["status"] == self.status
        assert document["title"]
        assert document["detail"]
        return str(document["type"]).removeprefix("/problems/")


@dataclass(frozen=True, slots=True)
class Peer:
    """One connection."""

    socket: socket.socket
    _incoming: BinaryIO

    def send(self, *lines: str, body: bytes = b"") -> None:
        """Send these lines, the empty one, and the body."""
        self.raw("".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1") + body)

    def raw(self, sent: bytes) -> None:
        """Send these bytes."""
        self.socket.sendall(sent)

    def answer(self) -> Answered | None:
        """The next response; None: the connection was closed instead."""
        try:
            first = self._incoming.readline()
            if not first:
                return None
            headers = {}
            while (line := self._incoming.readline().decode("latin-1").strip()) != "":
                name, _, value = line.partition(":")
                headers[name.lower()] = value.strip()
            body = self._incoming.read(int(headers.get("content-length", "0")))
        except ConnectionResetError:
            return None
        return Answered(status=int(first.split()[1]), headers=headers, body=body)

    def refused(self) -> str:
        """The problem that this connection ends with, its last answer."""
        answered = self.answer()
        assert answered is not None
        assert answered.headers["connection"] == "close"
        assert self.answer() is None
        return answered.problem


@contextmanager
def peer(url: str) -> Iterator[Peer]:
    """Connect to a service."""
    parsed = httpx.URL(url)
    assert parsed.port is not None
    connected = socket.create_connection((parsed.host, parsed.port), timeout=60)
    with connected, connected.makefile("rb") as incoming:
        yield Peer(connected, cast("BinaryIO", incoming))
