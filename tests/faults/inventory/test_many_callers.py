"""32 callers at once: nobody is told that somebody else is in the way."""

from collections import Counter
from pathlib import Path

import pytest

from services.drill.processes import Processes
from tests.faults.inventory.caller import Caller, at_once, callers, deliver, reserve
from tests.faults.inventory.conftest import TOKEN
from tests.faults.inventory.reading import adds_up, one_story
from tests.faults.servers import Inventory

SKU = "FILTER-A"
_ROUNDS = 8


async def test_32_callers_of_one_key_are_told_one_receipt(crowd: list[Caller]) -> None:
    """One of them has executed it; none hears of a request in progress."""
    await crowd[0].ask(deliver("many-delivery-0001", SKU, 100))
    for number in range(_ROUNDS):
        told = await at_once((caller, reserve(f"many-one-key-{number:04d}", {SKU: 1})) for caller in crowd)
        assert Counter((each.status, each.replayed) for each in told) == {(201, False): 1, (201, True): 31}
    kept = await one_story(crowd[0], crowd[0].heard)
    assert kept.stock[SKU]["consumed"] == _ROUNDS


async def test_32_callers_for_one_sku_get_what_is_there_and_no_more(crowd: list[Caller]) -> None:
    """I14, I16, I17: different keys; the last unit goes to one of them, the rest are refused for good."""
    await crowd[0].ask(deliver("many-delivery-0001", SKU, 20 * _ROUNDS))
    for number in range(_ROUNDS):
        told = await at_once(
            (caller, reserve(f"many-keys-{number:04d}-{place:02d}", {SKU: 1})) for place, caller in enumerate(crowd)
        )
        assert {each.status for each in told} <= {201, 409}
        assert {each.problem for each in told} <= {None, "insufficient-stock"}
    kept = await one_story(crowd[0], crowd[0].heard)
    ended = Counter(receipt["outcome"] for receipt in kept.receipts[1:])
    assert ended == {"committed": 20 * _ROUNDS, "rejected": 12 * _ROUNDS}
    assert kept.stock[SKU]["available"] == 0


@pytest.mark.parametrize("dialect", ["sqlite"])
async def test_a_second_process_on_one_file_refuses_at_most_what_it_did_not_do(
    inventory: Inventory, processes: Processes, tmp_path: Path
) -> None:
    """SQLite has one writer's place for both: who waits too long for it hears `overloaded`, and nothing was done."""
    second = Inventory(processes, tmp_path, inventory.database_url, tenants=2, name="second")
    await second.start()
    async with callers(inventory.port, TOKEN, 16) as some, callers(second.port, TOKEN, 16) as others:
        await some[0].ask(deliver("many-delivery-0001", SKU, 32 * _ROUNDS))
        for number in range(_ROUNDS):
            told = await at_once(
                (caller, reserve(f"many-files-{number:04d}-{place:02d}", {SKU: 1}))
                for place, caller in enumerate([*some, *others])
            )
            refused = {(each.status, each.problem) for each in told if each.receipt is None}
            assert refused <= {(503, "overloaded")}
        kept = await one_story(some[0], some[0].heard + others[0].heard)
    await adds_up(inventory)
    done = sum(each.status == 201 for each in some[0].heard + others[0].heard) - 1
    assert kept.stock[SKU]["consumed"] == done > 0
