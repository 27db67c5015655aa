"""A look-up of many keys: each has an answer of its own, in the words of a look-up of one."""

import asyncio
import json
from typing import Any

import pytest

from activities.inventory_client import BATCH_LIMIT_BYTES, KEYS_AT_ONCE
from services.effects.records import Answer, Seen
from tests.activities.bench import Bench, intent_now
from tests.activities.peer import Peer, Wire, http, problem
from tests.activities.sending import COMMITTED, NOW, ROW, client_of, cut
from tests.services.effects.halves import make_intent

OTHER = make_intent(scope="INC-9999").key
AT = "2026-03-01T12:01:00.000000Z"
EXPIRED = {"type": "/problems/key-expired", "title": "key-expired", "status": 410}


async def heard(response: bytes) -> list[Answer]:
    """What is heard of two keys."""
    async with Peer(cut(response)) as peer, client_of(peer.url) as client:
        answers = await client.look_up_many([ROW.key, OTHER])
        assert list(answers) == [ROW.key, OTHER]
        return list(answers.values())


def found(**members: Any) -> bytes:
    """The contract's answer, and what a test changes in it."""
    receipts = {ROW.key: COMMITTED, OTHER: None}
    return http(200, {"receipts": receipts, "observed_at": AT, "watermark": 7} | members)


async def test_each_key_has_its_own_answer() -> None:
    """A receipt, and an absence that says when it was seen."""
    receipt, absent = await heard(found())
    assert (receipt.seen, receipt.receipt and receipt.receipt.body) == (Seen.RECEIPT, COMMITTED)
    assert (absent.seen, absent.reason, absent.observed_at) == (Seen.ABSENT, "404 receipt-not-found", NOW)


@pytest.mark.parametrize(
    ("receipts", "seen"),
    [
        ({ROW.key: EXPIRED, OTHER: None}, [Seen.KEY_EXPIRED, Seen.ABSENT]),
        ({ROW.key: COMMITTED}, [Seen.RECEIPT, Seen.UNKNOWN]),
        ({ROW.key: {"type": "/problems/no-such"}, OTHER: None}, [Seen.UNKNOWN, Seen.ABSENT]),
        ({ROW.key: "committed", OTHER: None}, [Seen.UNKNOWN, Seen.ABSENT]),
        ({ROW.key: COMMITTED | {"outcome": "perhaps"}, OTHER: None}, [Seen.UNKNOWN, Seen.ABSENT]),
        ({}, [Seen.UNKNOWN, Seen.UNKNOWN]),
    ],
)
async def test_what_is_odd_about_one_key_says_nothing_of_another(receipts: Any, seen: list[Seen]) -> None:
    """Left out is not absent, and what cannot be read is unknown."""
    assert [answer.seen for answer in await heard(found(receipts=receipts))] == seen


@pytest.mark.parametrize("observed_at", [None, "yesterday", "2026-03-01T12:01:00"])
async def test_an_absence_without_its_time_is_none(observed_at: str | None) -> None:
    """E65: what does not say when it was seen is no evidence; the receipt beside it is."""
    receipt, absent = await heard(found(observed_at=observed_at))
    assert (receipt.seen, absent.seen) == (Seen.RECEIPT, Seen.UNKNOWN)


@pytest.mark.parametrize(
    ("response", "seen"),
    [
        (problem(401, "unauthorized"), Seen.CREDENTIALS_REFUSED),
        (problem(403, "forbidden"), Seen.CREDENTIALS_REFUSED),
        (problem(429, "overloaded", "Retry-After: 3"), Seen.BUSY),
        (problem(503, "overloaded"), Seen.BUSY),
        (problem(400, "validation-failed"), Seen.UNKNOWN),
        (problem(404, "receipt-not-found", observed_at=AT), Seen.UNKNOWN),
        (problem(410, "key-expired"), Seen.UNKNOWN),
        (problem(422, "idempotency-key-reused"), Seen.UNKNOWN),
        (problem(500, "internal"), Seen.UNKNOWN),
        (http(201, COMMITTED), Seen.UNKNOWN),
        (http(200, {"observed_at": AT}), Seen.UNKNOWN),
        (http(200, {"receipts": [], "observed_at": AT}), Seen.UNKNOWN),
        (http(200, b'{"receipts": {"a": null, "a": null}}'), Seen.UNKNOWN),
        (http(200, json.dumps({"x": "x" * BATCH_LIMIT_BYTES}).encode()), Seen.UNKNOWN),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", Seen.UNKNOWN),
    ],
)
async def test_what_is_no_answer_to_the_question_is_one_for_no_key(response: bytes, seen: Seen) -> None:
    """A refusal is everybody's; a status that would mean something of one key means nothing of many."""
    assert [answer.seen for answer in await heard(response)] == [seen, seen]


async def test_a_look_up_of_many_ends_at_its_total_deadline() -> None:
    """Silence is unknown for every key, and nothing is raised."""

    async def silent(wire: Wire) -> None:
        await wire.request()
        await wire.hung_up()

    async with Peer(silent) as peer, client_of(peer.url, deadline_seconds=0.2) as client:
        answers = await client.look_up_many([ROW.key, OTHER])
    assert {answer.seen for answer in answers.values()} == {Seen.UNKNOWN}


async def test_more_keys_than_one_exchange_takes_are_asked_for_in_several(bench: Bench) -> None:
    """By the real inventory, whose answers are those of a look-up of one."""
    committed = intent_now()
    await bench.attempt(committed)
    keys = [committed.key, *(intent_now(scope=f"INC-{number}").key for number in range(KEYS_AT_ONCE))]
    bench.wire.requests.clear()
    many = await bench.between.look_up_many(keys)
    assert (list(many), bench.wire.requests) == (keys, ["LOOKUP"] * 2)
    single = await asyncio.gather(*(bench.between.look_up(key) for key in keys[:2]))
    assert [many[key].seen for key in keys[:2]] == [Seen.RECEIPT, Seen.ABSENT]
    for one, key in zip(single, keys, strict=False):
        assert (one.seen, one.reason, one.receipt) == (many[key].seen, many[key].reason, many[key].receipt)
