"""The stock keeper: the one transaction behind every effect.

What it guarantees:

- One transaction holds the key, the receipt, the reservation, the stock and the ledger movement: all or nothing.
- A key is inserted before anything else is looked at. Whoever inserts it executes; whoever does not gets the stored
  receipt, word for word. So nothing is executed twice and no row ever says "in progress".
- A committed receipt moves stock exactly once, a rejection and a tombstone never; all three are for good.
- received = available + held + consumed, none below zero, and a SKU's movements are numbered 1..n without a gap, where
  n is the stock row's version.
- A release gives back all of a reservation, once.
- A redo and its former generations cannot both land: the redo closes the keys that never came, and is refused when one
  of them is committed and not released.
- Sequences are handed out in commit order, per tenant.
- Locks are taken in one order: own key, older keys from the newest down, reservation, SKUs ascending, counter.

Everything here blocks: it runs in a thread.
"""

import dataclasses
import json
from collections.abc import Callable
from typing import Any, TypeVar, assert_never

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from services.database import DatabaseUnreachable, insert_once, writing
from services.inventory import receipts
from services.inventory.contract import (
    FINGERPRINT_VERSION,
    SCHEMA_VERSION,
    Answer,
    KeyedCall,
    Kind,
    Outcome,
    Receipt,
    ReservationState,
    is_reservation_id,
    rfc3339,
    to_json,
)
from services.inventory.problems import STATUS, Problem, Refused, document, no_reservation, overloaded
from services.inventory.tables import (
    KEYS,
    MOVEMENTS,
    RESERVATION_LINES,
    RESERVATIONS,
    STOCK,
)
from services.inventory.verdicts import Movement, Verdict, granted, refuse_reservation, refused

# A deadlock's victim runs again; so often in a row means load that waiting makes worse.
MAX_TRIES = 5
# A rival that holds a key for longer than this is answered for with request-in-progress.
LOCK_TIMEOUT_SECONDS = 2

T = TypeVar("T")

_DEADLOCK = {"40001", "40P01"}
_LOCK_NOT_AVAILABLE = "55P03"
_SUCCESS = {Kind.RESERVE: 201, Kind.DELIVER: 201, Kind.RELEASE: 200}


class StockKeeper:
    """Executes keyed calls and voids against one database."""

    def __init__(self, engine: sa.Engine, clock: receipts.Clock) -> None:
        self._engine = engine
        self._clock = clock

    def perform(self, call: KeyedCall) -> Answer:
        """Execute a call, or repeat what its key already came to.

        Raises:
            Refused: nothing was executed by this delivery, and nothing stored.
        """
        return self._transaction(lambda connection: self._perform(connection, call))

    def void(self, tenant: str, key: str) -> Answer:
        """Close a key for good, or say what it already came to.

        Raises:
            Refused: nothing was stored.
        """
        return self._transaction(lambda connection: self._void(connection, tenant, key))

    def _perform(self, connection: sa.Connection, call: KeyedCall) -> Answer:
        if not insert_once(connection, KEYS, {"tenant": call.tenant, "key": call.key}):
            return _replay(connection, call)
        if self._clock() > call.not_after:
            raise Refused(
                Problem.NOT_AFTER_PASSED,
                "The request came after its Effect-Not-After. This delivery executed nothing. "
                "Read the receipt to see whether an earlier one did.",
            )
        closed, predecessor = _close_predecessors(connection, call)
        verdict = _predecessor_committed(call, predecessor) if predecessor else _execute(connection, call)
        return self._record(connection, call, closed, verdict)

    def _void(self, connection: sa.Connection, tenant: str, key: str) -> Answer:
        if not insert_once(connection, KEYS, {"tenant": tenant, "key": key}):
            row = _owner(connection, tenant, key)
            return Answer(http_status=200, body=row.receipt.encode(), outcome=Outcome(row.outcome), replayed=True)
        numbers = receipts.take_numbers(connection, tenant, self._clock, receipts=1, reservations=0)
        receipt = receipts.write_tombstone(
            connection, tenant, key, sequence=numbers.sequence, now=numbers.now, reason="voided"
        )
        body = to_json(receipt.document()).encode()
        return Answer(http_status=200, body=body, outcome=Outcome.VOIDED, replayed=False)

    def _record(self, connection: sa.Connection, call: KeyedCall, closed: list[str], verdict: Verdict) -> Answer:
        """Hand out the numbers and write everything that the verdict stands for."""
        committed = verdict.reason is None
        reserved = committed and call.kind is Kind.RESERVE
        numbers = receipts.take_numbers(
            connection, call.tenant, self._clock, receipts=len(closed) + 1, reservations=int(reserved)
        )
        for sequence, key in enumerate(closed, start=numbers.sequence - len(closed)):
            receipts.write_tombstone(
                connection, call.tenant, key, sequence=sequence, now=numbers.now, reason="superseded"
            )
        receipt = Receipt(
            schema_version=SCHEMA_VERSION,
            receipt_id=f"receipt-{numbers.sequence}",
            sequence=numbers.sequence,
            key=call.key,
            kind=call.kind,
            outcome=Outcome.COMMITTED if committed else Outcome.REJECTED,
            reason=verdict.reason,
            request=dict(call.request),
            fingerprint=call.fingerprint,
            fingerprint_version=FINGERPRINT_VERSION,
            supersedes=call.supersedes,
            reservation_id=f"reservation-{numbers.reservation}" if reserved else verdict.reservation_id,
            lines=verdict.lines,
            stock_versions={movement.sku: movement.version for movement in verdict.movements},
            expires_at=None,
            http_status=STATUS[verdict.reason] if verdict.reason else _SUCCESS[call.kind],
            created_at=rfc3339(numbers.now),
            signature=None,
        )
        problem = None if verdict.reason is None else document(verdict.reason, verdict.detail, **verdict.members)
        answer = receipts.write(
            connection, call.tenant, receipt, numbers.now, problem=problem, reference=call.reference
        )
        if committed:
            _settle_reservation(connection, call, receipt)
        for movement in verdict.movements:
            connection.execute(
                MOVEMENTS.insert().values(
                    **dataclasses.asdict(movement),
                    tenant=call.tenant,
                    sequence=receipt.sequence,
                    key=call.key,
                    reservation_id=receipt.reservation_id,
                    created_at=numbers.now,
                )
            )
        return answer

    def _transaction(self, work: Callable[[sa.Connection], T]) -> T:
        for _ in range(MAX_TRIES):
            begun = False
            try:
                with writing(self._engine) as connection:
                    if connection.dialect.name == "postgresql":
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
                    begun = True
                    return work(connection)
            except DatabaseUnreachable:
                raise overloaded() from None
            except sa.exc.OperationalError as error:
                if not begun:  # another process holds SQLite's one writer's place
                    raise overloaded() from None
                state = getattr(error.orig, "sqlstate", None)
                if state == _LOCK_NOT_AVAILABLE:
                    raise Refused(
                        Problem.REQUEST_IN_PROGRESS,
                        "Another request holds this key or its stock. This delivery executed nothing. Send it again.",
                    ) from None
                if state not in _DEADLOCK:
                    raise  # a failed commit is among these: nobody may say that nothing was executed
        raise overloaded()


def _owner(connection: sa.Connection, tenant: str, key: str) -> sa.Row[Any]:
    """The receipt of a key that is taken: keys and receipts commit together, so it is there."""
    row = receipts.find(connection, tenant, key)
    if row is None:
        raise LookupError("a key without a receipt")
    return row


def _replay(connection: sa.Connection, call: KeyedCall) -> Answer:
    row = _owner(connection, call.tenant, call.key)
    if row.kind != Kind.VOID and (row.kind, row.fingerprint) != (call.kind, call.fingerprint):
        raise Refused(
            Problem.IDEMPOTENCY_KEY_REUSED,
            "This key was used for another request. Nothing was executed. "
            "Read the key's receipt and compare its request with this one.",
        )
    return receipts.replay(row)


def _close_predecessors(connection: sa.Connection, call: KeyedCall) -> tuple[list[str], dict[str, Any] | None]:
    """Take the keys of former generations that never came; the newest receipt that stands in the way, if one does."""
    closed = []
    standing = None
    for key in call.supersedes:
        if insert_once(connection, KEYS, {"tenant": call.tenant, "key": key}):
            closed.append(key)
            continue
        row = _owner(connection, call.tenant, key)
        if standing is None and row.outcome == Outcome.COMMITTED and not _is_released(connection, row):
            standing = json.loads(row.receipt)
    return closed, standing


def _is_released(connection: sa.Connection, row: sa.Row[Any]) -> bool:
    """Whether a committed receipt's units came back. What a delivery or a release did is never taken back."""
    if row.kind != Kind.RESERVE:
        return False
    reservation = _lock_reservation(connection, row.tenant, row.reservation_id)
    return reservation is not None and reservation.state == ReservationState.RELEASED


def _lock_reservation(connection: sa.Connection, tenant: str, reservation_id: str | None) -> sa.Row[Any] | None:
    if reservation_id is None or not is_reservation_id(reservation_id):
        return None  # text from a path: PostgreSQL would not even take all of it
    query = sa.select(RESERVATIONS).where(
        RESERVATIONS.c.tenant == tenant, RESERVATIONS.c.reservation_id == reservation_id
    )
    return connection.execute(query.with_for_update()).one_or_none()


def _predecessor_committed(call: KeyedCall, predecessor: dict[str, Any]) -> Verdict:
    return Verdict(
        lines=refused(call.quantities),
        reason=Problem.PREDECESSOR_COMMITTED,
        detail="A former generation of this effect is committed and its units are not released. Nothing was executed.",
        members={"predecessor": predecessor},
    )


def _execute(connection: sa.Connection, call: KeyedCall) -> Verdict:
    match call.kind:
        case Kind.RESERVE:
            return _reserve(connection, call)
        case Kind.RELEASE:
            return _release(connection, call)
        case Kind.DELIVER:
            return _deliver(connection, call)
        case Kind.VOID:
            raise ValueError("a void is not a call")
        case _:
            assert_never(call.kind)


def _reserve(connection: sa.Connection, call: KeyedCall) -> Verdict:
    query = (
        sa.select(STOCK.c.sku, STOCK.c.available, STOCK.c.version)
        .where(STOCK.c.tenant == call.tenant, STOCK.c.sku.in_(call.quantities))
        .order_by(STOCK.c.sku)
        .with_for_update()
    )
    available = {row.sku: row.available for row in connection.execute(query)}
    refusal = refuse_reservation(call.quantities, available)
    if refusal is not None:
        return refusal
    return Verdict(
        lines=granted(call.quantities),
        movements=tuple(
            _move(connection, call.tenant, sku, kind="reserve", change=-quantity)
            for sku, quantity in call.quantities.items()
        ),
    )


def _release(connection: sa.Connection, call: KeyedCall) -> Verdict:
    reservation = _lock_reservation(connection, call.tenant, call.reservation_id)
    if reservation is None:
        raise no_reservation()
    query = (
        sa.select(RESERVATION_LINES.c.sku, RESERVATION_LINES.c.quantity)
        .where(
            RESERVATION_LINES.c.tenant == call.tenant, RESERVATION_LINES.c.reservation_id == reservation.reservation_id
        )
        .order_by(RESERVATION_LINES.c.sku)
    )
    quantities = {row.sku: row.quantity for row in connection.execute(query)}
    if reservation.state != ReservationState.CONSUMED:
        return Verdict(
            lines=refused(quantities),
            reservation_id=reservation.reservation_id,
            reason=Problem.INVALID_TRANSITION,
            detail=f"{reservation.reservation_id} is {reservation.state}. Nothing was executed.",
        )
    return Verdict(
        lines=granted(quantities),
        reservation_id=reservation.reservation_id,
        movements=tuple(
            _move(connection, call.tenant, sku, kind="release", change=quantity) for sku, quantity in quantities.items()
        ),
    )


def _move(connection: sa.Connection, tenant: str, sku: str, *, kind: str, change: int) -> Movement:
    """Change available by so much and consumed by as much the other way; the guard holds even without the lock."""
    statement = (
        STOCK.update()
        .where(
            STOCK.c.tenant == tenant,
            STOCK.c.sku == sku,
            STOCK.c.available + change >= 0,
            STOCK.c.consumed - change >= 0,
        )
        .values(available=STOCK.c.available + change, consumed=STOCK.c.consumed - change, version=STOCK.c.version + 1)
        .returning(STOCK.c.version)
    )
    version = connection.execute(statement).scalar_one()
    return Movement(kind=kind, sku=sku, version=version, quantity=abs(change), available=change, consumed=-change)


def _deliver(connection: sa.Connection, call: KeyedCall) -> Verdict:
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    movements = []
    for sku, quantity in call.quantities.items():
        upsert = dialect.insert(STOCK).values(
            tenant=call.tenant, sku=sku, received=quantity, available=quantity, held=0, consumed=0, version=1
        )
        statement = upsert.on_conflict_do_update(
            index_elements=[STOCK.c.tenant, STOCK.c.sku],
            set_={
                "received": STOCK.c.received + quantity,
                "available": STOCK.c.available + quantity,
                "version": STOCK.c.version + 1,
            },
        ).returning(STOCK.c.version)
        version = connection.execute(statement).scalar_one()
        movements.append(
            Movement(
                kind="delivery", sku=sku, version=version, quantity=quantity, received=quantity, available=quantity
            )
        )
    return Verdict(lines=granted(call.quantities), movements=tuple(movements))


def _settle_reservation(connection: sa.Connection, call: KeyedCall, receipt: Receipt) -> None:
    """Write down what a committed call made of its reservation; a delivery has none."""
    identity = {"tenant": call.tenant, "reservation_id": receipt.reservation_id}
    match call.kind:
        case Kind.RESERVE:
            connection.execute(
                RESERVATIONS.insert().values(
                    **identity, state=ReservationState.CONSUMED.value, reserved_by=receipt.sequence
                )
            )
            connection.execute(
                RESERVATION_LINES.insert(),
                [{**identity, "sku": line.sku, "quantity": line.granted} for line in receipt.lines],
            )
        case Kind.RELEASE:
            landed = connection.execute(
                RESERVATIONS.update()
                .where(
                    RESERVATIONS.c.tenant == call.tenant,
                    RESERVATIONS.c.reservation_id == receipt.reservation_id,
                    RESERVATIONS.c.state == ReservationState.CONSUMED.value,
                )
                .values(state=ReservationState.RELEASED.value, released_by=receipt.sequence)
            )
            if landed.rowcount != 1:
                raise LookupError("a reservation changed under its lock")
        case Kind.DELIVER | Kind.VOID:
            pass
        case _:
            assert_never(call.kind)
