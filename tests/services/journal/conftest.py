"""A journal in a file of its own for every test, at this build's schema."""

import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.database import migrate, open_engine
from services.journal.store import Journal
from tests.postgres import Databases
from tests.services.effects.halves import DECIDED_AT


class Clock:
    """The journal's clock, moved by hand."""

    def __init__(self) -> None:
        self.now = DECIDED_AT + timedelta(seconds=1)

    def __call__(self) -> datetime:
        """What time it is."""
        return self.now


@pytest.fixture(scope="session")
def empty_journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file without an entry; copy it."""
    file = tmp_path_factory.mktemp("journal") / "empty.db"
    migrate("journal", f"sqlite:///{file}")
    return file


@pytest.fixture
def journal_file(empty_journal: Path, tmp_path: Path) -> Path:
    """This test's journal."""
    return Path(shutil.copy(empty_journal, tmp_path / "journal.db"))


@pytest.fixture
def engine(journal_file: Path) -> Iterator[sa.Engine]:
    """This test's engine."""
    engine = open_engine(f"sqlite:///{journal_file}")
    yield engine
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def either_url(request: pytest.FixtureRequest) -> str:
    """This test's journal on SQLite, and in another test on PostgreSQL."""
    if request.param == "sqlite":
        return f"sqlite:///{request.getfixturevalue('journal_file')}"
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
def journal(engine: sa.Engine, clock: Clock) -> Journal:
    """This test's store."""
    return Journal(engine, recorded_by="test", clock=clock)
