"""What is PostgreSQL's own: nobody waits for ever, and a server that could lose a commit is refused."""

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from psycopg import sql

from services import database
from services.database import NotDurable, check_durable, open_engine, reading, writing
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes, TemporalServer
from services.journal.group_commit import GROUP_LOCK_TIMEOUT
from services.journal.seals import seal
from services.journal.verification import verify
from tests.postgres import Databases
from tests.services.cli.conftest import COUNTERFOIL, environment
from tests.services.journal.lives import live
from workflows.policies import START_TO_CLOSE

Engines = Callable[[str], sa.Engine]
TIMEOUTS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


@pytest.fixture
def engines() -> Iterator[Engines]:
    """Opens engines that end with the test."""
    opened: list[sa.Engine] = []

    def open_one(url: str) -> sa.Engine:
        opened.append(open_engine(url))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.dispose()


def _length(text: str) -> timedelta:
    number, unit = (text[:-2], "ms") if text.endswith("ms") else (text[:-1], text[-1])
    return timedelta(**{{"ms": "milliseconds", "s": "seconds"}[unit]: int(number)})


def test_every_connection_has_all_three_timeouts_and_they_fit_into_an_attempt(
    postgres: Databases, engines: Engines
) -> None:
    """Whoever connects and then meets a statement that hangs, or waits for a row twice, hears of it in time."""
    engine = engines(postgres.empty())
    with reading(engine), reading(engine) as second:
        shown = {name: second.exec_driver_sql(f"SHOW {name}").scalar_one() for name in TIMEOUTS}
    lock, statement, idle = (_length(shown[name]) for name in TIMEOUTS)
    assert all(timedelta(0) < each < START_TO_CLOSE for each in (lock, statement, idle))
    connecting = timedelta(seconds=int(str(database._POSTGRES_CONNECTING["connect_timeout"])))
    assert connecting + statement < START_TO_CLOSE
    # The mark and the observation of one attempt, each first in a group and then alone; and a send between them.
    assert 2 * (lock + _length(GROUP_LOCK_TIMEOUT)) + timedelta(seconds=2.5) < START_TO_CLOSE
    # A frozen client lets go of its rows while the attempt that it holds up is still tried again.
    assert idle < START_TO_CLOSE


def test_a_database_of_other_defaults_is_used_as_ours(postgres: Databases, engines: Engines) -> None:
    """Each statement sees what rivals have committed, as the store's guards need it, and times can be read."""
    url = postgres.migrated("journal")
    with postgres.connect(url) as connection:
        name = sql.Identifier(connection.info.dbname)
        for setting in ("default_transaction_isolation = 'serializable'", "datestyle = 'German'"):
            connection.execute(sql.SQL("ALTER DATABASE {} SET ").format(name) + sql.SQL(setting))
    engine = engines(url)
    live(engine, "INC-1")
    assert seal(engine, sealed_by="test").entries == 14
    assert verify(engine).first is None
    with writing(engine) as connection:
        assert connection.exec_driver_sql("SHOW transaction_isolation").scalar_one() == "read committed"


def test_a_failure_that_was_passed_over_is_no_commit(postgres: Databases, engines: Engines) -> None:
    """PostgreSQL would answer COMMIT with ROLLBACK, and nobody would hear that nothing was written."""
    engine = engines(postgres.empty())
    with writing(engine) as connection:
        connection.exec_driver_sql("CREATE TABLE notes (id integer PRIMARY KEY)")

    def pass_over() -> None:
        with writing(engine) as connection:
            connection.exec_driver_sql("INSERT INTO notes VALUES (1)")
            with contextlib.suppress(sa.exc.IntegrityError):
                connection.exec_driver_sql("INSERT INTO notes VALUES (1)")

    with pytest.raises(RuntimeError, match=r"passed over\. Nothing was written"):
        pass_over()
    with reading(engine) as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM notes").scalar() == 0


def test_a_session_that_may_lose_commits_is_refused_by_name(postgres: Databases, engines: Engines) -> None:
    """synchronous_commit is a matter of the role or the database too; on again, it is taken."""
    url = postgres.empty()
    name = sa.make_url(url).database
    check_durable(engines(url))
    for value in ("off", "on"):
        with postgres.connect() as connection:
            connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {value}".encode())
        if value == "on":
            check_durable(engines(url))
            continue
        with pytest.raises(NotDurable, match=r"runs with synchronous_commit off.*Set synchronous_commit to on"):
            check_durable(engines(url))


def test_a_server_that_may_lose_or_tear_commits_is_refused_by_name(tmp_path: Path, engines: Engines) -> None:
    """Each setting alone, and all of them together."""
    with Processes() as processes:
        server = PostgresServer(processes, tmp_path)
        for settings in (("fsync",), ("full_page_writes",), ("fsync", "full_page_writes", "synchronous_commit")):
            server.start()
            with server.connect() as connection:
                connection.execute("ALTER SYSTEM RESET ALL")
                for setting in settings:
                    connection.execute(f"ALTER SYSTEM SET {setting} = off".encode())
            server.stop()
            server.start()
            with pytest.raises(NotDurable, match=f"runs with {' and '.join(settings)} off: it may lose"):
                check_durable(engines(server.url("postgres")))
        server.remove()


def _risky(postgres: Databases, section: database.Section) -> str:
    """A migrated database whose sessions do not wait for the disk."""
    url = postgres.migrated(section)
    with postgres.connect() as connection:
        connection.execute(f"ALTER DATABASE {sa.make_url(url).database} SET synchronous_commit = off".encode())
    return url


def _refused(command: list[str], settings: dict[str, str]) -> None:
    done = subprocess.run(
        [COUNTERFOIL, *command], env=environment(settings), capture_output=True, text=True, timeout=90, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "synchronous_commit off" in done.stderr


def test_no_inventory_starts_on_a_server_that_may_lose_commits(postgres: Databases) -> None:
    """Exit code 2: there is something to set."""
    settings = {
        "COUNTERFOIL_INVENTORY_DATABASE_URL": _risky(postgres, "inventory"),
        "COUNTERFOIL_INVENTORY_TOKENS": "acme=token-a",
    }
    _refused(["inventory", "--port", "0"], settings)


@pytest.mark.temporal
async def test_no_worker_starts_on_a_server_that_may_lose_commits(postgres: Databases, tmp_path: Path) -> None:
    """Exit code 2, before it takes a task."""
    settings = {
        "COUNTERFOIL_JOURNAL_DATABASE_URL": _risky(postgres, "journal"),
        "COUNTERFOIL_ORIGIN": "demo",
        "COUNTERFOIL_INVENTORY_URL": "http://127.0.0.1:1",
        "COUNTERFOIL_INVENTORY_TOKEN": "token-a",
    }
    with Processes() as processes:
        server = TemporalServer(processes, database=tmp_path / "temporal.db", log=tmp_path / "temporal.log")
        await server.start()
        await asyncio.to_thread(_refused, ["worker"], settings | {"TEMPORAL_ADDRESS": server.address})
