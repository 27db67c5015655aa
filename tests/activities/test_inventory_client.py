"""The inventory's client on a raw wire: each row of the outcome table, the send gate, and what may never happen."""

import asyncio
import gzip
import json
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.inventory_client import BODY_LIMIT_BYTES, LONGEST_PAUSE_SECONDS, InventoryClient, classify
from services.effects.keys import canonical
from services.effects.records import Answer, Attempt, EffectRow, Receipt, Seen, Source
from services.effects.settle import Next, settle
from services.effects.states import EffectState
from tests.activities.peer import Peer, Script, Wire, answering, http, problem
from tests.services.effects.halves import DECIDED_AT, WINDOW, make_intent, make_receipt, make_release, make_row

INTENT = make_intent()
ROW = make_row(INTENT)
COMMITTED = make_receipt(INTENT).body
REJECTED = make_receipt(INTENT, EffectState.REJECTED).body
VOIDED = make_receipt(INTENT, EffectState.VOIDED).body
FORMER = make_receipt(make_intent(generation=1)).body
OK = http(201, COMMITTED)
NOW = DECIDED_AT + timedelta(minutes=1)
DEADLINE_SECONDS = 0.4


def mark(row: EffectRow = ROW, **changes: Any) -> Attempt:
    """The journal's mark of an attempt that may be sent now."""
    attempt = Attempt(
        attempt_id="attempt-1", number=1, not_after=row.decided_at + WINDOW, marked_at=NOW, worker={"pid": 7}
    )
    return replace(attempt, **changes)


@asynccontextmanager
async def client_of(
    url: str, *, deadline_seconds: float = 5.0, connections: int = 4, clock: Callable[[], datetime] = lambda: NOW
) -> AsyncIterator[InventoryClient]:
    """A client, closed when the block ends."""
    client = InventoryClient(url, "token-a", deadline_seconds=deadline_seconds, connections=connections, clock=clock)
    try:
        yield client
    finally:
        await client.close()


async def sent(script: Script, row: EffectRow = ROW, *, deadline_seconds: float = 5.0) -> tuple[Answer, Peer]:
    """What a client concludes from one send to such a peer."""
    async with Peer(script) as peer, client_of(peer.url, deadline_seconds=deadline_seconds) as client:
        return await client.send(row, mark(row)), peer


def after(answer: Answer, row: EffectRow = ROW) -> tuple[EffectState, Next]:
    """What `settle` makes of it, for a row with this one attempt."""
    settlement = settle(row, (mark(row, seen=answer.seen),), answer)
    return settlement.state, settlement.next


@dataclass(frozen=True)
class Case:
    """A response to a send, what is seen in it, and what follows."""

    what: str
    response: bytes
    seen: Seen
    state: EffectState = EffectState.PENDING
    then: Next = Next.LOOK_UP


def _line(**members: Any) -> dict[str, Any]:
    return COMMITTED | {"lines": [{"sku": "FILTER-A", "requested": 2, "granted": 2} | members]}


def _refused(name: str, receipt: Mapping[str, Any], **members: Any) -> bytes:
    return problem(410 if name == "key-voided" else 409, name, receipt=dict(receipt), **members)


UNKNOWN = [
    Case(f"{status} {what}", http(status, body, *headers), Seen.UNKNOWN)
    for what, body, headers in (
        ("HTML", b"<html>oh</html>", ("Content-Type: text/html",)),
        ("a receipt", COMMITTED, ()),
        ("our JSON of another type", {"type": "/problems/made-up"}, ()),
    )
    for status in (202, 204, 301, 302, 303, 307, 308, 404, 408, 409, 410, 421, 425, 500, 502, 503, 504, 599)
    if not (status == 204 and what != "HTML")
]
CASES = [
    *(case for case in UNKNOWN if not case.what.startswith("204")),
    Case("204", b"HTTP/1.1 204 No Content\r\n\r\n", Seen.UNKNOWN),
    Case("a redirect with a place", http(303, b"", "Location: /v1/reservations"), Seen.UNKNOWN),
    Case("500 internal", problem(500, "internal"), Seen.UNKNOWN),
    Case("a type without its folder", http(409, {"type": "insufficient-stock", "receipt": REJECTED}), Seen.UNKNOWN),
    Case("NaN", http(201, json.dumps(COMMITTED | {"x": float("nan")}).encode()), Seen.UNKNOWN),
    Case("a number beyond floats", http(201, canonical(COMMITTED)[:-1] + b',"x":1e999}'), Seen.UNKNOWN),
    Case("members twice", http(201, canonical(COMMITTED)[:-1] + b',"outcome":"voided"}'), Seen.UNKNOWN),
    Case("5,000 digits", http(201, canonical(COMMITTED)[:-1] + b',"x":' + b"9" * 5000 + b"}"), Seen.UNKNOWN),
    Case("an integer beyond 2**53", http(201, canonical(COMMITTED)[:-1] + b',"x":9007199254740993}'), Seen.UNKNOWN),
    Case("nesting without end", http(201, b"[" * 100_000), Seen.UNKNOWN),
    Case(
        "nesting of 200",
        http(201, canonical(COMMITTED)[:-1] + b',"x":' + b"[" * 200 + b"]" * 200 + b"}"),
        Seen.UNKNOWN,
    ),
    Case("half a surrogate", http(201, canonical(COMMITTED)[:-1] + b',"x":"\\ud800"}'), Seen.UNKNOWN),
    Case("no UTF-8", http(201, canonical(COMMITTED).replace(b"FILTER-A", b"FILTER-\xff")), Seen.UNKNOWN),
    Case("gzip", http(201, gzip.compress(canonical(COMMITTED)), "Content-Encoding: gzip"), Seen.UNKNOWN),
    Case("an over-long body", http(201, canonical(COMMITTED | {"x": "x" * BODY_LIMIT_BYTES})), Seen.UNKNOWN),
    Case("a list", http(201, b"[]"), Seen.UNKNOWN),
    Case("an empty object", http(201, b"{}"), Seen.UNKNOWN),
    Case("a pending receipt", http(201, COMMITTED | {"outcome": "pending"}), Seen.UNKNOWN),
    Case("a committed receipt without fingerprint", http(201, COMMITTED | {"fingerprint": None}), Seen.UNKNOWN),
    Case("410 key-voided without receipt", problem(410, "key-voided"), Seen.UNKNOWN),
    Case("409 insufficient-stock without receipt", problem(409, "insufficient-stock"), Seen.UNKNOWN),
    Case("404 receipt-not-found to a send", problem(404, "receipt-not-found", observed_at="2026-03-01T12:00:00Z"),
         Seen.UNKNOWN),
    Case("429 overloaded", problem(429, "overloaded"), Seen.BUSY),
    Case("503 overloaded", problem(503, "overloaded"), Seen.BUSY),
    Case("409 request-in-progress", problem(409, "request-in-progress"), Seen.BUSY),
    Case("201", OK, Seen.RECEIPT, EffectState.COMMITTED, Next.DONE),
    Case("200", http(200, COMMITTED), Seen.RECEIPT, EffectState.COMMITTED, Next.DONE),
    Case("200 with a rejected receipt", http(200, REJECTED), Seen.RECEIPT, EffectState.REJECTED, Next.DONE),
    Case("100 then 201", b"HTTP/1.1 100 Continue\r\n\r\n" + OK, Seen.RECEIPT, EffectState.COMMITTED, Next.DONE),
    Case("409 with its receipt", _refused("insufficient-stock", REJECTED), Seen.RECEIPT, EffectState.REJECTED,
         Next.DONE),
    Case("409 with a committed receipt", _refused("unknown-sku", COMMITTED), Seen.RECEIPT, EffectState.COMMITTED,
         Next.DONE),
    Case("410 key-voided", _refused("key-voided", VOIDED), Seen.RECEIPT, EffectState.VOIDED, Next.DONE),
    Case("410 key-expired", problem(410, "key-expired"), Seen.KEY_EXPIRED, EffectState.IN_DOUBT, Next.WAIT),
    Case("another key's receipt", http(201, make_receipt(make_intent(name="other")).body), Seen.RECEIPT,
         EffectState.IN_DOUBT, Next.WAIT),
    Case("another payload's receipt", http(201, COMMITTED | {"fingerprint": "0" * 64}), Seen.RECEIPT,
         EffectState.IN_DOUBT, Next.WAIT),
    Case("other lines", http(201, _line(sku="HOSE-B")), Seen.RECEIPT, EffectState.IN_DOUBT, Next.WAIT),
    Case("fewer units", http(201, _line(granted=1)), Seen.RECEIPT, EffectState.IN_DOUBT, Next.WAIT),
    Case("412", problem(412, "not-after-passed"), Seen.DEADLINE_REFUSED),
    Case("400", problem(400, "validation-failed"), Seen.REQUEST_REFUSED),
    Case("413", problem(413, "payload-too-large"), Seen.REQUEST_REFUSED),
    Case("404 reservation-not-found", problem(404, "reservation-not-found"), Seen.REQUEST_REFUSED),
    Case("401", problem(401, "unauthorized"), Seen.CREDENTIALS_REFUSED),
    Case("403", problem(403, "forbidden"), Seen.CREDENTIALS_REFUSED),
    Case("401 of somebody else", http(401, b"<html>log in</html>"), Seen.UNKNOWN),
    Case("422", problem(422, "idempotency-key-reused"), Seen.KEY_REUSED, EffectState.IN_DOUBT, Next.WAIT),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
async def test_each_response_to_a_send_has_its_class_and_what_follows(case: Case) -> None:
    """The outcome table; and one send is one request, whatever comes back."""
    answer, peer = await sent(answering(case.response))
    assert (answer.seen, *after(answer)) == (case.seen, case.state, case.then)
    assert peer.got.count(b"POST ") == 1
    assert b"GET " not in peer.got
    assert answer.reason.isprintable()


async def test_a_refused_predecessor_comes_with_the_former_receipt() -> None:
    """409 predecessor-committed: rejected, and the former generation's receipt is a late observation there."""
    second = make_intent(generation=2)
    row = make_row(second)
    receipt = make_receipt(second, EffectState.REJECTED).body
    answer, peer = await sent(answering(_refused("predecessor-committed", receipt, predecessor=FORMER)), row)
    settlement = settle(row, (mark(row),), answer)
    assert settlement.state is EffectState.REJECTED
    assert settlement.predecessor == Receipt(FORMER)
    assert f"effect-supersedes: {INTENT.key}\r\n".encode() in peer.got.lower()
    answer, _ = await sent(answering(_refused("predecessor-committed", receipt, predecessor={"key": 7})), row)
    assert answer.seen is Seen.UNKNOWN


async def test_a_peer_that_refuses_the_connection_got_nothing() -> None:
    """ConnectError before the first byte: proven not sent."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    async with client_of(url) as client:
        answer = await client.send(ROW, mark())
    assert (answer.seen, answer.reason) == (Seen.NOT_SENT, "ConnectError")
    assert after(answer) == (EffectState.PENDING, Next.LOOK_UP)


@pytest.mark.parametrize(
    "row",
    [
        replace(ROW, kind="inventory.confirm"),
        replace(make_row(make_release()), path={}),
        replace(make_row(make_release()), path={"id": "x" * 70_000}),
        replace(make_row(make_release()), path={"id": ".."}),
        replace(make_row(make_release()), path={"id": "."}),
        replace(make_row(make_release()), path={"id": ""}),
    ],
    ids=["no path for the kind", "no id", "an endless id", "id ..", "id .", "an empty id"],
)
async def test_a_request_that_cannot_be_built_is_not_sent(row: EffectRow) -> None:
    """A model error or a bad URL: nothing leaves, and nothing is raised over the mark that stands."""
    answer, peer = await sent(answering(OK), row)
    assert answer.seen is Seen.NOT_SENT
    assert peer.got == b""


async def test_a_header_that_h11_refuses_is_unknown_though_no_byte_left() -> None:
    """It is raised behind the gate's event: the client claims no more than that event proves."""
    answer, peer = await sent(answering(OK), replace(ROW, key="cf1-\r\nX: y"))
    assert (answer.seen, answer.reason, peer.got) == (Seen.UNKNOWN, "LocalProtocolError", b"")


async def close_at_once(wire: Wire) -> None:
    """Accept and close."""
    await wire.say()


async def close_after_the_request(wire: Wire) -> None:
    """Take it, say nothing."""
    await wire.request()


def cut(response: bytes) -> Script:
    """Answer with this and close."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.say(response)

    return script


async def silence(wire: Wire) -> None:
    """Take it and never answer."""
    await wire.request()
    await wire.hung_up()


def drip(response: bytes) -> Script:
    """A byte now and then, each sooner than any read time-out."""

    async def script(wire: Wire) -> None:
        await wire.request()
        for place in range(len(response)):
            await wire.say(response[place : place + 1])
            await wire.idle(0.05)

    return script


@pytest.mark.parametrize(
    "script",
    [
        close_at_once,
        close_after_the_request,
        cut(OK[:20]),
        cut(OK[: OK.index(b"\r\n\r\n") + 2]),
        cut(OK[:-1]),
        cut(OK[: OK.index(b"{")]),
        cut(b"220 mail.example.com ESMTP\r\n"),
        cut(b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}"),
        cut(b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
        cut(b"HTTP/1.1 201 Created\r\nX: " + b"x" * 200_000 + b"\r\n\r\n{}"),
    ],
)
async def test_a_connection_that_breaks_after_the_first_byte_is_unknown(script: Script) -> None:
    """Closed, cut in head or body, or no HTTP at all: nobody knows what the other side did."""
    answer, peer = await sent(script)
    assert (answer.seen, *after(answer)) == (Seen.UNKNOWN, EffectState.PENDING, Next.LOOK_UP)
    assert len(peer.wires) == 1


@pytest.mark.parametrize("script", [silence, drip(OK)])
async def test_a_send_ends_at_its_total_deadline(script: Script) -> None:
    """A read time-out alone never ends a reply that drips."""
    started = asyncio.get_running_loop().time()
    answer, _ = await sent(script, deadline_seconds=DEADLINE_SECONDS)
    assert answer.seen is Seen.UNKNOWN
    assert asyncio.get_running_loop().time() - started < DEADLINE_SECONDS + 1.5


async def test_what_is_sent_is_the_journaled_bytes_with_the_marks_deadline() -> None:
    """Headers and body on the wire, byte for byte; the body is the row's text, not made again."""
    row = replace(ROW, request='{"lines":[{"quantity":2,"sku":"FILTER-A"}],  "reference":"é"}')
    answer, peer = await sent(answering(OK), row)
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


async def test_a_reservations_id_cannot_leave_its_place_in_the_path() -> None:
    """Slashes, question marks and line breaks in an id are quoted."""
    row = replace(make_row(make_release()), path={"id": "../x?y#z\r\n"})
    _, peer = await sent(answering(OK), row)
    assert peer.got.startswith(b"POST /v1/reservations/..%2Fx%3Fy%23z%0D%0A/release HTTP/1.1\r\n")


@pytest.mark.parametrize("late_by", [timedelta(0), timedelta(seconds=1)])
async def test_no_byte_leaves_once_the_deadline_has_passed(late_by: timedelta) -> None:
    """The send gate: at the deadline itself too; the peer is connected to and gets nothing."""
    async with Peer(answering(OK)) as peer, client_of(peer.url) as client:
        answer = await client.send(ROW, mark(not_after=NOW - late_by))
        assert (answer.seen, peer.got) == (Seen.NOT_SENT, b"")
        assert "send window ended" in answer.reason


async def test_no_byte_leaves_a_kept_connection_once_the_deadline_has_passed() -> None:
    """The gate stands before each request, not before each connection."""
    async with Peer(answering(OK, OK, OK)) as peer, client_of(peer.url) as client:
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        before = peer.got
        assert (await client.send(ROW, mark(not_after=NOW))).seen is Seen.NOT_SENT
        assert peer.got == before
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert peer.got.count(b"POST ") == 2


async def test_a_kept_connection_that_the_peer_closed_is_not_used() -> None:
    """It is seen to be closed before the first byte: a new one is made, and one request arrives."""

    async def one_each(wire: Wire) -> None:
        await wire.request()
        await wire.say(OK)

    async with Peer(one_each) as peer, client_of(peer.url) as client:
        for number in (1, 2, 3):
            assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
            assert [bytes(wire.got).count(b"POST ") for wire in peer.wires] == [1] * number


async def test_a_kept_connection_that_closes_over_the_request_is_unknown_and_not_tried_again() -> None:
    """The transport makes no second try of its own: that needs a look-up first."""

    async def second_unheard(wire: Wire) -> None:
        await wire.request()
        await wire.say(OK)
        await wire.request()

    async with Peer(second_unheard) as peer, client_of(peer.url) as client:
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert (await client.send(ROW, mark())).seen is Seen.UNKNOWN
        assert (len(peer.wires), peer.got.count(b"POST ")) == (1, 2)


async def test_a_send_that_is_cancelled_before_its_first_byte_sends_nothing() -> None:
    """Cancelled while it waits for a connection."""
    at_peer = asyncio.Event()

    async def hold(wire: Wire) -> None:
        await wire.request()
        at_peer.set()
        await wire.hung_up()

    async with Peer(hold) as peer, client_of(peer.url, connections=1) as client:
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


async def test_a_send_that_is_cancelled_after_its_first_byte_leaves_no_connection_behind() -> None:
    """The answer that comes too late is never taken for another request's."""
    at_peer = asyncio.Event()

    async def slow_once(wire: Wire) -> None:
        await wire.request()
        at_peer.set()
        await (wire.hung_up() if len(peer.wires) == 1 else wire.say(OK))

    async with Peer(slow_once) as peer, client_of(peer.url) as client:
        cancelled = asyncio.create_task(client.send(ROW, mark()))
        await at_peer.wait()
        cancelled.cancel()
        await asyncio.wait({cancelled})
        assert cancelled.cancelled()
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert [bytes(wire.got).count(b"POST ") for wire in peer.wires] == [1, 1]


async def test_no_proxy_of_the_environment_gets_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """HTTP_PROXY, ALL_PROXY and a .netrc are somebody else's wishes."""
    async with Peer(answering(OK)) as proxy, Peer(answering(OK)) as peer:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        async with client_of(peer.url) as client:
            assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert (proxy.wires, len(peer.wires)) == ([], 1)


async def test_nothing_that_one_answer_sets_goes_with_the_next_request() -> None:
    """No cookie jar: a request is what the journal says."""
    async with (
        Peer(answering(http(201, COMMITTED, "Set-Cookie: a=b"), OK)) as peer,
        client_of(peer.url) as client,
    ):
        await client.send(ROW, mark())
        await client.send(ROW, mark())
        assert b"cookie" not in peer.got.lower()


LOOKED_UP = [
    Case("200", http(200, COMMITTED), Seen.RECEIPT, EffectState.COMMITTED, Next.DONE),
    Case("200 voided", http(200, VOIDED), Seen.RECEIPT, EffectState.VOIDED, Next.DONE),
    Case("404", problem(404, "receipt-not-found", observed_at="2026-03-01T12:00:00Z"), Seen.ABSENT, then=Next.SEND),
    Case("404 late", problem(404, "receipt-not-found", observed_at="2026-03-03T12:00:00+01:00"), Seen.ABSENT,
         then=Next.VOID),
    Case("404 without a time", problem(404, "receipt-not-found"), Seen.UNKNOWN),
    Case("404 with a naive time", problem(404, "receipt-not-found", observed_at="2026-03-01T12:00:00"), Seen.UNKNOWN),
    Case("404 at the end of time", problem(404, "receipt-not-found", observed_at="9999-12-31T23:59:59-01:00"),
         Seen.UNKNOWN),
    Case("404 before all time", problem(404, "receipt-not-found", observed_at="0001-01-01T00:00:00+01:00"),
         Seen.UNKNOWN),
    Case("404 at a number", problem(404, "receipt-not-found", observed_at=7), Seen.UNKNOWN),
    Case("404 HTML", http(404, b"<html>no such page</html>"), Seen.UNKNOWN),
    Case("404 of another route", problem(404, "not-found"), Seen.UNKNOWN),
    Case("410 key-expired", problem(410, "key-expired"), Seen.KEY_EXPIRED, EffectState.IN_DOUBT, Next.WAIT),
    Case("401", problem(401, "unauthorized"), Seen.CREDENTIALS_REFUSED),
    Case("503", problem(503, "overloaded"), Seen.BUSY),
    Case("a redirect", http(302, b"", "Location: /elsewhere"), Seen.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize("case", LOOKED_UP, ids=lambda case: case.what)
async def test_each_response_to_a_look_up_has_its_class_and_what_follows(case: Case) -> None:
    """Only our own 404 with the provider's clock is an absence."""
    async with Peer(answering(case.response)) as peer, client_of(peer.url) as client:
        answer = await client.look_up(ROW.key)
    assert (answer.seen, answer.source, *after(answer)) == (case.seen, Source.LOOK_UP, case.state, case.then)
    assert peer.got.startswith(f"GET /v1/receipts/{ROW.key} HTTP/1.1\r\n".encode())
    assert len(peer.wires) == 1


async def test_a_void_answers_what_owns_the_key() -> None:
    """A tombstone, or the receipt that was first; a broken connection is an unknown void."""
    for receipt in (VOIDED, COMMITTED, REJECTED):
        async with Peer(answering(http(200, receipt))) as peer, client_of(peer.url) as client:
            answer = await client.void(ROW.key)
        assert (answer.source, answer.receipt) == (Source.VOID, Receipt(receipt))
        assert peer.got.startswith(f"PUT /v1/receipts/{ROW.key}/void HTTP/1.1\r\n".encode())
    async with Peer(close_after_the_request) as peer, client_of(peer.url) as client:
        assert (await client.void(ROW.key)).seen is Seen.UNKNOWN
        assert len(peer.wires) == 1


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("9" * 400, LONGEST_PAUSE_SECONDS),
        ("86400", LONGEST_PAUSE_SECONDS),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("²", None),
        ("Mon, 01 Mar 2020 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 -0100", LONGEST_PAUSE_SECONDS),
        ("Fri, 31 Dec 9999 23:59:59 -0000", LONGEST_PAUSE_SECONDS),
    ],
)
def test_retry_after_is_read_in_both_forms_and_never_believed_beyond_reason(value: str, seconds: float | None) -> None:
    """A pause of a day is not kept, a pause that cannot be read is none."""
    for status, name in ((429, "overloaded"), (503, "overloaded"), (409, "request-in-progress")):
        body = canonical({"type": f"/problems/{name}"})
        answer = classify(status, {"retry-after": value}, body, Source.SEND)
        assert (answer.seen, answer.retry_after_seconds) == (Seen.BUSY, seconds)


def test_retry_after_as_a_date_is_the_time_until_then() -> None:
    """Whole seconds from now, by this host's clock."""
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    answer = classify(503, {"retry-after": then}, canonical({"type": "/problems/overloaded"}), Source.SEND)
    assert answer.retry_after_seconds == pytest.approx(30, abs=2)


@pytest.mark.parametrize("detail", ["half \ud800", "two\nlines", "\x1b[31mred", "x" * 5000])
def test_what_a_provider_says_is_one_line_that_can_be_journaled(detail: str) -> None:
    """A refusal's text goes into the journal: it can always be written there."""
    body = json.dumps({"type": "/problems/validation-failed", "detail": detail}).encode()
    answer = classify(400, {}, body, Source.SEND)
    assert answer.seen is Seen.REQUEST_REFUSED
    assert len(answer.reason) <= 300
    assert answer.reason.isprintable()
    canonical(answer.reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TYPES = st.sampled_from(
    [f"/problems/{name}" for name in ("insufficient-stock", "key-voided", "receipt-not-found", "overloaded",
     "not-after-passed", "validation-failed", "predecessor-committed", "key-expired", "made-up")]
)  # fmt: skip
RECEIPTS = st.dictionaries(st.sampled_from(sorted(COMMITTED)), JSON, max_size=2).map(lambda some: COMMITTED | some)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    RECEIPTS.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"type": TYPES}, optional={"receipt": RECEIPTS | JSON, "predecessor": RECEIPTS | JSON,
                          "observed_at": st.datetimes().map(str) | JSON, "detail": JSON})
    .map(lambda value: json.dumps(value).encode()),
)  # fmt: skip
HEADERS = st.dictionaries(st.sampled_from(["retry-after", "content-type"]), st.text(max_size=40), max_size=2)


@settings(max_examples=600, deadline=None)
@given(
    status=st.sampled_from([200, 201, 204, 303, 400, 401, 404, 409, 410, 412, 413, 422, 429, 500, 503])
    | st.integers(100, 599),
    headers=HEADERS,
    body=BODIES,
    source=st.sampled_from(Source),
)
def test_no_response_is_too_odd_to_be_classified(
    status: int, headers: dict[str, str], body: bytes, source: Source
) -> None:
    """Never an exception; RECEIPT only with a receipt that was read; and what is said of it can be journaled."""
    answer = classify(status, headers, body, source)
    assert (answer.seen is Seen.RECEIPT) == (answer.receipt is not None)
    assert (answer.seen is Seen.ABSENT) == (answer.observed_at is not None)
    assert answer.source is source
    canonical(answer.reason)
    if answer.receipt is not None:
        canonical(answer.receipt.body)
    pause = answer.retry_after_seconds
    assert pause is None or 0 <= pause <= LONGEST_PAUSE_SECONDS
    settle(ROW, (mark(),), answer)
