"""Retention: receipts lose their bodies, and their keys are used for ever."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from services.database import open_engine, writing
from services.inventory.housekeeping import Housekeeping
from services.inventory.stock import StockKeeper
from services.inventory.tables import KEYS, MOVEMENTS, RECEIPT_LINES, RECEIPTS, RESERVATION_LINES
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
