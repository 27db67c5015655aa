"""What can be read: receipts alone, together and in commit order, their digests, reservations, stock and the ledger.

- The feed never skips: a receipt with a lower sequence than the watermark is committed and was visible with it.
- "Not found" says when it was observed and at which watermark, and no more than that.
- Another tenant's rows and rows that do not exist are the same thing to a reader.

Everything here blocks: it runs in a thread.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from services.database import DatabaseUnreachable, at_one_moment, reading
from services.inventory import receipts, statements
from services.inventory.books import Stored, key_expired
from services.inventory.contract import Answer, Outcome, ReservationState, is_reservation_id, is_sku, rfc3339, to_json
from services.inventory.digests import DEPTHS, item, to_hex, total
from services.inventory.problems import Problem, Refused, document, no_reservation, overloaded
from services.inventory.tables import (
    DIGESTS,
    MOVEMENTS,
    RECEIPT_LINES,
    RECEIPTS,
    RESERVATION_LINES,
    RESERVATIONS,
    STOCK,
)

# A page that fits one response of a few hundred kilobytes.
MAX_PAGE = 1000
DEFAULT_PAGE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedLine:
    """Units of one SKU in a reservation."""

    sku: str
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Where a reservation's units are now."""

    reservation_id: str
    state: ReservationState
    key: str
    receipt_id: str
    reference: str | None
    lines: tuple[ReservedLine, ...]
    expires_at: str | None
    created_at: str
    confirm_key: str | None
    confirm_receipt_id: str | None
    confirmed_at: str | None
    release_key: str | None
    release_receipt_id: str | None
    released_at: str | None
    expiry_receipt_id: str | None
    expired_at: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """A SKU's balances; `version` counts its movements."""

    sku: str
    received: int
    available: int
    held: int
    consumed: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One movement: the amounts are signed changes, and sum to the stock."""

    version: int
    sku: str
    kind: str
    quantity: int
    received: int
    available: int
    held: int
    consumed: int
    key: str
    receipt_id: str
    reservation_id: str | None
    created_at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPage:
    """Movements in order of version; the next page is after `next_after_version`, until that is `version`."""

    sku: str
    movements: tuple[LedgerEntry, ...]
    next_after_version: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeDigest:
    """How many receipts a range of keys has, and their digest."""

    prefix: str
    count: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestedReceipt:
    """What a receipt's item in a digest is made of."""

    key: str
    outcome: Outcome
    receipt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestPage:
    """A range of keys: the ranges in it, or, for the deepest, its receipts."""

    prefix: str
    count: int
    digest: str
    ranges: tuple[RangeDigest, ...]
    receipts: tuple[DigestedReceipt, ...]
    watermark: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedQuery:
    """Which receipts a page of the feed is of."""

    after: int = 0
    limit: int = DEFAULT_PAGE
    reference: str | None = None
    sku: str | None = None


class Reader:
    """Answers questions from one database."""

    def __init__(self, engine: sa.Engine, clock: receipts.Clock) -> None:
        self._engine = engine
        self._clock = clock

    def receipts(self, tenant: str, keys: Sequence[str]) -> list[Answer | Refused]:
        """The receipt of each key; or that none is committed at the watermark, or that retention has taken it."""
        observed_at, watermark, known = self._find(tenant, keys)
        return [
            Refused(
                Problem.RECEIPT_NOT_FOUND,
                "No receipt is committed under this key. A request may still be on its way: void the key to be sure.",
                observed_at=rfc3339(observed_at),
                watermark=watermark,
            )
            if key not in known
            else _read(known[key])
            for key in keys
        ]

    def _find(self, tenant: str, keys: Sequence[str]) -> tuple[datetime, int, dict[str, Stored]]:
        observed_at = self._clock()  # before the look, so that an absence is not older than it says
        with self._reading() as connection:
            watermark = _watermark(connection, tenant)
            return observed_at, watermark, receipts.find_all(connection, tenant, keys)

    def lookup(self, tenant: str, keys: Sequence[str]) -> bytes:
        """The receipt of each key; null: none is committed at the watermark; or the problem of a GET of an old one."""
        observed_at, watermark, known = self._find(tenant, keys)
        found = ",".join(f"{to_json(key)}:{_found(known.get(key))}" for key in dict.fromkeys(keys))
        return f'{{"receipts":{{{found}}},"observed_at":"{rfc3339(observed_at)}","watermark":{watermark}}}'.encode()

    def digests(self, tenant: str, prefix: str) -> bytes:
        """Count and digest of a range of keys and of the ranges in it, or of the receipts in the deepest."""
        with self._reading() as connection:
            at_one_moment(connection)  # the digests are those of the watermark, whatever commits meanwhile
            watermark = _watermark(connection, tenant)
            ranges = connection.execute(
                sa.select(DIGESTS.c.prefix, DIGESTS.c.count.label("number"), DIGESTS.c.digest)
                .where(DIGESTS.c.tenant == tenant, DIGESTS.c.parent == prefix)
                .order_by(DIGESTS.c.prefix)
            ).all()
            deepest = len(prefix) == DEPTHS[-1]
            inside = (
                connection.execute(
                    sa.select(RECEIPTS.c.key, RECEIPTS.c.outcome, RECEIPTS.c.sequence)
                    .where(RECEIPTS.c.tenant == tenant, RECEIPTS.c.key_range == prefix)
                    .order_by(RECEIPTS.c.sequence)
                ).all()
                if deepest
                else ()
            )
        kept = tuple(RangeDigest(prefix=row.prefix, count=row.number, digest=row.digest) for row in ranges)
        listed = tuple(
            DigestedReceipt(key=row.key, outcome=Outcome(row.outcome), receipt_id=f"receipt-{row.sequence}")
            for row in inside
        )
        items = [int(one.digest, 16) for one in kept] + [item(one.key, one.outcome, one.receipt_id) for one in listed]
        return _body(
            DigestPage(
                prefix=prefix,
                count=sum(one.count for one in kept) + len(listed),
                digest=to_hex(total(items)),
                ranges=kept,
                receipts=listed,
                watermark=watermark,
            )
        )

    def feed(self, tenant: str, query: FeedQuery) -> bytes:
        """A page of receipts in commit order, each word for word as it was written."""
        statement = sa.select(RECEIPTS.c.sequence, RECEIPTS.c.receipt).where(
            RECEIPTS.c.tenant == tenant, RECEIPTS.c.receipt.is_not(None)
        )
        if query.sku is not None:
            statement = statement.join(
                RECEIPT_LINES,
                sa.and_(
                    RECEIPT_LINES.c.tenant == RECEIPTS.c.tenant,
                    RECEIPT_LINES.c.sequence == RECEIPTS.c.sequence,
                    RECEIPT_LINES.c.sku == query.sku,
                ),
            )
        if query.reference is not None:
            statement = statement.where(RECEIPTS.c.reference == query.reference)
        with self._reading() as connection:
            watermark = _watermark(connection, tenant)
            rows = connection.execute(
                statement.where(RECEIPTS.c.sequence > query.after, RECEIPTS.c.sequence <= watermark)
                .order_by(RECEIPTS.c.sequence)
                .limit(query.limit)
            ).all()
        # A page that is not full has seen all up to the watermark. A watermark below `after` is left for the caller to
        # see: this database is older than the one that was read before.
        next_after = rows[-1].sequence if len(rows) == query.limit else max(query.after, watermark)
        page = ",".join(row.receipt for row in rows)
        return f'{{"receipts":[{page}],"next_after":{next_after},"watermark":{watermark}}}'.encode()

    def reservation(self, tenant: str, reservation_id: str) -> bytes:
        """A reservation as it is now.

        Raises:
            Refused: there is none.
        """
        if not is_reservation_id(reservation_id):
            raise no_reservation()
        of = sa.and_(RESERVATIONS.c.tenant == tenant, RESERVATIONS.c.reservation_id == reservation_id)
        lines = (
            sa.select(RESERVATION_LINES.c.sku, RESERVATION_LINES.c.quantity)
            .where(RESERVATION_LINES.c.tenant == tenant, RESERVATION_LINES.c.reservation_id == reservation_id)
            .order_by(RESERVATION_LINES.c.sku)
        )
        moves = sa.select(RECEIPTS.c.sequence, RECEIPTS.c.key, RECEIPTS.c.reference, RECEIPTS.c.created_at).where(
            RECEIPTS.c.tenant == tenant
        )
        with self._reading() as connection:
            row = connection.execute(sa.select(RESERVATIONS).where(of)).one_or_none()
            if row is None:
                raise no_reservation()
            moved_by = (row.reserved_by, row.confirmed_by, row.released_by, row.expired_by)
            wanted = [sequence for sequence in moved_by if sequence is not None]
            receipt_of = {
                move.sequence: move for move in connection.execute(moves.where(RECEIPTS.c.sequence.in_(wanted)))
            }
            reserved_lines = connection.execute(lines).all()
        reserved, confirmed, released, expired = map(receipt_of.get, moved_by)
        if reserved is None:
            raise LookupError("a reservation without its receipt")
        return _body(
            Reservation(
                reservation_id=reservation_id,
                state=ReservationState(row.state),
                key=reserved.key,
                receipt_id=f"receipt-{reserved.sequence}",
                reference=reserved.reference,
                lines=tuple(ReservedLine(sku=line.sku, quantity=line.quantity) for line in reserved_lines),
                expires_at=None if row.expires_at is None else rfc3339(row.expires_at),
                created_at=rfc3339(reserved.created_at),
                confirm_key=confirmed and confirmed.key,
                confirm_receipt_id=_receipt_id(confirmed),
                confirmed_at=_moment(confirmed),
                release_key=released and released.key,
                release_receipt_id=_receipt_id(released),
                released_at=_moment(released),
                expiry_receipt_id=_receipt_id(expired),
                expired_at=_moment(expired),
            )
        )

    def stock(self, tenant: str, sku: str) -> bytes:
        """A SKU's balances.

        Raises:
            Refused: it was never delivered.
        """
        with self._reading() as connection:
            return _body(_stock(connection, tenant, sku))

    def ledger(self, tenant: str, sku: str, after_version: int) -> bytes:
        """A page of a SKU's movements.

        Raises:
            Refused: it was never delivered.
        """
        with self._reading() as connection:
            version = _stock(connection, tenant, sku).version
            rows = connection.execute(
                sa.select(MOVEMENTS)
                .where(
                    MOVEMENTS.c.tenant == tenant,
                    MOVEMENTS.c.sku == sku,
                    MOVEMENTS.c.version > after_version,
                    MOVEMENTS.c.version <= version,
                )
                .order_by(MOVEMENTS.c.version)
                .limit(MAX_PAGE)
            ).all()
        return _body(
            LedgerPage(
                sku=sku,
                movements=tuple(map(_entry, rows)),
                next_after_version=rows[-1].version if rows else max(after_version, version),
                version=version,
            )
        )

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        try:
            with reading(self._engine) as connection:
                yield connection
        except DatabaseUnreachable:
            raise overloaded() from None


def _watermark(connection: sa.Connection, tenant: str) -> int:
    """The last committed sequence. Read first: what it covers is visible to every later statement."""
    return connection.execute(statements.WATERMARK, {"of_tenant": tenant}).scalar_one_or_none() or 0


def _read(known: Stored) -> Answer | Refused:
    if known.receipt is None:
        return key_expired(known)
    return Answer(http_status=200, body=known.receipt.encode(), outcome=known.outcome, replayed=False)


def _found(known: Stored | None) -> str:
    if known is None:
        return "null"
    if known.receipt is not None:
        return known.receipt
    problem = key_expired(known)
    return to_json(document(problem.problem, problem.detail, **problem.members))


def _receipt_id(move: sa.Row[Any, Any, Any, Any] | None) -> str | None:
    return None if move is None else f"receipt-{move.sequence}"


def _moment(move: sa.Row[Any, Any, Any, Any] | None) -> str | None:
    return None if move is None else rfc3339(move.created_at)


def _stock(connection: sa.Connection, tenant: str, sku: str) -> Stock:
    query = sa.select(STOCK).where(STOCK.c.tenant == tenant, STOCK.c.sku == sku)
    row = connection.execute(query).one_or_none() if is_sku(sku) else None
    if row is None:
        raise Refused(Problem.SKU_NOT_FOUND, "This SKU was never delivered.")
    return Stock(
        sku=row.sku,
        received=row.received,
        available=row.available,
        held=row.held,
        consumed=row.consumed,
        version=row.version,
    )


def _entry(row: sa.Row[Any]) -> LedgerEntry:
    return LedgerEntry(
        version=row.version,
        sku=row.sku,
        kind=row.kind,
        quantity=row.quantity,
        received=row.received,
        available=row.available,
        held=row.held,
        consumed=row.consumed,
        key=row.key,
        receipt_id=f"receipt-{row.sequence}",
        reservation_id=row.reservation_id,
        created_at=rfc3339(row.created_at),
    )


def _body(document: Any) -> bytes:
    return to_json(dataclasses.asdict(document)).encode()
