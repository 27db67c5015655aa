"""What a database really holds, read without believing that this program wrote it.

A time that is none, text that is not UTF-8 or a value of another type is handed on as it is, where the ordinary reading
would raise in the middle: whoever looks for damage has to see it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from services.database import UtcDateTime, at_one_moment, reading

_AT_ONCE = 1000


@contextmanager
def snapshot(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One moment of the database for as many statements as it takes, however long that is."""
    with reading(engine) as connection:
        at_one_moment(connection)
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # to sort a big table takes its time
            yield connection
            return
        driver: Any = connection.connection.driver_connection
        driver.text_factory = lambda written: written.decode(errors="backslashreplace")
        try:
            yield connection
        finally:
            driver.text_factory = str


def as_stored(table: sa.Table) -> sa.Select[Any]:
    """All columns of a table, to be read with `stored`."""
    return sa.select(*(raw(column).label(column.name) for column in table.columns))


def raw(column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
    """A column as the driver hands it on, to be read with `rows`."""
    # As text, because drivers refuse times that Python has none for (PostgreSQL's infinity).
    if isinstance(column.type, UtcDateTime):
        return sa.cast(column, sa.Text)
    return sa.type_coerce(column, sa.types.NullType())


def stored(
    connection: sa.Connection, statement: sa.Select[Any], table: sa.Table, *, at_once: int = _AT_ONCE
) -> Iterator[dict[str, Any]]:
    """The rows of an `as_stored` statement by column, as a stream; times are times where they can be read."""
    times = [column.name for column in table.columns if isinstance(column.type, UtcDateTime)]
    yield from rows(connection, statement, times, at_once=at_once)


def rows(
    connection: sa.Connection, statement: sa.Select[Any], times: Sequence[str] = (), *, at_once: int = _AT_ONCE
) -> Iterator[dict[str, Any]]:
    """The rows of a statement of `raw` columns by label, as a stream; `times` labels those that are times."""
    result = connection.execute(statement, execution_options={"yield_per": at_once})
    names = tuple(result.keys())
    try:
        for row in result:
            values = dict(zip(names, row, strict=True))
            for name in times:
                values[name] = _moment(values[name])
            yield values
    finally:  # whoever stops before the end leaves no cursor open on the server
        result.close()


def _moment(written: Any) -> Any:
    if written is None:
        return None
    try:
        moment = datetime.fromisoformat(written)
        if moment.tzinfo is not None:
            return moment.astimezone(UTC)
        # SQLite keeps text: the same moment in other words is not what was written.
        return moment.replace(tzinfo=UTC) if moment.isoformat(" ", "microseconds") == written else written
    except (TypeError, ValueError, OverflowError):
        return written
