"""The export: everything that a journal recorded, as records of plain JSON, so that anybody can check it elsewhere.

    export(engine, after=0) -> Iterator[dict]

- It is one moment of the journal, read as a stream: its memory does not grow with the journal, and the rows are the
  fold of the entries that come with them.
- Values stand as they are stored: a body is the text that was written, so that each digest can be computed again; a
  seal has its leaves (base64). Times are RFC 3339 in UTC.
- The last record is `end`, with counts: an export without it was cut off.
- What an export says to go on after is the last sealed entry. An entry below a newer one may still be committed later,
  but none below a seal: whoever goes on from there misses nothing, and gets what was not sealed yet once more.

`after` leaves out what no newer entry is about.
"""

import base64
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from services.journal.fold import Unfoldable, WrittenEntry, decided
from services.journal.rows import timestamp
from services.journal.seals import Watermark, read_watermark
from services.journal.tables import DECISIONS, EFFECTS, ENTRIES, SEALS
from services.stored import as_stored, snapshot, stored

FORMAT = 1
_DECISIONS_AT_ONCE = 500
_NAME = ("origin", "scope", "name", "generation")
_FLAGS = frozenset(column.name for column in EFFECTS.columns if isinstance(column.type, sa.Boolean))

Record = dict[str, Any]


class BeyondTheEnd(Exception):
    """There is no such entry yet: the number is another journal's, or this one was put back to an older copy."""


def export(engine: sa.Engine, *, after: int = 0) -> Iterator[Record]:
    """Every record: `journal`, then `decision`, `effect`, `entry` and `seal` records, then `end`.

    Args:
        engine: at this build's schema.
        after: only what entries after this one are about.

    Raises:
        BeyondTheEnd: this journal has not come as far; to go on after it would miss what is recorded until then.
    """
    with snapshot(engine) as connection:
        if connection.dialect.name == "postgresql":  # whoever reads this may take a while, and holds no lock meanwhile
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        stands = read_watermark(connection)
        if after > stands.last_entry_id:
            raise BeyondTheEnd(f"This journal ends at entry {stands.last_entry_id}, and has no entry {after} yet.")
        yield _journal(stands, after)
        counts: Counter[str] = Counter()
        for kind, values in itertools.chain(
            (("decision", values) for values in _decisions(connection, after)),
            (("effect", values) for values in _effects(connection, after)),
            (("entry", values) for values in _entries(connection, after)),
            (("seal", values) for values in _seals(connection, after)),
        ):
            counts[kind] += 1
            yield {"record": kind} | {name: _plain(name, value) for name, value in values.items()}
        sealed = 0 if stands.seal is None else stands.seal.upto_id
        yield {"record": "end", **{kind: counts[kind] for kind in ("decision", "effect", "entry", "seal")},
               "go_on_after": max(sealed, after)}  # fmt: skip


def _journal(stands: Watermark, after: int) -> Record:
    seal = stands.seal
    return {
        "record": "journal",
        "format": FORMAT,
        "journal_id": stands.journal_id,
        "after": after,
        "last_entry_id": stands.last_entry_id,
        "sealed_upto_id": 0 if seal is None else seal.upto_id,
    }


def _entries(connection: sa.Connection, after: int) -> Iterator[Record]:
    return stored(connection, as_stored(ENTRIES).where(ENTRIES.c.id > after).order_by(ENTRIES.c.id), ENTRIES)


def _effects(connection: sa.Connection, after: int) -> Iterator[Record]:
    statement = as_stored(EFFECTS).order_by(EFFECTS.c.key)
    if after:
        newer = sa.select(sa.literal(1)).where(ENTRIES.c.key == EFFECTS.c.key, ENTRIES.c.id > after)
        statement = statement.where(newer.exists())
    return stored(connection, statement, EFFECTS)


def _decisions(connection: sa.Connection, after: int) -> Iterator[Record]:
    """All of them, or those of which newer entries tell: a decision has no key of its own."""
    if not after:
        yield from stored(connection, as_stored(DECISIONS).order_by(*(DECISIONS.c[name] for name in _NAME)), DECISIONS)
        return
    told = as_stored(ENTRIES).where(ENTRIES.c.id > after, ENTRIES.c.kind == "decision").order_by(ENTRIES.c.id)
    names = _names(stored(connection, told, ENTRIES))
    while page := list(itertools.islice(names, _DECISIONS_AT_ONCE)):
        wanted = sa.tuple_(*(DECISIONS.c[name] for name in _NAME)).in_(page)
        yield from stored(connection, as_stored(DECISIONS).where(wanted), DECISIONS)


def _names(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for values in entries:
        try:
            row = decided([WrittenEntry(**values)])
        except Unfoldable:  # the entry itself is in the export, and the verification says so
            continue
        if row is not None:
            yield tuple(row[name] for name in _NAME)


def _seals(connection: sa.Connection, after: int) -> Iterator[Record]:
    # One at a time: each may hold 400 kB.
    statement = as_stored(SEALS).where(SEALS.c.upto_id > after).order_by(SEALS.c.number)
    return stored(connection, statement, SEALS, at_once=1)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    # SQLite has numbers for them.
    return bool(value) if name in _FLAGS and value in {0, 1} else value
