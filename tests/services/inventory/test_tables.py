"""What the database refuses whatever the code does."""

from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from services.database import open_engine, writing
from services.inventory.contract import VoidCall
from services.inventory.stock import StockKeeper
from services.inventory.tables import KEYS, METADATA, STOCK
from tests.services.inventory.conftest import NOW

BALANCED = {"tenant": "acme", "sku": "FILTER-A", "received": 10, "available": 8, "held": 0, "consumed": 2, "version": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"available": 9},
        {"received": -2, "available": -2, "consumed": 0},
        {"available": -1, "consumed": 11},
        {"available": 11, "consumed": -1},
        {"available": 9, "held": -1},
    ],
)
def test_no_stock_row_is_out_of_balance_or_below_zero(database_url: str, change: dict[str, Any]) -> None:
    """I16: the CHECK constraints hold even against a wrong UPDATE."""
    engine = open_engine(database_url)
    with writing(engine) as connection:
        connection.execute(STOCK.insert().values(BALANCED))
    with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
        connection.execute(STOCK.update().values(change))
    engine.dispose()


def test_no_transaction_commits_a_key_without_its_receipt(database_url: str) -> None:
    """I01: there is no way for a row to say "in progress": the claim alone cannot be committed."""
    engine = open_engine(database_url)
    with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
        connection.execute(KEYS.insert().values(tenant="acme", key="key-0123456789abcdef"))
    engine.dispose()


def test_one_key_is_one_row_per_tenant() -> None:
    """Uniqueness is the database's, on the tenant and the key together."""
    assert [column.name for column in KEYS.primary_key] == ["tenant", "key"]
    receipts = METADATA.tables["receipts"]
    unique = [constraint for constraint in receipts.constraints if isinstance(constraint, sa.UniqueConstraint)]
    assert [[column.name for column in constraint.columns] for constraint in unique] == [["tenant", "key"]]


def test_the_database_itself_takes_a_key_once(database_url: str) -> None:
    """E17, I01: behind a claim that does nothing for a taken key stands a constraint that would refuse it."""
    engine = open_engine(database_url)
    StockKeeper(engine, lambda: NOW).perform(VoidCall(tenant="acme", key="key-0123456789abcdef"))
    with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
        connection.execute(KEYS.insert().values(tenant="acme", key="key-0123456789abcdef"))
    engine.dispose()


def test_every_table_is_written_for_postgresql_too() -> None:
    """The same tables compile for the other database."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in METADATA.sorted_tables:
        assert "SERIAL" not in str(CreateTable(table).compile(dialect=dialect))
        for index in table.indexes:
            assert str(CreateIndex(index).compile(dialect=dialect))
