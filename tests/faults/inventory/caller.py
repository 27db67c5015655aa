"""A caller of the inventory over bytes: every request ends as something told, also when nobody knows how it ended."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

LIMIT_SECONDS = 60.0
NOT_AFTER = "2999-01-01T00:00:00Z"
# Orders everything that is sent and heard, by whomever.
_ticks = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked for; `key` is the header's, and that of a path as well where a path has one."""

    method: str
    path: str
    key: str | None = None
    body: Mapping[str, Any] | None = None
    supersedes: tuple[str, ...] = ()

    def encoded(self, token: str) -> bytes:
        """The request as it is sent."""
        content = b"" if self.body is None else json.dumps(self.body).encode()
        headers = {"Host": "inventory", "Authorization": f"Bearer {token}", "Content-Length": str(len(content))}
        if self.method == "POST" and self.key is not None:
            headers |= {"Idempotency-Key": self.key, "Effect-Not-After": NOT_AFTER}
        if self.supersedes:
            headers["Effect-Supersedes"] = ", ".join(self.supersedes)
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {self.path} HTTP/1.1\r\n{lines}\r\n".encode() + content


def reserve(key: str, lines: Mapping[str, int], *, supersedes: tuple[str, ...] = ()) -> Request:
    """Take units: so many of each SKU."""
    body = {"lines": [{"sku": sku, "quantity": quantity} for sku, quantity in lines.items()]}
    return Request(method="POST", path="/v1/reservations", key=key, body=body, supersedes=supersedes)


def hold(key: str, lines: Mapping[str, int], *, seconds: int) -> Request:
    """Take units for a time."""
    taken = reserve(key, lines)
    return replace(taken, body={**(taken.body or {}), "hold_seconds": seconds})


def confirm(key: str, reservation_id: str) -> Request:
    """Take what is held for good."""
    return Request(method="POST", path=f"/v1/reservations/{reservation_id}/confirm", key=key, body={})


def release(key: str, reservation_id: str) -> Request:
    """Give a reservation's units back."""
    return Request(method="POST", path=f"/v1/reservations/{reservation_id}/release", key=key, body={})


def deliver(key: str, sku: str, quantity: int) -> Request:
    """Bring units in."""
    return Request(method="POST", path="/v1/deliveries", key=key, body={"sku": sku, "quantity": quantity})


def void(key: str) -> Request:
    """Close a key."""
    return Request(method="PUT", path=f"/v1/receipts/{key}/void", key=key)


def look_up(key: str) -> Request:
    """Read a key's receipt."""
    return Request(method="GET", path=f"/v1/receipts/{key}", key=key)


def read(path: str) -> Request:
    """Read anything else."""
    return Request(method="GET", path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One request and what came of it.

    Attributes:
        status: None when no answer came, so that nobody knows.
        sent: whether any of it may have left.
    """

    request: Request
    sent_at: int
    heard_at: int
    sent: bool = True
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""

    @property
    def body(self) -> dict[str, Any]:
        """The answer's JSON object."""
        body: dict[str, Any] = json.loads(self.content)
        return body

    @property
    def problem(self) -> str | None:
        """The problem's name, if the answer is one."""
        kind = self.body.get("type") if self.status is not None and self.content else None
        return None if kind is None else str(kind).rpartition("/")[2]

    @property
    def outcome(self) -> str:
        """What Receipt-Outcome says."""
        return self.headers.get("receipt-outcome", "none")

    @property
    def replayed(self) -> bool:
        """What Idempotency-Replayed says."""
        return self.headers.get("idempotency-replayed") == "true"

    @property
    def receipt(self) -> dict[str, Any] | None:
        """The receipt that came with the answer, if one did."""
        if self.status is None or self.outcome == "none":
            return None
        found: dict[str, Any] = self.body if self.problem is None else self.body["receipt"]
        return found


class Caller:
    """One kept connection, opened again when it is lost.

    Attributes:
        heard: everything, in the order of hearing it.
    """

    def __init__(self, port: int, token: str, heard: list[Told] | None = None) -> None:
        self._port = port
        self._token = token
        self.heard: list[Told] = [] if heard is None else heard
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: Request) -> Told:
        """Send, and wait for the answer or for the end of the connection."""
        return await self._ask(request, hang_up=False)

    async def ask_and_hang_up(self, request: Request) -> Told:
        """Send all of it, and hear nothing."""
        return await self._ask(request, hang_up=True)

    async def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            writer = self._streams[1]
            self._streams = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _ask(self, request: Request, *, hang_up: bool) -> Told:
        sent_at, sent = next(_ticks), False
        answer: dict[str, Any] = {}
        try:
            async with asyncio.timeout(LIMIT_SECONDS):
                if self._streams is None:
                    self._streams = await asyncio.open_connection("127.0.0.1", self._port)
                reader, writer = self._streams
                sent = True
                writer.write(request.encoded(self._token))
                await writer.drain()
                if hang_up:
                    await self.close()
                else:
                    answer = await _answer(reader)
        except (OSError, asyncio.IncompleteReadError):
            await self.close()
        told = Told(request=request, sent_at=sent_at, heard_at=next(_ticks), sent=sent, **answer)
        self.heard.append(told)
        return told


async def _answer(reader: asyncio.StreamReader) -> dict[str, Any]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
    content = await reader.readexactly(int(headers["content-length"]))
    return {"status": int(head[0].split(" ")[1]), "headers": headers, "content": content}


@asynccontextmanager
async def callers(port: int, token: str, number: int) -> AsyncIterator[list[Caller]]:
    """So many callers with one history."""
    heard: list[Told] = []
    made = [Caller(port, token, heard) for _ in range(number)]
    try:
        yield made
    finally:
        for caller in made:
            await caller.close()


async def at_once(pairs: Iterable[tuple[Caller, Request]]) -> list[Told]:
    """Ask all of it at the same time."""
    return list(await asyncio.gather(*(caller.ask(request) for caller, request in pairs)))
