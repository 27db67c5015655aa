"""The statements of every batch: each finds its rows by an index, however many there are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from services.database import open_engine, reading
from services.inventory import statements
from tests.services.inventory.conftest import NOW

PARAMETERS: Mapping[str, Any] = {
    "of_tenant": "acme",
    "of_key": "key-0000000000000001",
    "of_keys": ["key-0000000000000001", "key-0000000000000002"],
    "of_ids": ["reservation-1", "reservation-2"],
    "of_id": "reservation-1",
    "of_skus": ["FILTER-A", "HOSE-B"],
    "of_sku": "FILTER-A",
    "of_version": 1,
    "of_now": NOW,
    "of_limit": 10,
    "of_sequence": 7,
    "to_state": "released",
    "of_parents": ["", "ab"],
    "of_prefixes": ["ab", "abcd"],
    **dict.fromkeys(("received", "available", "held", "consumed", "version"), 1),
}
ALL = {name: found for name, found in vars(statements).items() if isinstance(found, sa.sql.Executable)} | {
    f"{name} {key}": found
    for name, made in vars(statements).items()
    if name.isupper() and isinstance(made, dict)
    for key, found in made.items()
}
READING = sorted(
    name for name, found in ALL.items() if not isinstance(found, sa.sql.Insert) and name != "DATABASE_TIME"
)


def test_there_are_statements_to_look_at() -> None:
    """Else the others would say nothing."""
    assert {"STORED_ONE", "STOCK_LOCKED", "KEYS_TAKEN sqlite", "RESERVATION_MOVED released_by"} <= set(ALL)
    assert len(READING) > 8


@pytest.mark.parametrize("name", READING)
def test_no_statement_reads_a_table_from_end_to_end(template: Path, name: str) -> None:
    """SQLite's own plan: every table is searched by an index or its key."""
    engine = open_engine(f"sqlite:///{template}")
    plan: list[str] = []

    def explain(_connection: sa.Connection, cursor: Any, text: str, parameters: Any, *_: object) -> None:
        if not text.startswith("EXPLAIN"):
            plan.extend(row[-1] for row in cursor.execute(f"EXPLAIN QUERY PLAN {text}", parameters).fetchall())

    sa.event.listen(engine, "before_cursor_execute", explain)
    with reading(engine) as connection:
        connection.execute(ALL[name], PARAMETERS)
    engine.dispose()
    assert plan
    assert not [step for step in plan if step.startswith("SCAN") and "CONSTANT ROW" not in step], plan


def test_only_what_is_locked_is_judged() -> None:
    """On PostgreSQL stock and reservations are read for update, in ascending order."""
    for statement in (statements.STOCK_LOCKED, statements.RESERVATIONS_LOCKED):
        text = str(statement.compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
        assert "ORDER BY" in text
        assert "FOR UPDATE" in text
