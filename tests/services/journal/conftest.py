"""An empty journal for every test, at this build's schema, on each database."""

import itertools
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from psycopg import sql

from services.database import migrate, open_engine
from services.journal.operator import OperatorJournal
from services.journal.tables import JOURNAL, METADATA
from tests.postgres import Databases
from tests.services.effects.halves import DECIDED_AT

NewJournal = Callable[[], str]
DISCONNECT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND pid <> pg_backend_pid()"
)


class Clock:
    """The journal's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = DECIDED_AT + timedelta(seconds=1)

    def __call__(self) -> datetime:
        """What time it is."""
        return self.now


@pytest.fixture(scope="session")
def empty_journal_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file without an entry; copy it."""
    file = tmp_path_factory.mktemp("journal") / "empty.db"
    migrate("journal", f"sqlite:///{file}")
    return file


@pytest.fixture(scope="session")
def _database(postgres: Databases) -> str:
    """The one PostgreSQL database of these tests: a copy for each would cost ten times what emptying it costs."""
    return postgres.migrated("journal")


@pytest.fixture
def new_journal(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> NewJournal:
    """Gives the URL of an empty journal; on PostgreSQL there is one at a time, and whoever was connected is cut off."""
    if dialect == "sqlite":
        numbers, template = itertools.count(1), request.getfixturevalue("empty_journal_file")
        return lambda: f"sqlite:///{shutil.copy(template, tmp_path / f'journal-{next(numbers)}.db')}"
    postgres: Databases = request.getfixturevalue("postgres")
    url: str = request.getfixturevalue("_database")

    written = [sql.Identifier(table.name) for table in METADATA.sorted_tables if table is not JOURNAL]

    def emptied() -> str:
        with postgres.connect(url) as connection:
            connection.execute(DISCONNECT)
            connection.execute("SET session_replication_role = replica")  # past the triggers that forbid it
            connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY").format(sql.SQL(", ").join(written)))
        return url

    return emptied


@pytest.fixture
def journal_url(new_journal: NewJournal) -> str:
    """This test's journal."""
    return new_journal()


@pytest.fixture
def engine(journal_url: str) -> Iterator[sa.Engine]:
    """This test's engine."""
    engine = open_engine(journal_url)
    yield engine
    engine.dispose()


@pytest.fixture
def either_url(dialect: str, request: pytest.FixtureRequest) -> str:
    """A journal of which nothing is used again: a test may spoil its schema and its triggers."""
    if dialect == "sqlite":
        return str(request.getfixturevalue("journal_url"))
    databases: Databases = request.getfixturevalue("postgres")
    return databases.migrated("journal")


@pytest.fixture
def either(either_url: str) -> Iterator[sa.Engine]:
    """An engine on `either_url`."""
    engine = open_engine(either_url)
    yield engine
    engine.dispose()


@pytest.fixture
def clock() -> Clock:
    """This test's clock."""
    return Clock()


@pytest.fixture
def journal(engine: sa.Engine, clock: Clock) -> OperatorJournal:
    """This test's store."""
    return OperatorJournal(engine, recorded_by="test", clock=clock)
