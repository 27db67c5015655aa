"""The session's servers, and a deployment for each case."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from services.drill.processes import Processes, TemporalServer
from tests.faults.harness import Case, open_case
from tests.faults.servers import Bench, Inventory
from tests.faults.stores import PostgresStores, SqliteStores


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
async def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """One Temporal server and one inventory, with journal and inventory on one kind of database."""
    folder = tmp_path_factory.mktemp("faults")
    on_sqlite = request.param == "sqlite"
    stores = SqliteStores(folder) if on_sqlite else PostgresStores(request.getfixturevalue("postgres"))
    with Processes() as processes:
        inventory = Inventory(processes, folder, stores.inventory())
        temporal = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await temporal.start()
        await inventory.start()
        client = await Client.connect(temporal.address)
        yield Bench(
            folder=folder, processes=processes, temporal=temporal, client=client, inventory=inventory, stores=stores
        )


@pytest.fixture
async def case(bench: Bench) -> AsyncIterator[Case]:
    """A deployment of the test's own."""
    async with open_case(bench) as opened:
        yield opened
