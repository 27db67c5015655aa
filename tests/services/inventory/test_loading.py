"""Claiming and locking: rivals on two connections of a real database."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from services.database import open_engine, writing
from services.inventory.contract import Call, Outcome, VoidCall
from services.inventory.loading import NotTogether, insert_keys
from services.inventory.problems import Problem, Refused
from services.inventory.stock import StockKeeper
from services.inventory.tables import KEYS
from tests.services.inventory.conftest import NOW
from tests.services.inventory.test_books import KEY, OTHER, call

MINE = "key-0000000000000009-g1"


@pytest.fixture
def dialect() -> str:
    """On SQLite there is one writer, so nobody waits for a key."""
    return "postgresql"


def keeper(engine: sa.Engine) -> StockKeeper:
    """A second process of the service, as far as the database can tell."""
    return StockKeeper(engine, lambda: NOW.replace(month=1))


def test_who_waits_for_a_rival_that_rolls_back_takes_the_key(database_url: str) -> None:
    """It waits, and then the key is free."""
    engine = open_engine(database_url)
    with ThreadPoolExecutor() as pool, engine.connect() as rival:
        transaction = rival.begin()
        insert_keys(rival, "acme", [KEY])
        waiting = pool.submit(keeper(engine).perform, VoidCall(tenant="acme", key=KEY))
        _until_somebody_waits(engine)
        transaction.rollback()
        assert waiting.result().replayed is False
    engine.dispose()


def test_who_waits_for_a_rival_that_commits_repeats_its_receipt(database_url: str) -> None:
    """The loser of the race finds the winner's receipt, not its own."""
    engine = open_engine(database_url)
    holding, go = threading.Event(), threading.Event()

    def commit(_connection: sa.Connection) -> None:
        holding.set()
        assert go.wait(20)

    rival = open_engine(database_url)
    sa.event.listen(rival, "commit", commit)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(keeper(rival).perform, VoidCall(tenant="acme", key=KEY))
        assert holding.wait(20)
        second = pool.submit(keeper(engine).perform, VoidCall(tenant="acme", key=KEY))
        _until_somebody_waits(engine)
        go.set()
        assert (first.result().replayed, second.result().replayed) == (False, True)
        assert first.result().body == second.result().body
    rival.dispose()
    engine.dispose()


def test_a_batch_whose_key_a_rival_holds_falls_apart_and_its_others_are_served(database_url: str) -> None:
    """In company nobody waits long; alone the one that must waits, and is told that it is in progress."""
    engine = open_engine(database_url)
    together: list[Call] = [VoidCall(tenant="acme", key=key) for key in (KEY, OTHER)]
    with engine.connect() as rival:
        insert_keys(rival, "acme", [KEY])
        with pytest.raises(NotTogether):
            keeper(engine).execute("acme", together)
        assert keeper(engine).perform(VoidCall(tenant="acme", key=OTHER)).outcome is Outcome.VOIDED
        with pytest.raises(Refused) as refused:
            keeper(engine).perform(VoidCall(tenant="acme", key=KEY))
        assert refused.value.problem is Problem.REQUEST_IN_PROGRESS
    engine.dispose()


def test_no_key_is_taken_by_what_executes_nothing(database_url: str) -> None:
    """A release of nothing, and what would have closed others but was closed itself."""
    engine = open_engine(database_url)
    lost = call(MINE, quantities={}, reservation_id="reservation-9")
    assert isinstance(keeper(engine).execute("acme", [lost])[0], Refused)
    redo = call("key-0000000000000002-g3", supersedes=("key-0000000000000002-g2",))
    closed = call("key-0000000000000002-g2", supersedes=(OTHER,))
    with pytest.raises(NotTogether):
        keeper(engine).execute("acme", [redo, closed])
    with writing(engine) as connection:
        assert connection.execute(sa.select(KEYS)).all() == []
    engine.dispose()


def _until_somebody_waits(engine: sa.Engine) -> None:
    waiting = sa.text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    while True:
        with engine.connect() as connection:
            if connection.execute(waiting).scalar_one():
                return
