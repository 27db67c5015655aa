"""What a batch of calls needs, taken from the database and locked, in the one order in which locks are taken.

- A key that is not known is inserted: from then on a rival waits, and whoever comes second finds the receipt.
- Reservations and SKUs are locked in ascending order.
- Holds that are in the way of the batch and have ended come first, in a transaction of their own (`Due`).
- No key is committed without its receipt: where a call executes nothing after all, all is begun again without its key.
"""

from collections.abc import Container, Iterable, Sequence

import sqlalchemy as sa

from services.inventory import receipts, statements
from services.inventory.books import Balance, Books, Judgement, Reserved, Stored
from services.inventory.contract import (
    Call,
    Expiry,
    KeyedCall,
    Kind,
    Outcome,
    ReservationState,
    is_reservation_id,
    newest_first,
)
from services.inventory.problems import Refused

# Holds that are ended in one transaction.
MAX_EXPIRIES = 100


class NotTogether(Exception):
    """These calls cannot be one transaction; nothing of them is done, and each has to go alone."""


class Again(Exception):
    """Roll back and begin again."""


class Due(Again):
    """Holds that are in the way have ended: end them first."""

    def __init__(self, reservation_ids: list[str]) -> None:
        super().__init__()
        self.reservation_ids = reservation_ids


class NotThese(Again):
    """Calls, by place, that execute nothing after all: their keys must not be taken."""

    def __init__(self, refusals: dict[int, Refused]) -> None:
        super().__init__()
        self.refusals = refusals


class Loading:
    """Fills the books of one batch.

    Attributes:
        books: what was found and locked.
    """

    def __init__(self, connection: sa.Connection, tenant: str, clock: receipts.Clock) -> None:
        self.books = Books()
        self._connection = connection
        self._tenant = tenant
        self._clock = clock
        self._claimed: set[str] = set()

    def find(self, calls: Iterable[Call]) -> None:
        """Look for the receipts of the calls' own keys."""
        self._find(call.key for call in calls if not isinstance(call, Expiry))

    def claim(self, calls: Sequence[Call]) -> None:
        """Insert the keys that are not known: the calls' own, then those of former generations that never came."""
        keyed = [call for call in calls if not isinstance(call, Expiry)]
        self._insert(sorted({call.key for call in keyed} - self.books.receipts.keys()))
        older = {
            key
            for call in keyed
            if isinstance(call, KeyedCall) and call.key in self._claimed
            for key in call.supersedes
            if key not in self._claimed
        }
        self._find(older - self.books.receipts.keys())
        self._insert(newest_first(sorted(older - self.books.receipts.keys())))

    def _find(self, keys: Iterable[str]) -> None:
        self.books.receipts.update(receipts.find_all(self._connection, self._tenant, keys))

    def _insert(self, keys: Sequence[str]) -> None:
        """Insert keys, waiting for whoever holds one; a key that a rival has committed meanwhile is found instead."""
        if not keys:
            return
        taken = insert_keys(self._connection, self._tenant, keys)
        self._claimed |= taken
        lost = [key for key in keys if key not in taken]
        self._find(lost)
        if any(key not in self.books.receipts for key in lost):
            raise LookupError("a key without a receipt")  # they commit together

    def lock(self, calls: Sequence[Call]) -> None:
        """Lock the reservations and the stock of the calls that will execute.

        Raises:
            Due: holds have ended that are in their way.
        """
        executing = [call for call in calls if isinstance(call, KeyedCall) and call.key in self._claimed]
        ending = [call.reservation_id for call in calls if isinstance(call, Expiry)]
        moved = [call.reservation_id for call in executing if is_reservation_id(call.reservation_id or "")]
        former = [self._reservation_of(key) for call in executing for key in call.supersedes]
        self._lock_reservations({name for name in (*ending, *moved, *former) if name}, due_wanted=bool(ending))
        skus = {sku for call in executing for sku in call.quantities}
        for name in (*ending, *moved):
            if name in self.books.reservations:
                skus |= self.books.reservations[name].quantities.keys()
        self._lock_stock(skus, executing)
        self._require_no_due_hold_on_short_stock(executing)

    def _reservation_of(self, key: str) -> str | None:
        known = self.books.receipts.get(key)
        if not isinstance(known, Stored) or known.outcome is not Outcome.COMMITTED:
            return None
        return known.reservation_id

    def _lock_reservations(self, ids: set[str], *, due_wanted: bool) -> None:
        if not ids:
            return
        wanted = {"of_tenant": self._tenant, "of_ids": sorted(ids)}
        rows = self._connection.execute(statements.RESERVATIONS_LOCKED, wanted).all()
        if not rows:
            return
        quantities: dict[str, dict[str, int]] = {row.reservation_id: {} for row in rows}
        # Of those that were found: another may have been made since.
        found = {"of_tenant": self._tenant, "of_ids": list(quantities)}
        for line in self._connection.execute(statements.LINES_RESERVED, found):
            quantities[line.reservation_id][line.sku] = line.quantity
        held = [row for row in rows if row.state == ReservationState.HELD]
        now = receipts.database_time(self._connection, self._clock) if held else None
        due = [row.reservation_id for row in held if now is not None and row.expires_at <= now]
        if due and not due_wanted:
            raise Due(due[:MAX_EXPIRIES])
        for row in rows:
            if due_wanted and row.reservation_id not in due:
                continue  # not over yet, or over and done with
            self.books.reservations[row.reservation_id] = Reserved(
                reservation_id=row.reservation_id,
                state=ReservationState(row.state),
                expires_at=row.expires_at,
                parent_key=row.key,
                reference=row.reference,
                quantities=dict(sorted(quantities[row.reservation_id].items())),
            )

    def _lock_stock(self, skus: set[str], executing: Iterable[KeyedCall]) -> None:
        if skus:
            wanted = {"of_tenant": self._tenant, "of_skus": sorted(skus)}
            for row in self._connection.execute(statements.STOCK_LOCKED, wanted):
                self.books.stock[row.sku] = Balance(
                    sku=row.sku,
                    received=row.received,
                    available=row.available,
                    held=row.held,
                    consumed=row.consumed,
                    version=row.version,
                    version_before=row.version,
                )
        for call in executing:
            for sku in call.quantities if call.kind is Kind.DELIVER else ():
                self.books.stock.setdefault(sku, Balance(sku=sku))

    def _require_no_due_hold_on_short_stock(self, executing: Iterable[KeyedCall]) -> None:
        """A refusal is for good: before one for lack of stock, what is held and over goes back."""
        wanted: dict[str, int] = {}
        for call in executing:
            for sku, quantity in call.quantities.items() if call.kind is Kind.RESERVE else ():
                wanted[sku] = wanted.get(sku, 0) + quantity
        stock = self.books.stock
        short = [
            sku
            for sku, quantity in wanted.items()
            if sku in stock and quantity > stock[sku].available and stock[sku].held > 0
        ]
        if not short:
            return
        parameters = {
            "of_tenant": self._tenant,
            "of_skus": short,
            "of_now": receipts.database_time(self._connection, self._clock),
            "of_limit": MAX_EXPIRIES,
        }
        due = list(self._connection.execute(statements.HOLDS_DUE, parameters).scalars())
        if due:
            raise Due(due)

    def require_no_idle_claim(self, calls: Sequence[Call], judged: Sequence[Judgement], known: Container[int]) -> None:
        """A key without a receipt could not be committed; `known` are the places of calls that were to take none.

        Raises:
            NotThese: a call was refused that had its key taken. None of `known` is among them, so this ends.
            NotTogether: an earlier call of the batch closed the key of one that was to close others.
        """
        idle = self._claimed - {entry.key for entry in self.books.entries}
        refusals = {
            place: judgement
            for place, (call, judgement) in enumerate(zip(calls, judged, strict=True))
            if isinstance(judgement, Refused)
            and not isinstance(call, Expiry)
            and place not in known
            and call.key in idle
        }
        if refusals:
            raise NotThese(refusals)
        if idle:
            raise NotTogether


def insert_keys(connection: sa.Connection, tenant: str, keys: Sequence[str]) -> set[str]:
    """Insert those of these keys that are not taken, in this order; which they were."""
    rows = [{"tenant": tenant, "key": key} for key in keys]
    return set(connection.execute(statements.KEYS_TAKEN[connection.dialect.name], rows).scalars())
