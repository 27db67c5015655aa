"""What the service does by itself, again and again: it ends holds that are due, and takes away what is kept no longer.

- A hold's end is an effect like any other: a receipt and movements, under the reservation's lock.
- Retention takes the bodies of receipts and leaves their rows: a key that was used is never taken for a new one.
- Both go in small transactions, and stopping between any two of them loses nothing.
"""

import itertools
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import sqlalchemy as sa

from services.database import DatabaseUnreachable, reading, writing
from services.inventory import receipts
from services.inventory.contract import ReservationState
from services.inventory.loading import MAX_EXPIRIES
from services.inventory.stock import StockKeeper
from services.inventory.tables import COUNTERS, RECEIPTS, RESERVATIONS

# Receipts whose bodies are taken in one transaction.
PAGE = 500


class Housekeeping:
    """One round of it is `run`; it blocks.

    Args:
        engine: the inventory's database.
        keeper: ends the holds.
        clock: the service's own; SQLite's too, which has none.
        retention: for how long a receipt keeps its body; None: for ever.
    """

    def __init__(
        self, engine: sa.Engine, keeper: StockKeeper, clock: receipts.Clock, retention: timedelta | None
    ) -> None:
        self._engine = engine
        self._keeper = keeper
        self._clock = clock
        self._retention = retention

    def run(self) -> None:
        """End what is due, then take away what is too old."""
        try:
            self.expire_due()
        finally:
            self.drop_expired()

    def expire_due(self) -> int:
        """End the holds that are due; how many were."""
        with reading(self._engine) as connection:
            due = sa.select(RESERVATIONS.c.tenant).distinct().where(*self._due(connection))
            tenants = list(connection.execute(due).scalars())
        return _of_each(tenants, self._expire_page, MAX_EXPIRIES)

    def _expire_page(self, tenant: str) -> int:
        with reading(self._engine) as connection:
            due = (
                sa.select(RESERVATIONS.c.reservation_id)
                .where(RESERVATIONS.c.tenant == tenant, *self._due(connection))
                .order_by(RESERVATIONS.c.expires_at)
                .limit(MAX_EXPIRIES)
            )
            names = list(connection.execute(due).scalars())
        return self._keeper.expire(tenant, names) if names else 0

    def _due(self, connection: sa.Connection) -> tuple[sa.ColumnElement[bool], ...]:
        return (
            RESERVATIONS.c.state == ReservationState.HELD.value,
            RESERVATIONS.c.expires_at <= self._now(connection),
        )

    def drop_expired(self) -> int:
        """Take away the bodies of receipts that are older than the retention; how many there were."""
        if self._retention is None:
            return 0
        with reading(self._engine) as connection:
            before = self._now(connection) - self._retention
            tenants = list(connection.execute(sa.select(COUNTERS.c.tenant)).scalars())
        return _of_each(tenants, lambda tenant: self._drop_page(tenant, before), PAGE)

    def _drop_page(self, tenant: str, before: datetime) -> int:
        """In order of sequence, up to the first that is younger."""
        of_tenant = COUNTERS.c.tenant == tenant
        with writing(self._engine) as connection:
            through = connection.execute(
                sa.select(COUNTERS.c.expired_through).where(of_tenant).with_for_update()
            ).scalar_one()
            rows = connection.execute(
                sa.select(RECEIPTS.c.sequence, RECEIPTS.c.created_at)
                .where(RECEIPTS.c.tenant == tenant, RECEIPTS.c.sequence > through)
                .order_by(RECEIPTS.c.sequence)
                .limit(PAGE)
            ).all()
            old = [row.sequence for row in itertools.takewhile(lambda row: row.created_at < before, rows)]
            if not old:
                return 0
            connection.execute(
                RECEIPTS.update()
                .where(RECEIPTS.c.tenant == tenant, RECEIPTS.c.sequence.between(old[0], old[-1]))
                .values(receipt=None, problem=None, expired_at=self._now(connection))
            )
            connection.execute(COUNTERS.update().where(of_tenant).values(expired_through=old[-1]))
        return len(old)

    def _now(self, connection: sa.Connection) -> datetime:
        return receipts.database_time(connection, self._clock)


def _of_each(tenants: Iterable[str], take_page: Callable[[str], int], full: int) -> int:
    """Page after page of each tenant, up to one that is not full; how much it was in all.

    What fails for one tenant keeps no other waiting: it is raised when all have had their turn.
    """
    taken = 0
    failed: Exception | None = None
    for tenant in tenants:
        try:
            while page := take_page(tenant):
                taken += page
                if page < full:
                    break
        except DatabaseUnreachable:
            raise  # each of the others would only wait as long again
        except Exception as error:  # noqa: BLE001 - raised below
            failed = failed or error
    if failed is not None:
        raise failed
    return taken
