"""The real inventory as a process, on either database; and applications that stand before it."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.types import ASGIApp

from services.database import migrate
from services.drill.processes import Processes
from services.inventory.serve import bind, url_of
from tests.faults.servers import Inventory
from tests.postgres import Databases

TOKEN = "token-1"  # noqa: S105 - of the inventory that tests start


class _Server(uvicorn.Server):
    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app, ws="none", lifespan="on", log_config=None, access_log=False, server_header=False, date_header=False
            )
        )
        self.ready = threading.Event()

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        await super().startup(sockets)  # type: ignore[arg-type]
        self.ready.set()


@contextmanager
def listening(app: ASGIApp) -> Iterator[str]:
    """Serve an application in a thread, on a free port."""
    listener = bind("127.0.0.1", 0)
    server = _Server(app)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert server.ready.wait(60)
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


async def _started(processes: Processes, folder: Path, database_url: str) -> tuple[str, str]:
    inventory = Inventory(processes, folder, database_url)
    await inventory.start()
    return inventory.url, database_url


@pytest.fixture(scope="session")
async def _sqlite(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("conformance")
    database_url = f"sqlite:///{folder / 'inventory.db'}"
    migrate("inventory", database_url)
    with Processes(grace_seconds=0) as processes:
        yield await _started(processes, folder, database_url)


@pytest.fixture(scope="session")
async def _postgresql(tmp_path_factory: pytest.TempPathFactory, postgres: Databases) -> AsyncIterator[tuple[str, str]]:
    with Processes(grace_seconds=0) as processes:
        yield await _started(processes, tmp_path_factory.mktemp("conformance"), postgres.migrated("inventory"))


@pytest.fixture
def inventory_url(dialect: str, request: pytest.FixtureRequest) -> str:
    """Where the inventory answers; runs share it, each with keys of its own."""
    url: str = request.getfixturevalue(f"_{dialect}")[0]
    return url


@pytest.fixture
def inventory_database(dialect: str, request: pytest.FixtureRequest) -> str:
    """Where that inventory keeps its records."""
    url: str = request.getfixturevalue(f"_{dialect}")[1]
    return url
