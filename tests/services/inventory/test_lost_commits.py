"""A COMMIT without an answer: nobody may say that nothing was executed, and the same key tells what was."""

from collections.abc import Iterator

import pytest

from tests.postgres_cut import Cut, Side, cutting
from tests.services.inventory.conftest import Caller, connect, running
from tests.services.inventory.test_edge import assert_problem

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"])
KEY = "lost-commit-key-00001"


@pytest.fixture
def cut(database_url: str) -> Iterator[Cut]:
    """A switch on the way to the database."""
    with cutting(database_url) as cut:
        yield cut


@pytest.fixture
def behind(cut: Cut) -> Iterator[Caller]:
    """A caller of a service behind it, whose connection is made: a new one sends a COMMIT of its own."""
    with running(cut.url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        assert caller.deliver(10).status_code == 201
        yield caller


@pytest.mark.parametrize(("side", "replayed"), [(Side.AFTER, "true"), (Side.BEFORE, "false")])
def test_an_unanswered_commit_is_500_and_the_same_key_gets_the_receipt(
    behind: Caller, cut: Cut, side: Side, replayed: str
) -> None:
    """Never 503, which says that nothing was executed; sent again, it is done once."""
    cut.arm(side)
    lost = behind.reserve(2, key=KEY)
    assert lost.status_code == 500
    assert_problem(lost, "internal")
    again = behind.reserve(2, key=KEY)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (201, replayed)
    assert behind.available() == 8
