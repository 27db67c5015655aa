"""Retention: receipts lose their bodies, and their keys are used for ever."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from services.database import open_engine, writing
from services.inventory.housekeeping import Housekeeping
from services.inventory.problems import Refused
from services.inventory.stock import COMPANY_LOCK_TIMEOUT_SECONDS, StockKeeper
from services.inventory.tables import KEYS, MOVEMENTS, RECEIPT_LINES, RECEIPTS, RESERVATION_LINES, RESERVATIONS
from tests.postgres import WAITING_FOR_LOCKS
from tests.services.inventory.conftest import Caller, connect, running
from tests.services.inventory.test_edge import assert_problem


def test_what_retention_takes_is_the_body_and_never_the_key(database_url: str) -> None:
    """I53: POST, GET and void of an old key are 410 with what is left of it; nothing is executed, ever."""
    with (
        running(database_url, {"token": "acme"}, retention=timedelta(0)) as service,
        connect(service.url, "token") as http,
    ):
        caller = Caller(http)
        caller.deliver()
        key, closed = "old-key-000000000001", "old-key-000000000002"
        receipt = caller.reserve(key=key).json()
        caller.void(closed)
        before = caller.http.get("/v1/receipts/digests").json()
        service.clock.now += timedelta(seconds=1)
        service.housekeeping()
        left = {name: receipt[name] for name in ("receipt_id", "sequence", "outcome", "reservation_id")}
        for answer in (caller.receipt(key), caller.reserve(key=key), caller.reserve(3, key=key), caller.void(key)):
            assert_problem(answer, "key-expired")
            assert answer.json()["expired"] == left
            assert "came to its end: committed" in answer.json()["detail"]  # never that nothing was done under it
        assert_problem(caller.void(closed), "key-expired")
        found = caller.http.post("/v1/receipts/lookup", json={"keys": [key, "new-key-000000000001"]}).json()["receipts"]
        assert found[key] == caller.receipt(key).json()
        assert found["new-key-000000000001"] is None
        assert caller.http.get("/v1/receipts").json()["receipts"] == []
        assert caller.http.get("/v1/receipts/digests").json() == before
        assert (caller.available(), len(caller.ledger())) == (8, 2)
        assert caller.release(receipt["reservation_id"]).status_code == 200
        headers = {"Effect-Supersedes": closed}
        assert caller.reserve(key="new-key-000000000002", headers=headers).status_code == 201


def test_younger_receipts_keep_their_bodies(database_url: str) -> None:
    """In order, up to the first that is young enough; for ever where no retention is set."""
    with (
        running(database_url, {"token": "acme"}, retention=timedelta(days=1)) as service,
        connect(service.url, "token") as http,
    ):
        caller = Caller(http)
        caller.deliver()
        service.housekeeping()
        assert len(caller.http.get("/v1/receipts").json()["receipts"]) == 1
        Housekeeping(service.engine, StockKeeper(service.engine, service.clock), service.clock, None).run()
        assert len(caller.http.get("/v1/receipts").json()["receipts"]) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "rejected"},
        {"receipt": "{}"},
        {
            "receipt": None,
            "problem": None,
            "expired_at": datetime(2026, 7, 1, tzinfo=UTC),
            "key": "other-key-0000000001",
        },
        {"key_range": "0000"},
    ],
    ids=["outcome", "body", "expired with another key", "range"],
)
def test_nothing_else_of_a_receipt_is_ever_changed(database_url: str, change: dict[str, object]) -> None:
    """The database refuses it, and so it does the removal of any record."""
    engine = open_engine(database_url)
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        caller.deliver()
        caller.reserve()
    with pytest.raises(sa.exc.DBAPIError, match="receipts is kept"), writing(engine) as connection:
        connection.execute(RECEIPTS.update().values(change))
    for table in (KEYS, RECEIPTS, RECEIPT_LINES, RESERVATION_LINES, MOVEMENTS):
        with pytest.raises(sa.exc.DBAPIError, match=f"{table.name} is kept"), writing(engine) as connection:
            connection.execute(table.delete())
    engine.dispose()


@pytest.mark.parametrize("dialect", ["postgresql"])
def test_a_hold_that_a_rival_keeps_locked_keeps_no_other_tenants_from_ending(database_url: str) -> None:
    """The first tenant's fails, and is said to; the second's ends in the same round, and retention goes on."""
    tokens = {"token-a": "acme", "token-g": "globex"}
    with (
        running(database_url, tokens, retention=timedelta(0)) as service,
        connect(service.url, "token-a") as of_acme,
        connect(service.url, "token-g") as of_globex,
        service.engine.connect() as rival,
    ):
        held = []
        for caller in (Caller(of_acme), Caller(of_globex, tenant="globex")):
            caller.deliver()
            held.append(caller.hold(3).json())
            service.end_hold(caller, held[-1])
        rival.execute(sa.select(RESERVATIONS).where(RESERVATIONS.c.tenant == "acme").with_for_update())
        with pytest.raises(Refused):
            service.housekeeping()
        states = [
            http.get(f"/v1/reservations/{one['reservation_id']}").json()["state"]
            for http, one in zip((of_acme, of_globex), held, strict=True)
        ]
        assert states == ["held", "expired"]
        assert of_globex.get(f"/v1/receipts/{held[1]['key']}").status_code == 410
        rival.rollback()
        service.housekeeping()
        assert of_acme.get("/v1/stock/FILTER-A").json()["held"] == 0


@pytest.mark.parametrize("dialect", ["postgresql"])
def test_a_call_waits_for_the_holds_in_its_way_as_long_as_for_any_lock(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rival that moves one of them for longer than a batch would wait is not told to the caller as a refusal."""
    monkeypatch.setattr("services.inventory.stock.LOCK_TIMEOUT_SECONDS", 60.0)  # a busy machine may take that long
    with (
        running(database_url, {"token": "acme"}) as service,
        connect(service.url, "token") as http,
        service.engine.connect() as rival,
        ThreadPoolExecutor() as pool,
    ):
        caller = Caller(http)
        caller.deliver()
        for _ in range(2):
            service.end_hold(caller, caller.hold(5).json())
        rival.execute(sa.select(RESERVATIONS).with_for_update())
        reserving = pool.submit(caller.reserve, 10)
        with service.engine.connect() as connection:
            while connection.execute(WAITING_FOR_LOCKS).scalar_one() == 0:
                connection.rollback()
            connection.rollback()
            # Longer than in company; counted by the server, which waits meanwhile.
            connection.execute(sa.text("SELECT pg_sleep(:seconds)"), {"seconds": 5 * COMPANY_LOCK_TIMEOUT_SECONDS})
        rival.rollback()
        assert reserving.result().status_code == 201
