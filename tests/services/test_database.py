"""URLs, transactions and schema checks of both stores, on real files."""

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
import sqlalchemy as sa

from services import database
from services.database import (
    HEADS,
    DatabaseError,
    DatabaseUnreachable,
    SchemaMismatch,
    Section,
    UtcDateTime,
    check_schema,
    insert_once,
    migrate,
    open_engine,
    parse_url,
    reading,
    revisions,
    writing,
)
from tests.postgres import Databases

METADATA = sa.MetaData()
NOTES = sa.Table(
    "notes",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("at", UtcDateTime),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database file."""
    return tmp_path / "notes.db"


@pytest.fixture
def engine(file: Path) -> object:
    """An engine on it, with a table."""
    engine = open_engine(f"sqlite:///{file}")
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def either(dialect: str, request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    """An engine on each database, with the same tables."""
    if dialect == "sqlite":
        yield request.getfixturevalue("engine")
        return
    postgres: Databases = request.getfixturevalue("postgres")
    engine = open_engine(postgres.empty())
    METADATA.create_all(engine)
    yield engine
    engine.dispose()


def _count(engine: sa.Engine) -> int:
    with reading(engine) as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(NOTES)).scalar_one())


@pytest.mark.parametrize(
    ("url", "driver"),
    [
        ("sqlite:///a.db", "sqlite+pysqlite"),
        ("sqlite:////var/lib/a.db", "sqlite+pysqlite"),
        ("sqlite+pysqlite:///a.db", "sqlite+pysqlite"),
        ("postgresql://ada@db/journal", "postgresql+psycopg"),
        ("postgresql+psycopg://ada@db:5433/journal?sslmode=require", "postgresql+psycopg"),
    ],
)
def test_a_url_needs_no_driver_name(url: str, driver: str) -> None:
    """The driver is ours to choose."""
    assert parse_url(url).drivername == driver


@pytest.mark.parametrize(
    "url",
    [
        "",
        "journal.db",
        "/var/lib/journal.db",
        "mysql://ada@db/journal",
        "postgres://ada@db/journal",
        "postgresql://ada:hunter2@db:hunter2/journal",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:x?mode=memory&uri=true",
        "sqlite+nothing:///a.db",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_what_to_write(url: str) -> None:
    """And without a piece of it that could be a password."""
    with pytest.raises(DatabaseError, match="Write sqlite:///FILE") as caught:
        open_engine(url)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@db/journal",
        "postgresql://db/journal?user=ada&password=hunter2",
        "postgresql://ada@db/journal?sslpassword=hunter2",
    ],
)
def test_a_password_is_never_shown(url: str) -> None:
    """Neither the one before the host nor one among the options."""
    shown = database.describe(parse_url(url))
    assert "hunter2" not in shown
    assert "db/journal" in shown


def test_a_database_that_cannot_be_opened_says_what_to_check(tmp_path: Path) -> None:
    """No folder; nothing was written."""
    engine = open_engine(f"sqlite:///{tmp_path / 'nowhere' / 'journal.db'}")
    for use in (reading, writing):
        with pytest.raises(DatabaseUnreachable, match=r"Nothing was written\. Check the URL"), use(engine):
            pass
    engine.dispose()


def test_a_file_that_is_no_database_is_not_touched(file: Path) -> None:
    """A URL that names something else."""
    file.write_text("These are not the pages you are looking for. " * 100)
    before = file.read_bytes()
    with pytest.raises(DatabaseUnreachable, match=r"not a database.*Nothing was written\. Check the URL.*backup"):
        migrate("journal", f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_a_file_that_was_cut_off_is_told_to_be_brought_back(file: Path) -> None:
    """The URL is right and the folder may be written to: neither is what to look at."""
    migrate("journal", f"sqlite:///{file}")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    engine = open_engine(f"sqlite:///{file}")
    with pytest.raises(DatabaseUnreachable, match=r"malformed.*Nothing was written\..*last good backup"):
        check_schema("journal", engine)
    engine.dispose()


def test_commits_are_on_disk_before_they_return(engine: sa.Engine) -> None:
    """WAL with synchronous=FULL, foreign keys, and triggers that fire on REPLACE."""
    with reading(engine) as connection:
        told = {
            pragma: connection.exec_driver_sql(f"PRAGMA {pragma}").scalar()
            for pragma in ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers", "busy_timeout")
        }
    assert told == {
        "journal_mode": "wal",
        "synchronous": 2,
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "busy_timeout": database.LOCK_TIMEOUT_SECONDS * 1000,
    }


def test_a_block_that_raises_writes_nothing(either: sa.Engine) -> None:
    """And the next one is not held up."""

    def fail_halfway() -> None:
        with writing(either) as connection:
            connection.execute(sa.insert(NOTES).values(id=1, text="half"))
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert _count(either) == 0
    with writing(either) as connection:
        connection.execute(sa.insert(NOTES).values(id=1, text="whole"))
    assert _count(either) == 1


def test_a_read_is_one_snapshot(engine: sa.Engine) -> None:
    """What is committed in between is not seen."""
    with reading(engine) as connection:
        before = connection.execute(sa.select(sa.func.count()).select_from(NOTES)).scalar_one()
        with writing(engine) as other:
            other.execute(sa.insert(NOTES).values(id=1, text="between"))
        assert connection.execute(sa.select(sa.func.count()).select_from(NOTES)).scalar_one() == before == 0
    assert _count(engine) == 1


def test_a_writer_holds_the_right_to_write_from_its_first_statement(engine: sa.Engine, file: Path) -> None:
    """What it has read is still true when it commits."""
    with (
        writing(engine) as connection,
        contextlib.closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other,
    ):
        assert connection.execute(sa.select(NOTES)).all() == []
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")


def test_a_writer_that_another_process_keeps_waiting_is_told_that_nothing_was_written(
    engine: sa.Engine, file: Path
) -> None:
    """A frozen process blocks writers, and they say so."""

    def impatient(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA busy_timeout=10").close()

    engine.dispose()
    sa.event.listen(engine, "connect", impatient)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DatabaseUnreachable, match=r"locked\). Nothing was written"), writing(engine):
            pass
        other.execute("ROLLBACK")
    with writing(engine) as connection:
        connection.execute(sa.insert(NOTES).values(id=1, text="after"))


def test_writers_of_one_process_queue_whatever_engine_they_use(
    engine: sa.Engine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """32 threads over two spellings of one path: nobody meets a locked database, and nobody's count is lost."""
    monkeypatch.chdir(file.parent)
    other = open_engine(f"sqlite:///{os.path.relpath(file)}")
    assert database._queue(engine) is database._queue(other)
    barrier = threading.Barrier(32)

    def write(number: int) -> None:
        barrier.wait()
        for _ in range(5):
            with writing((engine, other)[number % 2]) as connection:
                highest = connection.execute(sa.select(sa.func.max(NOTES.c.id))).scalar() or 0
                connection.execute(sa.insert(NOTES).values(id=highest + 1, text=str(number)))

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(write, range(32)))
    assert _count(engine) == 160
    other.dispose()


def test_a_row_is_inserted_once_and_only_a_taken_key_is_passed_over(either: sa.Engine) -> None:
    """A missing value is an error, never silence."""
    with writing(either) as connection:
        assert insert_once(connection, NOTES, {"id": 1, "text": "first"})
        assert not insert_once(connection, NOTES, {"id": 1, "text": "second"})
    with pytest.raises(sa.exc.IntegrityError, match=r"(?i)not.null"), writing(either) as connection:
        insert_once(connection, NOTES, {"id": 2, "text": None})
    with reading(either) as connection:
        assert connection.execute(sa.select(NOTES.c.text)).scalars().all() == ["first"]


def test_times_come_back_aware_in_utc_to_the_microsecond(either: sa.Engine) -> None:
    """Whatever zone they were given in; None stays None and a naive time is refused."""
    moment = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=timezone(timedelta(hours=5)))
    with writing(either) as connection:
        connection.execute(sa.insert(NOTES).values(id=1, text="zoned", at=moment))
        connection.execute(sa.insert(NOTES).values(id=2, text="none", at=None))
        with pytest.raises(sa.exc.StatementError, match="no time zone"):
            connection.execute(sa.insert(NOTES).values(id=3, text="naive", at=moment.replace(tzinfo=None)))
    with reading(either) as connection:
        found = connection.execute(sa.select(NOTES.c.at).order_by(NOTES.c.id)).scalars().all()
    assert found == [moment, None]
    assert found[0] is not None
    assert found[0].tzinfo is UTC


PARTNERS = sa.Table(
    "partners",
    METADATA,
    sa.Column("id", sa.Integer, sa.ForeignKey("notes.id", deferrable=True, initially="DEFERRED"), primary_key=True),
)


def test_a_constraint_that_fails_in_the_commit_is_its_own_error(either: sa.Engine) -> None:
    """The database has answered: nothing is unknown, nothing is written, and the next one is not held up."""
    with pytest.raises(sa.exc.IntegrityError), writing(either) as connection:
        connection.execute(sa.insert(PARTNERS).values(id=1))
    with writing(either) as connection:
        assert connection.execute(sa.select(PARTNERS)).all() == []
        connection.execute(sa.insert(NOTES).values(id=1, text="after"))


def _stamp(file: Path, revision: str) -> None:
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", (revision,))


def test_a_schema_at_this_builds_revision_is_used(file: Path) -> None:
    """No complaint."""
    url = f"sqlite:///{file}"
    migrate("journal", url)
    engine = open_engine(url)
    check_schema("journal", engine)
    engine.dispose()


def test_a_file_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    """A mistyped URL leaves nothing behind, and is told like an empty database."""
    engine = open_engine(f"sqlite:///{tmp_path}/jurnal.db")
    with pytest.raises(
        SchemaMismatch, match=r"is at nothing \(there is no such file\).*Check the URL.*migrate journal"
    ):
        check_schema("journal", engine)
    engine.dispose()
    assert list(tmp_path.iterdir()) == []


def test_a_schema_that_is_behind_names_the_command_to_run(file: Path) -> None:
    """Nothing is lost."""
    file.touch()
    url = f"sqlite:///{file}"
    engine = open_engine(url)
    for _ in range(2):
        with pytest.raises(SchemaMismatch, match=r"at nothing.*Nothing is lost. Run: counterfoil migrate journal"):
            check_schema("journal", engine)
        migrate("journal", url, "base")
    engine.dispose()


@pytest.mark.parametrize("revision", ["journal_9999", "inventory_0001"])
def test_a_schema_that_is_ahead_or_anothers_is_neither_used_nor_changed(file: Path, revision: str) -> None:
    """The message names both possibilities."""
    url = f"sqlite:///{file}"
    migrate("journal", url)
    _stamp(file, revision)
    engine = open_engine(url)
    with pytest.raises(SchemaMismatch, match=f"{revision}.*another store's.*newer build's. Nothing was changed"):
        check_schema("journal", engine)
    with pytest.raises(SchemaMismatch, match=revision):
        migrate("journal", url)
    with pytest.raises(SchemaMismatch, match=revision):
        migrate("journal", url, "base")
    assert "entries" in sa.inspect(engine).get_table_names()
    engine.dispose()


@pytest.mark.parametrize("section", HEADS)
def test_the_newest_revision_is_known_without_asking_alembic(section: Section) -> None:
    """A new migration is named in HEADS, or no process starts."""
    assert HEADS[section] == revisions(section)[0]


def test_a_store_at_its_newest_revision_is_checked_without_importing_alembic(tmp_path: Path) -> None:
    """A third of a second of each worker's start, and so of each recovery without a standby."""
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    migrate("journal", url)
    check = (
        "import sys; from services.database import check_schema, open_engine; "
        f"check_schema('journal', open_engine({url!r})); print('alembic' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
