"""Seals: digests that chain the journal's entries, so that a later change to any of them is found.

What this module guarantees:

- The seals, taken together in the order of their numbers, cover every entry up to the last one's `upto_id`, each once.
  No entry at or below it can be committed later:

  PostgreSQL  whoever inserts an entry holds a shared lock from before its id is taken until it can be seen (the trigger
              `entries_before_seal`). The sealer takes the exclusive lock, so it waits for them, and reads the upper id
              in a statement of its own: the lock's own statement would still see what was there before it waited.
  SQLite      the upper id is read with the right to write in hand.

- Nothing is hashed under a lock. A writer that holds its entry uncommitted keeps the sealer waiting for 50 ms, and
  other writers behind it no longer; then there is no seal this time.
- Two sealers do each other no harm: a seal's number is taken once, and who comes second goes on from there.
- A seal keeps its leaves, of each entry its id and digest, so what was changed is named exactly, also where the entry's
  own digest was computed anew. What a digest covers is said at `seal_digest`.

Whoever can write to all tables can also compute all seals anew. Against that a seal is kept elsewhere: `watermark` says
what to keep, and `services.journal.verification` compares it.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from services.database import insert_once, reading, writing
from services.journal.rows import text, timestamp
from services.journal.tables import ENTRIES, JOURNAL, SEALS
from services.stored import snapshot

# "count" in ASCII: any number that no other use of the database takes.
SEAL_LOCK = 0x636F756E74
LOCK_TIMEOUT_MILLISECONDS = 50
LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL's SQLSTATE when lock_timeout has passed
# 400 kB of leaves: what a sealer holds in memory however far behind it is.
SEAL_ENTRIES = 10_000

LEAF = struct.Struct(">q32s")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SealMark:
    """What is kept elsewhere of a seal."""

    number: int
    upto_id: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """How far a journal has come, at one moment.

    Attributes:
        journal_id: which journal.
        last_entry_id: 0 in an empty journal.
        seal: the last one, or None.
        unsealed: how many entries no seal covers yet.
    """

    journal_id: str
    last_entry_id: int
    seal: SealMark | None
    unsealed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealing:
    """What one call of `seal` did.

    Attributes:
        entries: how many it sealed.
        held_up: whether a writer with an uncommitted entry was in the way, so that nothing was sealed.
    """

    entries: int
    held_up: bool = False


def seal_digest(
    journal_id: str,
    *,
    number: int,
    upto_id: int,
    count: int,
    previous: str,
    leaves: bytes,
    sealed_at: datetime,
    sealed_by: str,
) -> str:
    """SHA-256, hex, of a header in canonical JSON, a line feed, and the leaves.

    The header is `["cf-seal1", journal id, number, upto_id, count, previous, sealed_at, sealed_by]`, its numbers as
    decimal text. A leaf is the entry's id, 8 bytes, signed, big-endian, and the 32 bytes of its digest.
    """
    header = ["cf-seal1", journal_id, str(number), str(upto_id), str(count), previous, timestamp(sealed_at), sealed_by]
    return hashlib.sha256(text(header).encode() + b"\n" + leaves).hexdigest()


def pack_leaves(entries: Iterable[tuple[int, str]]) -> bytes:
    """The leaves of entries, given by id and digest.

    What is no digest becomes zeros: sealing goes on, and the verification names that entry for ever.
    """
    return b"".join(
        LEAF.pack(id_, bytes.fromhex(digest) if _DIGEST.fullmatch(str(digest)) else b"") for id_, digest in entries
    )


def unpack_leaves(leaves: bytes) -> Iterator[tuple[int, str]]:
    """The ids and digests in leaves."""
    return ((id_, digest.hex()) for id_, digest in LEAF.iter_unpack(leaves))


def seal(
    engine: sa.Engine,
    *,
    sealed_by: str,
    entries_per_seal: int = SEAL_ENTRIES,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Sealing:
    """Seal every entry that is committed now, in as many seals as it takes; where there is none, make no seal."""
    if watermark(engine).unsealed == 0:
        return Sealing(entries=0)  # an idle journal's writers are never held up
    upper = _settled_upper_id(engine)
    if upper is None:
        return Sealing(entries=0, held_up=True)
    sealed = 0
    while True:
        with snapshot(engine) as connection:  # which reads a digest that is no text, too
            stands = _last(connection)
            after = 0 if stands is None else stands.upto_id
            page = _page(connection, after, upper, entries_per_seal)
            journal_id = str(connection.execute(sa.select(JOURNAL.c.id)).scalar_one())
        if not page:
            return Sealing(entries=sealed)
        covered = {
            "number": 1 if stands is None else stands.number + 1,
            "upto_id": page[-1][0],
            "count": len(page),
            "previous": "" if stands is None else stands.digest,
            "leaves": pack_leaves(page),
            "sealed_at": clock(),
            "sealed_by": sealed_by,
        }
        values = covered | {"digest": seal_digest(journal_id, **covered)}  # type: ignore[arg-type]
        with writing(engine) as connection:
            if insert_once(connection, SEALS, values):
                sealed += len(page)


def _settled_upper_id(engine: sa.Engine) -> int | None:
    """The highest id, when every entry at or below it is there to be seen; None when a writer is in the way."""
    highest = sa.select(sa.func.coalesce(sa.func.max(ENTRIES.c.id), 0))
    try:
        with writing(engine) as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MILLISECONDS}")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SEAL_LOCK})")
            return int(connection.execute(highest).scalar_one())
    except sa.exc.OperationalError as error:
        if getattr(error.orig, "sqlstate", None) == LOCK_NOT_AVAILABLE:
            return None
        raise


def _page(connection: sa.Connection, after: int, upper: int, limit: int) -> list[tuple[int, str]]:
    statement = sa.select(ENTRIES.c.id, ENTRIES.c.digest).where(ENTRIES.c.id > after, ENTRIES.c.id <= upper)
    return [(id_, digest) for id_, digest in connection.execute(statement.order_by(ENTRIES.c.id).limit(limit))]


def _last(connection: sa.Connection) -> SealMark | None:
    # Cast: the verification asks this of journals in which SQLite may hold anything.
    columns = (SEALS.c.number, sa.cast(SEALS.c.upto_id, sa.BigInteger), sa.cast(SEALS.c.digest, sa.Text))
    found = connection.execute(sa.select(*columns).order_by(SEALS.c.number.desc()).limit(1)).first()
    return None if found is None else SealMark(number=found[0], upto_id=found[1], digest=found[2])


def watermark(engine: sa.Engine) -> Watermark:
    """How far the journal has come."""
    with reading(engine) as connection:
        return read_watermark(connection)


def read_watermark(connection: sa.Connection) -> Watermark:
    """How far the journal has come, as this transaction sees it."""
    last = _last(connection)
    unsealed = sa.select(sa.func.count()).select_from(ENTRIES)
    if last is not None:
        unsealed = unsealed.where(ENTRIES.c.id > last.upto_id)
    return Watermark(
        journal_id=str(connection.execute(sa.select(sa.cast(JOURNAL.c.id, sa.Text)).limit(1)).scalar()),
        last_entry_id=int(connection.execute(sa.select(sa.func.max(ENTRIES.c.id))).scalar() or 0),
        seal=last,
        unsealed=int(connection.execute(unsealed).scalar_one()),
    )
