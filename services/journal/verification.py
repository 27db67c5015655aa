"""The verification: is every entry what was sealed, and every row the fold of its entries?

    verify(engine) -> Verification

- It needs the journal alone and changes nothing. It reads one snapshot as a stream, so its memory does not grow with
  the journal; `check_chain` and `check_key` decide, and they are pure.
- It reads what is stored and not what it stands for: a time, a text or a digest that nobody can read is a flaw, never
  a failure of the verification.
- Flaws come in the order of the journal, so the first one is the first bad place: entries and seals by number, then
  what is kept elsewhere, then rows by key.

What it cannot find without a watermark that is kept elsewhere (`against`): a tail that was cut off together with its
seals, and seals that were all computed anew. Nor a change to an entry that is not sealed yet, with its digest.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from services.effects.errors import InvalidEffect
from services.effects.keys import derive_key
from services.journal.fold import Unfoldable, WrittenEntry, decided, differences, fold
from services.journal.seals import LEAF, SealMark, Watermark, read_watermark, seal_digest, unpack_leaves
from services.journal.tables import DECISIONS, EFFECTS, ENTRIES, JOURNAL, SEALS
from services.stored import as_stored, snapshot, stored

PROGRESS_EVERY = 100_000
_KEYS_AT_ONCE = 500


class Damage(StrEnum):
    """What can be wrong with a journal."""

    OTHER_JOURNAL = "other-journal"  # not the one whose watermark was kept
    ENTRY_CHANGED = "entry-changed"  # not what was sealed, or not what its own digest says
    ENTRY_MISSING = "entry-missing"  # sealed, and gone
    ENTRY_INSERTED = "entry-inserted"  # among sealed entries, and never sealed
    SEAL_CHANGED = "seal-changed"  # not what its digest says, or not what the next seal continues
    SEAL_MISSING = "seal-missing"  # a gap in the numbers
    CUT_OFF = "cut-off"  # what was kept elsewhere of this journal is not in it
    ROW_CHANGED = "row-changed"  # not the fold of its entries


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One thing that is wrong.

    Attributes:
        damage: of which kind.
        where: "entry 17", "seal 3" or a key.
        says: what is wrong with it, for people.
    """

    damage: Damage
    where: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of a verification.

    Attributes:
        stands: how far the journal has come.
        entries: how many it has.
        first: the first flaw, or None.
        found: how many there are of each kind.
    """

    stands: Watermark
    entries: int
    first: Flaw | None
    found: Mapping[Damage, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSeal:
    """A seal as it is stored, believed or not."""

    number: int
    upto_id: int
    count: int
    previous: str
    leaves: bytes
    sealed_at: Any
    sealed_by: str
    digest: str

    def sound(self, journal_id: str, covered: int) -> bool:
        """Whether it is what its digest says, and covers entries in order, all of them after those covered before."""
        values = {name: getattr(self, name) for name in StoredSeal.__slots__ if name != "digest"}
        try:
            if self.digest != seal_digest(journal_id, **values) or len(self.leaves) != self.count * LEAF.size:
                return False
        except (AttributeError, TypeError, ValueError):  # no build could have written it
            return False
        ids = [covered, *(id_ for id_, _ in unpack_leaves(self.leaves))]
        return ids[-1] == self.upto_id and all(one < other for one, other in itertools.pairwise(ids))


def verify(
    engine: sa.Engine, *, against: Watermark | None = None, progress: Callable[[int], None] = lambda _: None
) -> Verification:
    """Verify a whole journal.

    Args:
        engine: at this build's schema.
        against: a watermark of it that was kept elsewhere.
        progress: told how many entries have been looked at, now and then.
    """
    with snapshot(engine) as connection:
        stands = read_watermark(connection)
        entries = int(connection.execute(sa.select(sa.func.count()).select_from(ENTRIES)).scalar_one())
        flaws = itertools.chain(
            _check_identity(connection, stands, against),
            check_chain(stands.journal_id, _entries(connection, progress), _seals(connection)),
            _check_against(connection, stands, against),
            _check_rows(connection),
            _check_without_entries(connection),
        )
        first = next(flaws, None)
        found = Counter(flaw.damage for flaw in itertools.chain([] if first is None else [first], flaws))
    return Verification(stands=stands, entries=entries, first=first, found=found)


def _entries(connection: sa.Connection, progress: Callable[[int], None]) -> Iterator[WrittenEntry]:
    for number, values in enumerate(stored(connection, as_stored(ENTRIES).order_by(ENTRIES.c.id), ENTRIES)):
        if number and number % PROGRESS_EVERY == 0:
            progress(number)
        yield WrittenEntry(**values)


def _seals(connection: sa.Connection) -> Iterator[StoredSeal]:
    # One at a time: each may hold 400 kB.
    for values in stored(connection, as_stored(SEALS).order_by(SEALS.c.number), SEALS, at_once=1):
        yield StoredSeal(**values)


def check_chain(journal_id: str, entries: Iterable[WrittenEntry], seals: Iterable[StoredSeal]) -> Iterator[Flaw]:
    """What is wrong with the entries and their seals, in order.

    Where a seal is missing or its leaves cannot be believed, entries are held against their own digests alone until
    the next good seal begins.

    Args:
        journal_id: every seal's digest covers it.
        entries: all of them, by id.
        seals: all of them, by number.
    """
    ahead = _Ahead(entries)
    before: StoredSeal | None = None  # the seal with the number before, where it can be believed
    expected, covered, blind = 1, 0, False
    for seal in seals:
        if seal.number > expected:
            before, blind = None, True
            missing = f"seal {expected}" if seal.number == expected + 1 else f"seals {expected} to {seal.number - 1}"
            yield Flaw(damage=Damage.SEAL_MISSING, where=missing, says=f"not there, and seal {seal.number} is")
        numbered = seal.number >= expected and (seal.number > 1 or seal.previous == "")
        sound = numbered and seal.sound(journal_id, covered)
        if sound and before is not None and seal.previous != before.digest:
            says = f"it is not the seal that seal {seal.number} was made after"
            yield Flaw(damage=Damage.SEAL_CHANGED, where=f"seal {before.number}", says=says)
        if sound:
            yield from _check_sealed(ahead, seal, blind=blind)
            before, covered, blind = seal, seal.upto_id, False
        else:
            yield Flaw(damage=Damage.SEAL_CHANGED, where=f"seal {seal.number}", says="it is not what was made")
            before, blind = None, True
        expected = max(expected, seal.number + 1)
    for entry in ahead:
        if not entry.intact:
            yield _changed(entry, "it is not what its own digest says")


class _Ahead(Iterator[WrittenEntry]):
    """Entries in order, with a look at the next one."""

    def __init__(self, entries: Iterable[WrittenEntry]) -> None:
        self._entries = iter(entries)
        self.coming = next(self._entries, None)

    def __next__(self) -> WrittenEntry:
        if self.coming is None:
            raise StopIteration
        taken, self.coming = self.coming, next(self._entries, None)
        return taken


def _check_sealed(ahead: _Ahead, seal: StoredSeal, *, blind: bool) -> Iterator[Flaw]:
    """A good seal's leaves against the entries in its range."""
    for id_, digest in unpack_leaves(seal.leaves):
        while ahead.coming is not None and ahead.coming.id < id_:
            entry = next(ahead)
            if not blind:
                says = f"a {entry.kind} of {entry.key}; seal {seal.number} was made without it"
                yield Flaw(damage=Damage.ENTRY_INSERTED, where=f"entry {entry.id}", says=says)
            elif not entry.intact:
                yield _changed(entry, "it is not what its own digest says")
        blind = False
        if ahead.coming is None or ahead.coming.id > id_:
            says = f"seal {seal.number} was made with it, and it is gone"
            yield Flaw(damage=Damage.ENTRY_MISSING, where=f"entry {id_}", says=says)
            continue
        entry = next(ahead)
        if entry.digest != digest:
            yield _changed(entry, f"it is not what seal {seal.number} was made with")
        elif not entry.intact:
            yield _changed(entry, f"it is not what its own digest and seal {seal.number} say")


def _changed(entry: WrittenEntry, says: str) -> Flaw:
    return Flaw(damage=Damage.ENTRY_CHANGED, where=f"entry {entry.id}", says=f"a {entry.kind} of {entry.key}; {says}")


def _check_identity(connection: sa.Connection, stands: Watermark, against: Watermark | None) -> Iterator[Flaw]:
    ids = connection.execute(sa.select(sa.func.count()).select_from(JOURNAL)).scalar_one()
    if ids != 1:
        yield Flaw(damage=Damage.OTHER_JOURNAL, where="journal", says=f"it has {ids} ids, and a journal has one")
    if against is not None and against.journal_id != stands.journal_id:
        says = f"its id is {stands.journal_id}; what was kept is of the journal {against.journal_id}"
        yield Flaw(damage=Damage.OTHER_JOURNAL, where="journal", says=says)


def _check_against(connection: sa.Connection, stands: Watermark, against: Watermark | None) -> Iterator[Flaw]:
    """The journal against what was kept of it: both may have been cut or put back together."""
    if against is None or against.journal_id != stands.journal_id:
        return
    kept = against.seal
    if kept is not None:
        statement = sa.select(SEALS.c.upto_id, SEALS.c.digest).where(SEALS.c.number == kept.number)
        found = connection.execute(statement).first()
        where = f"seal {kept.number}"
        if found is None:
            says = "it was kept elsewhere, and the journal has no such seal: it was cut off, or put back to a copy"
            yield Flaw(damage=Damage.CUT_OFF, where=where, says=says)
        elif SealMark(number=kept.number, upto_id=found.upto_id, digest=found.digest) != kept:
            says = "it is another seal than the one that was kept elsewhere: the seals were made anew"
            yield Flaw(damage=Damage.SEAL_CHANGED, where=where, says=says)
    if stands.last_entry_id < against.last_entry_id:
        where = f"entry {against.last_entry_id}"
        says = f"it was there when the watermark was kept, and the journal ends at entry {stands.last_entry_id}"
        yield Flaw(damage=Damage.CUT_OFF, where=where, says=says)


def check_key(
    key: str,
    entries: Sequence[WrittenEntry],
    *,
    row: Mapping[str, Any] | None,
    decision: Mapping[str, Any] | None,
) -> Iterator[Flaw]:
    """What is wrong with one key's rows of `effects` and `decisions`.

    Args:
        key: the effect's.
        entries: all of the key, in order.
        row: its row of `effects` by column, or None.
        decision: the row of `decisions` that its entries tell of, or None.
    """
    try:
        told = decided(entries)
        says = "" if told is None else _apart("the decision", decision, told)
        says = says or _apart("the row", row, fold(entries))
    except Unfoldable as error:
        says = str(error)
    if says:
        yield Flaw(damage=Damage.ROW_CHANGED, where=key, says=says)


def _apart(what: str, row: Mapping[str, Any] | None, told: Mapping[str, Any] | None) -> str:
    if row is None:
        return "" if told is None else f"{what} that the entries tell of is not there"
    if told is None:
        return f"{what} is there, and no entry tells of it"
    other = differences(row, told)
    return f"{what} is not the fold of its entries: {other}" if other else ""


def _check_rows(connection: sa.Connection) -> Iterator[Flaw]:
    by_key = as_stored(ENTRIES).order_by(ENTRIES.c.key, ENTRIES.c.id)
    grouped = itertools.groupby(stored(connection, by_key, ENTRIES), key=lambda values: values["key"])
    keys = ((key, [WrittenEntry(**values) for values in group]) for key, group in grouped)
    while page := dict(itertools.islice(keys, _KEYS_AT_ONCE)):
        rows = {
            values["key"]: values
            for values in stored(connection, as_stored(EFFECTS).where(EFFECTS.c.key.in_(list(page))), EFFECTS)
        }
        names = {key: _name(told) for key, entries in page.items() if (told := _told(entries)) is not None}
        decisions = _decisions(connection, names.values())
        for key, entries in page.items():
            yield from check_key(str(key), entries, row=rows.get(key), decision=decisions.get(names.get(key, ())))


_NAME = ("origin", "scope", "name", "generation")


def _name(decision: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(decision[column] for column in _NAME)


def _told(entries: Sequence[WrittenEntry]) -> Mapping[str, Any] | None:
    try:
        return decided(entries)
    except Unfoldable:  # check_key says so
        return None


def _decisions(connection: sa.Connection, names: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    wanted = sa.tuple_(*(DECISIONS.c[column] for column in _NAME)).in_(list(names))
    return {_name(values): values for values in stored(connection, as_stored(DECISIONS).where(wanted), DECISIONS)}


def _check_without_entries(connection: sa.Connection) -> Iterator[Flaw]:
    """Rows of which no entry tells: they are under no key that was looked at."""
    told = sa.select(sa.literal(1)).where(ENTRIES.c.key == EFFECTS.c.key).exists()
    for values in stored(connection, as_stored(EFFECTS).where(~told).order_by(EFFECTS.c.key), EFFECTS):
        says = "the row is there, and no entry tells of it"
        yield Flaw(damage=Damage.ROW_CHANGED, where=str(values["key"]), says=says)
    rows = stored(connection, as_stored(DECISIONS), DECISIONS)
    while page := [(_key_of(values), _name(values)) for values in itertools.islice(rows, _KEYS_AT_ONCE)]:
        statement = sa.select(ENTRIES.c.key).where(
            ENTRIES.c.key.in_([key for key, _ in page]), ENTRIES.c.kind == "decision"
        )
        known = set(connection.execute(statement).scalars())
        for key, name in page:
            if key not in known:
                says = f"the decision on {name} is there, and no entry tells of it"
                yield Flaw(damage=Damage.ROW_CHANGED, where=key, says=says)


def _key_of(decision: Mapping[str, Any]) -> str:
    try:
        return derive_key(*_name(decision))
    except (InvalidEffect, TypeError):
        return "decisions"
