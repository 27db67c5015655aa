"""Two tenants with the same keys, SKUs and reservations: neither ever sees the other's."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator

import pytest

from tests.faults.inventory.caller import (
    Caller,
    Request,
    Told,
    at_once,
    callers,
    confirm,
    deliver,
    look_up,
    read,
    release,
    reserve,
    void,
)
from tests.faults.inventory.conftest import OTHER_TOKEN, TOKEN, Counts
from tests.faults.inventory.reading import one_story
from tests.faults.servers import Inventory

SKU, KEY = "FILTER-A", "tenants-key-000001"
# Of one request alone: when it was looked at, and its id.
_OF_ITSELF = {"observed_at"}
_HEADERS_OF_ITSELF = {"x-request-id", "date"}


@pytest.fixture
async def both(inventory: Inventory) -> AsyncIterator[tuple[list[Caller], list[Caller]]]:
    """16 callers of each of two tenants."""
    async with callers(inventory.port, TOKEN, 16) as ours, callers(inventory.port, OTHER_TOKEN, 16) as theirs:
        yield ours, theirs


def shown(told: Told, name: str) -> tuple[int | None, dict[str, str], str]:
    """An answer without what is of this one request, and with its own key, SKU or id as NAME."""
    headers = {key: value for key, value in told.headers.items() if key not in _HEADERS_OF_ITSELF}
    body = {key: value for key, value in told.body.items() if key not in _OF_ITSELF}
    return told.status, headers, json.dumps(body).replace(name, "NAME")


def asking_by_key(key: str) -> list[Request]:
    """Every way to ask for a key without using it."""
    several = Request(method="POST", path="/v1/receipts/lookup", body={"keys": [key]})
    return [look_up(key), several, read(f"/v1/receipts?reference={key}")]


def asking_by_reservation(reservation_id: str) -> list[Request]:
    """Every way to ask for a reservation, and to move it: the keys are never used, for nothing is executed."""
    return [
        read(f"/v1/reservations/{reservation_id}"),
        confirm("tenants-confirm-01", reservation_id),
        release("tenants-release-01", reservation_id),
    ]


def asking_by_sku(sku: str) -> list[Request]:
    """Every way to ask for a SKU."""
    return [read(f"/v1/stock/{sku}"), read(f"/v1/ledger/{sku}"), read(f"/v1/receipts?sku={sku}")]


def asking_by_range(prefix: str) -> list[Request]:
    """The keys of a range, and how many there are."""
    return [read(f"/v1/receipts/digests?prefix={prefix}")]


def range_of(key: str) -> str:
    """The deepest range that a key is in."""
    return hashlib.sha256(key.encode()).hexdigest()[:4]


async def test_what_another_tenant_has_looks_like_what_is_not_there(
    both: tuple[list[Caller], list[Caller]],
) -> None:
    """I40: byte for byte, by key, reservation and SKU, over every route that takes one."""
    (ours, *_), (theirs, *_) = both
    assert (await ours.ask(deliver("tenants-delivery-1", SKU, 10))).status == 201
    body = {"lines": [{"sku": SKU, "quantity": 2}], "reference": KEY}
    taken = await ours.ask(Request(method="POST", path="/v1/reservations", key=KEY, body=body))
    assert taken.receipt is not None
    pairs = (
        (asking_by_key, KEY, "tenants-key-999999"),
        (asking_by_reservation, taken.receipt["reservation_id"], "reservation-999"),
        (asking_by_sku, SKU, "FILTER-Z"),
        (asking_by_range, range_of(KEY), range_of("tenants-key-999999")),
    )
    compared = 0
    for asking, foreign, missing in pairs:
        for request, same in zip(asking(foreign), asking(missing), strict=True):
            seen, unseen = await theirs.ask(request), await theirs.ask(same)
            assert shown(seen, foreign) == shown(unseen, missing)
            assert (await ours.ask(request)).content != seen.content
            compared += 1
    assert compared == 10


async def test_a_foreign_key_may_be_used_and_closed_as_if_it_were_new(
    both: tuple[list[Caller], list[Caller]],
) -> None:
    """I40: two effects, two receipts; a void of one closes nothing of the other."""
    (ours, *_), (theirs, *_) = both
    for caller in (ours, theirs):
        assert (await caller.ask(deliver("tenants-delivery-1", SKU, 10))).status == 201
    used = await ours.ask(reserve(KEY, {SKU: 2}))
    closed = await theirs.ask(void(KEY))
    again = await ours.ask(reserve(KEY, {SKU: 2}))
    assert used.receipt == again.receipt == (await ours.ask(look_up(KEY))).receipt
    assert (used.outcome, closed.outcome, closed.replayed) == ("committed", "voided", False)
    for caller in (ours, theirs):
        await one_story(caller, caller.heard)


async def test_two_tenants_that_race_with_the_same_keys_each_have_their_own_story(
    both: tuple[list[Caller], list[Caller]], counts: Counts
) -> None:
    """I40: one takes 2 of each, the other 3, and some keys are closed; no answer is ever of the other's receipt."""
    for callers_ in both:
        assert (await callers_[0].ask(deliver("tenants-delivery-1", SKU, 10 * counts.races))).status == 201
    numbers = iter(range(counts.races))

    async def lane(ours: Caller, theirs: Caller) -> None:
        for number in numbers:
            key = f"tenants-raced-{number:06d}"
            asked = [reserve(key, {SKU: 2}), reserve(key, {SKU: 3}) if number % 5 else void(key)]
            both_ways = list(zip((ours, theirs), asked, strict=True))[:: 1 if number % 2 else -1]
            told = await at_once(both_ways)
            assert {each.status for each in told} <= {200, 201}
            assert not any(each.replayed for each in told)

    async with asyncio.TaskGroup() as lanes:
        for ours, theirs in zip(*both, strict=True):
            lanes.create_task(lane(ours, theirs))
    kept = [await one_story(callers_[0], callers_[0].heard) for callers_ in both]
    assert [len(each.receipts) for each in kept] == [counts.races + 1] * 2
    assert [each.stock[SKU]["consumed"] for each in kept] == [
        2 * counts.races,
        3 * (counts.races - len(range(0, counts.races, 5))),
    ]
