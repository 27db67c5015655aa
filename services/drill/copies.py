"""Copies of a store's database, and the database put back to one: what a restored backup does.

A copy is what was committed at one moment, whoever writes meanwhile. On SQLite it is made by SQLite's own backup, since
a copied file lacks its write-ahead log; on PostgreSQL by CREATE DATABASE ... TEMPLATE, which disconnects whoever is
connected, as a restart of the server does.
"""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg import sql


def copy_of(url: str, name: str) -> str:
    """Copy a database under a name beside it; the copy's URL, to be used as nothing but a copy."""
    parsed = sa.make_url(url)
    copy = name if _on_postgres(url) else str(Path(str(parsed.database)).with_name(f"{name}.db"))
    target = parsed.set(database=copy).render_as_string(hide_password=False)
    put_back(target, url)
    return target


def put_back(url: str, copy: str) -> None:
    """Replace a database by a copy of it; there need not be one.

    Nobody may hold it open on SQLite but for reading; on PostgreSQL whoever is connected is disconnected.
    """
    if _on_postgres(url):
        _create_from(url, copy)
        return
    with closing(sqlite3.connect(_database(copy))) as old, closing(sqlite3.connect(_database(url))) as new:
        old.backup(new)


def _create_from(url: str, template: str) -> None:
    drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(_database(url)))
    create = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
        *map(sql.Identifier, (_database(url), _database(template)))
    )
    while True:
        with _connect(url) as connection, suppress(psycopg.errors.ObjectInUse):
            connection.execute(drop)
            # A template must have no connection, and a pool may make a new one at any time: then it is tried again.
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (_database(template),)
            )
            connection.execute(create)
            return


def _connect(url: str) -> "psycopg.Connection[Any]":
    """To another database of the same server, each statement its own transaction."""
    return psycopg.connect(
        sa.make_url(url).set(drivername="postgresql", database="postgres").render_as_string(hide_password=False),
        autocommit=True,
    )


def _on_postgres(url: str) -> bool:
    return sa.make_url(url).get_backend_name() == "postgresql"


def _database(url: str) -> str:
    return str(sa.make_url(url).database)
