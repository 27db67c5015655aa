"""Claiming and locking: rivals on two connections of a real database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import open_engine, writing
from services.inventory.contract import Answer, Call, Kind, Outcome, VoidCall
from services.inventory.loading import NotTogether, insert_keys
from services.inventory.problems import Problem, Refused
from services.inventory.stock import StockKeeper
from services.inventory.tables import COUNTERS, KEYS, RESERVATIONS, STOCK
from tests.postgres import WAITING_FOR_LOCKS
from tests.services.inventory.conftest import NOW
from tests.services.inventory.test_books import KEY, OTHER, call

MINE = "key-0000000000000009-g1"


@pytest.fixture
def dialect() -> str:
    """On SQLite there is one writer, so nobody waits for a key."""
    return "postgresql"


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits, waits until the test lets it go on, however long that takes on a busy machine."""
    monkeypatch.setattr("services.inventory.stock.LOCK_TIMEOUT_SECONDS", 60.0)


def keeper(engine: sa.Engine) -> StockKeeper:
    """A second process of the service, as far as the database can tell."""
    return StockKeeper(engine, lambda: NOW.replace(month=1))


@pytest.mark.usefixtures("_patient")
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


@pytest.mark.usefixtures("_patient")
def test_who_waits_for_a_rival_that_commits_repeats_its_receipt(database_url: str) -> None:
    """The loser of the race finds the winner's receipt, not its own."""
    engine = open_engine(database_url)
    holding, go = threading.Event(), threading.Event()

    def commit(_connection: sa.Connection) -> None:
        holding.set()
        assert go.wait(60)

    rival = open_engine(database_url)
    sa.event.listen(rival, "commit", commit)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(keeper(rival).perform, VoidCall(tenant="acme", key=KEY))
        assert holding.wait(60)
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


@pytest.mark.usefixtures("_patient")
def test_skus_are_locked_from_the_lowest_up_and_the_counter_last(database_url: str) -> None:
    """Whoever waits for a SKU holds those before it, and keeps nobody from numbers."""
    engine = open_engine(database_url)
    for number, sku in enumerate(("FILTER-A", "FILTER-B")):
        keeper(engine).perform(call(f"delivery-0000000000{number}", kind=Kind.DELIVER, quantities={sku: 5}))
    both = call(MINE, quantities={"FILTER-A": 1, "FILTER-B": 1})
    of_sku = sa.select(STOCK.c.version).where(STOCK.c.sku == sa.bindparam("sku"))
    with ThreadPoolExecutor() as pool, engine.connect() as rival:
        rival.execute(of_sku.with_for_update(), {"sku": "FILTER-B"})
        waiting = pool.submit(keeper(engine).perform, both)
        _until_somebody_waits(engine)
        with engine.connect() as other:
            other.execute(sa.select(COUNTERS).with_for_update(nowait=True))
        with engine.connect() as other, pytest.raises(sa.exc.OperationalError, match="could not obtain lock"):
            other.execute(of_sku.with_for_update(nowait=True), {"sku": "FILTER-A"})
        rival.rollback()
        assert waiting.result().outcome is Outcome.COMMITTED
    engine.dispose()


@pytest.mark.usefixtures("_patient")
def test_the_end_of_a_hold_waits_for_the_confirm_that_is_under_way(database_url: str) -> None:
    """Both under the reservation's lock: when the confirm has committed, there is nothing left to end."""
    engine, confirming = open_engine(database_url), open_engine(database_url)
    keeper(engine).perform(call("delivery-00000000001", kind=Kind.DELIVER, quantities={"FILTER-A": 5}))
    keeper(engine).perform(call(KEY, quantities={"FILTER-A": 2}, hold_seconds=1))
    holding, go = threading.Event(), threading.Event()

    def commit(_connection: sa.Connection) -> None:
        holding.set()
        assert go.wait(60)

    sa.event.listen(confirming, "commit", commit)
    confirm = call(MINE, kind=Kind.CONFIRM, quantities={}, reservation_id="reservation-1")
    with ThreadPoolExecutor() as pool:
        try:
            first = pool.submit(keeper(confirming).perform, confirm)
            assert holding.wait(60)
            over = sa.select(RESERVATIONS.c.expires_at <= sa.func.clock_timestamp())
            while True:
                with engine.connect() as connection:
                    if connection.execute(over).scalar_one():
                        break
            second = pool.submit(keeper(engine).expire, "acme", ["reservation-1"], 60)
            _until_somebody_waits(engine)
        finally:
            go.set()
        assert first.result().outcome is Outcome.COMMITTED
        assert second.result() == 0
    with engine.connect() as connection:
        assert connection.execute(sa.select(RESERVATIONS.c.state)).scalars().all() == ["consumed"]
        assert connection.execute(sa.select(STOCK.c.held, STOCK.c.consumed)).all() == [(0, 2)]
    confirming.dispose()
    engine.dispose()


def test_a_reservation_that_is_made_while_others_are_locked_is_not_there_yet(database_url: str) -> None:
    """Whoever guesses its id is told that there is none, and the move of one that is there goes on."""
    engine, moving = open_engine(database_url), open_engine(database_url)
    keeper(engine).perform(call("delivery-00000000001", kind=Kind.DELIVER, quantities={"FILTER-A": 5}))
    keeper(engine).perform(call(KEY))
    late = iter([call(OTHER)])

    def make(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        if "FROM reservation_lines" in statement:
            for one in late:
                keeper(engine).perform(one)

    sa.event.listen(moving, "before_cursor_execute", make)
    releases: list[Call] = [
        call(f"release-00000000000{number}", kind=Kind.RELEASE, quantities={}, reservation_id=f"reservation-{number}")
        for number in (1, 2)
    ]
    released, refused = keeper(moving).execute("acme", releases)
    assert next(late, None) is None
    assert isinstance(released, Answer)
    assert isinstance(refused, Refused)
    assert refused.problem is Problem.RESERVATION_NOT_FOUND
    moving.dispose()
    engine.dispose()


def test_who_waits_for_longer_than_a_statement_may_take_has_executed_nothing_and_is_told_so(database_url: str) -> None:
    """Lock after lock, each for less than the limit on one: the server ends it, and the key is free."""
    engine = open_engine(database_url)

    def impatient(connection: Any, _record: object) -> None:
        connection.execute("SET statement_timeout = '100ms'").close()
        connection.commit()

    waiting = open_engine(database_url)
    sa.event.listen(waiting, "connect", impatient)
    keeper(engine).perform(call("delivery-00000000001", kind=Kind.DELIVER, quantities={"FILTER-A": 5}))
    with engine.connect() as rival:
        rival.execute(sa.select(STOCK).with_for_update())
        with pytest.raises(Refused) as refused:
            keeper(waiting).perform(call(MINE))
    assert refused.value.problem is Problem.OVERLOADED
    assert keeper(engine).perform(call(MINE)).replayed is False
    waiting.dispose()
    engine.dispose()


def _until_somebody_waits(engine: sa.Engine) -> None:
    while True:
        with engine.connect() as connection:
            if connection.execute(WAITING_FOR_LOCKS).scalar_one():
                return
