"""Connections that break: before the first byte it is proven that nothing was sent, from then on nobody knows."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import h11
import httpx
import pytest

from activities.inventory_client import InventoryClient
from services.certificates import trusted
from services.effects.keys import canonical
from services.effects.records import Seen
from services.effects.settle import Next
from services.effects.states import EffectState
from tests.activities.peer import Peer, Script, Wire, http, problem
from tests.activities.sending import OK, ROW, Line, after, client_of, cut, drip, mark, silence

# Long enough for a busy machine to shake hands in, over TLS too.
DEADLINE_SECONDS = 1.0
SMALL_BYTES = 2048
BIG = replace(ROW, request=canonical({"lines": [], "reference": "x" * 60_000}).decode())
BODY = OK.partition(b"\r\n\r\n")[2]
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
# An HTTP/2 server's farewell: "I have processed nothing after stream 0".
GOAWAY = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + b"\x00" * 8


async def close_at_once(wire: Wire) -> None:
    """Accept and close."""
    await wire.say()


async def reset_at_once(wire: Wire) -> None:
    """Accept and reset, before the request or over it."""
    wire.reset()


async def close_after_the_request(wire: Wire) -> None:
    """Take it, say nothing."""
    await wire.request()


async def reset_after_the_request(wire: Wire) -> None:
    """Take it, and be gone as a host is that has lost its memory."""
    await wire.request()
    wire.reset()


async def vanish_after_the_request(wire: Wire) -> None:
    """Take it and close; over TLS without a word."""
    await wire.request()
    wire.vanish()


async def end_its_half_after_the_request(wire: Wire) -> None:
    """Take it, say that nothing will be said, and go on listening."""
    await wire.request()
    wire.half_close()
    await wire.hung_up()


async def reset_within_the_request(wire: Wire) -> None:
    """Take the head and a part of the body."""
    await wire.head()
    wire.reset()


def cut_without_a_word(response: bytes) -> Script:
    """Answer with this and be gone; over TLS without saying so."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.say(response)
        wire.vanish()

    return script


def reset_after(response: bytes) -> Script:
    """Answer with this and reset."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.say(response)
        wire.reset()

    return script


PARTS = {
    "a part of the head": OK[:20],
    "a head without its end": OK[: OK.index(b"\r\n\r\n") + 2],
    "a head": OK[: OK.index(b"{")],
    "all but a byte": OK[:-1],
    "a part of HTTP/1.0": b"HTTP/1.0 201 Created\r\n\r\n" + BODY[:-1],
    "another protocol": b"220 mail.example.com ESMTP\r\n",
    "a part of a chunk": CHUNKED + b"5\r\n{}",
    "chunks without their end": b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n"
    % (len(BODY), BODY),
    "two lengths": b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "an endless head": b"HTTP/1.1 201 Created\r\nX: " + b"x" * 200_000 + b"\r\n\r\n{}",
    "an interim answer alone": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
    "another protocol that was not asked for": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + BODY,
}
BREAKS = {
    **{script.__name__: script for script in (close_at_once, reset_at_once, close_after_the_request,
       reset_after_the_request, vanish_after_the_request, end_its_half_after_the_request)},
    **{f"{what}, closed": cut(part) for what, part in PARTS.items()},
    **{f"{what}, gone without a word": cut_without_a_word(part) for what, part in PARTS.items()},
    **{f"{what}, reset": reset_after(part) for what, part in PARTS.items()},
}  # fmt: skip


@pytest.mark.parametrize("script", BREAKS.values(), ids=BREAKS)
async def test_a_connection_that_breaks_after_the_first_byte_is_unknown(line: Line, script: Script) -> None:
    """Closed, reset, cut in head or body, or no HTTP at all: nobody knows what the other side did."""
    answer, peer = await line.sent(script)
    assert (answer.seen, *after(answer)) == (Seen.UNKNOWN, EffectState.PENDING, Next.LOOK_UP)
    assert len(peer.wires) == 1


async def test_a_goodbye_says_nothing_of_what_was_done(line: Line) -> None:
    """I55: an HTTP/2 GOAWAY, or a close that was announced, is not "this was not processed"."""
    for farewell in (GOAWAY, b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"):
        answer, peer = await line.sent(cut(farewell))
        assert (answer.seen, *after(answer)) == (Seen.UNKNOWN, EffectState.PENDING, Next.LOOK_UP)
        assert peer.got.count(b"POST ") == 1


def _family(kind: type[BaseException]) -> list[type[BaseException]]:
    return [kind, *(each for direct in kind.__subclasses__() for each in _family(direct))]


ERRORS = [
    *(kind for kind in _family(httpx.HTTPError) if kind is not httpx.HTTPStatusError),
    *_family(httpx.StreamError)[1:],
    *_family(h11.ProtocolError)[1:], httpx.InvalidURL, OSError, TimeoutError, RuntimeError,
]  # fmt: skip


class Failing(httpx.AsyncBaseTransport):
    """Raises, before the request's first byte or after it, as the trace says."""

    def __init__(self, make: Callable[[], BaseException], events: list[str]) -> None:
        self._make = make
        self._events = events

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Come as far as told, and fail."""
        for event in self._events:
            await request.extensions["trace"](event, {})
        raise self._make()


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
async def test_whatever_is_raised_is_not_sent_before_the_first_byte_and_unknown_after_it(
    kind: type[BaseException],
) -> None:
    """I56: the whole tree of httpx, and what leaks through it; RemoteProtocolError is no NetworkError."""
    connected = ["connection.connect_tcp.started", "connection.connect_tcp.complete", "connection.start_tls.started"]
    said = () if issubclass(kind, httpx.StreamError) else ("it failed",)
    started = [*connected, "http11.send_request_headers.started"]
    for events, seen in (([], Seen.NOT_SENT), (connected, Seen.NOT_SENT), (started, Seen.UNKNOWN)):
        async with client_of("http://127.0.0.1:9", transport=Failing(partial(kind, *said), events)) as client:
            answer = await client.send(ROW, mark())
        assert (answer.seen, answer.reason) == (seen, kind.__name__)
        assert after(answer) == (EffectState.PENDING, Next.LOOK_UP)


async def test_a_peer_that_refuses_the_connection_got_nothing(line: Line) -> None:
    """ConnectError before the first byte: proven not sent."""
    with socket.socket() as deaf:  # it has the port, so that nobody else gets it, and does not listen
        deaf.bind(("127.0.0.1", 0))
        url = f"http{'s' if line.tls else ''}://127.0.0.1:{deaf.getsockname()[1]}"
        async with client_of(url, ca_file=line.ca_file) as client:
            answer = await client.send(ROW, mark())
    assert (answer.seen, answer.reason) == (Seen.NOT_SENT, "ConnectError")
    assert after(answer) == (EffectState.PENDING, Next.LOOK_UP)


async def test_a_host_that_lets_nobody_in_got_nothing() -> None:
    """ConnectTimeout: it listens, its queue is full, and nobody is let in."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        async with client_of(f"http://127.0.0.1:{listener.getsockname()[1]}") as client:
            answer = await client.send(ROW, mark())
        for filler in fillers:
            filler.close()
    assert (answer.seen, answer.reason) == (Seen.NOT_SENT, "ConnectTimeout")


class Impatient(httpx.AsyncHTTPTransport):
    """The client's own transport, which waits less long in one respect and has small buffers."""

    def __init__(self, line: Line, **limits: float) -> None:
        small = [(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)]
        one = httpx.Limits(max_connections=1)
        super().__init__(verify=trusted(line.ca_file), trust_env=False, limits=one, socket_options=small)
        self._limits = limits

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Pass it on with less time."""
        request.extensions["timeout"] = {**request.extensions["timeout"], **self._limits}
        return await super().handle_async_request(request)


@asynccontextmanager
async def narrow(line: Line, script: Script, **limits: float) -> AsyncIterator[tuple[Peer, InventoryClient]]:
    """A peer and a client between which only a few kilobytes are ever under way."""
    transport = Impatient(line, **limits)
    async with (
        line.peer(script, window_bytes=SMALL_BYTES) as peer,
        client_of(peer.url, transport=transport) as client,
    ):
        yield peer, client


async def takes_the_head_alone(wire: Wire) -> None:
    """Read no further, and stay."""
    await wire.head()
    await asyncio.Event().wait()


async def test_a_peer_that_stops_reading_is_unknown(line: Line) -> None:
    """WriteTimeout: a part of the body has left."""
    async with narrow(line, takes_the_head_alone, write=0.2) as (peer, client):
        answer = await client.send(BIG, mark())
        assert (answer.seen, answer.reason) == (Seen.UNKNOWN, "WriteTimeout")
        assert b"POST " in peer.got


async def test_a_peer_that_does_not_answer_in_time_is_unknown(line: Line) -> None:
    """ReadTimeout."""
    async with narrow(line, silence, read=0.2) as (_, client):
        answer = await client.send(ROW, mark())
        assert (answer.seen, answer.reason) == (Seen.UNKNOWN, "ReadTimeout")


async def test_a_send_that_gets_no_connection_sends_nothing(line: Line) -> None:
    """PoolTimeout: every connection is at work; the peer hears of one request alone."""
    at_peer = asyncio.Event()

    async def hold(wire: Wire) -> None:
        await wire.request()
        at_peer.set()
        await wire.hung_up()

    async with narrow(line, hold, pool=0.2) as (peer, client):
        holding = asyncio.create_task(client.send(ROW, mark()))
        await at_peer.wait()
        answer = await client.send(ROW, mark())
        assert (answer.seen, answer.reason) == (Seen.NOT_SENT, "PoolTimeout")
        holding.cancel()
        await asyncio.wait({holding})
        assert peer.got.count(b"POST ") == 1


@pytest.mark.parametrize(
    "script", [reset_within_the_request, takes_the_head_alone], ids=lambda script: str(script.__name__)
)
async def test_a_request_of_which_a_part_left_is_unknown(line: Line, script: Script) -> None:
    """Reset, or still unread at the total deadline: the peer may act on what it has."""
    async with line.peer(script, window_bytes=SMALL_BYTES) as peer:
        transport = Impatient(line)
        async with client_of(peer.url, transport=transport, deadline_seconds=DEADLINE_SECONDS) as client:
            answer = await client.send(BIG, mark())
    assert (answer.seen, *after(answer)) == (Seen.UNKNOWN, EffectState.PENDING, Next.LOOK_UP)


async def test_a_peer_that_ends_its_half_while_we_write_is_unknown(line: Line) -> None:
    """Its FIN comes in the middle of our body, which it reads to the end all the same."""

    async def no_answer(wire: Wire) -> None:
        await wire.head()
        wire.half_close()
        await wire.hung_up()

    async with narrow(line, no_answer) as (_, client):
        answer = await client.send(BIG, mark())
        assert (answer.seen, *after(answer)) == (Seen.UNKNOWN, EffectState.PENDING, Next.LOOK_UP)


@pytest.mark.parametrize(
    ("response", "seen"),
    [
        (problem(413, "payload-too-large"), Seen.REQUEST_REFUSED),
        (problem(401, "unauthorized"), Seen.CREDENTIALS_REFUSED),
        (OK, Seen.RECEIPT),
        (OK[:-1], Seen.UNKNOWN),
        (http(502, b"<html>"), Seen.UNKNOWN),
    ],
    ids=["413", "401", "201", "a cut 201", "502"],
)
async def test_an_answer_that_comes_before_the_request_was_sent_counts_for_what_it_says(
    line: Line, response: bytes, seen: Seen
) -> None:
    """The peer has made up its mind at the head; the rest goes out, and what was answered is read."""

    async def early(wire: Wire) -> None:
        await wire.head()
        await wire.say(response)
        wire.half_close()
        await wire.hung_up()

    async with narrow(line, early) as (peer, client):
        answer = await client.send(BIG, mark())
        assert answer.seen is seen
        assert len(peer.wires) == 1


WHOLE = {
    "100 first": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "103 first": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 3 + OK,
    "HTTP/1.0": b"HTTP/1.0 201 Created\r\n\r\n" + BODY,
    "chunks": CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
}


@pytest.mark.parametrize("script", [cut, cut_without_a_word], ids=["closed", "gone without a word"])
@pytest.mark.parametrize("response", WHOLE.values(), ids=WHOLE)
async def test_a_receipt_that_came_whole_counts_however_it_was_wrapped(
    line: Line, response: bytes, script: Callable[[bytes], Script]
) -> None:
    """Interim answers, HTTP/1.0 until the close, chunks; the receipt itself says whether it is whole."""
    answer, _ = await line.sent(script(response))
    assert (answer.seen, *after(answer)) == (Seen.RECEIPT, EffectState.COMMITTED, Next.DONE)


@pytest.mark.parametrize("script", [silence, drip(OK), drip(OK[: OK.index(b"\r\n\r\n")] + b"\r\nX: y" * 200)])
async def test_a_send_ends_at_its_total_deadline(line: Line, script: Script) -> None:
    """A read time-out alone never ends a reply that drips, in its head or in its body."""
    started = asyncio.get_running_loop().time()
    answer, _ = await line.sent(script, deadline_seconds=DEADLINE_SECONDS)
    assert (answer.seen, answer.reason) == (Seen.UNKNOWN, "TimeoutError")
    # The whole drip would take longer.
    assert asyncio.get_running_loop().time() - started < 0.05 * len(OK)
