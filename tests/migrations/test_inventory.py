"""The inventory's migrations: up, the same as the tables, down, up again; safe to run twice at once."""

import subprocess
import sys

import pytest
import sqlalchemy as sa
from alembic import command

from services.database import SchemaMismatch, _alembic, check_schema, migrate, open_engine

MIGRATE = "import sys; from services.database import migrate; print(migrate('inventory', sys.argv[1]))"


def _tables(url: str) -> set[str]:
    engine = open_engine(url)
    names = set(sa.inspect(engine).get_table_names())
    engine.dispose()
    return names


def test_the_schema_goes_up_matches_the_tables_goes_down_and_up_again(url: str) -> None:
    """What the migration builds is what the tables say, and nothing stays behind on the way down."""
    assert migrate("inventory", url) == "inventory_0001"
    engine = open_engine(url)
    config = _alembic("inventory")
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.check(config)
    engine.dispose()
    assert migrate("inventory", url, "base") == "base"
    assert _tables(url) == {"alembic_version"}
    assert migrate("inventory", url) == "inventory_0001"


def test_a_journal_is_neither_migrated_nor_used_as_an_inventory(url: str) -> None:
    """The URLs were mixed up: nothing is changed, up or down, and the message says what it may be."""
    migrate("journal", url)
    before = _tables(url)
    for revision in ("head", "base"):
        with pytest.raises(SchemaMismatch, match=r"journal_.*another store's database.*Nothing was changed"):
            migrate("inventory", url, revision)
    engine = open_engine(url)
    with pytest.raises(SchemaMismatch, match="another store's"):
        check_schema("inventory", engine)
    engine.dispose()
    assert _tables(url) == before


def test_two_processes_that_migrate_at_once_both_find_it_done(url: str) -> None:
    """One waits for the other."""
    command = [sys.executable, "-c", MIGRATE, url]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other,
    ):
        told = [child.communicate() for child in (one, other)]
    assert told == [("inventory_0001\n", "")] * 2
