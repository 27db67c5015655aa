"""The inventory as a process: its socket, its log, its chores, and a clean end on SIGTERM or SIGINT.

The end: no connection is taken any more, idle ones are closed, /readyz says 503, and what has begun is answered, with
Connection: close, for up to 10 seconds. Then, or at a second signal, the process ends with whatever is under way: a
commit is whole or not at all, and its key's receipt tells.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from types import FrameType

import anyio.to_thread
import uvicorn
from starlette.applications import Starlette

from services.background import again_and_again
from services.database import DatabaseUnreachable, check_durable, check_schema, describe, open_engine
from services.inventory import logs
from services.inventory.app import create_app, utc_now
from services.inventory.logs import LogFormat
from services.inventory.problems import Refused
from services.inventory.protocol import Protocol
from services.inventory.tokens import Grant

# Longer than callers keep an idle connection (httpx: 5 s), so that none of them sends into a closing one.
KEEP_ALIVE_SECONDS = 30
# Longer than the slowest honest commit: what has begun is answered before the process ends.
SHUTDOWN_SECONDS = 10
# How long after its time something that is due may be noticed, when nobody asks for it.
HOUSEKEEPING_SECONDS = 1.0


class AddressError(OSError):
    """The address cannot be listened on."""


def serve(
    host: str,
    port: int,
    database_url: str,
    tokens: Mapping[str, Grant],
    *,
    clock: Callable[[], datetime] = utc_now,
    retention: timedelta | None = None,
    signing_keys: tuple[bytes, ...] = (),
    log_format: LogFormat = "text",
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; what has begun is answered first.

    Args:
        host: the address to listen on.
        port: the port, or 0 for any free one.
        database_url: the inventory's database, migrated.
        tokens: each bearer token and what it stands for, as `parse_tokens` gives them.
        clock: the service's own clock.
        retention: how long receipts keep their bodies; for ever without it.
        signing_keys: the first signs receipts; without any, they are not signed.
        log_format: how the log on stderr is written.
        ready: called with the service's URL once it takes requests; without it, the log says the URL.

    Raises:
        DatabaseError: the database cannot be used, may lose commits, or its schema is not this build's.
        AddressError: the address cannot be listened on.
    """
    engine = open_engine(database_url)
    try:
        check_durable(engine)
        check_schema("inventory", engine)
        with contextlib.closing(bind(host, port)) as listener, logs.to_stderr(log_format), _signals_are_no_errors():

            def say(url: str) -> None:
                logs.event("started", {"url": url, "database": describe(engine.url), "pid": os.getpid()})

            app = create_app(engine, tokens, clock, retention=retention, signing_keys=signing_keys)
            server = Server(app, url_of(listener), ready or say, housekeeping=app.state.housekeeping)
            server.run(sockets=[listener])
    finally:
        engine.dispose()


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        AddressError: there can be none.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        # With its protocol named: asyncio sets TCP_NODELAY on no other, and every answer would wait 40 ms for an ACK.
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise AddressError(f"{host}:{port} cannot be listened on: {error.strerror}. Choose another, or 0.") from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where a socket can be reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"http://{host}:{port}"


class Server(uvicorn.Server):
    """A uvicorn server that says when it takes requests, does chores beside them, and ends as described above.

    Args:
        app: what is served; its state has `draining`.
        url: where.
        ready: called with the URL once requests are taken.
        housekeeping: done once a second, in a thread.
    """

    def __init__(
        self,
        app: Starlette,
        url: str,
        ready: Callable[[str], None],
        housekeeping: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self._state = app.state
        self._url = url
        self._ready = ready
        self._housekeeping = housekeeping
        self._chores: asyncio.Task[None] | None = None  # held, so that it is not collected; it ends with the loop

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets=sockets)
        if self._housekeeping is not None:
            self._chores = asyncio.create_task(_keep_house(self._housekeeping))
        self._ready(self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what has begun, take nothing new, and say so."""
        begun = time.monotonic()
        self._state.draining = True
        logs.event("ending", {"connections": len(self.server_state.connections)})
        await super().shutdown(sockets=sockets)
        logs.event("ended", {"seconds": round(time.monotonic() - begun, 3)})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end at the first signal; end at the second."""
        if self.should_exit:
            # Not by the signal's default: the first process of a container has none.
            os._exit(128 + sig)
        self._state.draining = True
        super().handle_exit(sig, frame)


async def _keep_house(housekeeping: Callable[[], None]) -> None:
    async def once() -> None:
        await anyio.to_thread.run_sync(housekeeping)

    def say(error: Exception) -> None:
        # A database that is away is no defect: a line, and no traceback.
        away = isinstance(error, (DatabaseUnreachable, Refused))
        reason = {"reason": error.detail if isinstance(error, Refused) else str(error)} if away else None
        logs.event("housekeeping failed", reason, level=logging.WARNING if away else logging.ERROR)

    await again_and_again(once, every_seconds=HOUSEKEEPING_SECONDS, say=say)


@contextlib.contextmanager
def _signals_are_no_errors() -> Iterator[None]:
    """After its clean end uvicorn raises the signal again, which would end the process as if it had crashed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> None:
        """Nothing is left to do: uvicorn has shut down."""

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
