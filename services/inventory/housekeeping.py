"""What the service does by itself, again and again: it ends holds that are due, and takes away what is kept no longer.

- A hold's end is an effect like any other: a receipt and movements, under the reservation's lock.
- Retention takes the bodies of receipts and leaves their rows: a key that was used is never taken for a new one.
- Both go in small transactions, and stopping between any two of them loses nothing.
"""

import itertools
import operator
from datetime import datetime, timedelta

import sqlalchemy as sa

from services.database import reading, writing
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
        self.expire_due()
        self.drop_expired()

    def expire_due(self) -> int:
        """End the holds that are due; how many were."""
        ended = 0
        while due := self._due():
            for tenant, of_tenant in itertools.groupby(due, key=operator.itemgetter(0)):
                ended += self._keeper.expire(tenant, [name for _, name in of_tenant])
            if len(due) < MAX_EXPIRIES:
                break
        return ended

    def _due(self) -> list[tuple[str, str]]:
        with reading(self._engine) as connection:
            rows = connection.execute(
                sa.select(RESERVATIONS.c.tenant, RESERVATIONS.c.reservation_id)
                .where(
                    RESERVATIONS.c.state == ReservationState.HELD.value,
                    RESERVATIONS.c.expires_at <= self._now(connection),
                )
                .order_by(RESERVATIONS.c.tenant, RESERVATIONS.c.reservation_id)
                .limit(MAX_EXPIRIES)
            )
            return [(row.tenant, row.reservation_id) for row in rows]

    def drop_expired(self) -> int:
        """Take away the bodies of receipts that are older than the retention; how many there were."""
        if self._retention is None:
            return 0
        with reading(self._engine) as connection:
            before = self._now(connection) - self._retention
            tenants = list(connection.execute(sa.select(COUNTERS.c.tenant)).scalars())
        dropped = 0
        for tenant in tenants:
            while page := self._drop_page(tenant, before):
                dropped += page
                if page < PAGE:
                    break
        return dropped

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
