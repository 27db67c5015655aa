"""Every single change of a correct database that a test can think of: each column flipped, emptied, filled, swapped."""

# ruff: noqa: S608 - the names are those of our own tables

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from services.database import UtcDateTime
from tests.services.inventory.verification.conftest import Bare

# Another value of the same set, where the value is one of a set.
_OTHERS: Mapping[str, Mapping[str, str]] = {
    "outcome": {"committed": "rejected", "rejected": "committed", "voided": "rejected"},
    "state": {"held": "consumed", "consumed": "released", "released": "consumed", "expired": "released"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change.

    Attributes:
        what: the column and what is done to it, or what is done to a row.
        row: the row it is done to, as it was.
        statement: the statement that does it.
        values: its parameters.
    """

    what: str
    row: Mapping[str, Any]
    statement: str
    values: Mapping[str, Any]


def changes(bare: Bare, table: sa.Table) -> Iterator[Change]:
    """Changes of a table, in one row of each sort."""
    sorts: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in bare.rows(table):
        if row["tenant"] == "acme":
            sorts.setdefault(_sort(row), row)
    for row in sorts.values():
        where, key = _where(table, row)
        yield Change(what="row deleted", row=row, statement=f"DELETE FROM {table.name} WHERE {where}", values=key)
        columns = ", ".join(row)
        double = f"INSERT INTO {table.name} ({columns}) VALUES ({', '.join(f':{name}' for name in row)})"
        yield Change(what="row doubled", row=row, statement=double, values=row)
        for column in table.columns:
            for how, value in _values(column, row[column.name]):
                yield Change(
                    what=f"{column.name} {how}",
                    row=row,
                    statement=f"UPDATE {table.name} SET {column.name} = :new WHERE {where}",
                    values={**key, "new": value},
                )


def _sort(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Rows of one sort have the same kind, outcome and state, and have their body, if they can have one, or not."""
    told = tuple(row.get(name) for name in ("kind", "outcome", "state"))
    return (*told, row.get("receipt") is None, row.get("confirmed_by") is None)


def _where(table: sa.Table, row: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    names = [column.name for column in table.primary_key]
    return " AND ".join(f"{name} = :{name}_is" for name in names), {f"{name}_is": row[name] for name in names}


def _values(column: sa.Column[Any], value: Any) -> Iterator[tuple[str, Any]]:
    if value is not None:
        yield "flipped", _flipped(column, value)
        yield "emptied", None
    elif isinstance(column.type, sa.Integer):
        yield "filled", 1
    else:
        yield "filled", "2026-01-01 00:00:00.000000" if isinstance(column.type, UtcDateTime) else "filled"


def _flipped(column: sa.Column[Any], value: Any) -> Any:
    if isinstance(value, int):
        return value + 1
    if isinstance(column.type, UtcDateTime):
        text = str(value)
        return ("2025" if text.startswith("2026") else "2026") + text[4:]
    other = _OTHERS.get(column.name, {}).get(value)
    return other or (value[:-1] + ("0" if value[-1:] != "0" else "1"))
