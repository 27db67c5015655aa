"""What every test may use."""

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: temporalio knows nothing else."""
    return "asyncio"
