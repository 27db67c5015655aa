"""Keys, receipts, stock, reservations and the ledger.

Revision: inventory_0001, after nothing.
"""

import sqlalchemy as sa
from alembic import op

from services.database import UtcDateTime

revision = "inventory_0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "counters",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("last_sequence", sa.BigInteger(), nullable=False),
        sa.Column("last_reservation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", name="pk_counters"),
    )
    op.create_table(
        "receipts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("fingerprint_version", sa.Text(), nullable=True),
        sa.Column("reservation_id", sa.Text(), nullable=True),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("http_status", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("receipt", sa.Text(), nullable=False),
        sa.Column("receipt_sha256", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.CheckConstraint("(fingerprint IS NULL) = (kind = 'void')", name="ck_receipts_fingerprint"),
        sa.CheckConstraint("(problem IS NULL) = (outcome = 'committed')", name="ck_receipts_problem"),
        sa.CheckConstraint("outcome IN ('committed', 'rejected', 'voided')", name="ck_receipts_outcome"),
        sa.PrimaryKeyConstraint("tenant", "sequence", name="pk_receipts"),
        sa.UniqueConstraint("tenant", "key", name="uq_receipts_tenant_key"),
    )
    op.create_index("ix_receipts_tenant_reference_sequence", "receipts", ["tenant", "reference", "sequence"])
    op.create_table(
        "stock",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("available", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.Column("consumed", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("received = available + held + consumed", name="ck_stock_balanced"),
        sa.CheckConstraint(
            "received >= 0 AND available >= 0 AND held >= 0 AND consumed >= 0", name="ck_stock_not_negative"
        ),
        sa.PrimaryKeyConstraint("tenant", "sku", name="pk_stock"),
    )
    op.create_table(
        "keys",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["tenant", "key"],
            ["receipts.tenant", "receipts.key"],
            name="fk_keys_receipts",
            initially="DEFERRED",
            deferrable=True,
        ),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_keys"),
    )
    op.create_table(
        "movements",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("available", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.Column("consumed", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("reservation_id", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.CheckConstraint("kind IN ('delivery', 'reserve', 'release')", name="ck_movements_kind"),
        sa.CheckConstraint("received = available + held + consumed", name="ck_movements_balanced"),
        sa.CheckConstraint("version > 0 AND quantity > 0", name="ck_movements_positive"),
        sa.ForeignKeyConstraint(
            ["tenant", "sequence"], ["receipts.tenant", "receipts.sequence"], name="fk_movements_receipts"
        ),
        sa.ForeignKeyConstraint(["tenant", "sku"], ["stock.tenant", "stock.sku"], name="fk_movements_stock"),
        sa.PrimaryKeyConstraint("tenant", "sku", "version", name="pk_movements"),
        sa.UniqueConstraint("tenant", "sequence", "sku", name="uq_movements_tenant_sequence_sku"),
    )
    op.create_table(
        "receipt_lines",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("requested", sa.BigInteger(), nullable=False),
        sa.Column("granted", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "requested > 0 AND granted >= 0 AND granted <= requested", name="ck_receipt_lines_quantities"
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "sequence"], ["receipts.tenant", "receipts.sequence"], name="fk_receipt_lines_receipts"
        ),
        sa.PrimaryKeyConstraint("tenant", "sku", "sequence", name="pk_receipt_lines"),
    )
    op.create_table(
        "reservations",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("reservation_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reserved_by", sa.BigInteger(), nullable=False),
        sa.Column("released_by", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("(released_by IS NULL) = (state = 'consumed')", name="ck_reservations_released_by"),
        sa.CheckConstraint("state IN ('consumed', 'released')", name="ck_reservations_state"),
        sa.ForeignKeyConstraint(
            ["tenant", "released_by"],
            ["receipts.tenant", "receipts.sequence"],
            name="fk_reservations_receipts_released_by",
        ),
        sa.ForeignKeyConstraint(
            ["tenant", "reserved_by"],
            ["receipts.tenant", "receipts.sequence"],
            name="fk_reservations_receipts_reserved_by",
        ),
        sa.PrimaryKeyConstraint("tenant", "reservation_id", name="pk_reservations"),
        sa.UniqueConstraint("tenant", "reserved_by", name="uq_reservations_tenant_reserved_by"),
    )
    op.create_table(
        "reservation_lines",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("reservation_id", sa.Text(), nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("quantity > 0", name="ck_reservation_lines_quantity"),
        sa.ForeignKeyConstraint(
            ["tenant", "reservation_id"],
            ["reservations.tenant", "reservations.reservation_id"],
            name="fk_reservation_lines_reservations",
        ),
        sa.PrimaryKeyConstraint("tenant", "reservation_id", "sku", name="pk_reservation_lines"),
    )


def downgrade() -> None:
    op.drop_table("reservation_lines")
    op.drop_table("reservations")
    op.drop_table("receipt_lines")
    op.drop_table("movements")
    op.drop_table("keys")
    op.drop_table("stock")
    op.drop_index("ix_receipts_tenant_reference_sequence", "receipts")
    op.drop_table("receipts")
    op.drop_table("counters")
