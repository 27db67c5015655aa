"""Alembic's environment, for both stores: the ini section says which one."""

import importlib
import os
from typing import Any

import sqlalchemy as sa
from alembic import context

from services.database import open_engine

SECTION = context.config.config_ini_section
TABLES = {"journal": "services.journal.tables", "inventory": "services.inventory.tables"}


def _run(connection: sa.Connection) -> None:
    metadata: sa.MetaData = importlib.import_module(TABLES[SECTION]).METADATA
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET statement_timeout = '60s'")
        # It may compute for longer than a writer is allowed to be silent.
        connection.exec_driver_sql("SET idle_in_transaction_session_timeout = 0")
        # A second migration waits for the first one, until that one disconnects, and finds it done.
        connection.exec_driver_sql("SET lock_timeout = 0")
        connection.exec_driver_sql("SELECT pg_advisory_lock(hashtext('counterfoil migrate'))")
        # For a writer it does not wait: better to fail and be run again than to queue every writer behind it.
        connection.exec_driver_sql("SET lock_timeout = '5s'")
        connection.commit()
    else:
        # SQLite changes a table by copying it, and dropping the old one would count as dropping what refers to it. Not
        # within a transaction: there it does nothing.
        _driver(connection).execute("PRAGMA foreign_keys=OFF")
    context.configure(
        connection=connection,
        target_metadata=metadata,
        compare_server_default=True,
        transaction_per_migration=True,
        render_as_batch=connection.dialect.name == "sqlite",
    )
    with context.begin_transaction():
        context.run_migrations()
    if connection.dialect.name == "sqlite":
        _driver(connection).execute("PRAGMA foreign_keys=ON")


def _driver(connection: sa.Connection) -> Any:
    return connection.connection.driver_connection


def _main() -> None:
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _run(connection)
        return
    engine = open_engine(os.environ[f"COUNTERFOIL_{SECTION.upper()}_DATABASE_URL"])
    with engine.connect() as own:
        _run(own)


_main()
