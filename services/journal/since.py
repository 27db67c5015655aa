"""What a journal committed since one of its seals, and what it does not know the outcome of: at one moment.

Whoever keeps a watermark beside something else (a training checkpoint, a backup) asks this when that is put back: what
was done after it is still done, and putting back anything else undoes none of it.

An effect counts as committed since a seal where the entries up to the seal do not make it committed and all entries do.
What was committed shortly before the watermark and after its last seal is told too: rather once too often.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from services.database import at_one_moment, reading
from services.effects.states import EffectState
from services.journal.fold import WrittenEntry, fold
from services.journal.seals import SealMark, Watermark, read_watermark
from services.journal.statements import ENTRIES_OF_KEY
from services.journal.tables import EFFECTS, ENTRIES, SEALS


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """An effect that a receipt, or a person, has settled as committed.

    Attributes:
        receipt_id: of the receipt that settled it; None where a person asserted the end.
        reservation_id: what it reserved, if it did.
    """

    key: str
    scope: str
    name: str
    generation: int
    kind: str
    receipt_id: str | None
    reservation_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """A journal at one moment, seen from one of its seals.

    Attributes:
        stands: how far it has come.
        at: the seal that was asked for; None where it was not asked for one, or it has no such seal.
        pending: the keys whose outcome is not known.
        committed: what was committed after `at`, in the order in which it was first asked for.
    """

    stands: Watermark
    at: SealMark | None
    pending: tuple[str, ...]
    committed: tuple[Committed, ...]


def since(engine: sa.Engine, seal: int | None = None) -> Since:
    """What was committed since a seal.

    Args:
        engine: of the journal.
        seal: its number; 0 is before the first entry; None takes the last one.
    """
    with reading(engine) as connection:
        at_one_moment(connection)
        stands = read_watermark(connection)
        at = stands.seal if seal is None else _seal(connection, seal)
        unsettled = sa.select(EFFECTS.c.key).where(EFFECTS.c.settled_at.is_(None)).order_by(EFFECTS.c.key)
        return Since(
            stands=stands,
            at=at,
            pending=tuple(connection.execute(unsettled).scalars()),
            committed=tuple(_committed_after(connection, 0 if at is None else at.upto_id)),
        )


def _seal(connection: sa.Connection, number: int) -> SealMark | None:
    statement = sa.select(SEALS.c.number, SEALS.c.upto_id, SEALS.c.digest).where(SEALS.c.number == number)
    found = connection.execute(statement).first()
    return None if found is None else SealMark(number=found.number, upto_id=found.upto_id, digest=found.digest)


def _committed_after(connection: sa.Connection, upto_id: int) -> Iterator[Committed]:
    touched = sa.select(ENTRIES.c.key).where(ENTRIES.c.id > upto_id)
    statement = (
        sa.select(EFFECTS)
        .where(EFFECTS.c.state == EffectState.COMMITTED, EFFECTS.c.key.in_(touched))
        .order_by(EFFECTS.c.created_at, EFFECTS.c.key)
    )
    for row in connection.execute(statement).mappings().all():
        entries = connection.execute(ENTRIES_OF_KEY, {"of_key": row["key"]}).mappings()
        before = fold([WrittenEntry(**entry) for entry in entries if entry["id"] <= upto_id])
        if before is not None and before["state"] == EffectState.COMMITTED:
            continue  # it was committed already, and something was heard of it again
        receipt: dict[str, Any] = {} if row["receipt"] is None else json.loads(row["receipt"])
        yield Committed(
            key=row["key"],
            scope=row["scope"],
            name=row["name"],
            generation=row["generation"],
            kind=row["kind"],
            receipt_id=receipt.get("receipt_id"),
            reservation_id=receipt.get("reservation_id"),
        )
