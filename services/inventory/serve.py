"""The inventory as a process: its tokens, its socket, and a clean end on SIGTERM or SIGINT."""

import contextlib
import logging
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import FrameType

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.database import check_durable, check_schema, open_engine
from services.inventory.app import create_app, utc_now
from services.inventory.edge import new_request_id, problem_response, standard_headers
from services.inventory.problems import Fault, Invalid

# Longer than callers keep an idle connection (httpx: 5 s), so that none of them sends into a closing one.
KEEP_ALIVE_SECONDS = 30
# Longer than the slowest honest commit: what has begun is answered before the process ends.
SHUTDOWN_SECONDS = 10

_LOG = logging.getLogger(__name__)
_TENANT = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_BEARER = re.compile("[A-Za-z0-9._~+/-]+=*")


class TokensError(ValueError):
    """The tokens cannot be read: the message says which entry and why, and repeats no token."""


class AddressError(OSError):
    """The address cannot be listened on."""


def parse_tokens(text: str) -> dict[str, str]:
    """Read `TENANT=TOKEN,TENANT=TOKEN`: each token and its tenant. A tenant may have several tokens.

    Raises:
        TokensError: empty, malformed, or one token for two entries.
    """
    tokens: dict[str, str] = {}
    for number, entry in enumerate(text.split(","), start=1):
        tenant, _, token = entry.strip().partition("=")
        if not _TENANT.fullmatch(tenant) or not _BEARER.fullmatch(token):
            raise TokensError(
                f"Entry {number} of the tokens is not TENANT=TOKEN. A tenant is letters, digits and . _ - "
                "and a token is not empty and has no spaces. Write acme=TOKEN,globex=TOKEN."
            )
        if token in tokens:
            raise TokensError(
                f"Entry {number} of the tokens repeats an earlier entry's token, and a token stands for one tenant. "
                "Give each entry a token of its own."
            )
        tokens[token] = tenant
    return tokens


def serve(
    host: str,
    port: int,
    database_url: str,
    tokens: Mapping[str, str],
    *,
    clock: Callable[[], datetime] = utc_now,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; what has begun is answered first.

    Args:
        host: the address to listen on.
        port: the port, or 0 for any free one.
        database_url: the inventory's database, migrated.
        tokens: each bearer token and its tenant, as `parse_tokens` gives them.
        clock: the service's own clock.
        ready: called with the service's URL once it takes requests; without it, the URL goes to stderr.

    Raises:
        DatabaseError: the database cannot be used, may lose commits, or its schema is not this build's.
        AddressError: the address cannot be listened on.
    """
    engine = open_engine(database_url)
    try:
        check_durable(engine)
        check_schema("inventory", engine)
        with contextlib.closing(bind(host, port)) as listener, _signals_are_no_errors():
            server = Server(create_app(engine, tokens, clock), url_of(listener), ready or _say)
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


class Protocol(H11Protocol):
    """HTTP/1.1 that answers a request it cannot read in a problem document, like everything else."""

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or has headers beyond 16 KiB: no application ever sees it."""
        _LOG.info("%s", msg)
        fault = Fault(at="", message="It is not an HTTP request that can be read, or its headers are too large.")
        headers = {**standard_headers(new_request_id()), "Connection": "close"}
        response = problem_response(Invalid([fault]), headers)
        for event in (
            h11.Response(status_code=response.status_code, headers=response.raw_headers, reason=b"Bad Request"),
            h11.Data(data=bytes(response.body)),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class Server(uvicorn.Server):
    """A uvicorn server that says when it takes requests."""

    def __init__(self, app: ASGIApp, url: str, ready: Callable[[str], None]) -> None:
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
        self._url = url
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then say so."""
        await super().startup(sockets=sockets)
        self._ready(self._url)


def _say(url: str) -> None:
    sys.stderr.write(f"The inventory listens on {url}\n")
    sys.stderr.flush()


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
