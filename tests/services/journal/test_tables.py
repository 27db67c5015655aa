"""The tables in the code are the tables that the migrations make."""

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import open_engine, writing
from services.effects.records import EffectRow
from services.effects.states import TERMINAL, EffectState
from services.journal.rows import new_effect
from services.journal.store import Journal
from services.journal.tables import DECISIONS, EFFECTS, ENTRIES, METADATA
from tests.services.effects.halves import make_intent, make_mark


def _told(index: Any) -> dict[str, str]:
    """An index's condition, among what else is the database's own."""
    return {name: str(value) for name, value in index.get("dialect_options", {}).items()}


def _shape(engine: sa.Engine) -> dict[str, Any]:
    found = sa.inspect(engine)
    return {
        table: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], column["default"])
                for column in found.get_columns(table)
            ],
            "key": found.get_pk_constraint(table),
            "checks": sorted((str(check["name"]), check["sqltext"]) for check in found.get_check_constraints(table)),
            "unique": found.get_unique_constraints(table),
            "indexes": sorted(
                (str(index["name"]), index["column_names"], _told(index)) for index in found.get_indexes(table)
            ),
        }
        for table in found.get_table_names()
        if table != "alembic_version"
    }


def test_the_tables_and_the_migrations_make_the_same_database(
    engine: sa.Engine, dialect: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Columns, keys, checks and indexes."""
    url = f"sqlite:///{tmp_path}/made.db" if dialect == "sqlite" else request.getfixturevalue("postgres").empty()
    made = open_engine(url)
    METADATA.create_all(made)
    assert _shape(made) == _shape(engine)
    made.dispose()


def _options(engine: sa.Engine) -> dict[str, tuple[bool, bool]]:
    with engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE type = 'table'").all()
    return {
        name: ("WITHOUT ROWID" in sql, "AUTOINCREMENT" in sql)
        for name, sql in rows
        if name not in {"alembic_version", "sqlite_sequence"}
    }


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_the_tables_and_the_migrations_set_the_same_options_of_sqlite(engine: sa.Engine, tmp_path: Path) -> None:
    """No hidden row number, and no id used twice."""
    made = open_engine(f"sqlite:///{tmp_path / 'made.db'}")
    METADATA.create_all(made)
    assert _options(made) == _options(engine)
    assert _options(engine)["decisions"] == (True, False)
    assert _options(engine)["entries"] == (False, True)
    made.dispose()


def test_the_database_itself_has_one_row_per_key_and_one_decision_per_name(journal: Journal, engine: sa.Engine) -> None:
    """E17: whatever two writers believe they have read, the second INSERT fails or does nothing."""
    intent = make_intent()
    journal.begin(intent, make_mark("attempt-1"))
    values = new_effect(intent, born_by="attempt", created_at=intent.decided_at)
    for rival in (values | {"scope": "another"}, values | {"key": "another-key-of-this-name"}):
        with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
            connection.execute(EFFECTS.insert().values(rival))
    decided = {"origin": "demo", "scope": intent.scope, "name": intent.name, "generation": 1}
    if engine.dialect.name == "sqlite":  # where the first decision also stands by a trigger
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TRIGGER decisions_first_wins")
    with pytest.raises(sa.exc.IntegrityError), writing(engine) as connection:
        connection.execute(
            DECISIONS.insert().values(
                **decided, decided_at=intent.decided_at, body="{}", recorded_at=intent.decided_at, recorded_by="rival"
            )
        )
    assert len(journal.effects()) == len(journal.decisions(origin="demo", scope=intent.scope)) == 1


def test_the_checks_name_every_state() -> None:
    """A state that the table does not know could not be written."""
    found = [check for check in EFFECTS.constraints if isinstance(check, sa.CheckConstraint)]
    checks = {str(check.name): str(check.sqltext) for check in found}
    state = next(text for name, text in checks.items() if name.endswith("state"))
    settled = next(text for name, text in checks.items() if name.endswith("settled_when_terminal"))
    assert all(f"'{member}'" in state for member in EffectState)
    assert all((f"'{member}'" in settled) == (member in TERMINAL) for member in EffectState)


def test_an_effects_row_has_the_columns_that_the_record_reads() -> None:
    """The deadline is computed from the last one marked; everything else has its column."""
    members = set(EffectRow.__slots__)
    assert members - {"deadline"} == {column.name for column in EFFECTS.columns} - {"last_not_after"}


def test_an_entrys_id_is_never_used_twice() -> None:
    """Not even after the newest one was cut off."""
    assert ENTRIES.dialect_options["sqlite"]["autoincrement"] is True
