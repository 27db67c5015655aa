"""What keeps the records from being changed: columns, constraints and triggers of the schema, as they are in force.

A trigger that is disabled, or that bears the name and does something else, keeps nothing.
"""

import re
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from services.inventory.tables import KEYS, METADATA, MOVEMENTS, RECEIPT_LINES, RECEIPTS, RESERVATION_LINES
from services.inventory.verification.findings import Fault, Rule, shown

_KEPT = (KEYS, RECEIPTS, RECEIPT_LINES, RESERVATION_LINES, MOVEMENTS)
# Retention drops these two and sets the third; every other column of a receipt is what it was.
_FACTS = tuple(
    column.name for column in RECEIPTS.columns if column.name not in {"receipt", "problem", "expired_at"}
)  # fmt: skip


def check(connection: sa.Connection) -> Iterator[Fault]:
    """What is missing."""
    inspector = sa.inspect(connection)
    for table in METADATA.sorted_tables:
        for what in _missing(inspector, table):
            yield Rule.KEPT, f"no {what} on {table.name}", "the one of this build's schema"
    found = _sqlite(connection) if connection.dialect.name == "sqlite" else _postgres(connection)
    for table in _KEPT:
        verbs = {verb for name, definition in found if name == table.name for verb in _refused(definition, table.name)}
        wanted = {"UPDATE", "DELETE"} | ({"TRUNCATE"} if connection.dialect.name == "postgresql" else set())
        for verb in sorted(wanted - verbs):
            yield (
                Rule.KEPT,
                f"no trigger in force that refuses {verb} on {table.name}",
                "one, as the migrations make it",
            )


def _missing(inspector: sa.Inspector, table: sa.Table) -> Iterator[str]:
    optional = {column["name"] for column in inspector.get_columns(table.name) if column["nullable"]}
    for column in table.columns:
        if not column.nullable and column.name in optional:
            yield f"NOT NULL of {column.name}"
    primary = inspector.get_pk_constraint(table.name)["constrained_columns"]
    if primary != [column.name for column in table.primary_key]:
        yield "primary key"
    uniques = {tuple(each["column_names"]) for each in inspector.get_unique_constraints(table.name)}
    references = {
        (tuple(each["constrained_columns"]), each["referred_table"]) for each in inspector.get_foreign_keys(table.name)
    }
    checks = {str(each["name"]) for each in inspector.get_check_constraints(table.name)}
    for constraint in table.constraints:
        columns = tuple(column.name for column in getattr(constraint, "columns", ()))
        if isinstance(constraint, sa.UniqueConstraint) and columns not in uniques:
            yield f"unique constraint over {', '.join(columns)}"
        elif (
            isinstance(constraint, sa.ForeignKeyConstraint)
            and (columns, constraint.referred_table.name) not in references
        ):
            yield f"foreign key from {', '.join(columns)} to {constraint.referred_table.name}"
        elif isinstance(constraint, sa.CheckConstraint) and not any(
            name.endswith(str(constraint.name))
            for name in checks  # revision 1's have their prefix twice
        ):
            yield f"check constraint {constraint.name}"


def _sqlite(connection: sa.Connection) -> list[tuple[str, str]]:
    rows = connection.exec_driver_sql("SELECT tbl_name, sql FROM sqlite_master WHERE type = 'trigger'")
    return [(str(table), str(definition)) for table, definition in rows]


def _postgres(connection: sa.Connection) -> list[tuple[str, str]]:
    """With the function's body in the place of its name."""
    rows = connection.exec_driver_sql(
        "SELECT c.relname, pg_get_triggerdef(t.oid), p.prosrc FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
        "JOIN pg_proc p ON p.oid = t.tgfoid "
        "WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A') AND pg_table_is_visible(c.oid)"
    )
    return [(str(table), f"{definition} {body}") for table, definition, body in rows]


def _refused(definition: str, table: str) -> Iterator[str]:
    """The verbs that a trigger refuses on each row, but for the one change that retention makes."""
    text = re.sub(r"[\s\"()]+", " ", definition)
    told = re.search(rf" BEFORE (.+?) ON (?:\w+\.)?{table} ", text)
    if told is None or not re.search("RAISE ABORT|BEGIN RAISE EXCEPTION", text):
        return
    conditional = " WHEN " in text
    for verb in ("UPDATE", "DELETE", "TRUNCATE"):
        if verb in told[1] and (not conditional or (verb == "UPDATE" and table == RECEIPTS.name and _facts(text))):
            yield verb


def _facts(text: str) -> bool:
    """Whether a condition lets an update pass only that leaves every fact of a receipt."""
    plain = text.casefold()
    kept = all(
        f"new.{name} is not distinct from old.{name}" in plain
        or f"not new.{name} is distinct from old.{name}" in plain
        or f"new.{name} is old.{name}" in plain
        for name in _FACTS
    )
    return kept and " when not " in plain and "new.receipt is null" in plain and " or " not in plain.split(" when ")[1]


def check_file(connection: sa.Connection) -> Iterator[Fault]:
    """Whether SQLite finds its file whole: an index that lacks a row hides it from whoever looks by it."""
    if connection.dialect.name == "sqlite":
        says: Any = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar()
        if says != "ok":
            yield Rule.ROW, f"what SQLite calls {shown(says)}", "a file that its integrity_check finds whole"
