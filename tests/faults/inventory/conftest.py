"""A service of each test's own, and how much a campaign does."""

import itertools
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from services.database import migrate
from services.drill.processes import Processes
from tests.faults.inventory.caller import Caller, callers
from tests.faults.inventory.client import Campaign
from tests.faults.inventory.reading import adds_up
from tests.faults.servers import Inventory
from tests.postgres import Databases

# The two tenants of a service of a test's own.
TOKEN, OTHER_TOKEN = "token-1", "token-2"
_TENANTS = 60
_unused = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How much a campaign does."""

    races: int
    redos: int
    kills: int
    keys: int
    cuts: int
    stops: int


SHORT = Counts(races=100, redos=20, kills=3, keys=200, cuts=6, stops=1)
LONG = Counts(races=1000, redos=200, kills=20, keys=2000, cuts=60, stops=5)


@pytest.fixture
def counts(request: pytest.FixtureRequest) -> Counts:
    """Short in `make test`, long in `make faults`."""
    return LONG if request.config.getoption("long") else SHORT


@pytest.fixture
def drawn(request: pytest.FixtureRequest) -> random.Random:
    """Where a campaign draws from: the same for the same seed and test."""
    return random.Random(f"{request.config.getoption('seed')} {request.node.name}")  # noqa: S311 - nothing is kept secret by it


@pytest.fixture
def campaign(drawn: random.Random) -> Campaign:
    """Clients that keep the contract, yet to be started."""
    return Campaign(drawn=drawn)


@pytest.fixture
def processes() -> Iterator[Processes]:
    """What a test starts ends with it."""
    with Processes(grace_seconds=0) as made:
        yield made


@pytest.fixture
def database_url(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A migrated database of the test's own."""
    if dialect == "postgresql":
        postgres: Databases = request.getfixturevalue("postgres")
        return postgres.migrated("inventory")
    url = f"sqlite:///{tmp_path / 'inventory.db'}"
    migrate("inventory", url)
    return url


@pytest.fixture
async def inventory(processes: Processes, database_url: str, tmp_path: Path) -> Inventory:
    """A service of the test's own: it may be killed."""
    made = Inventory(processes, tmp_path, database_url, tenants=2)
    await made.start()
    return made


@pytest.fixture(scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory, postgres: Databases) -> AsyncIterator[dict[str, Inventory]]:
    """A service on each database for the campaigns that kill nothing, each as a tenant of its own."""
    folder = tmp_path_factory.mktemp("inventories")
    file = f"sqlite:///{folder / 'inventory.db'}"
    migrate("inventory", file)
    urls = {"sqlite": file, "postgresql": postgres.migrated("inventory")}
    with Processes(grace_seconds=0) as processes:
        made = {
            dialect: Inventory(processes, folder, url, tenants=_TENANTS, name=dialect) for dialect, url in urls.items()
        }
        for service in made.values():
            await service.start()
        yield made
        for service in made.values():
            await adds_up(service)


@pytest.fixture
async def crowd(shared: dict[str, Inventory], dialect: str) -> AsyncIterator[list[Caller]]:
    """32 callers of a tenant that nobody has used, with one history."""
    async with callers(shared[dialect].port, f"token-{next(_unused)}", 32) as made:
        yield made
