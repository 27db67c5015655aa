"""The outcome table, each answer over TCP and over TLS: what is seen in it, and what follows."""

import gzip
import json
from typing import Any

import pytest

from activities.inventory_client import BODY_LIMIT_BYTES
from services.effects.keys import canonical
from services.effects.records import Receipt, Seen, Source
from services.effects.settle import Next, settle
from services.effects.states import EffectState
from tests.activities.peer import answering, http, problem
from tests.activities.sending import COMMITTED, INTENT, OK, REJECTED, ROW, VOIDED, Case, Line, after, cut, mark, refused
from tests.services.effects.halves import make_intent, make_receipt, make_row

FORMER = make_receipt(make_intent(generation=1)).body


def _line(**members: Any) -> dict[str, Any]:
    return COMMITTED | {"lines": [{"sku": "FILTER-A", "requested": 2, "granted": 2} | members]}


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
    Case("409 with its receipt", refused("insufficient-stock", REJECTED), Seen.RECEIPT, EffectState.REJECTED,
         Next.DONE),
    Case("409 with a committed receipt", refused("unknown-sku", COMMITTED), Seen.RECEIPT, EffectState.COMMITTED,
         Next.DONE),
    Case("410 key-voided", refused("key-voided", VOIDED), Seen.RECEIPT, EffectState.VOIDED, Next.DONE),
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
async def test_each_response_to_a_send_has_its_class_and_what_follows(line: Line, case: Case) -> None:
    """The outcome table; and one send is one request, whatever comes back."""
    answer, peer = await line.sent(answering(case.response))
    assert (answer.seen, *after(answer)) == (case.seen, case.state, case.then)
    assert peer.got.count(b"POST ") == 1
    assert b"GET " not in peer.got
    assert answer.reason.isprintable()


async def test_a_refused_predecessor_comes_with_the_former_receipt(line: Line) -> None:
    """409 predecessor-committed: rejected, and the former generation's receipt is a late observation there."""
    second = make_intent(generation=2)
    row = make_row(second)
    receipt = make_receipt(second, EffectState.REJECTED).body
    answer, peer = await line.sent(answering(refused("predecessor-committed", receipt, predecessor=FORMER)), row)
    settlement = settle(row, (mark(row),), answer)
    assert settlement.state is EffectState.REJECTED
    assert settlement.predecessor == Receipt(FORMER)
    assert f"effect-supersedes: {INTENT.key}\r\n".encode() in peer.got.lower()
    answer, _ = await line.sent(answering(refused("predecessor-committed", receipt, predecessor={"key": 7})), row)
    assert answer.seen is Seen.UNKNOWN


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
async def test_each_response_to_a_look_up_has_its_class_and_what_follows(line: Line, case: Case) -> None:
    """Only our own 404 with the provider's clock is an absence."""
    async with line.both(answering(case.response)) as (peer, client):
        answer = await client.look_up(ROW.key)
    assert (answer.seen, answer.source, *after(answer)) == (case.seen, Source.LOOK_UP, case.state, case.then)
    assert peer.got.startswith(f"GET /v1/receipts/{ROW.key} HTTP/1.1\r\n".encode())
    assert len(peer.wires) == 1


async def test_a_void_answers_what_owns_the_key(line: Line) -> None:
    """A tombstone, or the receipt that was first; a broken connection is an unknown void."""
    for receipt in (VOIDED, COMMITTED, REJECTED):
        async with line.both(answering(http(200, receipt))) as (peer, client):
            answer = await client.void(ROW.key)
        assert (answer.source, answer.receipt) == (Source.VOID, Receipt(receipt))
        assert peer.got.startswith(f"PUT /v1/receipts/{ROW.key}/void HTTP/1.1\r\n".encode())
    async with line.both(cut(b"")) as (peer, client):
        assert (await client.void(ROW.key)).seen is Seen.UNKNOWN
        assert len(peer.wires) == 1
