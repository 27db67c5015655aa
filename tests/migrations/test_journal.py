"""The journal's migrations: up, down, up again; the same as the tables."""

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from services.database import DatabaseError, check_schema, migrate, open_engine
from services.effects.commands import Command, CommandName
from services.journal.operator import OperatorJournal
from services.journal.store import Journal
from services.journal.tables import METADATA
from services.journal.verification import verify
from tests.migrations.conftest import tables
from tests.services.effects.halves import make_intent, make_mark, make_receipt, shows


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


def test_what_a_schema_below_cannot_say_is_said_again_above_it(url: str) -> None:
    """G15: down and up again, each row is the fold of its entries, and what a person accepted is accepted."""
    migrate("journal", url)
    left, gone_on = make_intent(), make_intent(name="reserve-fan")
    engine = open_engine(url)
    journal = OperatorJournal(engine, recorded_by="test")
    for intent in (left, gone_on):
        journal.begin(intent, make_mark(intent.key))
        journal.observe(intent.key, shows(make_receipt(intent)))
        journal.closed([intent.key], "terminated", run_id="run-1")
    journal.accept(Command(name=CommandName.ACCEPT, key=left.key, by="ada", reason='"closed_as": no'))
    journal.closed([gone_on.key], None, run_id="run-2")
    before = [journal.effect(intent.key) for intent in (left, gone_on)]
    engine.dispose()
    assert migrate("journal", url, "journal_0002") == "journal_0002"
    migrate("journal", url)
    engine = open_engine(url)
    journal = OperatorJournal(engine, recorded_by="test")
    assert [journal.effect(intent.key) for intent in (left, gone_on)] == before
    assert verify(engine).first is None
    engine.dispose()


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
