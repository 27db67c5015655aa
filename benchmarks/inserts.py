"""Bare commits, the measure of what a database could do: one INSERT of one row, through the driver alone.

Each caller has a connection of its own. On PostgreSQL callers are threads, or tasks of one loop: which of them is the
faster differs from machine to machine. On SQLite they are threads that queue: its own busy handler starves somebody.
"""

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, contextmanager
from itertools import count
from pathlib import Path

import psycopg

from services.database import LOCK_TIMEOUT_SECONDS

# As long as the body of an entry usually is.
_BODY = "x" * 300
_MAKE = "CREATE TABLE bare (id {} PRIMARY KEY, body TEXT NOT NULL)"

# Does one piece of work each time it is called; opened once by each thread.
Worker = Callable[[], None]
Opened = Callable[[], Iterator[Worker]]


def together(opened: Opened, callers: int, seconds: float) -> int:
    """Let so many threads work for so long, each at least once; how much they did."""
    ready = threading.Barrier(callers)

    def caller() -> int:
        with contextmanager(opened)() as work:
            ready.wait()
            end = time.perf_counter() + seconds
            for done in count(1):
                work()
                if time.perf_counter() >= end:
                    return done
        raise AssertionError("a count without end has ended")

    with ThreadPoolExecutor(callers) as pool:
        return sum(future.result() for future in [pool.submit(caller) for _ in range(callers)])


def of_sqlite(file: Path) -> Opened:
    """Bare commits into a file, made if it is not there."""
    queue = threading.Lock()

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(file, isolation_level=None, timeout=LOCK_TIMEOUT_SECONDS)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        return connection

    def bare() -> Iterator[Worker]:
        with closing(connect()) as connection:

            def work() -> None:
                with queue:
                    connection.execute("INSERT INTO bare (body) VALUES (?)", (_BODY,))

            yield work

    with closing(connect()) as connection:
        connection.execute(_MAKE.format("INTEGER"))
    return bare


def of_postgres(url: str) -> Opened:
    """Bare commits into a database that is there."""

    def bare() -> Iterator[Worker]:
        with psycopg.connect(url, autocommit=True) as connection:
            yield lambda: connection.execute(_INSERT, (_BODY,)).close()

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_MAKE.format("bigint GENERATED ALWAYS AS IDENTITY"))
    return bare


_INSERT = "INSERT INTO bare (body) VALUES (%s)"


def by_tasks(url: str, callers: int, seconds: float) -> int:
    """The same as `together` on PostgreSQL, by tasks of one loop; `of_postgres` has made the table."""
    return asyncio.run(_by_tasks(url, callers, seconds))


async def _by_tasks(url: str, callers: int, seconds: float) -> int:
    async with AsyncExitStack() as stack:
        connections = [
            await stack.enter_async_context(await psycopg.AsyncConnection.connect(url, autocommit=True))
            for _ in range(callers)
        ]
        end = time.perf_counter() + seconds

        async def caller(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> int:
            for done in count(1):
                await (await connection.execute(_INSERT, (_BODY,))).close()
                if time.perf_counter() >= end:
                    return done
            raise AssertionError("a count without end has ended")

        return sum(await asyncio.gather(*map(caller, connections)))
