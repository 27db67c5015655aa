"""What a judged batch comes to, written down: receipts first, then reservations, stock and movements.

Only guarded changes: a row that is not as it was locked ends the transaction, and all of it is begun again.
"""

from typing import Any

import sqlalchemy as sa

from services.inventory import receipts, statements
from services.inventory.books import Balance, Books, Entry
from services.inventory.contract import Kind, Outcome, ReservationState
from services.inventory.loading import Again, insert_keys
from services.inventory.receipts import Answers, insert_all

# Where a committed move leaves its reservation, and where the reservation remembers the receipt.
_MOVES = {
    Kind.CONFIRM: (ReservationState.CONSUMED, "confirmed_by"),
    Kind.RELEASE: (ReservationState.RELEASED, "released_by"),
    Kind.EXPIRY: (ReservationState.EXPIRED, "expired_by"),
}


def write(
    connection: sa.Connection, tenant: str, books: Books, clock: receipts.Clock, signing_key: bytes | None
) -> Answers:
    """Number and write all entries of the books; the answers that they make."""
    entries = books.entries
    if not entries:
        return Answers()
    committed = [entry for entry in entries if entry.outcome is Outcome.COMMITTED]
    new = [entry for entry in committed if entry.kind is Kind.RESERVE]
    ends = [entry.key for entry in entries if entry.kind is Kind.EXPIRY]
    if ends:  # under its reservation's lock, so nobody else is at it
        insert_keys(connection, tenant, ends)
    numbers = receipts.take_numbers(connection, tenant, clock, receipts=len(entries), reservations=len(new))
    answers = receipts.write(connection, tenant, entries, numbers, signing_key)
    _write_reservations(connection, tenant, new, answers)
    for entry in committed:
        if entry.kind in _MOVES:
            _move_reservation(connection, tenant, entry, answers.receipt(entry).sequence)
    for _, balance in sorted(books.stock.items()):
        if balance.version != balance.version_before:
            _write_stock(connection, tenant, balance)
    movements = [
        {
            **movement.columns(),
            "tenant": tenant,
            "sequence": answers.receipt(entry).sequence,
            "key": entry.key,
            "reservation_id": answers.receipt(entry).reservation_id,
            "created_at": numbers.now,
        }
        for entry in committed
        for movement in entry.movements
    ]
    insert_all(connection, statements.MOVEMENTS_WRITTEN, movements)
    return answers


def _write_reservations(connection: sa.Connection, tenant: str, new: list[Entry], answers: Answers) -> None:
    rows: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []
    for entry in new:
        receipt, reservation = answers.receipt(entry), entry.reservation
        if reservation is None:
            raise LookupError("a committed reserve without its reservation")
        identity = {"tenant": tenant, "reservation_id": receipt.reservation_id}
        rows.append(
            {
                **identity,
                "state": reservation.state.value,
                "expires_at": reservation.expires_at,
                "reserved_by": receipt.sequence,
            }
        )
        lines.extend({**identity, "sku": line.sku, "quantity": line.granted} for line in receipt.lines)
    insert_all(connection, statements.RESERVATIONS_WRITTEN, rows)
    insert_all(connection, statements.RESERVATION_LINES_WRITTEN, lines)


def _move_reservation(connection: sa.Connection, tenant: str, entry: Entry, sequence: int) -> None:
    state, moved_by = _MOVES[entry.kind]
    parameters = {
        "of_tenant": tenant,
        "of_id": entry.reservation and entry.reservation.reservation_id,
        "to_state": state.value,
        "of_sequence": sequence,
    }
    if connection.execute(statements.RESERVATION_MOVED[moved_by], parameters).first() is None:
        raise LookupError("a reservation changed under its lock")


def _write_stock(connection: sa.Connection, tenant: str, balance: Balance) -> None:
    values = {
        "received": balance.received,
        "available": balance.available,
        "held": balance.held,
        "consumed": balance.consumed,
        "version": balance.version,
    }
    if balance.version_before == 0:
        row = {"tenant": tenant, "sku": balance.sku, **values}
        if connection.execute(statements.STOCK_BEGUN[connection.dialect.name], row).first() is None:
            raise Again  # somebody else has delivered the first of it meanwhile
        return
    guard = {"of_tenant": tenant, "of_sku": balance.sku, "of_version": balance.version_before}
    if connection.execute(statements.STOCK_CHANGED, guard | values).first() is None:
        raise LookupError("a SKU changed under its lock")
