"""A PostgreSQL that leaves COMMITs unanswered, or is stopped at once, under clients that keep the contract."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.database import migrate
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes, wait_until
from tests.faults.inventory.caller import Caller, callers
from tests.faults.inventory.client import Campaign
from tests.faults.inventory.conftest import TOKEN, Counts
from tests.faults.inventory.reading import adds_up, one_story
from tests.faults.inventory.strikes import Strikes
from tests.faults.servers import LIMIT_SECONDS, Inventory
from tests.postgres import Databases
from tests.postgres_cut import Cut, Side, cutting

_CLIENTS = 16
# Goes to the server only where a receipt is written.
_WRITES = b'"receipt_id":"receipt-'
# A cut meets one of the next so many commits.
_PASSING = 8


async def _one_story_in_the_end(campaign: Campaign, crowd: list[Caller], inventory: Inventory) -> None:
    await campaign.end(crowd[0])
    await one_story(crowd[0], crowd[0].heard)
    await adds_up(inventory)


@pytest.fixture
def cut(postgres: Databases) -> Iterator[Cut]:
    """A switch on the way to a database of the test's own."""
    with cutting(postgres.migrated("inventory")) as cut:
        yield cut


@pytest.fixture
async def behind(cut: Cut, processes: Processes, tmp_path: Path) -> Inventory:
    """A service behind it."""
    inventory = Inventory(processes, tmp_path, cut.url, tenants=1)
    await inventory.start()
    return inventory


async def test_no_answer_contradicts_a_commit_whose_connection_was_cut(
    behind: Inventory, cut: Cut, campaign: Campaign, counts: Counts
) -> None:
    """I38: the server has committed it, has never heard of it, or hears of it when it was looked up in vain."""
    sides = Counter[Side]()

    async def one(side: Side) -> None:
        in_vain = campaign.happened["unheard, and not there"]
        cut.arm(side, passing=campaign.drawn.randrange(_PASSING), holding=_WRITES)
        assert await asyncio.to_thread(cut.reached.wait, LIMIT_SECONDS)
        if side is Side.LATE:
            await wait_until(
                lambda: campaign.happened["unheard, and not there"] > in_vain,
                timeout_seconds=LIMIT_SECONDS,
                what="somebody has looked it up in vain",
            )
            await asyncio.to_thread(cut.release)
        sides[side] += 1

    async def cuts() -> None:
        for number in range(counts.cuts):
            await one(list(Side)[number % len(Side)])

    async with callers(behind.port, TOKEN, _CLIENTS) as crowd:
        await campaign.stock_up(crowd[0], 10 * counts.keys)
        async with asyncio.TaskGroup() as tasks:
            cutter = tasks.create_task(cuts())
            campaign.start(tasks, crowd, cutter.done)
        await _one_story_in_the_end(campaign, crowd, behind)
    assert set(sides) == set(Side)
    must_happen = {"internal", "unheard, and there", "unheard, and not there"}
    assert {name for name in must_happen if not campaign.happened[name]} == set()


@pytest.fixture
def server(processes: Processes, tmp_path: Path) -> Iterator[PostgresServer]:
    """Not the session's PostgreSQL: it is stopped."""
    server = PostgresServer(processes, tmp_path / "server")
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
async def on_it(server: PostgresServer, processes: Processes, tmp_path: Path) -> Inventory:
    """A service on it."""
    url = server.create_database("inventory")
    migrate("inventory", url)
    inventory = Inventory(processes, tmp_path, url, tenants=1)
    await inventory.start()
    return inventory


async def test_no_answer_contradicts_what_a_stopped_server_has_kept(
    on_it: Inventory, server: PostgresServer, campaign: Campaign, counts: Counts
) -> None:
    """While it is down everything is refused or unknown; afterwards each key is what it was told to be."""

    async def stop() -> None:
        refused = campaign.happened["overloaded"]
        server.stop_immediately()
        await wait_until(
            lambda: campaign.happened["overloaded"] > refused,
            timeout_seconds=LIMIT_SECONDS,
            what="somebody was refused",
        )
        server.start()

    stops = Strikes(campaign, stop, strikes=counts.stops, keys=counts.keys)
    async with callers(on_it.port, TOKEN, _CLIENTS) as crowd:
        await campaign.stock_up(crowd[0], counts.keys)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(stops.run())
            campaign.start(tasks, crowd, lambda: len(campaign.settled) >= counts.keys)
        await _one_story_in_the_end(campaign, crowd, on_it)
    assert stops.done == counts.stops
    assert campaign.happened["internal"] + campaign.happened["no answer"]
