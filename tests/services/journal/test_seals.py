"""Sealing: no entry is skipped, nobody is held up for long, rivals do no harm, and seals are append-only."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import migrate, open_engine
from services.journal import seals
from services.journal.rows import entry_digest
from services.journal.seals import LEAF, Sealing, SealMark, pack_leaves, seal, seal_digest, unpack_leaves, watermark
from services.journal.store import Journal
from services.journal.tables import ENTRIES, SEALS
from services.journal.verification import verify
from tests.postgres import Databases
from tests.services.effects.halves import DECIDED_AT, make_intent, make_mark
from tests.services.journal.conftest import Clock
from tests.services.journal.lives import disarm, live, sealed_lives


def _covered(engine: sa.Engine) -> list[int]:
    """The ids in all leaves, in the order of the seals."""
    with engine.connect() as connection:
        leaves = connection.execute(sa.select(SEALS.c.leaves).order_by(SEALS.c.number)).scalars().all()
    return [id_ for one in leaves for id_, _ in unpack_leaves(one)]


def _ids(engine: sa.Engine) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(ENTRIES.c.id).order_by(ENTRIES.c.id)).scalars())


def test_seals_cover_every_entry_once_in_order_over_gaps(either: sa.Engine) -> None:
    """Page after page, each made after the one before it."""
    stands = sealed_lives(either)
    assert _covered(either) == _ids(either)
    with either.connect() as connection:
        rows = connection.execute(sa.select(SEALS).order_by(SEALS.c.number)).mappings().all()
    assert [row["number"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["count"] for row in rows] == [5, 5, 5, 5, 5, 3]
    assert [row["previous"] for row in rows] == ["", *(row["digest"] for row in rows[:-1])]
    assert stands.seal == SealMark(number=6, upto_id=rows[-1]["upto_id"], digest=rows[-1]["digest"])
    assert (stands.unsealed, stands.last_entry_id) == (0, 31)


def test_an_empty_range_makes_no_seal(either: sa.Engine) -> None:
    """Neither in an empty journal nor twice over the same entries."""
    assert seal(either, sealed_by="test") == Sealing(entries=0)
    live(either, "INC-1")
    assert watermark(either).unsealed == 14
    assert seal(either, sealed_by="test") == Sealing(entries=14)
    assert seal(either, sealed_by="test") == Sealing(entries=0)
    seal_of_all = watermark(either).seal
    assert seal_of_all is not None
    assert seal_of_all.number == 1


@pytest.mark.parametrize("statement", ["UPDATE seals SET sealed_by = 'x'", "DELETE FROM seals"])
def test_a_seal_is_neither_changed_nor_deleted(either: sa.Engine, statement: str) -> None:
    """By whoever connects."""
    before = sealed_lives(either)
    with pytest.raises(sa.exc.DBAPIError, match="seals is append-only"), either.begin() as connection:
        connection.exec_driver_sql(statement)
    assert watermark(either) == before
    assert verify(either).first is None


def test_seals_are_not_truncated(postgres: Databases) -> None:
    """PostgreSQL's other way to delete."""
    engine = open_engine(postgres.migrated("journal"))
    sealed_lives(engine)
    with pytest.raises(sa.exc.DBAPIError, match="seals is append-only"), engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE seals")
    engine.dispose()


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_a_seal_is_not_replaced(engine: sa.Engine) -> None:
    """SQLite's REPLACE deletes without a DELETE trigger where recursive_triggers is off: the first seal stands."""
    sealed_lives(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA recursive_triggers = OFF")
        connection.exec_driver_sql(
            "INSERT OR REPLACE INTO seals "
            "SELECT number, upto_id, count, previous, leaves, sealed_at, 'x', digest FROM seals WHERE number = 2"
        )
        connection.commit()
        connection.exec_driver_sql("PRAGMA recursive_triggers = ON")
    assert verify(engine).first is None


def test_the_form_of_a_digest_is_fixed() -> None:
    """A journal that was sealed by one build is verified by another."""
    leaves = pack_leaves([(1, "ab" * 32), (7, "cd" * 32)])
    assert leaves.hex() == "0000000000000001" + "ab" * 32 + "0000000000000007" + "cd" * 32
    assert list(unpack_leaves(leaves)) == [(1, "ab" * 32), (7, "cd" * 32)]
    digest = seal_digest(
        "f" * 32,
        number=2,
        upto_id=7,
        count=2,
        previous="ef" * 32,
        leaves=leaves,
        sealed_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        sealed_by="worker 7@worker-1",
    )
    assert digest == "8a22e820090ac0c4301e8a392ee81f86df7d1b45d8b56b26c350c76683c4859b"


def test_what_is_no_digest_is_sealed_as_zeros() -> None:
    """One entry that somebody spoiled keeps no other from being sealed."""
    assert pack_leaves([(1, "no digest"), (2, "")]) == LEAF.pack(1, bytes(32)) + LEAF.pack(2, bytes(32))


def test_a_spoiled_entry_does_not_stop_the_sealing_and_is_named(either: sa.Engine) -> None:
    """Sealed with it, the verification goes on naming it."""
    live(either, "INC-1")
    disarm(either)
    with either.begin() as connection:
        connection.execute(sa.update(ENTRIES).where(ENTRIES.c.id == 3).values(digest="spoiled"))
    assert seal(either, sealed_by="test").entries == 14
    first = verify(either).first
    assert first is not None
    assert first.where == "entry 3"


@pytest.mark.parametrize("spoiled", ["CAST(X'FF' AS TEXT)", "X'FF'", "7"])
def test_a_digest_that_is_not_even_text_does_not_stop_the_sealing(tmp_path: Path, spoiled: str) -> None:
    """SQLite takes anything into any column."""
    url = f"sqlite:///{tmp_path}/journal.db"
    migrate("journal", url)
    engine = open_engine(url)
    live(engine, "INC-1")
    disarm(engine)
    with engine.begin() as connection:
        connection.execute(sa.update(ENTRIES).where(ENTRIES.c.id == 3).values(digest=sa.text(spoiled)))
    assert seal(engine, sealed_by="test").entries == 14
    first = verify(engine).first
    assert first is not None
    assert first.where == "entry 3"
    engine.dispose()


def test_two_sealers_at_once_seal_each_entry_once(either: sa.Engine, either_url: str) -> None:
    """Whoever comes second goes on from the other's seal."""
    scopes = [f"INC-{number}" for number in range(4)]
    live(either, *scopes)
    rival = open_engine(either_url)
    barrier = threading.Barrier(2)

    def sealing(engine: sa.Engine) -> int:
        barrier.wait()
        sealed = 0
        while (done := seal(engine, sealed_by="test", entries_per_seal=3)).held_up or done.entries:
            sealed += done.entries
        return sealed

    with ThreadPoolExecutor(2) as pool:
        sealed = list(pool.map(sealing, [either, rival]))
    rival.dispose()
    assert sum(sealed) == len(_ids(either)) == 14 * len(scopes)
    assert _covered(either) == _ids(either)
    assert verify(either).first is None


def test_a_sealer_that_lost_its_number_goes_on_from_the_rivals_seal(either: sa.Engine, either_url: str) -> None:
    """The rival seals more than the loser had read, between its reading and its insert."""
    live(either, "INC-1")
    rival = open_engine(either_url)

    def overtaken() -> datetime:
        live(rival, "INC-2")
        seal(rival, sealed_by="rival")
        return DECIDED_AT

    assert seal(either, sealed_by="loser", clock=overtaken) == Sealing(entries=0)
    rival.dispose()
    assert _covered(either) == _ids(either)
    assert verify(either).first is None


@pytest.fixture
def shared(postgres: Databases) -> Iterator[sa.Engine]:
    """A journal on PostgreSQL, where several write at once."""
    engine = open_engine(postgres.migrated("journal"))
    yield engine
    engine.dispose()


def _append(connection: sa.Connection, key: str) -> int:
    """An entry that is not committed yet, by a writer whom no server ends."""
    connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
    digest = entry_digest(key, "decision", "{}", DECIDED_AT, "late")
    values = {"key": key, "kind": "decision", "body": "{}", "recorded_at": DECIDED_AT, "recorded_by": "late"}
    inserted = connection.execute(sa.insert(ENTRIES).values(**values, digest=digest).returning(ENTRIES.c.id))
    return int(inserted.scalar_one())


def test_an_entry_that_commits_late_is_never_skipped(shared: sa.Engine) -> None:
    """While it is uncommitted nothing is sealed, not even what others have committed after it; then all is."""
    live(shared, "INC-1")
    with shared.connect() as late:
        id_ = _append(late, "late-entry-000001")
        live(shared, "INC-2")
        assert max(_ids(shared)) > id_
        assert id_ not in _ids(shared)
        assert seal(shared, sealed_by="test") == Sealing(entries=0, held_up=True)
        assert seal(shared, sealed_by="test") == Sealing(entries=0, held_up=True)
        assert watermark(shared).seal is None
        late.commit()
    assert seal(shared, sealed_by="test") == Sealing(entries=29)
    assert id_ in _covered(shared)
    assert _covered(shared) == _ids(shared)


def test_the_lock_is_taken_before_an_id_is(shared: sa.Engine) -> None:
    """A writer that must wait for the sealer has taken no id that the sealer would have to know of."""
    with shared.connect() as sealer, shared.connect() as writer:
        sealer.exec_driver_sql(f"SELECT pg_advisory_xact_lock({seals.SEAL_LOCK})")
        writer.exec_driver_sql("SET LOCAL lock_timeout = 1")
        with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
            _append(writer, "late-entry-000001")
        assert sealer.exec_driver_sql("SELECT is_called FROM entries_id_seq").scalar_one() is False


def test_a_sealer_that_waited_sees_what_it_waited_for(shared: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper id is read after the lock has been given, and not as it was before."""
    monkeypatch.setattr(seals, "LOCK_TIMEOUT_MILLISECONDS", 30_000)
    live(shared, "INC-1")
    with shared.connect() as late, shared.connect() as watcher, ThreadPoolExecutor(1) as pool:
        id_ = _append(late, "late-entry-000001")
        sealing = pool.submit(seal, shared, sealed_by="test")
        _wait_for_a_waiting_sealer(watcher, sealing)
        late.commit()
        assert sealing.result() == Sealing(entries=15)
    assert _covered(shared)[-1] == id_


def _wait_for_a_waiting_sealer(watcher: sa.Connection, sealing: "Future[Any]") -> None:
    waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND NOT granted"
    while not watcher.exec_driver_sql(waiting).scalar_one():
        assert not sealing.done()
        watcher.rollback()


def test_writers_behind_a_waiting_sealer_get_through_while_the_frozen_writer_stays(shared: sa.Engine) -> None:
    """A writer that queued behind the sealer is done while the entry that the sealer waits for is still uncommitted."""
    live(shared, "INC-1")
    journal = Journal(shared, recorded_by="test", clock=Clock())
    stop = threading.Event()

    def keep_sealing() -> set[Sealing]:
        seen = set()
        while not stop.is_set():
            seen.add(seal(shared, sealed_by="test"))
        return seen

    with shared.connect() as frozen, shared.connect() as watcher, ThreadPoolExecutor(1) as pool:
        _append(frozen, "late-entry-000001")
        sealing = pool.submit(keep_sealing)
        try:
            for number in range(3):
                _wait_for_a_waiting_sealer(watcher, sealing)
                intent = make_intent(scope=f"INC-behind-{number}")
                assert journal.begin(intent, make_mark(f"attempt-{number}")).attempt is not None
        finally:
            stop.set()
        assert sealing.result() == {Sealing(entries=0, held_up=True)}
        assert len(_ids(shared)) == 14 + 3 * 3
        frozen.rollback()
    assert seal(shared, sealed_by="test") == Sealing(entries=23)


def test_another_error_of_the_lock_is_an_error(shared: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the lock's timeout is a matter of course."""
    monkeypatch.setattr(seals, "LOCK_TIMEOUT_MILLISECONDS", "nonsense")
    live(shared, "INC-1")
    with pytest.raises(sa.exc.DBAPIError, match="lock_timeout"):
        seal(shared, sealed_by="test")
    assert watermark(shared).seal is None
