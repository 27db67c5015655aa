"""The export, on each database: whole, checkable elsewhere, and gone on with."""

import base64
import json
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

import pytest
import sqlalchemy as sa

from services.journal.export import BeyondTheEnd, export
from services.journal.fold import WrittenEntry, decided, differences, fold
from services.journal.seals import seal
from services.journal.verification import StoredSeal, check_chain
from tests.services.journal.lives import live, sealed_lives

KINDS = ("decision", "effect", "entry", "seal")


def written(engine: sa.Engine, *, after: int = 0) -> list[dict[str, Any]]:
    """As a file has it."""
    return [json.loads(json.dumps(record)) for record in export(engine, after=after)]


def of(records: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The records of a kind, with their times as times."""
    return [
        {name: _time(name, value) for name, value in record.items() if name != "record"}
        for record in records
        if record["record"] == kind
    ]


def _time(name: str, value: Any) -> Any:
    is_time = name.endswith("_at") or name == "last_not_after"
    return datetime.fromisoformat(value) if is_time and value is not None else value


def entries_of(records: Iterable[dict[str, Any]]) -> list[WrittenEntry]:
    """The entries."""
    return [WrittenEntry(**values) for values in of(records, "entry")]


def test_every_row_is_the_fold_of_the_entries_that_come_with_it(engine: sa.Engine) -> None:
    """Rebuilt from the file alone: effects, decisions and digests (G15)."""
    sealed_lives(engine)
    records = written(engine)
    by_key: dict[str, list[WrittenEntry]] = {}
    for entry in entries_of(records):
        assert entry.intact
        by_key.setdefault(entry.key, []).append(entry)
    effects, decisions = of(records, "effect"), of(records, "decision")
    assert len(effects) == len(decisions) == len(by_key) == 6
    for row in effects:
        assert differences(row, fold(by_key[row["key"]]) or {}) == ""
        assert isinstance(row["given_up"], bool)
    told = [decided(entries) or {} for entries in by_key.values()]
    assert sorted(decisions, key=str) == sorted(told, key=str)


def test_its_seals_chain_its_entries(engine: sa.Engine) -> None:
    """Whoever has the file can verify it as the journal itself is verified; a change is found."""
    watermark = sealed_lives(engine)
    records = written(engine)
    (head,) = of(records, "journal")
    assert head["journal_id"] == watermark.journal_id
    seals = [StoredSeal(**values | {"leaves": base64.b64decode(values["leaves"])}) for values in of(records, "seal")]
    entries = entries_of(records)
    assert len(seals) > 1
    assert list(check_chain(head["journal_id"], entries, seals)) == []
    assert [flaw.where for flaw in check_chain(head["journal_id"], entries[1:], seals)] == [f"entry {entries[0].id}"]


def test_it_says_how_much_it_is_at_its_end(engine: sa.Engine) -> None:
    """A file that was cut off lacks its last line."""
    sealed_lives(engine)
    records = written(engine)
    assert records[0]["record"] == "journal"
    assert records[-1]["record"] == "end"
    counted = Counter(record["record"] for record in records)
    assert {kind: records[-1][kind] for kind in KINDS} == {kind: counted[kind] for kind in KINDS}


def test_an_export_goes_on_where_the_last_one_was_sealed(engine: sa.Engine) -> None:
    """What was not sealed comes again, since an older entry may still be committed; nothing is missed."""
    sealed_lives(engine)
    live(engine, "INC-3")  # not sealed
    first = written(engine)
    go_on = first[-1]["go_on_after"]
    assert go_on < first[0]["last_entry_id"]
    live(engine, "INC-4")
    seal(engine, sealed_by="test")
    second = written(engine, after=go_on)
    both = {entry.id: entry for entry in (*entries_of(first), *entries_of(second))}
    whole = written(engine)
    assert list(both.values()) == entries_of(whole)
    assert {row["scope"] for row in of(second, "effect")} == {"INC-3", "INC-4"}
    assert {row["scope"] for row in of(second, "decision")} == {"INC-3", "INC-4"}
    assert of(first, "seal") + of(second, "seal") == of(whole, "seal")
    assert second[-1]["go_on_after"] == whole[0]["last_entry_id"]


def test_after_the_end_there_is_nothing_and_it_says_where_to_go_on(engine: sa.Engine) -> None:
    """Also of an empty journal."""
    (head, end) = written(engine)
    assert (head["last_entry_id"], end["go_on_after"]) == (0, 0)
    sealed_lives(engine)
    last = written(engine)[-1]["go_on_after"]
    assert [record["record"] for record in written(engine, after=last)] == ["journal", "end"]
    assert written(engine, after=last)[-1]["go_on_after"] == last


def test_a_journal_that_has_not_come_as_far_is_not_gone_on_with(engine: sa.Engine) -> None:
    """It was put back, or is another one: what it records up to there would never be exported."""
    sealed_lives(engine)
    last = written(engine)[0]["last_entry_id"]
    with pytest.raises(BeyondTheEnd, match=f"ends at entry {last}, "):
        written(engine, after=last + 1)


def test_it_is_one_moment_of_the_journal_however_long_it_is_read(engine: sa.Engine) -> None:
    """What is committed while it is read is not half in it."""
    live(engine, "INC-1")
    records = export(engine)
    head = next(records)
    live(engine, "INC-2")
    rest = list(records)
    assert {record["scope"] for record in rest if record["record"] == "effect"} == {"INC-1"}
    assert max(record["id"] for record in rest if record["record"] == "entry") == head["last_entry_id"]


def test_it_is_a_stream(engine: sa.Engine) -> None:
    """Its first lines come before the last ones are read, and whoever stops leaves no transaction open."""
    live(engine, *(f"INC-{number}" for number in range(1, 4)))
    records = export(engine)
    assert [next(records)["record"] for _ in range(3)] == ["journal", "decision", "decision"]
    records.close()  # type: ignore[attr-defined]
    live(engine, "INC-9")
