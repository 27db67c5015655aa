"""What holds of both stores' migrations: each is its own, and safe to run twice at once."""

import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import HEADS, SchemaMismatch, Section, check_schema, migrate, open_engine
from tests.migrations.conftest import tables

MIGRATE = "import sys; from services.database import migrate; print(migrate(*sys.argv[1:]))"


@pytest.mark.parametrize(("there", "section"), [("journal", "inventory"), ("inventory", "journal")])
def test_another_stores_database_is_neither_migrated_nor_used(url: str, there: Section, section: Section) -> None:
    """The URLs were mixed up: nothing is changed, up or down, and the message says what it may be."""
    migrate(there, url)
    before = tables(url)
    for revision in ("head", "base"):
        with pytest.raises(SchemaMismatch, match=rf"{there}_.*another store's database.*Nothing was changed"):
            migrate(section, url, revision)
    engine = open_engine(url)
    with pytest.raises(SchemaMismatch, match="another store's"):
        check_schema(section, engine)
    engine.dispose()
    assert tables(url) == before


@pytest.mark.parametrize("section", HEADS)
def test_two_processes_that_migrate_at_once_both_find_it_done(url: str, section: Section) -> None:
    """One waits for the other."""
    command = [sys.executable, "-c", MIGRATE, section, url]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other,
    ):
        told = [child.communicate() for child in (one, other)]
    newest = {"journal": "journal_0003", "inventory": "inventory_0002"}[section]
    assert told == [(f"{newest}\n", "")] * 2


@pytest.mark.parametrize("dialect", ["postgresql"])
@pytest.mark.parametrize("section", HEADS)
def test_a_migration_may_compute_for_longer_than_a_writer_may_be_silent(url: str, section: Section) -> None:
    """Between two statements of its transaction nothing ends it, however many rows it has to think about."""
    limits: set[str] = set()

    def look(_connection: object, cursor: Any, statement: str, *_more: object) -> None:
        if "CREATE TABLE" in statement:
            cursor.execute("SHOW idle_in_transaction_session_timeout")
            limits.update(cursor.fetchone())

    sa.event.listen(sa.Engine, "before_cursor_execute", look)
    try:
        migrate(section, url)
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", look)
    assert limits == {"0"}
