"""The bench: both halves of the effects that recovery and the sweep meet."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.activities.bench import Bench, bench_of, inventory, journal_template
from tests.services.inventory.conftest import Service


@pytest.fixture(scope="session")
def inventory_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The real inventory."""
    with inventory(tmp_path_factory.mktemp("inventory")) as service:
        yield service


@pytest.fixture(scope="session")
def journal_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty journal."""
    return journal_template(tmp_path_factory.mktemp("journal"))


@pytest.fixture
async def bench(inventory_service: Service, journal_path: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """A journal and a tenant that nobody has used."""
    async with bench_of(inventory_service, journal_path, tmp_path) as bench:
        yield bench
