"""What these tests share."""

from collections.abc import Iterator

import pytest

from tests.torch.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Ranks on gloo, each a process."""
    with Ranks() as started:
        yield started
