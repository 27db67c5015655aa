"""A raw peer: it does to a connection exactly what a test says, and keeps every byte it got."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from services.effects.keys import canonical


class Wire:
    """One connection, as the peer sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.got = bytearray()
        self._again: bytes | None = None

    def again(self, request: bytes) -> None:
        """Let the next `request` be this one, that has been read already."""
        self._again = request

    async def head(self) -> bytes:
        """The next request's head and whatever came with it; of its body no more is read."""
        while b"\r\n\r\n" not in self.got and (chunk := await self._reader.read(65_536)):
            self.got += chunk
        return bytes(self.got)

    async def request(self) -> bytes:
        """The next request's bytes, head and body; empty when the caller hung up."""
        if self._again is not None:
            again, self._again = self._again, None
            return again
        start = len(self.got)
        length: int | None = None
        while length is None or len(self.got) - start < length:
            chunk = await self._reader.read(65_536)
            if not chunk:
                break
            self.got += chunk
            head, end, _ = bytes(self.got[start:]).partition(b"\r\n\r\n")
            if end:
                length = len(head) + 4 + _content_length(head)
        return bytes(self.got[start:])

    async def some(self) -> bytes:
        """Whatever comes next."""
        chunk = await self._reader.read(65_536)
        self.got += chunk
        return chunk

    async def say(self, *parts: bytes) -> None:
        """Write something."""
        for part in parts:
            self._writer.write(part)
            await self._writer.drain()

    async def hung_up(self) -> None:
        """Wait until the caller closes; whatever it still sends is kept."""
        with suppress(ConnectionError):
            while chunk := await self._reader.read(65_536):
                self.got += chunk

    def half_close(self) -> None:
        """End this side's half of the connection (over TLS without saying so there), and go on reading."""
        self._writer.get_extra_info("socket").shutdown(socket.SHUT_WR)

    def vanish(self) -> None:
        """Close; over TLS without saying so there."""
        self._writer.transport.abort()

    def reset(self) -> None:
        """Close with a reset, as a host does that has restarted."""
        linger = struct.pack("ii", 1, 0)
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self._writer.transport.abort()

    async def idle(self, seconds: float) -> None:
        """Let time pass: a slow peer is one of the faults."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.Event().wait()

    async def close(self) -> None:
        """Close this side."""
        self._writer.close()
        with suppress(OSError):  # TLS has words of its own for a caller that is gone
            await self._writer.wait_closed()


Script = Callable[[Wire], Awaitable[None]]


class Peer:
    """`async with Peer(script) as peer`: the script is played on each connection, then it is closed.

    Args:
        script: what it does.
        tls: speak TLS, as this host.
        window_bytes: how much it takes in before anybody reads; the system's own choice when 0.
    """

    def __init__(self, script: Script, *, tls: ssl.SSLContext | None = None, window_bytes: int = 0) -> None:
        self._script = script
        self._tls = tls
        self._window_bytes = window_bytes
        self._server: asyncio.Server | None = None
        self._playing: set[asyncio.Task[None]] = set()
        self.wires: list[Wire] = []
        self.url = ""

    @property
    def got(self) -> bytes:
        """Every byte that ever came."""
        return b"".join(bytes(wire.got) for wire in self.wires)

    async def __aenter__(self) -> Self:
        listener = socket.create_server(("127.0.0.1", 0))
        if self._window_bytes:  # before anybody connects: it is told at the handshake
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._window_bytes)
        limit = self._window_bytes or 65_536
        self._server = await asyncio.start_server(self._connected, sock=listener, ssl=self._tls, limit=limit)
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{listener.getsockname()[1]}"
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._playing.add(task)
            task.add_done_callback(self._playing.discard)
        if self._tls and self._window_bytes:  # TLS takes in half a megabyte of its own accord
            writer.transport.set_read_buffer_limits(self._window_bytes)  # type: ignore[attr-defined]
        wire = Wire(reader, writer)
        self.wires.append(wire)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await self._script(wire)
        finally:
            with suppress(asyncio.CancelledError):
                await wire.close()


def http(status: int, body: bytes | dict[str, Any] = b"", *headers: str, reason: str = "Whatever") -> bytes:
    """A whole response."""
    content = body if isinstance(body, bytes) else canonical(body)
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def problem(status: int, name: str, *headers: str, **members: Any) -> bytes:
    """A problem document of ours."""
    return http(status, {"type": f"/problems/{name}", "title": name, "status": status, **members}, *headers)


def answering(*responses: bytes) -> Script:
    """Read a request, answer it, and so on; then close."""

    async def script(wire: Wire) -> None:
        for response in responses:
            if not await wire.request():
                return
            await wire.say(response)
        await wire.hung_up()

    return script


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
