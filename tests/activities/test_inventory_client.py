"""The inventory's client on a raw wire: what is sent, the send gate, kept connections, and what may never happen."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from services.effects.records import EffectRow, Seen
from tests.activities.peer import Peer, Wire, answering, http
from tests.activities.sending import COMMITTED, NOW, OK, ROW, Line, client_of, mark
from tests.services.effects.halves import make_release, make_row


@pytest.mark.parametrize(
    "row",
    [
        replace(ROW, kind="inventory.paint"),
        replace(make_row(make_release()), path={}),
        replace(make_row(make_release()), path={"id": "x" * 70_000}),
        replace(make_row(make_release()), path={"id": ".."}),
        replace(make_row(make_release()), path={"id": "."}),
        replace(make_row(make_release()), path={"id": ""}),
    ],
    ids=["no path for the kind", "no id", "an endless id", "id ..", "id .", "an empty id"],
)
async def test_a_request_that_cannot_be_built_is_not_sent(line: Line, row: EffectRow) -> None:
    """A model error or a bad URL: nothing leaves, and nothing is raised over the mark that stands."""
    answer, peer = await line.sent(answering(OK), row)
    assert answer.seen is Seen.NOT_SENT
    assert peer.got == b""


async def test_a_header_that_h11_refuses_is_unknown_though_no_byte_left(line: Line) -> None:
    """It is raised behind the gate's event: the client claims no more than that event proves."""
    answer, peer = await line.sent(answering(OK), replace(ROW, key="cf1-\r\nX: y"))
    assert (answer.seen, answer.reason, peer.got) == (Seen.UNKNOWN, "LocalProtocolError", b"")


async def test_what_is_sent_is_the_journaled_bytes_with_the_marks_deadline(line: Line) -> None:
    """Headers and body on the wire, byte for byte; the body is the row's text, not made again."""
    row = replace(ROW, request='{"lines":[{"quantity":2,"sku":"FILTER-A"}],  "reference":"é"}')
    answer, peer = await line.sent(answering(OK), row)
    assert answer.seen is Seen.RECEIPT
    head, _, body = peer.got.partition(b"\r\n\r\n")
    assert body == row.request.encode()
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert first == "POST /v1/reservations HTTP/1.1"
    assert headers["idempotency-key"] == f'"{row.key}"'
    assert headers["effect-not-after"] == "2026-03-02T12:00:00.000000Z"
    assert headers["authorization"] == "Bearer token-a"
    assert headers["accept-encoding"] == "identity"
    assert "effect-supersedes" not in headers


async def test_a_reservations_id_cannot_leave_its_place_in_the_path(line: Line) -> None:
    """Slashes, question marks and line breaks in an id are quoted."""
    row = replace(make_row(make_release()), path={"id": "../x?y#z\r\n"})
    _, peer = await line.sent(answering(OK), row)
    assert peer.got.startswith(b"POST /v1/reservations/..%2Fx%3Fy%23z%0D%0A/release HTTP/1.1\r\n")


@pytest.mark.parametrize("late_by", [timedelta(0), timedelta(seconds=1)])
async def test_no_byte_leaves_once_the_deadline_has_passed(line: Line, late_by: timedelta) -> None:
    """The send gate: at the deadline itself too; the peer is connected to and gets nothing."""
    async with line.both(answering(OK)) as (peer, client):
        answer = await client.send(ROW, mark(not_after=NOW - late_by))
        assert (answer.seen, peer.got) == (Seen.NOT_SENT, b"")
        assert "send window ended" in answer.reason


async def test_no_byte_leaves_a_kept_connection_once_the_deadline_has_passed(line: Line) -> None:
    """The gate stands before each request, not before each connection."""
    async with line.both(answering(OK, OK, OK)) as (peer, client):
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        before = peer.got
        assert (await client.send(ROW, mark(not_after=NOW))).seen is Seen.NOT_SENT
        assert peer.got == before
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert peer.got.count(b"POST ") == 2


async def test_a_send_that_is_cancelled_before_its_first_byte_sends_nothing(line: Line) -> None:
    """Cancelled while it waits for a connection."""
    at_peer = asyncio.Event()

    async def hold(wire: Wire) -> None:
        await wire.request()
        at_peer.set()
        await wire.hung_up()

    async with line.both(hold, connections=1) as (peer, client):
        holding = asyncio.create_task(client.send(ROW, mark()))
        await at_peer.wait()
        waiting = asyncio.create_task(client.send(ROW, mark()))
        await asyncio.wait({waiting}, timeout=0.05)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        holding.cancel()
        await asyncio.wait({holding})
        assert peer.got.count(b"POST ") == 1


async def test_a_send_that_is_cancelled_after_its_first_byte_leaves_no_connection_behind(line: Line) -> None:
    """The answer that comes too late is never taken for another request's."""
    at_peer = asyncio.Event()

    async def slow_once(wire: Wire) -> None:
        await wire.request()
        at_peer.set()
        await (wire.hung_up() if len(peer.wires) == 1 else wire.say(OK))

    async with line.both(slow_once) as (peer, client):
        cancelled = asyncio.create_task(client.send(ROW, mark()))
        await at_peer.wait()
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert cancelled.cancelled()
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert [bytes(wire.got).count(b"POST ") for wire in peer.wires] == [1, 1]


async def test_no_proxy_of_the_environment_gets_a_call(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY, ALL_PROXY and a .netrc are somebody else's wishes."""
    async with Peer(answering(OK)) as proxy, line.peer(answering(OK)) as peer:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
            monkeypatch.setenv(name.upper(), proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with client_of(peer.url, ca_file=line.ca_file) as client:
            assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert (proxy.wires, len(peer.wires)) == ([], 1)


async def test_nothing_that_one_answer_sets_goes_with_the_next_request(line: Line) -> None:
    """No cookie jar: a request is what the journal says."""
    async with line.both(answering(http(201, COMMITTED, "Set-Cookie: a=b"), OK)) as (peer, client):
        await client.send(ROW, mark())
        await client.send(ROW, mark())
        assert peer.got.count(b"POST ") == 2
        assert b"cookie" not in peer.got.lower()
