"""What keeps the records: each constraint and trigger that is gone, disabled or emptied is named."""

import pytest
import sqlalchemy as sa

from services.database import open_engine, writing
from services.inventory.tables import METADATA
from services.inventory.verification import keeping
from services.inventory.verification.findings import Rule
from services.inventory.verification.run import verify

TABLES = ("keys", "receipts", "receipt_lines", "reservation_lines", "movements")


def kept(database_url: str, *statements: str) -> str:
    """What verify says is missing after statements; empty: nothing is."""
    engine = open_engine(database_url)
    with writing(engine) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    violation = verify(engine).violation
    engine.dispose()
    assert violation is None or violation.rule is Rule.KEPT
    return "" if violation is None else violation.stored


def test_a_fresh_database_is_kept(database_url: str) -> None:
    """Nothing is missing of what the migrations make."""
    assert kept(database_url) == ""


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("verb", ["UPDATE", "DELETE"])
@pytest.mark.parametrize(
    "instead",
    [
        "",
        "CREATE TRIGGER {table}_no_{lower} BEFORE {verb} ON {table} BEGIN SELECT 1; END",
        "CREATE TRIGGER {table}_no_{lower} AFTER {verb} ON {table} BEGIN SELECT RAISE(ABORT, 'kept'); END",
        "CREATE TRIGGER {table}_no_{lower} BEFORE {verb} ON {table} WHEN 0 BEGIN SELECT RAISE(ABORT, 'kept'); END",
    ],
)
def test_a_trigger_that_keeps_nothing_is_found_on_sqlite(
    database_url: str, table: str, verb: str, instead: str
) -> None:
    """Gone, doing something else, too late, or never."""
    drop = f"DROP TRIGGER {table}_no_{verb.lower()}"
    new = [instead.format(table=table, verb=verb, lower=verb.lower())] if instead else []
    assert kept(database_url, drop, *new) == f"no trigger in force that refuses {verb} on {table}"


@pytest.mark.parametrize("dialect", ["postgresql"])
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER {table}_kept ON {table}",
        "ALTER TABLE {table} DISABLE TRIGGER {table}_kept",
        "ALTER TABLE {table} ENABLE REPLICA TRIGGER {table}_kept",
    ],
)
def test_a_trigger_that_keeps_nothing_is_found_on_postgresql(database_url: str, table: str, statement: str) -> None:
    """Gone, disabled, or in force for replicas alone."""
    assert kept(database_url, statement.format(table=table)) == f"no trigger in force that refuses DELETE on {table}"


@pytest.mark.parametrize("dialect", ["postgresql"])
def test_a_function_or_a_condition_that_lets_pass_is_found(database_url: str) -> None:
    """The trigger is there and does nothing, or less than it should."""
    nothing = "CREATE OR REPLACE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$"
    narrow = (
        "DROP TRIGGER receipts_facts_kept ON receipts",
        (
            "CREATE TRIGGER receipts_facts_kept BEFORE UPDATE ON receipts FOR EACH ROW "
            "WHEN (NOT (NEW.receipt IS NULL AND NEW.tenant IS NOT DISTINCT FROM OLD.tenant)) EXECUTE FUNCTION kept()"
        ),
    )
    assert kept(database_url, *narrow) == "no trigger in force that refuses UPDATE on receipts"
    assert "no trigger in force" in kept(database_url, nothing)


@pytest.mark.parametrize("dialect", ["postgresql"])
def test_every_constraint_that_is_dropped_is_found(database_url: str) -> None:
    """Primary and foreign keys, uniques, checks and NOT NULL, of every table."""
    engine = open_engine(database_url)
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype IN ('p', 'u', 'f', 'c') AND "
            "conrelid NOT IN (0, 'alembic_version'::regclass) AND connamespace = 'public'::regnamespace ORDER BY 1, 2"
        ).all()
    names = [(table, f"DROP CONSTRAINT {name} CASCADE") for table, name in found]
    names += [
        (table.name, f"ALTER COLUMN {column.name} DROP NOT NULL")
        for table in METADATA.sorted_tables
        for column in table.columns
        if not column.nullable and not column.primary_key
    ]
    assert len(names) > 60
    for table, change in names:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {table} {change}")
            assert _missing(connection), (table, change)
            connection.rollback()
    engine.dispose()


def _missing(connection: sa.Connection) -> bool:
    return next(keeping.check(connection), None) is not None
