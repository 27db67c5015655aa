"""The statements of the verification, and streams that go beside the receipts' in order of sequence."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from services.inventory.contract import Kind, Outcome, ReservationState
from services.inventory.tables import (
    COUNTERS,
    DIGESTS,
    KEYS,
    METADATA,
    MOVEMENTS,
    RECEIPT_LINES,
    RECEIPTS,
    RESERVATION_LINES,
    RESERVATIONS,
    STOCK,
)
from services.inventory.verification.findings import Rule
from services.stored import as_stored, raw, rows

_TENANT: sa.BindParameter[str] = sa.bindparam("tenant", type_=sa.Text())

TENANTS = sa.union(*(sa.select(raw(table.c.tenant).label("tenant")) for table in METADATA.sorted_tables))

# What is unique, whether the database still says so or not, and the rule that a second one breaks.
UNIQUE: Sequence[tuple[Rule, tuple[sa.Column[Any], ...]]] = (
    (Rule.S1, (KEYS.c.tenant, KEYS.c.key)),
    (Rule.S1, (RECEIPTS.c.tenant, RECEIPTS.c.key)),
    (Rule.SEQUENCE, (RECEIPTS.c.tenant, RECEIPTS.c.sequence)),
    (Rule.SEQUENCE, (COUNTERS.c.tenant,)),
    (Rule.S2, (STOCK.c.tenant, STOCK.c.sku)),
    (Rule.S4, (MOVEMENTS.c.tenant, MOVEMENTS.c.sku, MOVEMENTS.c.version)),
    (Rule.S5, (MOVEMENTS.c.tenant, MOVEMENTS.c.sequence, MOVEMENTS.c.sku)),
    (Rule.S6, (RESERVATIONS.c.tenant, RESERVATIONS.c.reservation_id)),
    (Rule.S6, (RESERVATIONS.c.tenant, RESERVATIONS.c.reserved_by)),
    (Rule.S6, (RESERVATION_LINES.c.tenant, RESERVATION_LINES.c.reservation_id, RESERVATION_LINES.c.sku)),
    (Rule.RECEIPT, (RECEIPT_LINES.c.tenant, RECEIPT_LINES.c.sku, RECEIPT_LINES.c.sequence)),
    (Rule.DIGEST, (DIGESTS.c.tenant, DIGESTS.c.parent, DIGESTS.c.prefix)),
)


@functools.cache
def doubled(columns: tuple[sa.Column[Any], ...]) -> sa.Select[Any]:
    """What there is more than once."""
    of = (raw(column).label(column.name) for column in columns)
    return sa.select(*of).group_by(*columns).having(sa.func.count() > 1).limit(1)


@functools.cache
def mistyped(table: sa.Table, dialect: str) -> sa.Select[Any]:
    """The primary key of a row with a value that is not of its column's type, and `wrong`: which."""
    wrong = {column.name: _mistyped(column, dialect) for column in table.columns}
    key: Iterator[sa.Label[Any]] = (sa.cast(column, sa.Text).label(column.name) for column in table.primary_key)
    first = sa.case(*((condition, sa.literal(name)) for name, condition in wrong.items()), else_=sa.null())
    statement: sa.Select[Any] = sa.select(*key, first.label("wrong"))
    return statement.where(sa.or_(*wrong.values())).limit(1)


def _mistyped(column: sa.Column[Any], dialect: str) -> sa.ColumnElement[bool]:
    if dialect != "sqlite":  # it keeps types itself
        return sa.false() if column.nullable else column.is_(None)
    types = ["integer" if isinstance(column.type, sa.Integer) else "text", *(["null"] if column.nullable else [])]
    return sa.func.typeof(column).not_in(types)


_RESERVE = sa.alias(RECEIPTS, "reserve")

# Receipts in order, each with its key's row, the reservation that it names and the receipt that made that.
RECEIPTS_AND_MORE = (
    as_stored(RECEIPTS)
    .add_columns(
        KEYS.c.key.is_not(None).label("keyed"),
        raw(RESERVATIONS.c.reservation_id).label("reserved"),
        raw(RESERVATIONS.c.state).label("state"),
        sa.cast(RESERVATIONS.c.expires_at, sa.Text).label("ends_at"),
        *(
            raw(RESERVATIONS.c[name]).label(name)
            for name in ("reserved_by", "confirmed_by", "released_by", "expired_by")
        ),
        raw(_RESERVE.c.key).label("parent_key"),
        raw(_RESERVE.c.reference).label("parent_reference"),
    )
    .select_from(
        RECEIPTS.outerjoin(KEYS, sa.and_(KEYS.c.tenant == RECEIPTS.c.tenant, KEYS.c.key == RECEIPTS.c.key))
        .outerjoin(
            RESERVATIONS,
            sa.and_(
                RESERVATIONS.c.tenant == RECEIPTS.c.tenant,
                RESERVATIONS.c.reservation_id == RECEIPTS.c.reservation_id,
            ),
        )
        .outerjoin(
            _RESERVE,
            sa.and_(_RESERVE.c.tenant == RECEIPTS.c.tenant, _RESERVE.c.sequence == RESERVATIONS.c.reserved_by),
        )
    )
    .where(RECEIPTS.c.tenant == _TENANT)
    .order_by(RECEIPTS.c.sequence)
)

_BALANCES = ("received", "available", "held", "consumed")
_TAKEN = (
    sa.select(
        RESERVATION_LINES.c.sku,
        *(
            sa.func.sum(sa.case((RESERVATIONS.c.state == state, RESERVATION_LINES.c.quantity), else_=0)).label(state)
            for state in (ReservationState.HELD.value, ReservationState.CONSUMED.value)
        ),
    )
    .join(
        RESERVATIONS,
        sa.and_(
            RESERVATIONS.c.tenant == RESERVATION_LINES.c.tenant,
            RESERVATIONS.c.reservation_id == RESERVATION_LINES.c.reservation_id,
        ),
    )
    .where(RESERVATION_LINES.c.tenant == _TENANT)
    .group_by(RESERVATION_LINES.c.sku)
    .subquery()
)

# Movements by SKU and version, each with its stock row and what the reservations take.
LEDGER = (
    sa.select(
        *(raw(MOVEMENTS.c[name]).label(name) for name in ("sku", "version", *_BALANCES)),
        *(raw(STOCK.c[name]).label(f"stock_{name}") for name in ("version", *_BALANCES)),
        _TAKEN.c.held.label("sum_held"),
        _TAKEN.c.consumed.label("sum_consumed"),
    )
    .select_from(
        MOVEMENTS.outerjoin(
            STOCK, sa.and_(STOCK.c.tenant == MOVEMENTS.c.tenant, STOCK.c.sku == MOVEMENTS.c.sku)
        ).outerjoin(_TAKEN, _TAKEN.c.sku == MOVEMENTS.c.sku)
    )
    .where(MOVEMENTS.c.tenant == _TENANT)
    .order_by(MOVEMENTS.c.sku, MOVEMENTS.c.version)
)


def _without(table: sa.Table, *conditions: sa.ColumnElement[bool], shows: Sequence[str]) -> sa.Select[Any]:
    """The first row of a tenant that nothing goes with."""
    return (
        sa.select(*(raw(table.c[name]).label(name) for name in shows))
        .where(table.c.tenant == _TENANT, ~sa.exists().where(*conditions))
        .limit(1)
    )


def _moved(moved_by: str, kind: Kind) -> sa.Select[Any]:
    column = RESERVATIONS.c[moved_by]
    return _without(
        RESERVATIONS,
        RECEIPTS.c.tenant == RESERVATIONS.c.tenant,
        RECEIPTS.c.sequence == column,
        RECEIPTS.c.kind == kind.value,
        RECEIPTS.c.outcome == Outcome.COMMITTED.value,
        RECEIPTS.c.reservation_id == RESERVATIONS.c.reservation_id,
        shows=("reservation_id", moved_by),
    ).where(column.is_not(None))


# Rows that stand alone: the rule, what it is, what was expected, and the statement that finds one.
STRAYS: Sequence[tuple[Rule, str, str, sa.Select[Any]]] = (
    (
        Rule.S8,
        "key",
        "its receipt beside it",
        _without(KEYS, RECEIPTS.c.tenant == KEYS.c.tenant, RECEIPTS.c.key == KEYS.c.key, shows=("key",)),
    ),
    (
        Rule.S4,
        "stock of SKU",
        "movements that made it",
        _without(STOCK, MOVEMENTS.c.tenant == STOCK.c.tenant, MOVEMENTS.c.sku == STOCK.c.sku, shows=("sku",)),
    ),
    (Rule.S6, "reservation made by", "a committed reserve of it", _moved("reserved_by", Kind.RESERVE)),
    (Rule.RESERVATION, "reservation confirmed by", "a committed confirm of it", _moved("confirmed_by", Kind.CONFIRM)),
    (Rule.S10, "reservation released by", "a committed release of it", _moved("released_by", Kind.RELEASE)),
    (Rule.S10, "reservation ended by", "the committed end of it", _moved("expired_by", Kind.EXPIRY)),
    (
        Rule.S6,
        "reservation line of",
        "its reservation beside it",
        _without(
            RESERVATION_LINES,
            RESERVATIONS.c.tenant == RESERVATION_LINES.c.tenant,
            RESERVATIONS.c.reservation_id == RESERVATION_LINES.c.reservation_id,
            shows=("reservation_id", "sku"),
        ),
    ),
)


class Beside:
    """A stream in order of sequence, of which each receipt takes its rows."""

    def __init__(self, stream: Iterator[Mapping[str, Any]]) -> None:
        self._stream = stream
        self._coming = next(stream, None)
        self._stray: Mapping[str, Any] | None = None

    def take(self, sequence: int) -> list[Mapping[str, Any]]:
        """The rows of a receipt; those of a receipt that is not there are passed by."""
        taken = []
        while self._coming is not None and self._coming["sequence"] <= sequence:
            if self._coming["sequence"] == sequence:
                taken.append(self._coming)
            else:
                self._stray = self._stray or self._coming
            self._coming = next(self._stream, None)
        return taken

    def strays(self) -> Iterator[Mapping[str, Any]]:
        """The first row, if there is one, that no receipt has taken."""
        if self._stray or self._coming:
            yield self._stray or self._coming or {}


def beside(connection: sa.Connection, tenant: str) -> dict[str, Beside]:
    """A tenant's receipt lines, movements, and lines of the reservations that receipts name, by table."""
    units = (
        sa.select(
            RECEIPTS.c.sequence.label("sequence"),
            raw(RESERVATION_LINES.c.sku).label("sku"),
            raw(RESERVATION_LINES.c.quantity).label("quantity"),
        )
        .join(
            RESERVATION_LINES,
            sa.and_(
                RESERVATION_LINES.c.tenant == RECEIPTS.c.tenant,
                RESERVATION_LINES.c.reservation_id == RECEIPTS.c.reservation_id,
            ),
        )
        .where(RECEIPTS.c.tenant == tenant)
        .order_by(RECEIPTS.c.sequence)
    )
    of_table = [
        as_stored(table).where(table.c.tenant == tenant).order_by(table.c.sequence)
        for table in (RECEIPT_LINES, MOVEMENTS)
    ]
    return {
        RECEIPT_LINES.name: Beside(rows(connection, of_table[0])),
        MOVEMENTS.name: Beside(rows(connection, of_table[1], ("created_at",))),
        RESERVATION_LINES.name: Beside(rows(connection, units)),
    }
