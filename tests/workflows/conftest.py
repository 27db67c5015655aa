"""One Temporal dev server for the session, and a worker with scripted activities for each test."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from temporalio.client import Client

from services.drill.processes import Processes, TemporalServer
from services.temporal import add_search_attributes
from tests.workflows.world import Stage, stage_of


@pytest.fixture(scope="session")
def temporal_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Temporal dev server, set up."""
    folder = tmp_path_factory.mktemp("temporal")
    with Processes() as processes:
        server = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")

        async def start() -> None:
            await server.start()
            await add_search_attributes(await Client.connect(server.address))

        asyncio.run(start())
        yield server.address


@pytest.fixture
async def client(temporal_address: str) -> Client:
    """Connected to the session's server."""
    return await Client.connect(temporal_address)


@pytest.fixture
async def stage(client: Client) -> AsyncIterator[Stage]:
    """A worker on a task queue of the test's own."""
    async with stage_of(client) as stage:
        yield stage


@pytest.fixture
async def stage_as_it_is(client: Client) -> AsyncIterator[Stage]:
    """The same with a deployment's own time-outs, for what is asked of them."""
    async with stage_of(client, interceptors=[]) as stage:
        yield stage
