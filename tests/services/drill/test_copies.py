"""A database put back to a copy is what it was then, whoever wrote and whoever is connected."""

from pathlib import Path

import pytest

from services.database import migrate, open_engine, reading
from services.drill.copies import copy_of, put_back
from services.journal.store import Journal
from tests.postgres import Databases
from tests.services.drill.intents import intent
from tests.services.effects.halves import make_mark


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A journal."""
    if dialect == "sqlite":
        url = f"sqlite:///{tmp_path / 'journal.db'}"
        migrate("journal", url)
        return url
    postgres: Databases = request.getfixturevalue("postgres")
    return postgres.migrated("journal")


def test_a_database_put_back_has_what_the_copy_had_and_nothing_later(url: str) -> None:
    """Twice to the same copy; what is committed and not yet in the file itself is in the copy."""
    engine = open_engine(url)
    journal = Journal(engine, recorded_by="test")
    first = journal.begin(intent("drill", "INC-1", "reserve"), make_mark("one")).row.key
    copy = copy_of(url, f"copy_of_{Path(url).stem}")
    for number in (1, 2):
        later = journal.begin(intent("drill", f"INC-later-{number}", "reserve"), make_mark(f"later-{number}")).row.key
        assert journal.effect(later) is not None
        put_back(url, copy)
        assert journal.effect(first) is not None  # over the same engine: its connections are made anew
        assert journal.effect(later) is None
    engine.dispose()


def test_a_copy_holds_nothing_that_was_not_committed(url: str) -> None:
    """What a writer has changed and not committed is not in it; on PostgreSQL that writer is disconnected."""
    engine = open_engine(url)
    key = Journal(engine, recorded_by="test").begin(intent("drill", "INC-1", "reserve"), make_mark("one")).row.key
    with engine.connect() as connection:
        connection.exec_driver_sql("UPDATE effects SET workflow_id = 'not committed'")
        copy = copy_of(url, f"copy_of_{Path(url).stem}")
        connection.invalidate()
    other = open_engine(copy)
    with reading(other) as found:
        assert found.exec_driver_sql("SELECT key, workflow_id FROM effects").one() == (key, "INC-1")
    other.dispose()
    engine.dispose()
