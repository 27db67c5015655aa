"""The inventory's tables.

What the database itself holds, whatever the code does:

- One key, one row, per tenant; and no transaction commits a key without its receipt (a deferred foreign key), so no
  row can ever say "in progress".
- received = available + held + consumed, none below zero, in every stock row and in every movement.
- Movement versions of a SKU are unique, and a movement belongs to a receipt that exists.

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
    sa.Column("receipt", sa.Text, nullable=False),
    sa.Column("receipt_sha256", sa.Text, nullable=False),
    sa.Column("problem", sa.Text),
    sa.UniqueConstraint("tenant", "key"),
    sa.CheckConstraint("outcome IN ('committed', 'rejected', 'voided')", name="outcome"),
    sa.CheckConstraint("(fingerprint IS NULL) = (kind = 'void')", name="fingerprint"),
    sa.CheckConstraint("(problem IS NULL) = (outcome = 'committed')", name="problem"),
    sa.Index(None, "tenant", "reference", "sequence"),
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
    sa.Column("reserved_by", sa.BigInteger, nullable=False),
    sa.Column("released_by", sa.BigInteger),
    sa.ForeignKeyConstraint(
        ["tenant", "reserved_by"],
        ["receipts.tenant", "receipts.sequence"],
        name="fk_reservations_receipts_reserved_by",
    ),
    sa.ForeignKeyConstraint(
        ["tenant", "released_by"],
        ["receipts.tenant", "receipts.sequence"],
        name="fk_reservations_receipts_released_by",
    ),
    sa.UniqueConstraint("tenant", "reserved_by"),
    sa.CheckConstraint("state IN ('consumed', 'released')", name="state"),
    sa.CheckConstraint("(released_by IS NULL) = (state = 'consumed')", name="released_by"),
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
    sa.CheckConstraint("kind IN ('delivery', 'reserve', 'release')", name="kind"),
    sa.CheckConstraint("version > 0 AND quantity > 0", name="positive"),
    sa.CheckConstraint(_BALANCED, name="balanced"),
)
