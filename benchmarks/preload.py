"""An inventory with as many receipts as a benchmark wants, in seconds: real ones are copied past the service.

The service has taken a delivery of each SKU, and then one reservation of each. A copy has a key, a sequence, a
reservation and a version of its own, in its columns and in its receipt's text, and the totals are brought up to it. So
the schema sees nothing else than what the service would have written.
"""

import hashlib
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

from benchmarks.callers import SKUS, names
from services.database import parse_url
from services.inventory import digests
from services.inventory.tables import METADATA

TENANT = "bench"
_CHUNK = 10_000
# The columns that hold a receipt's own number, whatever their table.
_OWN = {"sequence": "sequence", "reserved_by": "sequence", "version": "version"}
# What is not of one receipt alone.
_TOTALS = {"counters", "stock", "digests"}

_Row = tuple[Any, ...]
# Makes one table's row of a receipt from its numbers.
_Copy = Callable[[dict[str, Any]], _Row]


def fill(url: str, receipts: int) -> None:
    """Copy until there are so many reservations; nobody else may have the database open."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(parsed.database))) as connection:
            # What refers to what is known here, and nothing of it has to survive a crash.
            for pragma in ("synchronous=OFF", "foreign_keys=OFF", "cache_size=-500000"):
                connection.execute(f"PRAGMA {pragma}")
            _fill(connection, receipts, _insert, "?")
            connection.commit()
            connection.execute("ANALYZE")
            connection.commit()
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return
    plain = parsed.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain) as server:
        server.execute("SET session_replication_role = replica")
        _fill(server, receipts, _copy_in, "%s")
        server.commit()
        server.autocommit = True
        server.execute("VACUUM ANALYZE")
        server.execute("CHECKPOINT")


def numbers(number: int) -> dict[str, Any]:
    """What the receipt of a reservation has of its own."""
    return {
        "key": names(number)["key"],
        "sequence": SKUS + number + 1,
        "reservation": number + 1,
        "version": 2 + number // SKUS,
    }


def _fill(
    connection: Any, receipts: int, put: Callable[[Any, str, tuple[str, ...], list[_Row]], None], mark: str
) -> None:
    tables = [table for table in METADATA.sorted_tables if table.name not in _TOTALS]
    columns = {table.name: tuple(column.name for column in table.columns) for table in tables}
    makers = {table.name: [_maker(connection, table, number, mark) for number in range(SKUS)] for table in tables}
    copies = iter(range(SKUS, receipts))
    while chunk := list(islice(copies, _CHUNK)):
        own = [(number % SKUS, numbers(number)) for number in chunk]
        for name, made in makers.items():
            put(connection, name, columns[name], [made[sku](values) for sku, values in own])
    for sku in range(SKUS):
        more = len(range(sku, receipts, SKUS)) - 1
        connection.execute(
            f"UPDATE stock SET available = available - {more}, consumed = consumed + {more}, "  # noqa: S608 - numbers
            f"version = version + {more} WHERE tenant = {mark} AND sku = {mark}",
            (TENANT, names(sku)["sku"]),
        )
    last = numbers(receipts - 1)
    connection.execute(
        f"UPDATE counters SET last_sequence = {mark}, last_reservation = {mark} WHERE tenant = {mark}",  # noqa: S608
        (last["sequence"], last["reservation"], TENANT),
    )
    _fill_digests(connection, put, mark)


def _maker(connection: Any, table: sa.Table, number: int, mark: str) -> _Copy:
    """How this table's row of a copy is made from that of the reservation with this number."""
    first = numbers(number)
    name, value = next(
        (column, value)
        for column, value in (
            ("key", first["key"]),
            ("sequence", first["sequence"]),
            ("reservation_id", f"reservation-{first['reservation']}"),
        )
        if column in table.columns
    )
    listed = ", ".join(f'"{column.name}"' for column in table.columns)
    query = f'SELECT {listed} FROM "{table.name}" WHERE tenant = {mark} AND {name} = {mark}'  # noqa: S608 - our names
    (row,) = connection.execute(query, (TENANT, value)).fetchall()
    parts = [_part(column.name, value, first) for column, value in zip(table.columns, row, strict=True)]
    if "receipt_sha256" not in table.columns:
        return lambda own: tuple(part(own) for part in parts)
    body, digest = (list(table.columns.keys()).index(column) for column in ("receipt", "receipt_sha256"))

    def receipt(own: dict[str, Any]) -> _Row:
        made = [part(own) for part in parts]
        made[digest] = _sha256(made[body])
        return tuple(made)

    return receipt


def _part(column: str, value: Any, first: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """How one column of a copy is made."""
    if column in _OWN:
        name = _OWN[column]
        return lambda own: own[name]
    if column == "key_range":
        return lambda own: digests.place(own["key"])
    if not isinstance(value, str):
        return lambda _own: value
    gaps = value.replace("%", "%%").replace(first["key"], "%(key)s")
    gaps = gaps.replace(f"receipt-{first['sequence']}", "receipt-%(sequence)d")
    gaps = gaps.replace(f"reservation-{first['reservation']}", "reservation-%(reservation)d")
    gaps = gaps.replace(f'"sequence":{first["sequence"]}', '"sequence":%(sequence)d')
    sku = next(names(each)["sku"] for each in range(SKUS) if numbers(each) == first)
    gaps = gaps.replace(f'{{"{sku}":{first["version"]}}}', f'{{"{sku}":%(version)d}}')
    if gaps == value:
        return lambda _own: value
    return lambda own: gaps % own


def _fill_digests(connection: Any, put: Callable[[Any, str, tuple[str, ...], list[_Row]], None], mark: str) -> None:
    found = connection.execute(f"SELECT key, outcome, sequence FROM receipts WHERE tenant = {mark}", (TENANT,))  # noqa: S608
    totals = digests.sums((key, outcome, f"receipt-{sequence}") for key, outcome, sequence in found)
    connection.execute(f"DELETE FROM digests WHERE tenant = {mark}", (TENANT,))  # noqa: S608
    rows = [(TENANT, *place, count, digests.to_hex(digest)) for place, (count, digest) in totals.items()]
    put(connection, "digests", ("tenant", "parent", "prefix", "count", "digest"), rows)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _insert(connection: sqlite3.Connection, table: str, columns: tuple[str, ...], rows: list[_Row]) -> None:
    names_, marks = ", ".join(f'"{column}"' for column in columns), ", ".join("?" * len(columns))
    connection.executemany(f'INSERT INTO "{table}" ({names_}) VALUES ({marks})', rows)  # noqa: S608 - our names


def _copy_in(connection: "psycopg.Connection[Any]", table: str, columns: tuple[str, ...], rows: list[_Row]) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for row in rows:
            copy.write_row(row)
