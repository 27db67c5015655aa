"""SIGKILL of the service at random moments, under clients that keep the contract."""

import asyncio

from tests.faults.inventory.caller import callers
from tests.faults.inventory.client import Campaign
from tests.faults.inventory.conftest import TOKEN, Counts
from tests.faults.inventory.reading import adds_up, one_story
from tests.faults.inventory.strikes import Strikes
from tests.faults.servers import Inventory

_CLIENTS = 16
# What a campaign has to have seen; without it, it has shown nothing.
_MUST_HAPPEN = {
    "hang-up", "no answer", "unheard, and there", "unheard, and not there", "closed: voided", "closed: committed",
    "reservations: committed", "reservations: unknown-sku", "reservations: insufficient-stock", "reservations: voided",
    "deliveries: committed", "release: committed", "release: invalid-transition",
    "confirm: committed", "confirm: invalid-transition", "confirm: hold-expired",
    "redo, known: predecessor-committed", "redo, never came: committed",
}  # fmt: skip

# Counted when the rest is done.
_AT_THE_END = {"confirm: hold-expired"}
# So many times the keys are gone through for the sake of what is rare.
_AT_MOST_TIMES = 10


async def test_a_service_that_is_killed_again_and_again_does_each_effect_once(
    inventory: Inventory, campaign: Campaign, counts: Counts
) -> None:
    """I01, I02, I37: nothing doubled, nothing missing, no key stuck, and the stock is the sum of the ledger."""

    async def kill() -> None:
        campaign.up.clear()
        inventory.child.kill()
        await inventory.start()
        campaign.up.set()

    def enough() -> bool:
        """What is rare and has not happened yet is waited for, but not for ever."""
        missing = _MUST_HAPPEN - _AT_THE_END - campaign.happened.keys()
        return len(campaign.settled) >= counts.keys * (_AT_MOST_TIMES if missing else 1)

    kills = Strikes(campaign, kill, strikes=counts.kills, keys=counts.keys)
    async with callers(inventory.port, TOKEN, _CLIENTS) as crowd:
        await campaign.stock_up(crowd[0], counts.keys)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kills.run())
            campaign.start(tasks, crowd, enough)
        await campaign.end(crowd[0])
        kept = await one_story(crowd[0], crowd[0].heard)
    await adds_up(inventory)
    assert set(campaign.settled) == {receipt["key"] for receipt in kept.receipts if receipt["kind"] != "expiry"}
    assert kills.done == counts.kills
    assert {name for name in _MUST_HAPPEN if not campaign.happened[name]} == set()
