"""The session's servers, and a deployment for each case."""

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from services.drill.processes import Processes, TemporalServer
from tests.faults.harness import Case, open_case
from tests.faults.programs import Programs
from tests.faults.programs import programs as serving
from tests.faults.servers import Bench, Inventory
from tests.faults.stores import PostgresStores, SqliteStores, Stores
from tests.postgres import Databases


@pytest.fixture(scope="session")
async def programs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Programs]:
    """What forks every worker of the session."""
    async with serving(tmp_path_factory.mktemp("programs") / "programs.log") as made:
        yield made


@pytest.fixture(scope="session")
async def benches(
    tmp_path_factory: pytest.TempPathFactory, postgres: Databases, programs: Programs
) -> AsyncIterator[dict[str, Bench]]:
    """One Temporal server; an inventory, with journals beside it, on each kind of database."""
    folder = tmp_path_factory.mktemp("faults")
    stores: dict[str, Stores] = {"sqlite": SqliteStores(folder), "postgresql": PostgresStores(postgres)}
    with Processes(grace_seconds=0) as processes:  # nothing here needs a gentle end
        temporal = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await temporal.start()
        client = await Client.connect(temporal.address)
        made = {}
        for dialect, kept_in in stores.items():
            (folder / dialect).mkdir()
            inventory = Inventory(processes, folder / dialect, kept_in.inventory())
            await inventory.start()
            made[dialect] = Bench(
                folder=folder / dialect,
                processes=processes,
                programs=programs,
                temporal=temporal,
                client=client,
                inventory=inventory,
                stores=kept_in,
            )
        yield made


@pytest.fixture
def bench(benches: dict[str, Bench], dialect: str) -> Bench:
    """What the cases of a session share, on one kind of database."""
    return benches[dialect]


@pytest.fixture
async def case(bench: Bench) -> AsyncIterator[Case]:
    """A deployment of the test's own."""
    async with open_case(bench) as opened:
        yield opened
