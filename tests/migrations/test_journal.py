"""The journal's migrations: up, down, up again; the same as the tables."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from services.database import DatabaseError, check_schema, migrate, open_engine
from services.journal.store import Journal
from services.journal.tables import METADATA
from tests.migrations.conftest import tables


def test_up_down_and_up_again(url: str) -> None:
    """Nothing is left over, and what is made again is a new journal."""
    ids = []
    for _ in range(2):
        assert migrate("journal", url) == "journal_0003"
        engine = open_engine(url)
        check_schema("journal", engine)
        ids.append(Journal(engine, recorded_by="test").journal_id())
        engine.dispose()
        assert migrate("journal", url, "base") == "base"
        assert tables(url) == {"alembic_version"}
    assert len(set(ids)) == 2


def test_migrating_twice_changes_nothing(url: str) -> None:
    """The journal's identity is written once."""
    ids = []
    for _ in range(2):
        assert migrate("journal", url) == "journal_0003"
        engine = open_engine(url)
        ids.append(Journal(engine, recorded_by="test").journal_id())
        engine.dispose()
    assert len(set(ids)) == 1


def test_autogenerate_finds_nothing_to_do(url: str) -> None:
    """What `alembic check` looks at."""
    migrate("journal", url)
    engine = open_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_server_default": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_a_revision_that_does_not_exist_changes_nothing(url: str) -> None:
    """And the message says so."""
    migrate("journal", url)
    with pytest.raises(DatabaseError, match="Nothing was changed"):
        migrate("journal", url, "journal_9999")
    assert tables(url) == {"alembic_version", "journal", "decisions", "effects", "entries", "seals"}
