"""A TCP proxy between a worker and PostgreSQL that cuts the COMMIT of one attempt's mark."""

import asyncio
from enum import Enum
from types import TracebackType
from typing import Self

import sqlalchemy as sa

# As the driver sends it, a simple query of its own; and what of an entry only an attempt's mark holds.
_COMMIT = b"Q\x00\x00\x00\x0bCOMMIT\x00"
_MARK = b'"task_token"'
_READ_BYTES = 65_536


class Cut(Enum):
    """What becomes of the COMMIT; the client's connection is closed without an answer each time."""

    ANSWER_LOST = "the server commits"
    LOST = "the server never hears of it, and rolls back"
    LATE = "the server hears of it when `release` is called, and commits then"


class CommitCut:
    """The proxy: `async with CommitCut(url, cut) as commit_cut`, then give the worker `commit_cut.url`.

    The first COMMIT of a transaction that wrote a mark is cut, and no other. `reached` is set when it was; for LATE,
    `arrived` when the server has answered it.
    """

    def __init__(self, url: str, cut: Cut) -> None:
        self._upstream = sa.make_url(url)
        self._cut = cut
        self._armed = True
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._released = asyncio.Event()
        self.url = ""
        self.reached = asyncio.Event()
        self.arrived = asyncio.Event()

    def release(self) -> None:
        """Let a late COMMIT arrive."""
        self._released.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._upstream.set(host="127.0.0.1", port=port).render_as_string(hide_password=False)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        """Pass on what the client says; at the COMMIT of a mark, cut it off."""
        from_server, server = await asyncio.open_connection(self._upstream.host, self._upstream.port)
        answers = asyncio.create_task(_copy(from_server, client))
        marked = False
        try:
            while data := await reader.read(_READ_BYTES):
                marked = marked or _MARK in data
                commits = data.endswith(_COMMIT)
                if commits and marked and self._armed:
                    self._armed = False
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    await self._meet(data, from_server, server, client)
                    return
                marked = marked and not commits
                await _pass(data, server)
        finally:
            answers.cancel()
            server.close()
            client.close()

    async def _meet(
        self,
        commit: bytes,
        from_server: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> None:
        if self._cut is Cut.ANSWER_LOST:
            await _pass(commit, server)
            await from_server.read(_READ_BYTES)  # committed now, whoever asks
        client.close()
        self.reached.set()
        if self._cut is Cut.LATE:
            await self._released.wait()
            await _pass(commit, server)
            await from_server.read(_READ_BYTES)
            self.arrived.set()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        await _pass(data, writer)
    writer.close()


async def _pass(data: bytes, writer: asyncio.StreamWriter) -> None:
    writer.write(data)
    await writer.drain()
