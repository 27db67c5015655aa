"""Engines, transactions and migrations of the two SQL stores, on SQLite or PostgreSQL.

What this module guarantees to both stores:

- A write transaction holds the right to write from its first statement (SQLite: BEGIN IMMEDIATE), so what it read is
  still true when it commits. Writers of one process queue instead of failing with "database is locked".
- A commit is on disk before it returns (SQLite: WAL with synchronous=FULL; PostgreSQL: `check_durable` refuses a server
  that would lose it).
- On PostgreSQL nobody waits for a lock, a statement or a host that is gone for longer than an activity attempt may
  take, and the server ends a frozen client's transaction. A server that is frozen itself keeps its clients waiting, and
  nothing is sent meanwhile.
- A COMMIT whose answer was lost is told apart from one that failed (`CommitUnknown`).
- A store is used only at the schema revision this build was written for.
"""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

if TYPE_CHECKING:
    from alembic.config import Config

Section = Literal["journal", "inventory"]

# The newest revisions, which a test holds equal to the scripts': Alembic is not imported (0.3 s of each worker's start,
# and so of each recovery) only to hear that nothing is to be done.
HEADS: Mapping[Section, str] = {"journal": "journal_0003", "inventory": "inventory_0002"}

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
# Longer than the slowest honest commit on a shared disk, shorter than an activity attempt (12 s).
LOCK_TIMEOUT_SECONDS = 5

# PostgreSQL, which by default waits for ever. Together below an activity attempt, so that whoever waits hears why.
_POSTGRES_TIMEOUTS = {
    "lock_timeout": "2s",
    "statement_timeout": "5s",
    # A client that is frozen in a transaction holds its rows no longer than this.
    "idle_in_transaction_session_timeout": "5s",
}
# Whatever the database or the role has for a default: the guards need each statement to see what rivals have committed,
# and the driver reads times in this style alone.
_POSTGRES_MEANINGS = {"default_transaction_isolation": "read committed", "datestyle": "ISO"}
_POSTGRES_CONNECTING = {
    "application_name": "counterfoil",
    "connect_timeout": 5,
    # A host that is gone is noticed in 5 s, with a request unacknowledged and without.
    "tcp_user_timeout": 5000,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
}
# A file that is there and readable, and whose content is not a sound database.
_NO_DATABASE = frozenset({sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT})
# Each of these off means that a commit may be lost or torn though it was answered.
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")

_DRIVERS = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg"}
_WRITES = "counterfoil_writes"


class DatabaseError(Exception):
    """A store cannot be used: the message says which, why, what is not lost and what to do."""


class DatabaseUnreachable(DatabaseError):
    """The database cannot be opened or connected to."""


class SchemaMismatch(DatabaseError):
    """The schema is behind or ahead of this build."""


class NotDurable(DatabaseError):
    """The server may lose what it has answered as committed."""


class CommitUnknown(DatabaseError):
    """COMMIT was sent and its answer never came: the transaction is committed as a whole, or nothing of it is."""


class UtcDateTime(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime with microseconds, on databases with and without a time zone type."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Refuse naive times; SQLite stores the UTC wall clock without an offset."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        """Give every time back as aware UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if dialect.name == "sqlite" else value.astimezone(UTC)


def parse_url(url: str) -> sa.URL:
    """Read a database URL; `sqlite:///FILE` and `postgresql://...` need no driver name.

    Raises:
        DatabaseError: not a URL, or neither SQLite nor PostgreSQL.
    """
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError):  # a port that is none shows a piece of the URL
        raise DatabaseError(
            "The database URL cannot be read. Write sqlite:///FILE or postgresql://USER@HOST/NAME."
        ) from None
    driver = _DRIVERS.get(parsed.get_backend_name())
    if driver is None:
        raise DatabaseError(
            f"{parsed.get_backend_name()} is not supported. Write sqlite:///FILE or postgresql://USER@HOST/NAME."
        )
    if driver.startswith("sqlite") and _in_memory(parsed):
        raise DatabaseError("An in-memory database forgets everything in a crash. Write sqlite:///FILE.")
    return parsed.set(drivername=driver) if parsed.drivername in _DRIVERS else parsed


def _in_memory(url: sa.URL) -> bool:
    return not url.database or ":memory:" in url.database or "memory" in (url.query.get("mode"), url.query.get("vfs"))


def open_engine(url: str) -> sa.Engine:
    """Make an engine whose transactions are durable; nothing is connected yet.

    Raises:
        DatabaseError: the URL is not usable, or its driver is not installed.
    """
    parsed = parse_url(url)
    try:
        engine = _sqlite(parsed) if parsed.get_backend_name() == "sqlite" else _postgres(parsed)
    except ModuleNotFoundError as error:
        raise DatabaseError(f"The driver {error.name} for {parsed.drivername} is not installed.") from None
    except sa.exc.ArgumentError:
        raise DatabaseError(
            f"There is no driver {parsed.drivername}. Write sqlite:///FILE or postgresql://..."
        ) from None
    return engine


def _sqlite(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(url)
    sa.event.listen(engine, "connect", _connect_sqlite)
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgres(url: sa.URL) -> sa.Engine:
    engine = sa.create_engine(
        url, pool_pre_ping=True, pool_size=10, max_overflow=30, pool_timeout=5, connect_args=_POSTGRES_CONNECTING
    )
    sa.event.listen(engine, "connect", _connect_postgres)
    return engine


def _connect_postgres(connection: Any, _record: Any) -> None:
    wanted = _POSTGRES_TIMEOUTS | _POSTGRES_MEANINGS
    settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in wanted.items())
    connection.execute(f"SELECT {settings}").close()
    connection.commit()


def _connect_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver would begin too late and never IMMEDIATE
    for pragma in (
        f"busy_timeout={LOCK_TIMEOUT_SECONDS * 1000}",
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        "recursive_triggers=ON",  # else INSERT OR REPLACE deletes a row without its DELETE trigger
    ):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: sa.Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# One queue of writers per SQLite file and process: SQLite's own busy handler polls, and under load it starves somebody.
_queues: dict[str, threading.Lock] = {}
_queues_lock = threading.Lock()


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One write transaction: committed when the block ends, rolled back when it raises.

    Raises:
        DatabaseUnreachable: the database cannot be opened or connected to; nothing was written.
        CommitUnknown: the block ended, and nobody can tell whether it was committed.
    """
    if engine.dialect.name != "sqlite":
        with _connected(engine) as connection, _committing(connection):
            yield connection
        return
    with _queue(engine), _connected(engine) as connection:
        connection.execution_options(**{_WRITES: True})  # changes this connection in place
        with _committing(connection):
            yield connection


@contextmanager
def _committing(connection: sa.Connection) -> Iterator[None]:
    transaction = _begun(connection)
    try:
        yield
        _require_no_failure(connection)
    except BaseException:
        with suppress(sa.exc.DBAPIError):  # a connection that is gone rolls back by itself
            transaction.rollback()
        raise
    try:
        transaction.commit()
    except BaseException as error:
        with suppress(sa.exc.DBAPIError):
            transaction.rollback()
        if _is_unanswered(error, connection):
            raise CommitUnknown(
                f"The database {describe(connection.engine.url)} did not answer a COMMIT ({_reason(error)}): the "
                "transaction is there as a whole or not at all. Nothing is sent for it; what it says is read again."
            ) from error
        raise


def _require_no_failure(connection: sa.Connection) -> None:
    """PostgreSQL answers the COMMIT of a transaction in which a statement failed as if it were well, and rolls back."""
    if connection.dialect.name != "postgresql":
        return
    driver: Any = connection.connection.driver_connection
    if driver.info.transaction_status.name == "INERROR":
        raise RuntimeError("A statement of this transaction failed and its error was passed over. Nothing was written.")


def _is_unanswered(error: BaseException, connection: sa.Connection) -> TypeGuard[sa.exc.DBAPIError]:
    """Whether a COMMIT failed in such a way that nobody knows what became of it.

    A constraint that fails then is an answer. For the rest SQLite never says for certain.
    """
    return (
        isinstance(error, sa.exc.DBAPIError)
        and not isinstance(error, sa.exc.IntegrityError)
        and (connection.dialect.name == "sqlite" or error.connection_invalidated)
    )


def _queue(engine: sa.Engine) -> threading.Lock:
    file = str(Path(str(engine.url.database)).resolve())  # two spellings of one path are one file
    with _queues_lock:
        return _queues.setdefault(file, threading.Lock())


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """One read transaction. On PostgreSQL each of its statements sees a moment of its own: see `at_one_moment`.

    Raises:
        DatabaseUnreachable: the database cannot be opened or connected to.
    """
    with _connected(engine) as connection, _begun(connection):
        yield connection


def at_one_moment(connection: sa.Connection) -> None:
    """Let all statements of a read transaction that has just begun see the same moment, as they do on SQLite."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


@contextmanager
def _connected(engine: sa.Engine) -> Iterator[sa.Connection]:
    try:
        connection = engine.connect()
    except sa.exc.DBAPIError as error:
        raise _unreachable(engine, error) from error
    with connection:
        yield connection


def _begun(connection: sa.Connection) -> sa.RootTransaction:
    try:
        return connection.begin()
    except sa.exc.DBAPIError as error:  # SQLite: another process has been writing for too long
        raise _unreachable(connection.engine, error) from error


def _unreachable(engine: sa.Engine, error: sa.exc.DBAPIError) -> DatabaseUnreachable:
    hint = "the file's folder exists and may be written to" if engine.dialect.name == "sqlite" else "the database runs"
    remedy = f"Check the URL and that {hint}."
    if getattr(error.orig, "sqlite_errorcode", None) in _NO_DATABASE:
        remedy = "Check the URL; a database that has been damaged is brought back from the last good backup."
    return DatabaseUnreachable(
        f"The database {describe(engine.url)} cannot be reached ({_reason(error)}). Nothing was written. {remedy}"
    )


def _reason(error: sa.exc.DBAPIError) -> str:
    return next(iter(str(error.orig).strip().splitlines()), type(error.orig).__name__)


def describe(url: sa.URL) -> str:
    """The URL as it may be shown: without its password, its driver and its options, which may hold secrets too."""
    return url.set(drivername=url.get_backend_name(), query={}).render_as_string(hide_password=True)


def insert_once(connection: sa.Connection, table: sa.Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless its key is taken; whether this call inserted it.

    `ON CONFLICT DO NOTHING`, never SQLite's `INSERT OR IGNORE`: that swallows NOT NULL and CHECK failures too.
    RETURNING tells, never the row count: SQLAlchemy keeps none for an INSERT on PostgreSQL, and -1 is true.
    The values go as parameters, not by `.values()`: that makes an object of each, at five times the CPU.
    """
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    insert = dialect.insert(table).on_conflict_do_nothing().returning(sa.literal_column("1"))
    return connection.execute(insert, dict(values)).first() is not None


def _alembic(section: Section) -> "Config":
    from alembic.config import Config  # noqa: PLC0415 - see HEADS

    config = Config(str(MIGRATIONS / "alembic.ini"), ini_section=section)
    config.set_section_option(section, "script_location", str(MIGRATIONS))
    config.set_section_option(section, "version_locations", str(MIGRATIONS / section / "versions"))
    return config


def migrate(section: Section, url: str, revision: str = "head") -> str:
    """Bring a store to a revision, up or down; returns the revision it is at then.

    Raises:
        DatabaseError: the URL belongs to another store, the revision does not exist, or the database is unreachable.
    """
    from alembic import command  # noqa: PLC0415 - see HEADS
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415
    from alembic.script import ScriptDirectory  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    engine = open_engine(url)
    config = _alembic(section)
    scripts = ScriptDirectory.from_config(config)
    try:
        with _connected(engine) as connection:
            current = MigrationContext.configure(connection).get_current_revision()
            connection.rollback()
            connection.execution_options(**{_WRITES: True})  # a second migration waits, and finds it done
            config.attributes["connection"] = connection
            order = [script.revision for script in reversed(list(scripts.walk_revisions()))]
            if current is not None and current not in order:
                raise SchemaMismatch(_foreign(section, engine.url, current))
            target = scripts.get_current_head() if revision == "head" else revision
            behind = target == "base" or (
                current is not None and target in order and order.index(target) < order.index(current)
            )
            (command.downgrade if behind else command.upgrade)(config, revision)
            return MigrationContext.configure(connection).get_current_revision() or "base"
    except CommandError as error:
        raise DatabaseError(f"{error}. Nothing was changed.") from error
    finally:
        engine.dispose()


def check_schema(section: Section, engine: sa.Engine) -> None:
    """Refuse to use a store whose schema is not the one this build was written for.

    Raises:
        SchemaMismatch: behind, ahead or another store's; says the command to run.
        DatabaseUnreachable: the database cannot be reached.
    """
    current = None if _is_missing_file(engine.url) else _current_revision(engine)
    if current == HEADS[section]:
        return
    name = describe(engine.url)
    if current is None or current in revisions(section):
        there, remedy = current or "nothing", "Run"
        if _is_missing_file(engine.url):  # a mistyped URL: to migrate it would make an empty store at the wrong place
            there, remedy = "nothing (there is no such file)", "Check the URL, or run"
        raise SchemaMismatch(
            f"The {section} schema of {name} is at {there}, this build needs {HEADS[section]}. "
            f"Nothing is lost. {remedy}: counterfoil migrate {section}"
        )
    raise SchemaMismatch(_foreign(section, engine.url, current))


def check_durable(engine: sa.Engine) -> None:
    """Refuse a PostgreSQL that may lose what it has answered as committed; SQLite's settings are ours.

    Raises:
        NotDurable: says which settings are off.
        DatabaseUnreachable: the database cannot be reached.
    """
    if engine.dialect.name != "postgresql":
        return
    with reading(engine) as connection:
        off = [name for name in _DURABLE if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off"]
    if off:
        raise NotDurable(
            f"The database {describe(engine.url)} runs with {' and '.join(off)} off: it may lose what it has answered "
            f"as committed, and then an effect could be sent twice. Nothing was written. Set {' and '.join(off)} to on."
        )


def revisions(section: Section) -> list[str]:
    """Every revision of a store that this build knows, the newest first."""
    from alembic.script import ScriptDirectory  # noqa: PLC0415 - see HEADS

    return [script.revision for script in ScriptDirectory.from_config(_alembic(section)).walk_revisions()]


def _is_missing_file(url: sa.URL) -> bool:
    """Whether SQLite would make the file by being asked: a mistyped URL must leave nothing behind."""
    file = Path(url.database or "")
    return url.get_backend_name() == "sqlite" and file.parent.is_dir() and not file.exists()


def _current_revision(engine: sa.Engine) -> str | None:
    with reading(engine) as connection:
        if not sa.inspect(connection).has_table("alembic_version"):
            return None
        revision: str | None = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        return revision


def _foreign(section: Section, url: sa.URL, current: str) -> str:
    return (
        f"{describe(url)} is at revision {current}, which this build's {section} store does not know: another store's "
        "database, or a newer build's. Nothing was changed. Check the URL, or install the newer build."
    )
