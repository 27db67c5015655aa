"""The server of children, and how much a campaign does."""

from collections.abc import AsyncIterator

import pytest

from tests.faults.harness import open_case
from tests.faults.seams.campaign import Stage
from tests.faults.seams.children import Children
from tests.faults.seams.children import children as serving
from tests.faults.servers import Bench

# Enough for two units to each effect of the longest campaign.
STOCK = 1000


@pytest.fixture(scope="session")
async def children(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Children]:
    """What forks every child of the session."""
    async with serving(tmp_path_factory.mktemp("seams") / "children.log") as made:
        yield made


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether every seam is met with every recovery: `make faults`; `make test` meets each seam once."""
    return bool(request.config.getoption("long"))


@pytest.fixture
async def stage(bench: Bench, children: Children) -> AsyncIterator[Stage]:
    """A deployment of the test's own, with children for its actors."""
    async with open_case(bench, stock=STOCK) as case, Stage.of(case, children) as made:
        yield made
