"""The verification at large: any single mutation is found, and memory does not grow with the journal."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from services.database import open_engine, writing
from services.effects.keys import derive_key
from services.journal.rows import entry_digest, text, timestamp
from services.journal.seals import Watermark
from services.journal.tables import DECISIONS, EFFECTS, ENTRIES, SEALS
from services.journal.verification import verify
from tests.services.effects.halves import DECIDED_AT
from tests.services.journal.lives import disarm, sealed_lives

MEASURE = """
import resource, sys
from services.database import open_engine
from services.journal.export import export
from services.journal.seals import seal
from services.journal.verification import verify
engine = open_engine(sys.argv[1])
seal(engine, sealed_by="test", entries_per_seal=2000)
found = verify(engine)
assert found.first is None, found
assert sum(1 for _ in export(engine)) == 2 + 2 * found.entries + found.stands.seal.number
assert sum(1 for _ in export(engine, after=1)) <= 2 + 2 * found.entries + found.stands.seal.number
engine.dispose()
print(found.entries, found.stands.seal.number, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
BODY_BYTES = 4000
MANY = 10_000


def _decide(engine: sa.Engine, after: int, count: int) -> None:
    """Decisions with long reasons, up to so many of them: 40 MB of entries, past the store to be fast."""
    why = {"why": "x" * BODY_BYTES}
    decided_at, now = timestamp(DECIDED_AT), DECIDED_AT
    for first in range(after, count, 1000):
        decisions, entries = [], []
        for number in range(first, min(first + 1000, count)):
            name: dict[str, Any] = {"origin": "demo", "scope": f"INC-{number}", "name": "reserve", "generation": 1}
            key, body = derive_key(**name), text(name | {"decided_at": decided_at, "why": why})
            decisions.append(name | {"decided_at": DECIDED_AT, "body": text(why), "recorded_at": now})
            entries.append({"key": key, "kind": "decision", "body": body, "recorded_at": now, "recorded_by": "test"})
            entries[-1]["digest"] = entry_digest(key, "decision", body, now, "test")
        with writing(engine) as connection:
            connection.execute(sa.insert(DECISIONS).values(recorded_by="test"), decisions)
            connection.execute(sa.insert(ENTRIES), entries)


def test_memory_does_not_grow_with_the_journal(either: sa.Engine, either_url: str) -> None:
    """Sealed, verified and exported by a process of its own; all of the journal would be more than sixty megabytes."""
    kilobytes = []
    for after, count, seals in ((0, 1, 1), (1, MANY, 6)):
        _decide(either, after, count)
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, either_url], capture_output=True, text=True, check=True, timeout=100
        )
        entries, number, peak = (int(word) for word in done.stdout.split())
        assert (entries, number) == (count, seals)
        kilobytes.append(peak)
    assert kilobytes[1] - kilobytes[0] < 25_000


@pytest.fixture(scope="module")
def template(empty_journal_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watermark]:
    """A sealed journal without triggers, and what was kept of it; copy it."""
    file = Path(shutil.copy(empty_journal_file, tmp_path_factory.mktemp("sealed") / "journal.db"))
    engine = open_engine(f"sqlite:///{file}")
    kept = sealed_lives(engine)
    disarm(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    engine.dispose()
    return file, kept


def _another(value: Any, data: st.DataObject) -> Any:
    """A value of the same type, by one step."""
    if isinstance(value, int):
        return value + data.draw(st.sampled_from([-1, 1, 1000]))
    if value is None:
        return "something"
    at = data.draw(st.integers(0, len(value) - 1)) if value else 0
    if isinstance(value, bytes):
        return value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :]
    how = data.draw(st.sampled_from(["flip", "cut", "add"])) if value else "add"
    if how == "flip":
        return value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :]
    return value[:at] + value[at + 1 :] if how == "cut" else value[:at] + "0" + value[at:]


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_single_mutation_of_a_sealed_journal_is_found(
    template: tuple[Path, Watermark], data: st.DataObject
) -> None:
    """One column of one row changed, or one row deleted, in any table, with a watermark that was kept."""
    file, kept = template
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{shutil.copy(file, folder)}"
        engine = open_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("PRAGMA ignore_check_constraints = ON")
            table = data.draw(st.sampled_from([ENTRIES, SEALS, EFFECTS, DECISIONS]))
            name = [column.name for column in table.primary_key.columns]
            raw = connection.exec_driver_sql(f"SELECT * FROM {table.name} ORDER BY {', '.join(name)}")  # noqa: S608
            row = data.draw(st.sampled_from(raw.mappings().all()))
            where = " AND ".join(f"{column} = ?" for column in name)
            of_row = tuple(row[column] for column in name)
            if data.draw(st.booleans()):
                column = data.draw(st.sampled_from([column.name for column in table.columns]))
                value = _another(row[column], data)
                statement = f"UPDATE OR IGNORE {table.name} SET {column} = ? WHERE {where}"  # noqa: S608
                changed = connection.exec_driver_sql(statement, (value, *of_row)).rowcount
            else:
                changed = connection.exec_driver_sql(f"DELETE FROM {table.name} WHERE {where}", of_row).rowcount  # noqa: S608
        found = verify(engine, against=kept)
        engine.dispose()
    assert (found.first is not None) == (changed == 1)
