"""Writing down: only what is as it was locked is changed."""

import pytest
import sqlalchemy as sa

from services.database import open_engine, reading, writing
from services.inventory import writing_down
from services.inventory.books import Balance, Books
from services.inventory.contract import Kind, Outcome
from services.inventory.loading import Again, insert_keys
from services.inventory.tables import RECEIPTS, STOCK
from tests.services.inventory.conftest import NOW
from tests.services.inventory.test_books import KEY, OTHER, call


def deliver(url: str, balance: Balance, key: str) -> None:
    """Five more of it."""
    engine = open_engine(url)
    try:
        with writing(engine) as connection:
            books = Books(stock={balance.sku: balance})
            insert_keys(connection, "acme", [key])
            books.judge(call(key, kind=Kind.DELIVER, quantities={balance.sku: 5}))
            writing_down.write(connection, "acme", books, lambda: NOW, None)
    finally:
        engine.dispose()


def test_stock_that_is_not_as_it_was_read_is_never_overwritten(database_url: str) -> None:
    """A SKU that somebody made meanwhile is read again; one that changed under its lock is a defect. Nothing stays."""
    deliver(database_url, Balance(sku="HOSE-B"), KEY)
    with pytest.raises(Again):
        deliver(database_url, Balance(sku="HOSE-B"), OTHER)
    stale = Balance(sku="HOSE-B", received=9, available=9, version=9, version_before=9)
    with pytest.raises(LookupError):
        deliver(database_url, stale, OTHER)
    engine = open_engine(database_url)
    with reading(engine) as connection:
        assert connection.execute(sa.select(STOCK.c.available, STOCK.c.version)).all() == [(5, 1)]
        assert connection.execute(sa.select(RECEIPTS.c.outcome)).scalars().all() == [Outcome.COMMITTED.value]
    engine.dispose()
