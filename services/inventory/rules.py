"""What has to hold of the inventory's rows, each as a query that finds what breaks it.

A query gives the tenant, the place and what is wrong there. All of them hold for ever, whatever was killed when.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import chain
from typing import Any

import sqlalchemy as sa

from services.inventory.contract import Kind, Outcome, ReservationState
from services.inventory.tables import (
    COUNTERS,
    KEYS,
    MOVEMENTS,
    RECEIPT_LINES,
    RECEIPTS,
    RESERVATION_LINES,
    RESERVATIONS,
    STOCK,
)

_AMOUNTS = ("received", "available", "held", "consumed")


class Rule(StrEnum):
    """What has to hold."""

    KEYS = "S1"  # one receipt to a key, numbered 1..n as the counter says
    BALANCES = "S2"  # received = available + held + consumed, none below zero
    SUMS = "S3"  # a SKU's balances are the sum of its movements
    VERSIONS = "S4"  # a SKU's movements are 1..n without a gap, and n is its version
    MOVEMENTS = "S5"  # a movement to each line of a committed receipt, and of its kind; and none else
    RESERVATIONS = "S6"  # a reservation to each committed reserve, moved by the receipts it names; held is their sum
    NOTHING_MOVED = "S7"  # what was rejected or voided moved nothing
    IN_PROGRESS = "S8"  # no key without its receipt
    TEXTS = "S9"  # a receipt's text is what was hashed, and says what its row says
    GIVEN_BACK = "S10"  # of a reservation all or nothing is back, as its state says
    DIGESTS = "S11"  # the digests of the ranges are those of their receipts


def queries() -> Iterator[tuple[Rule, sa.Select[Any]]]:
    """Each rule's queries."""
    return chain(_keys(), _stock(), _movements(), _reservations(), _reserved_stock())


_Queries = Iterator[tuple[Rule, sa.Select[Any]]]


def _flaws(tenant: Any, where: Any, says: str) -> sa.Select[Any]:
    return sa.select(tenant, where, sa.literal(says))


def _same(one: sa.FromClause, other: sa.FromClause, *names: str) -> sa.ColumnElement[bool]:
    return sa.and_(*(one.c[name] == other.c[name] for name in ("tenant", *names)))


def _keys() -> _Queries:
    receipts, counters = RECEIPTS.c, COUNTERS.c
    yield (
        Rule.KEYS,
        _flaws(receipts.tenant, receipts.key, "it has several receipts")
        .group_by(receipts.tenant, receipts.key)
        .having(sa.func.count() > 1),
    )
    numbered = (
        sa.select(
            receipts.tenant,
            sa.func.count().label("number"),
            sa.func.min(receipts.sequence).label("low"),
            sa.func.max(receipts.sequence).label("high"),
        )
        .group_by(receipts.tenant)
        .subquery()
    )
    yield (
        Rule.KEYS,
        _flaws(numbered.c.tenant, sa.literal("sequences"), "they are not 1..n, as the counter has handed them out")
        .select_from(numbered.outerjoin(COUNTERS, _same(numbered, COUNTERS)))
        .where(
            sa.or_(
                numbered.c.low != 1,
                numbered.c.high != numbered.c.number,
                counters.last_sequence.is_distinct_from(numbered.c.number),
            )
        ),
    )
    reserved = (
        sa.select(RESERVATIONS.c.tenant, sa.func.count().label("number")).group_by(RESERVATIONS.c.tenant).subquery()
    )
    yield (
        Rule.KEYS,
        _flaws(counters.tenant, sa.literal("reservations"), "they are not as many as the counter has handed out")
        .select_from(COUNTERS.outerjoin(reserved, _same(COUNTERS, reserved)))
        .where(counters.last_reservation != sa.func.coalesce(reserved.c.number, 0)),
    )
    yield (
        Rule.IN_PROGRESS,
        _flaws(KEYS.c.tenant, KEYS.c.key, "the key is taken and has no receipt")
        .select_from(KEYS.outerjoin(RECEIPTS, _same(KEYS, RECEIPTS, "key")))
        .where(receipts.sequence.is_(None)),
    )
    yield (
        Rule.IN_PROGRESS,
        _flaws(receipts.tenant, receipts.key, "there is a receipt, and the key is not taken")
        .select_from(RECEIPTS.outerjoin(KEYS, _same(RECEIPTS, KEYS, "key")))
        .where(KEYS.c.key.is_(None)),
    )


def _stock() -> _Queries:
    stock = STOCK.c
    yield (
        Rule.BALANCES,
        _flaws(stock.tenant, stock.sku, "its balances do not add up, or one is below zero").where(
            sa.or_(
                stock.received != stock.available + stock.held + stock.consumed,
                *(stock[name] < 0 for name in _AMOUNTS),
            )
        ),
    )
    summed = (
        sa.select(
            MOVEMENTS.c.tenant,
            MOVEMENTS.c.sku,
            *(sa.func.sum(MOVEMENTS.c[name]).label(name) for name in _AMOUNTS),
            sa.func.count().label("number"),
            sa.func.min(MOVEMENTS.c.version).label("low"),
            sa.func.max(MOVEMENTS.c.version).label("high"),
        )
        .group_by(MOVEMENTS.c.tenant, MOVEMENTS.c.sku)
        .subquery()
    )
    with_stock = STOCK.outerjoin(summed, _same(STOCK, summed, "sku"))
    yield (
        Rule.SUMS,
        _flaws(stock.tenant, stock.sku, "its balances are not the sum of its movements")
        .select_from(with_stock)
        .where(sa.or_(*(stock[name] != sa.func.coalesce(summed.c[name], 0) for name in _AMOUNTS))),
    )
    yield (
        Rule.VERSIONS,
        _flaws(stock.tenant, stock.sku, "its movements are not 1..n, where n is its version")
        .select_from(with_stock)
        .where(
            sa.or_(
                stock.version != sa.func.coalesce(summed.c.number, 0),
                summed.c.low != 1,
                summed.c.high != summed.c.number,
            )
        ),
    )
    yield (
        Rule.SUMS,
        _flaws(summed.c.tenant, summed.c.sku, "there are movements, and no stock")
        .select_from(summed.outerjoin(STOCK, _same(summed, STOCK, "sku")))
        .where(stock.sku.is_(None)),
    )


# Of each kind of movement: its receipt's kind, and what one unit changes. A release gives back from where units are.
_OF_KIND: tuple[tuple[str, Kind, Mapping[str, int]], ...] = (
    ("delivery", Kind.DELIVER, {"received": 1, "available": 1}),
    ("reserve", Kind.RESERVE, {"available": -1, "consumed": 1}),
    ("hold", Kind.RESERVE, {"available": -1, "held": 1}),
    ("confirm", Kind.CONFIRM, {"held": -1, "consumed": 1}),
    ("release", Kind.RELEASE, {"available": 1, "held": -1}),
    ("release", Kind.RELEASE, {"available": 1, "consumed": -1}),
    ("expiry", Kind.EXPIRY, {"available": 1, "held": -1}),
)


def _movements() -> _Queries:
    movements, receipts, lines = MOVEMENTS.c, RECEIPTS.c, RECEIPT_LINES.c
    with_receipt = MOVEMENTS.outerjoin(RECEIPTS, _same(MOVEMENTS, RECEIPTS, "sequence"))
    fits = sa.or_(
        *(
            sa.and_(
                movements.kind == kind,
                receipts.kind == of.value,
                *(movements[name] == change.get(name, 0) * movements.quantity for name in _AMOUNTS),
            )
            for kind, of, change in _OF_KIND
        )
    )
    yield (
        Rule.MOVEMENTS,
        _flaws(movements.tenant, movements.key, "a movement of it is not one that its receipt stands for")
        .select_from(with_receipt)
        .where(
            sa.or_(
                receipts.sequence.is_(None),
                receipts.key != movements.key,
                receipts.reservation_id.is_distinct_from(movements.reservation_id),
                sa.not_(fits),
            )
        ),
    )
    yield (
        Rule.NOTHING_MOVED,
        _flaws(receipts.tenant, receipts.key, "it was not committed, and has moved something")
        .select_from(with_receipt)
        .where(receipts.outcome != Outcome.COMMITTED.value),
    )
    of_lines = RECEIPTS.join(RECEIPT_LINES, _same(RECEIPTS, RECEIPT_LINES, "sequence"))
    yield (
        Rule.NOTHING_MOVED,
        _flaws(receipts.tenant, receipts.key, "it was not committed, and grants something")
        .select_from(of_lines)
        .where(receipts.outcome != Outcome.COMMITTED.value, lines.granted != 0),
    )
    moved = sa.and_(_same(RECEIPT_LINES, MOVEMENTS, "sequence", "sku"))
    yield (
        Rule.MOVEMENTS,
        _flaws(receipts.tenant, receipts.key, "a line of it has not moved what it grants, or grants not all of it")
        .select_from(of_lines.outerjoin(MOVEMENTS, moved))
        .where(
            receipts.outcome == Outcome.COMMITTED.value,
            sa.or_(movements.quantity.is_distinct_from(lines.granted), lines.granted != lines.requested),
        ),
    )
    yield (
        Rule.MOVEMENTS,
        _flaws(movements.tenant, movements.key, "a movement of it is of none of its lines")
        .select_from(MOVEMENTS.outerjoin(RECEIPT_LINES, moved))
        .where(lines.sku.is_(None)),
    )
    yield (
        Rule.MOVEMENTS,
        _flaws(receipts.tenant, receipts.key, "it was committed, and has no line")
        .select_from(RECEIPTS.outerjoin(RECEIPT_LINES, _same(RECEIPTS, RECEIPT_LINES, "sequence")))
        .where(receipts.outcome == Outcome.COMMITTED.value, lines.sku.is_(None)),
    )
    yield (
        Rule.MOVEMENTS,
        _flaws(lines.tenant, lines.sku, "a line of no receipt")
        .select_from(RECEIPT_LINES.outerjoin(RECEIPTS, _same(RECEIPT_LINES, RECEIPTS, "sequence")))
        .where(receipts.sequence.is_(None)),
    )


# The column of a reservation that names a receipt, and that receipt's kind.
_MOVED_BY = (
    ("reserved_by", Kind.RESERVE),
    ("confirmed_by", Kind.CONFIRM),
    ("released_by", Kind.RELEASE),
    ("expired_by", Kind.EXPIRY),
)


def _reservations() -> _Queries:
    receipts, reservations = RECEIPTS.c, RESERVATIONS.c
    for column, kind in _MOVED_BY:
        by = sa.and_(receipts.tenant == reservations.tenant, receipts.sequence == reservations[column])
        yield (
            Rule.RESERVATIONS,
            _flaws(reservations.tenant, reservations.reservation_id, f"its {column} is no committed {kind} of it")
            .select_from(RESERVATIONS.outerjoin(RECEIPTS, by))
            .where(
                reservations[column].is_not(None),
                sa.or_(
                    receipts.sequence.is_(None),
                    receipts.kind != kind.value,
                    receipts.outcome != Outcome.COMMITTED.value,
                    receipts.reservation_id.is_distinct_from(reservations.reservation_id),
                ),
            ),
        )
        yield (
            Rule.RESERVATIONS,
            _flaws(receipts.tenant, receipts.key, f"it was committed, and is no reservation's {column}")
            .select_from(RECEIPTS.outerjoin(RESERVATIONS, by))
            .where(
                receipts.kind == kind.value,
                receipts.outcome == Outcome.COMMITTED.value,
                reservations.reservation_id.is_(None),
            ),
        )
    lines = RESERVATION_LINES.c
    reserved = sa.and_(
        MOVEMENTS.c.tenant == reservations.tenant,
        MOVEMENTS.c.sequence == reservations.reserved_by,
        MOVEMENTS.c.sku == lines.sku,
    )
    with_lines = RESERVATIONS.join(RESERVATION_LINES, _same(RESERVATIONS, RESERVATION_LINES, "reservation_id"))
    yield (
        Rule.RESERVATIONS,
        _flaws(reservations.tenant, reservations.reservation_id, "a line of it is not what was reserved")
        .select_from(with_lines.outerjoin(MOVEMENTS, reserved))
        .where(MOVEMENTS.c.quantity.is_distinct_from(lines.quantity)),
    )
    yield (
        Rule.RESERVATIONS,
        _flaws(MOVEMENTS.c.tenant, MOVEMENTS.c.key, "what it reserved is in no line of its reservation")
        .select_from(
            MOVEMENTS.outerjoin(RESERVATION_LINES, _same(MOVEMENTS, RESERVATION_LINES, "reservation_id", "sku"))
        )
        .where(MOVEMENTS.c.kind.in_(("reserve", "hold")), lines.sku.is_(None)),
    )


def _reserved_stock() -> _Queries:
    """Where the units of reservations are: by reservation, and by SKU."""
    reservations, lines = RESERVATIONS.c, RESERVATION_LINES.c
    of_lines = RESERVATIONS.join(RESERVATION_LINES, _same(RESERVATIONS, RESERVATION_LINES, "reservation_id"))
    moved = (
        sa.select(
            MOVEMENTS.c.tenant,
            MOVEMENTS.c.reservation_id,
            MOVEMENTS.c.sku,
            *(sa.func.sum(MOVEMENTS.c[name]).label(name) for name in _AMOUNTS),
        )
        .where(MOVEMENTS.c.reservation_id.is_not(None))
        .group_by(MOVEMENTS.c.tenant, MOVEMENTS.c.reservation_id, MOVEMENTS.c.sku)
        .subquery()
    )
    of_line = sa.and_(_same(RESERVATION_LINES, moved, "reservation_id", "sku"))
    held, consumed = (reservations.state == state.value for state in (ReservationState.HELD, ReservationState.CONSUMED))
    due = {
        "received": sa.literal(0),
        "available": sa.case((sa.or_(held, consumed), -lines.quantity), else_=0),
        "held": sa.case((held, lines.quantity), else_=0),
        "consumed": sa.case((consumed, lines.quantity), else_=0),
    }
    yield (
        Rule.GIVEN_BACK,
        _flaws(reservations.tenant, reservations.reservation_id, "its movements are not where its state says")
        .select_from(of_lines.outerjoin(moved, of_line))
        .where(sa.or_(*(sa.func.coalesce(moved.c[name], 0) != due[name] for name in _AMOUNTS))),
    )
    for state, column in ((ReservationState.HELD, "held"), (ReservationState.CONSUMED, "consumed")):
        summed = (
            sa.select(lines.tenant, lines.sku, sa.func.sum(lines.quantity).label("quantity"))
            .select_from(of_lines)
            .where(reservations.state == state.value)
            .group_by(lines.tenant, lines.sku)
            .subquery()
        )
        yield (
            Rule.RESERVATIONS,
            _flaws(STOCK.c.tenant, STOCK.c.sku, f"what is {column} is not the sum of the reservations that are")
            .select_from(STOCK.outerjoin(summed, _same(STOCK, summed, "sku")))
            .where(STOCK.c[column] != sa.func.coalesce(summed.c.quantity, 0)),
        )
