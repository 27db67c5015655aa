"""The inventory's tables.

What the database itself holds, whatever the code does:

- One key, one row, per tenant; and no transaction commits a key without its receipt (a deferred foreign key), so no
  row can ever say "in progress".
- received = available + held + consumed, none below zero, in every stock row and in every movement.
- Movement versions of a SKU are unique, and a movement belongs to a receipt that exists.
- Keys, receipts, their lines and movements are never removed nor changed (triggers), but for one change of a receipt:
  retention takes its body away, and nothing else of it.

A tenant's rows are reached through the tenant in every primary key: there is no global id to guess.
"""

import sqlalchemy as sa

from services.database import UtcDateTime
from services.privileges import may

METADATA = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

_BALANCED = "received = available + held + consumed"

# The numbers handed out so far. Its row lock is held until commit, which is what makes a sequence commit-ordered.
COUNTERS = sa.Table(
    "counters",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("last_sequence", sa.BigInteger, nullable=False),
    sa.Column("last_reservation", sa.BigInteger, nullable=False),
    # Retention has taken the bodies of the receipts up to here.
    sa.Column("expired_through", sa.BigInteger, nullable=False, server_default="0"),
    info=may("SELECT", "INSERT", "UPDATE"),
)

RECEIPTS = sa.Table(
    "receipts",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text),
    sa.Column("fingerprint", sa.Text),
    sa.Column("fingerprint_version", sa.Text),
    sa.Column("reservation_id", sa.Text),
    sa.Column("reference", sa.Text),
    sa.Column("http_status", sa.Integer, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    # The receipt's exact JSON text, its SHA-256, and for a rejection or a tombstone the exact problem document.
    sa.Column("receipt", sa.Text),
    sa.Column("receipt_sha256", sa.Text, nullable=False),
    sa.Column("problem", sa.Text),
    # When retention took the body away; all the rest stays, so that the key is never taken for a new one.
    sa.Column("expired_at", UtcDateTime),
    # The first four hex digits of the key's SHA-256.
    sa.Column("key_range", sa.Text, nullable=False),
    sa.UniqueConstraint("tenant", "key"),
    sa.CheckConstraint("outcome IN ('committed', 'rejected', 'voided')", name="outcome"),
    sa.CheckConstraint("(fingerprint IS NULL) = (kind IN ('void', 'expiry'))", name="fingerprint"),
    sa.CheckConstraint("(receipt IS NULL) = (expired_at IS NOT NULL)", name="expired"),
    sa.CheckConstraint("(problem IS NULL) = (outcome = 'committed' OR expired_at IS NOT NULL)", name="problem"),
    sa.Index(None, "tenant", "reference", "sequence"),
    sa.Index(None, "tenant", "key_range"),
    info=may("SELECT", "INSERT", "UPDATE"),
)

# Inserted first: this is the row that rivals for a key wait on.
KEYS = sa.Table(
    "keys",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.ForeignKeyConstraint(
        ["tenant", "key"], ["receipts.tenant", "receipts.key"], deferrable=True, initially="DEFERRED"
    ),
)

# Count and digest of the receipts per range of keys: the ranges of two hex digits (parent '') and of four (parent: the
# first two). Changed under the counter's lock.
DIGESTS = sa.Table(
    "digests",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("parent", sa.Text, primary_key=True),
    sa.Column("prefix", sa.Text, primary_key=True),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.CheckConstraint("count > 0", name="count"),
    info=may("SELECT", "INSERT", "UPDATE"),
)

RECEIPT_LINES = sa.Table(
    "receipt_lines",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("requested", sa.BigInteger, nullable=False),
    sa.Column("granted", sa.BigInteger, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "sequence"], ["receipts.tenant", "receipts.sequence"]),
    sa.CheckConstraint("requested > 0 AND granted >= 0 AND granted <= requested", name="quantities"),
)

STOCK = sa.Table(
    "stock",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("received", sa.BigInteger, nullable=False),
    sa.Column("available", sa.BigInteger, nullable=False),
    sa.Column("held", sa.BigInteger, nullable=False),
    sa.Column("consumed", sa.BigInteger, nullable=False),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.CheckConstraint("received >= 0 AND available >= 0 AND held >= 0 AND consumed >= 0", name="not_negative"),
    sa.CheckConstraint(_BALANCED, name="balanced"),
    info=may("SELECT", "INSERT", "UPDATE"),
)

RESERVATIONS = sa.Table(
    "reservations",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("reservation_id", sa.Text, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("expires_at", UtcDateTime),
    # The sequences of the receipts that moved it.
    sa.Column("reserved_by", sa.BigInteger, nullable=False),
    sa.Column("confirmed_by", sa.BigInteger),
    sa.Column("released_by", sa.BigInteger),
    sa.Column("expired_by", sa.BigInteger),
    *(
        sa.ForeignKeyConstraint(
            ["tenant", moved_by],
            ["receipts.tenant", "receipts.sequence"],
            name=f"fk_reservations_receipts_{moved_by}",
        )
        for moved_by in ("reserved_by", "confirmed_by", "released_by", "expired_by")
    ),
    sa.UniqueConstraint("tenant", "reserved_by"),
    sa.CheckConstraint("state IN ('held', 'consumed', 'released', 'expired')", name="state"),
    sa.CheckConstraint("(released_by IS NOT NULL) = (state = 'released')", name="released_by"),
    sa.CheckConstraint("(expired_by IS NOT NULL) = (state = 'expired')", name="expired_by"),
    sa.CheckConstraint("confirmed_by IS NULL OR state IN ('consumed', 'released')", name="confirmed_by"),
    # A hold has its end for good; what was never held was never confirmed and does not expire.
    sa.CheckConstraint(
        "expires_at IS NOT NULL OR (state IN ('consumed', 'released') AND confirmed_by IS NULL)", name="expires_at"
    ),
    sa.CheckConstraint("state <> 'consumed' OR (expires_at IS NULL) = (confirmed_by IS NULL)", name="confirmed"),
    sa.Index(
        "ix_reservations_held",
        "expires_at",
        sqlite_where=sa.text("state = 'held'"),
        postgresql_where=sa.text("state = 'held'"),
    ),
    info=may("SELECT", "INSERT", "UPDATE"),
)

RESERVATION_LINES = sa.Table(
    "reservation_lines",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("reservation_id", sa.Text, primary_key=True),
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("quantity", sa.BigInteger, nullable=False),
    sa.ForeignKeyConstraint(
        ["tenant", "reservation_id"],
        ["reservations.tenant", "reservations.reservation_id"],
    ),
    sa.CheckConstraint("quantity > 0", name="quantity"),
)

# The ledger. Its four amounts are signed changes: their sums are the stock row.
MOVEMENTS = sa.Table(
    "movements",
    METADATA,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("sku", sa.Text, primary_key=True),
    sa.Column("version", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("quantity", sa.BigInteger, nullable=False),
    sa.Column("received", sa.BigInteger, nullable=False),
    sa.Column("available", sa.BigInteger, nullable=False),
    sa.Column("held", sa.BigInteger, nullable=False),
    sa.Column("consumed", sa.BigInteger, nullable=False),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("reservation_id", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.ForeignKeyConstraint(["tenant", "sku"], ["stock.tenant", "stock.sku"]),
    sa.ForeignKeyConstraint(["tenant", "sequence"], ["receipts.tenant", "receipts.sequence"]),
    sa.UniqueConstraint("tenant", "sequence", "sku"),
    sa.CheckConstraint("kind IN ('delivery', 'reserve', 'hold', 'confirm', 'release', 'expiry')", name="kind"),
    sa.CheckConstraint("version > 0 AND quantity > 0", name="positive"),
    sa.CheckConstraint(_BALANCED, name="balanced"),
)
