"""Children that are forked from one process which has imported everything: a life costs a fork, not a start of Python.

What this module guarantees:

- A child is killed by the kernel with its forking parent, that one with the server, and the server with the tests.
- What a child has told before it was struck is heard: each seam is in the kernel's hands before the signal comes.
- How a child ended is the kernel's word: its exit code, or the negated number of the signal that ended it.

    python -m tests.faults.seams.children SOCKET

One connection to a child. In: one JSON line, what it shall do. Out: JSON lines, `{"pid": n}` first, `{"code": n}` last.
"""

import asyncio
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.faults.forking import die_with, serve, server_of, tell
from tests.faults.seams.commands import COMMANDS, Place, told
from tests.faults.seams.watching import Seams, Strike
from tests.faults.servers import LIMIT_SECONDS

ASLEEP = "asleep"


@dataclass(slots=True)
class Life:
    """One child, from outside.

    Attributes:
        seams: those it has reached, in order.
        said: what it has told on its way.
        answer: what its command returned, if it came to its end.
        error: the trace of what ended it otherwise.
        code: its exit code; None while it lives.
        lost: whoever forked it is gone, and nobody can say how it ended.
    """

    pid: int = 0
    seams: list[str] = field(default_factory=list)
    said: list[Any] = field(default_factory=list)
    answer: Any = None
    error: str = ""
    code: int | None = None
    lost: bool = False
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Read what it tells until it has ended."""
        while line := await reader.readline():
            ((what, value),) = json.loads(line).items()
            async with self._news:
                match what:
                    case "seam":
                        self.seams.append(value)
                    case "said":
                        self.said.append(value)
                    case _:
                        setattr(self, what, value)
                self._news.notify_all()
        async with self._news:
            self.lost = self.code is None
            self._news.notify_all()

    async def until_asleep(self) -> None:
        """Wait until it sleeps at the seam at which it was struck."""
        await self.until_said(ASLEEP)

    async def until_said(self, word: str) -> None:
        """Wait until it has told this on its way."""
        await self._heard(lambda: word in self.said, f"said {word}")

    async def end(self) -> Self:
        """Wait for its end."""
        await self._heard(lambda: self.code is not None, "ended")
        return self

    async def finished(self) -> Any:
        """Wait for its end, which must be that of its command; what that returned."""
        await self.end()
        assert self.code == 0, f"a child ended with {self.code}: {self.error}"
        return self.answer

    def send_signal(self, number: signal.Signals) -> None:
        """Strike it from outside; one that has ended, and whose end nobody has heard of yet, feels nothing."""
        if self.code is None and not self.lost:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def _heard(self, there: Any, what: str) -> None:
        try:
            async with asyncio.timeout(LIMIT_SECONDS), self._news:
                await self._news.wait_for(lambda: there() or self.code is not None or self.lost)
        except TimeoutError:
            raise AssertionError(f"A child has not {what} in time; it has reached {self.seams}.") from None
        assert there(), f"A child has not {what}: it ended with {self.code} after {self.seams}. {self.error}"


class Children:
    """The server that forks them."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lives: set[asyncio.Task[None]] = set()

    async def start(self, command: str, place: Place, strike: Strike | None = None, /, **arguments: Any) -> Life:
        """A child that does one command, and has been forked already.

        Args:
            command: its name among `tests.faults.seams.commands.COMMANDS`.
            place: the stores and servers it works with.
            strike: at which seam a signal comes.
            arguments: the command's own.
        """
        reader, writer = await asyncio.open_unix_connection(self._path)
        job = {
            "command": command,
            "place": asdict(place),
            "strike": None if strike is None else asdict(strike),
            "arguments": arguments,
        }
        writer.write(json.dumps(job).encode() + b"\n")
        life = Life()

        async def listen() -> None:
            try:
                await life.listen(reader)
            finally:
                writer.close()

        task = asyncio.create_task(listen())
        self._lives.add(task)
        task.add_done_callback(self._lives.discard)
        await life._heard(lambda: life.pid, "been forked")
        return life


@asynccontextmanager
async def children(log: Path) -> AsyncIterator[Children]:
    """A server of children; every one of them ends with the block."""
    async with server_of("tests.faults.seams.children", name="The children's server", log=log) as path:
        yield Children(path)


def _fork_and_tell(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as lines:
        job = json.loads(lines.readline())
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with(own)
            os._exit(_live(connection, job))
        tell(connection, pid=pid)
        _, status = os.waitpid(pid, os.WUNTRACED)
        while os.WIFSTOPPED(status):  # the kernel's word: told to go on before it sleeps, it would sleep for ever
            tell(connection, said=ASLEEP)
            _, status = os.waitpid(pid, os.WUNTRACED)
        tell(connection, code=os.waitstatus_to_exitcode(status))


def _live(connection: socket.socket, job: Mapping[str, Any]) -> int:
    seams = Seams(
        lambda label: tell(connection, seam=label), None if job["strike"] is None else Strike(**job["strike"])
    )
    place = Place(**job["place"])
    try:
        answer = asyncio.run(
            COMMANDS[job["command"]](place, seams, lambda said: tell(connection, said=said), **job["arguments"])
        )
        tell(connection, answer=told(answer))
    except BaseException:  # noqa: BLE001 - it is told, whatever it is
        with suppress(OSError):
            tell(connection, error=traceback.format_exc())
        return 1
    return 0


if __name__ == "__main__":
    serve(sys.argv[1], _fork_and_tell)
