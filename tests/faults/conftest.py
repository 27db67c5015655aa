"""The session's servers, and a deployment for each case."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from services.database import migrate
from services.drill.processes import Processes, TemporalServer
from tests.faults.harness import Case, open_case
from tests.faults.servers import Bench, Inventory


@pytest.fixture(scope="session")
async def bench(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    """One Temporal server, one inventory, one migrated journal to copy."""
    folder = tmp_path_factory.mktemp("faults")
    migrate("journal", f"sqlite:///{folder / 'journal.db'}")
    with Processes() as processes:
        inventory = Inventory(processes, folder)
        temporal = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await temporal.start()
        await inventory.start()
        client = await Client.connect(temporal.address)
        yield Bench(folder=folder, processes=processes, temporal=temporal, client=client, inventory=inventory)


@pytest.fixture
async def case(bench: Bench) -> AsyncIterator[Case]:
    """A deployment of the test's own."""
    async with open_case(bench) as opened:
        yield opened
