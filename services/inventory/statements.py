"""The statements that every batch and every look-up runs, each built once.

SQLAlchemy finds a statement's compiled form by a key that it computes from the statement's parts, once for each object.
Built anew for each call they cost more than what they do. `of_...` are parameters. Where the two databases have
different words, there is one of each, by the dialect's name.

Inserts return something: with RETURNING many rows are one statement; without it psycopg makes a pipeline, after which
PostgreSQL 18 does not end the transaction of a process that is frozen.
"""

from collections.abc import Callable, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from services.inventory.tables import (
    COUNTERS,
    DIGESTS,
    KEYS,
    MOVEMENTS,
    RECEIPT_LINES,
    RECEIPTS,
    RESERVATION_LINES,
    RESERVATIONS,
    STOCK,
)

ByDialect = Mapping[str, ReturningInsert[Any]]

_ONE: sa.ColumnClause[int] = sa.literal_column("1")
_TENANT: sa.BindParameter[str] = sa.bindparam("of_tenant")


def _each(make: Callable[[Any, Any], Any]) -> dict[str, Any]:
    """Made with each dialect's INSERT, and its clock: SQLite has none but the process's."""
    return {"sqlite": make(sqlite.insert, sa.null()), "postgresql": make(postgresql.insert, sa.func.clock_timestamp())}


def _count(insert: Any, now: Any) -> Any:
    upsert = insert(COUNTERS)
    names = ("last_sequence", "last_reservation")
    changed = {name: COUNTERS.c[name] + upsert.excluded[name] for name in names}
    counted = upsert.on_conflict_do_update(index_elements=[COUNTERS.c.tenant], set_=changed)
    return counted.returning(*(COUNTERS.c[name] for name in names), now.label("now"))


def _put_digest(insert: Any, _now: Any) -> Any:
    upsert = insert(DIGESTS)
    kept = [DIGESTS.c.tenant, DIGESTS.c.parent, DIGESTS.c.prefix]
    changed = {name: upsert.excluded[name] for name in ("count", "digest")}
    return upsert.on_conflict_do_update(index_elements=kept, set_=changed).returning(_ONE)


# What a key came to.
_STORED = sa.select(
    RECEIPTS.c.key,
    RECEIPTS.c.kind,
    RECEIPTS.c.outcome,
    RECEIPTS.c.fingerprint,
    RECEIPTS.c.http_status,
    RECEIPTS.c.sequence,
    RECEIPTS.c.reservation_id,
    RECEIPTS.c.receipt,
    RECEIPTS.c.problem,
).where(RECEIPTS.c.tenant == _TENANT)
STORED_ONE = _STORED.where(RECEIPTS.c.key == sa.bindparam("of_key"))
STORED_MANY = _STORED.where(RECEIPTS.c.key.in_(sa.bindparam("of_keys", expanding=True)))

WATERMARK = sa.select(COUNTERS.c.last_sequence).where(COUNTERS.c.tenant == _TENANT)
DATABASE_TIME = sa.select(sa.func.clock_timestamp())

KEYS_TAKEN: ByDialect = _each(lambda insert, _now: insert(KEYS).on_conflict_do_nothing().returning(KEYS.c.key))
NUMBERS_TAKEN: ByDialect = _each(_count)

RESERVATIONS_LOCKED = (
    sa.select(
        RESERVATIONS.c.reservation_id,
        RESERVATIONS.c.state,
        RESERVATIONS.c.expires_at,
        RECEIPTS.c.key,
        RECEIPTS.c.reference,
    )
    .join(
        RECEIPTS,
        sa.and_(RECEIPTS.c.tenant == RESERVATIONS.c.tenant, RECEIPTS.c.sequence == RESERVATIONS.c.reserved_by),
    )
    .where(
        RESERVATIONS.c.tenant == _TENANT,
        RESERVATIONS.c.reservation_id.in_(sa.bindparam("of_ids", expanding=True)),
    )
    .order_by(RESERVATIONS.c.reservation_id)
    .with_for_update(of=RESERVATIONS)
)
LINES_RESERVED = (
    sa.select(RESERVATION_LINES.c.reservation_id, RESERVATION_LINES.c.sku, RESERVATION_LINES.c.quantity)
    .where(
        RESERVATION_LINES.c.tenant == _TENANT,
        RESERVATION_LINES.c.reservation_id.in_(sa.bindparam("of_ids", expanding=True)),
    )
    .order_by(RESERVATION_LINES.c.reservation_id, RESERVATION_LINES.c.sku)
)
STOCK_LOCKED = (
    sa.select(STOCK)
    .where(STOCK.c.tenant == _TENANT, STOCK.c.sku.in_(sa.bindparam("of_skus", expanding=True)))
    .order_by(STOCK.c.sku)
    .with_for_update()
)
# Holds on these SKUs that are over.
HOLDS_DUE = (
    sa.select(RESERVATIONS.c.reservation_id)
    .where(
        RESERVATIONS.c.tenant == _TENANT,
        RESERVATIONS.c.state == "held",
        RESERVATIONS.c.expires_at <= sa.bindparam("of_now"),
        sa.exists().where(
            RESERVATION_LINES.c.tenant == RESERVATIONS.c.tenant,
            RESERVATION_LINES.c.reservation_id == RESERVATIONS.c.reservation_id,
            RESERVATION_LINES.c.sku.in_(sa.bindparam("of_skus", expanding=True)),
        ),
    )
    .order_by(RESERVATIONS.c.reservation_id)
    .limit(sa.bindparam("of_limit"))
)

# The guarded changes: they land only on what was locked.
STOCK_CHANGED = (
    STOCK.update()
    .where(
        STOCK.c.tenant == _TENANT, STOCK.c.sku == sa.bindparam("of_sku"), STOCK.c.version == sa.bindparam("of_version")
    )
    .values({name: sa.bindparam(name) for name in ("received", "available", "held", "consumed", "version")})
    .returning(_ONE)
)
STOCK_BEGUN: ByDialect = _each(lambda insert, _now: insert(STOCK).on_conflict_do_nothing().returning(_ONE))
RESERVATION_MOVED = {
    moved_by: RESERVATIONS.update()
    .where(
        RESERVATIONS.c.tenant == _TENANT,
        RESERVATIONS.c.reservation_id == sa.bindparam("of_id"),
        RESERVATIONS.c.state.in_(("held", "consumed")),
    )
    .values({"state": sa.bindparam("to_state"), moved_by: sa.bindparam("of_sequence")})
    .returning(_ONE)
    for moved_by in ("confirmed_by", "released_by", "expired_by")
}

RECEIPTS_WRITTEN = RECEIPTS.insert().returning(_ONE)
RECEIPT_LINES_WRITTEN = RECEIPT_LINES.insert().returning(_ONE)
RESERVATIONS_WRITTEN = RESERVATIONS.insert().returning(_ONE)
RESERVATION_LINES_WRITTEN = RESERVATION_LINES.insert().returning(_ONE)
MOVEMENTS_WRITTEN = MOVEMENTS.insert().returning(_ONE)

DIGESTS_READ = sa.select(DIGESTS.c.parent, DIGESTS.c.prefix, DIGESTS.c.count.label("number"), DIGESTS.c.digest).where(
    DIGESTS.c.tenant == _TENANT,
    # Not as pairs, for which SQLite reads all ranges of the tenant. A prefix has one parent, so nothing more is found.
    DIGESTS.c.parent.in_(sa.bindparam("of_parents", expanding=True)),
    DIGESTS.c.prefix.in_(sa.bindparam("of_prefixes", expanding=True)),
)
DIGESTS_PUT: ByDialect = _each(_put_digest)
