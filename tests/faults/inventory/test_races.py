"""Two requests about one effect at the same moment, again and again: each pair ends as one story."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from tests.faults.inventory.caller import (
    Caller,
    at_once,
    confirm,
    deliver,
    hold,
    look_up,
    release,
    reserve,
    void,
)
from tests.faults.inventory.conftest import Counts
from tests.faults.inventory.reading import one_story
from tests.faults.inventory.story import Kept

SKU = "FILTER-A"
# Races at the same time, each with callers of its own.
_LANES = 8
_CALLERS = 3

Race = Callable[[list[Caller], int], Awaitable[object]]


async def _all(crowd: list[Caller], races: int, race: Race) -> Kept:
    """Run so many races; all that was heard and all that is kept is one story."""
    first = crowd[0]
    assert (await first.ask(deliver("delivery-before-races", SKU, 10 * races))).status == 201
    numbers = iter(range(races))

    async def lane(callers: list[Caller]) -> None:
        for number in numbers:
            await race(callers, number)

    async with asyncio.TaskGroup() as lanes:
        for number in range(_LANES):
            lanes.create_task(lane(crowd[_CALLERS * number : _CALLERS * (number + 1)]))
    return await one_story(first, first.heard)


def _key(number: int, generation: int = 1) -> str:
    return f"raced-key-{number:06d}-g{generation}"


async def test_a_use_and_a_void_of_one_key_have_one_winner(crowd: list[Caller], counts: Counts) -> None:
    """Both answers, the receipt and the stock say the same of it; each of the two wins sometimes."""

    async def race(callers: list[Caller], number: int) -> None:
        both = [reserve(_key(number), {SKU: 2}), void(_key(number))]
        asked = [*both[:: 1 if number % 2 else -1], look_up(_key(number))]
        use, close = sorted((await at_once(zip(callers, asked, strict=True)))[:2], key=lambda told: told.request.method)
        assert (use.status, close.status) in {(201, 200), (410, 200)}

    kept = await _all(crowd, counts.races, race)
    ended = Counter(receipt["outcome"] for receipt in kept.receipts[1:])
    assert set(ended) == {"committed", "voided"}
    assert ended.total() == counts.races
    assert kept.stock[SKU]["consumed"] == 2 * ended["committed"]


@pytest.mark.parametrize(("other", "answers"), [(2, [201, 201]), (3, [201, 422])], ids=["same body", "other body"])
async def test_two_uses_of_one_key_are_one_effect(
    crowd: list[Caller], counts: Counts, other: int, answers: list[int]
) -> None:
    """I05, I43: the same request is executed once and told twice; of two different ones, one is refused."""

    async def race(callers: list[Caller], number: int) -> None:
        both = [reserve(_key(number), {SKU: 2}), reserve(_key(number), {SKU: other})]
        asked = [*both[:: 1 if number % 2 else -1], look_up(_key(number))]
        told = (await at_once(zip(callers, asked, strict=True)))[:2]
        assert sorted(each.status or 0 for each in told) == answers

    kept = await _all(crowd, counts.races, race)
    won = Counter(receipt["lines"][0]["granted"] for receipt in kept.receipts[1:])
    assert set(won) == {2, other}
    assert won.total() == counts.races


async def test_a_redo_and_its_former_generation_never_both_land(crowd: list[Caller], counts: Counts) -> None:
    """The former one comes at the same moment, or when the redo has been answered long since."""

    async def race(callers: list[Caller], number: int) -> None:
        former = reserve(_key(number), {SKU: 2})
        redo = reserve(_key(number, 2), {SKU: 2}, supersedes=(former.key or "",))
        if number % 4 == 0:
            assert (await callers[0].ask(redo)).status == 201
            assert (await callers[1].ask(former)).problem == "key-voided"
            return
        both = [former, redo][:: 1 if number % 2 else -1]
        told = await at_once(zip(callers, [*both, look_up(redo.key or "")], strict=True))
        first, second = (next(each for each in told if each.request is one) for one in (former, redo))
        assert (first.status, second.problem) in {(201, "predecessor-committed"), (410, None)}

    kept = await _all(crowd, counts.redos, race)
    ended = Counter((receipt["outcome"], receipt["reason"]) for receipt in kept.receipts[1:])
    assert set(ended) == {("committed", None), ("voided", "superseded"), ("rejected", "predecessor-committed")}
    assert ended["committed", None] == counts.redos
    assert kept.stock[SKU]["consumed"] == 2 * counts.redos


async def test_a_confirm_and_a_release_of_one_hold_move_it_in_one_order(crowd: list[Caller], counts: Counts) -> None:
    """I19: confirmed and then given back, or given back and then not to be confirmed; the units come back once."""

    async def race(callers: list[Caller], number: int) -> None:
        held = await callers[0].ask(hold(_key(number), {SKU: 2}, seconds=3600))
        reservation_id = held.body["reservation_id"]
        both = [confirm(f"{_key(number)}-confirm", reservation_id), release(f"{_key(number)}-release", reservation_id)]
        asked = [*both[:: 1 if number % 2 else -1], look_up(_key(number))]
        told = await at_once(zip(callers, asked, strict=True))
        confirmed, released = (next(each for each in told if each.request is one) for one in both)
        assert released.status == 200
        assert (confirmed.status, confirmed.problem) in {(200, None), (409, "invalid-transition")}

    kept = await _all(crowd, counts.redos, race)
    ended = Counter((receipt["kind"], receipt["outcome"]) for receipt in kept.receipts[1:])
    assert ended["inventory.release", "committed"] == counts.redos
    assert ended["inventory.confirm", "committed"] > 0
    assert ended["inventory.confirm", "rejected"] > 0
    assert kept.stock[SKU]["available"] == kept.stock[SKU]["received"]
