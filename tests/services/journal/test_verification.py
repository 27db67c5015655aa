"""The verification: whatever is changed in a sealed journal is found, and the first bad place is named."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa

from services.database import open_engine
from services.journal.fold import WrittenEntry
from services.journal.seals import Watermark, seal, watermark
from services.journal.tables import DECISIONS, EFFECTS, ENTRIES, SEALS
from services.journal.verification import Damage, Verification, check_chain, check_key, verify
from tests.services.effects.halves import make_intent
from tests.services.journal.lives import (
    ENTRIES_PER_SEAL,
    Rows,
    disarm,
    leave_a_gap,
    live,
    put_back,
    reseal,
    reword,
    saved,
    sealed_lives,
)

Tamper = Callable[[sa.Connection], None]


def _run(*statements: str) -> Tamper:
    def tamper(connection: sa.Connection) -> None:
        for statement in statements:
            connection.exec_driver_sql(statement)

    return tamper


def _flip(connection: sa.Connection) -> None:
    body = connection.execute(sa.select(ENTRIES.c.body).where(ENTRIES.c.id == 4)).scalar_one()
    flipped = chr(ord(body[20]) ^ 1)
    connection.execute(sa.update(ENTRIES).where(ENTRIES.c.id == 4).values(body=body[:20] + flipped + body[21:]))


def _forge(connection: sa.Connection) -> None:
    reword(connection, 12, '{"why":"bored"}')


def _forge_with_its_leaf_and_seal(connection: sa.Connection) -> None:
    reword(connection, 12, '{"why":"bored"}')
    reseal(connection, first=3, last=3)


def _insert(id_: int) -> Tamper:
    return _run(
        f"INSERT INTO entries SELECT {id_}, key, kind, body, recorded_at, recorded_by, digest "  # noqa: S608
        "FROM entries WHERE id = 12"
    )


def _of(name: str, scope: str = "INC-2") -> str:
    return make_intent(scope=scope, name=name).key


def _last_leaf(connection: sa.Connection) -> None:
    leaves = bytearray(connection.execute(sa.select(SEALS.c.leaves).where(SEALS.c.number == 4)).scalar_one())
    leaves[-1] ^= 1
    connection.execute(sa.update(SEALS).where(SEALS.c.number == 4).values(leaves=bytes(leaves)))


def _swap(table: str, column: str, one: int, other: int) -> Tamper:
    return _run(
        f"UPDATE {table} SET {column} = 9999 WHERE {column} = {one}",  # noqa: S608
        f"UPDATE {table} SET {column} = {one} WHERE {column} = {other}",  # noqa: S608
        f"UPDATE {table} SET {column} = {other} WHERE {column} = 9999",  # noqa: S608
    )


CHANGED, MISSING, INSERTED = Damage.ENTRY_CHANGED, Damage.ENTRY_MISSING, Damage.ENTRY_INSERTED
SEAL, GAP, ROW = Damage.SEAL_CHANGED, Damage.SEAL_MISSING, Damage.ROW_CHANGED

# What is done to the journal of `sealed_lives`, what is named first, and how much of each kind there is.
TAMPERED: dict[str, tuple[Tamper, str, dict[Damage, int]]] = {
    "a byte is flipped": (_flip, "entry 4", {CHANGED: 1, ROW: 1}),
    "a body is changed with its digest": (_forge, "entry 12", {CHANGED: 1}),
    "a body is changed with its digest, leaf and seal": (_forge_with_its_leaf_and_seal, "seal 3", {SEAL: 1}),
    "a digest is changed": (_run("UPDATE entries SET digest = 'x' WHERE id = 9"), "entry 9", {CHANGED: 1}),
    "a writer is changed": (_run("UPDATE entries SET recorded_by = 'x' WHERE id = 3"), "entry 3", {CHANGED: 1}),
    "an entry is deleted": (_run("DELETE FROM entries WHERE id = 12"), "entry 12", {MISSING: 1, ROW: 1}),
    "the first entry is deleted": (_run("DELETE FROM entries WHERE id = 1"), "entry 1", {MISSING: 1, ROW: 2}),
    "two are deleted": (_run("DELETE FROM entries WHERE id IN (27, 3)"), "entry 3", {MISSING: 2, ROW: 2}),
    "two entries are swapped": (_swap("entries", "id", 10, 13), "entry 10", {CHANGED: 2}),
    "an entry is inserted": (_insert(16), "entry 16", {INSERTED: 1, ROW: 1}),
    "an entry is inserted before all": (_insert(0), "entry 0", {INSERTED: 1, ROW: 1}),
    "an entry is moved into a gap": (
        _run("UPDATE entries SET id = 15 WHERE id = 14"),
        "entry 14",
        {MISSING: 1, INSERTED: 1},
    ),
    "the tail is cut under its seal": (_run("DELETE FROM entries WHERE id > 29"), "entry 30", {MISSING: 2, ROW: 1}),
    "everything but the seals is cut": (
        _run("DELETE FROM entries", "DELETE FROM effects", "DELETE FROM decisions"),
        "entry 1",
        {MISSING: 28},
    ),
    "a seal is deleted": (_run("DELETE FROM seals WHERE number = 3"), "seal 3", {GAP: 1}),
    "two seals are deleted": (_run("DELETE FROM seals WHERE number IN (1, 2)"), "seals 1 to 2", {GAP: 1}),
    "a seal's leaves are changed": (_last_leaf, "seal 4", {SEAL: 1}),
    "a seal's leaves are no leaves": (_run("UPDATE seals SET leaves = '' WHERE number = 4"), "seal 4", {SEAL: 1}),
    "a seal's reach is changed": (_run("UPDATE seals SET upto_id = 30 WHERE number = 2"), "seal 2", {SEAL: 1}),
    "a seal's time is changed": (
        _run("UPDATE seals SET sealed_at = '2020-01-01 00:00:00' WHERE number = 2"),
        "seal 2",
        {SEAL: 1},
    ),
    "a seal's digest is changed": (_run("UPDATE seals SET digest = '' WHERE number = 1"), "seal 1", {SEAL: 1}),
    "two seals are swapped": (_swap("seals", "number", 2, 4), "seal 2", {SEAL: 2}),
    "a seal and an entry behind it are changed": (
        _run("UPDATE seals SET count = 4 WHERE number = 2", "DELETE FROM entries WHERE id = 14"),
        "seal 2",
        {SEAL: 1, MISSING: 1, ROW: 1},
    ),
    "an entry under a spoiled seal is changed": (
        _run("UPDATE seals SET count = 4 WHERE number = 3", "UPDATE entries SET body = '{}' WHERE id = 13"),
        "seal 3",
        {SEAL: 1, CHANGED: 1, ROW: 1},
    ),
    "the journal gets another id": (_run("UPDATE journal SET id = 'f'"), "seal 1", {SEAL: 6}),
    "the journal gets a second id": (
        _run("INSERT INTO journal SELECT 'zz', created_at FROM journal"),
        "journal",
        {Damage.OTHER_JOURNAL: 1},
    ),
    "a row is changed": (
        _run(f"UPDATE effects SET attempts = 7 WHERE key = '{_of('late')}'"),  # noqa: S608
        _of("late"),
        {ROW: 1},
    ),
    "a row is deleted": (
        _run(f"DELETE FROM effects WHERE key = '{_of('done')}'"),  # noqa: S608
        _of("done"),
        {ROW: 1},
    ),
    "a row is renamed": (
        _run(f"UPDATE effects SET key = 'x' WHERE key = '{_of('done')}'"),  # noqa: S608
        _of("done"),
        {ROW: 2},
    ),
    "a decision is changed": (
        _run("UPDATE decisions SET body = '{}' WHERE scope = 'INC-2' AND name = 'doubted'"),
        _of("doubted"),
        {ROW: 1},
    ),
    "a decision is deleted": (
        _run("DELETE FROM decisions WHERE scope = 'INC-2' AND name = 'done'"),
        _of("done"),
        {ROW: 1},
    ),
    "a decision is renamed": (
        _run("UPDATE decisions SET generation = 3 WHERE scope = 'INC-2' AND name = 'done'"),
        _of("done"),
        {ROW: 2},
    ),
}


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def disarmed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[sa.Engine, Rows]]:
    """The journal of `sealed_lives` without triggers, and what is in it."""
    if request.param == "sqlite":
        empty = request.getfixturevalue("empty_journal_file")
        url = f"sqlite:///{shutil.copy(empty, tmp_path_factory.mktemp('disarmed'))}"
    else:
        url = request.getfixturevalue("postgres").migrated("journal")
    engine = open_engine(url)
    sealed_lives(engine)
    disarm(engine)
    yield engine, saved(engine)
    engine.dispose()


@pytest.fixture
def sealed(disarmed: tuple[sa.Engine, Rows]) -> sa.Engine:
    """That journal, put back to what it was."""
    engine, rows = disarmed
    put_back(engine, rows)
    return engine


def test_a_sealed_journal_is_whole(sealed: sa.Engine) -> None:
    """What the tests below begin with."""
    found = verify(sealed)
    assert (found.first, found.found, found.entries) == (None, {}, 28)


@pytest.mark.parametrize("case", TAMPERED)
def test_what_is_tampered_with_is_named(sealed: sa.Engine, case: str) -> None:
    """By whoever owns the tables and has taken the triggers away: the first bad place, and how many there are."""
    tamper, where, counts = TAMPERED[case]
    with sealed.begin() as connection:
        tamper(connection)
    found = verify(sealed)
    assert found.first is not None
    assert (found.first.where, found.found) == (where, counts)
    assert found.first.damage in counts


SPOILED = {
    "sqlite": [
        "UPDATE entries SET recorded_at = 'once' WHERE id = 5",
        "UPDATE entries SET body = CAST(x'7BFF7D' AS TEXT) WHERE id = 5",
        "UPDATE entries SET body = x'00' WHERE id = 5",
        "UPDATE entries SET digest = x'00' WHERE id = 5",
        "UPDATE entries SET key = CAST(x'FF' AS TEXT) WHERE id = 5",
    ],
    "postgresql": [
        "UPDATE entries SET recorded_at = 'infinity' WHERE id = 5",
        "UPDATE entries SET recorded_at = '4000-01-01 BC' WHERE id = 5",
        "UPDATE entries SET body = '" + "[" * 100_000 + "' WHERE id = 5",
    ],
}


def test_what_cannot_be_read_is_named_like_any_other_change(disarmed: tuple[sa.Engine, Rows]) -> None:
    """No time, no UTF-8, no text, or nested beyond all measure."""
    engine, rows = disarmed
    for statement in SPOILED[engine.dialect.name]:
        put_back(engine, rows)
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
        found = verify(engine)
        assert found.first is not None
        assert (found.first.where, found.first.damage) == ("entry 5", CHANGED), statement


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_rows_and_seals_that_cannot_be_read_are_named(engine: sa.Engine) -> None:
    """SQLite holds anything in any column."""
    sealed_lives(engine)
    disarm(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE seals SET upto_id = 'far', leaves = 'none', digest = x'00' WHERE number = 6")
        connection.exec_driver_sql("UPDATE effects SET created_at = 'once', state = 'voided', settled_at = x'00'")
        connection.exec_driver_sql("UPDATE decisions SET decided_at = 'once'")
        connection.exec_driver_sql("UPDATE decisions SET origin = '' WHERE scope = 'INC-1' AND name = 'done'")
    found = verify(engine)
    assert found.first is not None
    assert (found.first.where, found.found) == ("seal 6", {SEAL: 1, ROW: 7})


def test_an_unsealed_entry_is_held_against_its_own_digest(either: sa.Engine) -> None:
    """And one that is whole is no flaw."""
    sealed_lives(either)
    live(either, "INC-3")
    assert verify(either).first is None
    disarm(either)
    with either.begin() as connection:
        connection.exec_driver_sql("UPDATE entries SET body = body || ' ' WHERE id = 40")
    found = verify(either)
    assert found.first is not None
    assert (found.first.where, found.found) == ("entry 40", {CHANGED: 1})


def test_a_row_of_which_no_entry_tells_is_named(either: sa.Engine) -> None:
    """An effect and a decision out of nowhere."""
    sealed_lives(either)
    with either.begin() as connection:
        row = dict(connection.execute(sa.select(EFFECTS).limit(1)).mappings().one())
        connection.execute(sa.insert(EFFECTS).values(**row | {"key": "out-of-nowhere-1", "name": "nowhere"}))
        decision = dict(connection.execute(sa.select(DECISIONS).limit(1)).mappings().one())
        connection.execute(sa.insert(DECISIONS).values(**decision | {"name": "nowhere"}))
    found = verify(either)
    assert found.first is not None
    assert (found.first.where, found.found) == ("out-of-nowhere-1", {ROW: 2})


def test_a_decision_under_another_key_is_no_decision_of_it() -> None:
    """Also where nothing seals it yet."""
    key = _of("done")
    body = '{"decided_at":"2026-03-01T12:00:00.000000Z","generation":1,"name":"late","origin":"demo","scope":"INC-2"}'
    for told, says in ((body, "another key"), ("[]", "cannot be read"), (body.replace("1", "[1]"), "cannot be read")):
        entry = WrittenEntry(id=9, key=key, kind="decision", body=told, recorded_at=None, recorded_by="", digest="")  # type: ignore[arg-type]
        (flaw,) = check_key(key, [entry], row=None, decision=None)
        assert (flaw.where, says in flaw.says) == (key, True)


class Kept:
    """A sealed journal, what was kept of it, and a copy of it from before its last seals."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        live(engine, "INC-1")
        leave_a_gap(engine)
        seal(engine, sealed_by="test", entries_per_seal=ENTRIES_PER_SEAL)
        self.early = watermark(engine)
        live(engine, "INC-2")
        seal(engine, sealed_by="test", entries_per_seal=ENTRIES_PER_SEAL)
        self.late = watermark(engine)
        disarm(engine)

    def against(self, kept: Watermark) -> Verification:
        """Verify."""
        return verify(self.engine, against=kept)

    def cut(self, connection: sa.Connection) -> None:
        """Take INC-2 away, without a trace in what is left."""
        for table in ("effects", "decisions"):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE scope = 'INC-2'")  # noqa: S608
        connection.exec_driver_sql("DELETE FROM entries WHERE id > 14")
        connection.exec_driver_sql("DELETE FROM seals WHERE number > 3")


@pytest.fixture
def kept(either: sa.Engine) -> Kept:
    """On SQLite, and on PostgreSQL."""
    return Kept(either)


def test_a_journal_that_went_on_agrees_with_every_watermark_kept_of_it(kept: Kept) -> None:
    """The first one, and the last one."""
    assert kept.against(kept.early).first is None
    assert kept.against(kept.late).first is None


def test_entries_and_seals_that_were_cut_together_are_found_with_what_was_kept(kept: Kept) -> None:
    """Without it nothing is wrong: that is what a journal put back to an older copy looks like."""
    with kept.engine.begin() as connection:
        kept.cut(connection)
    assert verify(kept.engine).first is None
    assert kept.against(kept.early).first is None
    found = kept.against(kept.late)
    assert found.first is not None
    assert (found.first.where, found.found) == ("seal 6", {Damage.CUT_OFF: 2})


def test_a_cut_that_was_grown_over_is_found(kept: Kept) -> None:
    """Other entries and other seals under the same numbers."""
    with kept.engine.begin() as connection:
        kept.cut(connection)
    live(kept.engine, "INC-3", "INC-4")
    seal(kept.engine, sealed_by="test", entries_per_seal=ENTRIES_PER_SEAL)
    assert verify(kept.engine).first is None
    found = kept.against(kept.late)
    assert found.first is not None
    assert (found.first.where, found.found) == ("seal 6", {SEAL: 1})


def test_an_unsealed_tail_that_was_cut_is_found(kept: Kept) -> None:
    """A watermark tells of the last entry, too."""
    live(kept.engine, "INC-3")
    tail = watermark(kept.engine)
    with kept.engine.begin() as connection:
        for table in ("effects", "decisions"):
            connection.exec_driver_sql(f"DELETE FROM {table} WHERE scope = 'INC-3'")  # noqa: S608
        connection.execute(sa.delete(ENTRIES).where(ENTRIES.c.id > kept.late.last_entry_id))
    assert verify(kept.engine).first is None
    found = kept.against(tail)
    assert found.first is not None
    assert (found.first.where, found.first.damage) == (f"entry {tail.last_entry_id}", Damage.CUT_OFF)


def test_a_chain_that_was_made_anew_is_found(kept: Kept) -> None:
    """From the forged entry to the last seal everything fits, and it is not what was kept."""
    with kept.engine.begin() as connection:
        reword(connection, 12, '{"why":"bored"}')
        reseal(connection, first=3, last=6)
    assert verify(kept.engine).first is None
    found = kept.against(kept.late)
    assert found.first is not None
    assert (found.first.where, found.found) == ("seal 6", {SEAL: 1})


def test_what_was_kept_of_another_journal_is_said_to_be_of_another(kept: Kept) -> None:
    """Nothing else is compared with it."""
    found = kept.against(replace(kept.late, journal_id="0" * 32, last_entry_id=10**6))
    assert found.first is not None
    assert "is of the journal 000" in found.first.says
    assert found.found == {Damage.OTHER_JOURNAL: 1}


def test_entries_behind_a_bad_seal_are_judged_by_the_next_good_one(engine: sa.Engine) -> None:
    """What stands in the range of a seal that cannot be believed is not called inserted."""
    stands = sealed_lives(engine)
    with engine.connect() as connection:
        entries = [WrittenEntry(**row) for row in connection.execute(sa.select(ENTRIES)).mappings()]
    assert list(check_chain(stands.journal_id, entries, [])) == []
