"""Seals, and the lock by which a sealer knows that no entry below its upper id is still to come.

Revision: journal_0002, after journal_0001.
"""

import sqlalchemy as sa
from alembic import op

from services.database import UtcDateTime

revision = "journal_0002"
down_revision = "journal_0001"
branch_labels = None
depends_on = None

# The same number as in services.journal.seals; a migration never changes, so it has its own.
SEAL_LOCK = 0x636F756E74


def upgrade() -> None:
    op.create_table(
        "seals",
        sa.Column("number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=False),
        sa.Column("upto_id", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("previous", sa.String(64), nullable=False),
        sa.Column("leaves", sa.LargeBinary(), nullable=False),
        sa.Column("sealed_at", UtcDateTime(), nullable=False),
        sa.Column("sealed_by", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.CheckConstraint("number >= 1", name=op.f("ck_seals_number")),
        sa.PrimaryKeyConstraint("number", name="pk_seals"),
    )
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER seals_no_{verb.lower()} BEFORE {verb} ON seals "
                "BEGIN SELECT RAISE(ABORT, 'seals is append-only'); END"
            )
        # As for decisions: REPLACE cannot be told from the DO NOTHING of a second sealer, and the first one stands.
        op.execute(
            "CREATE TRIGGER seals_first_wins BEFORE INSERT ON seals "
            "WHEN EXISTS (SELECT 1 FROM seals WHERE number = NEW.number) BEGIN SELECT RAISE(IGNORE); END"
        )
        return
    op.execute(
        "CREATE TRIGGER seals_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON seals "
        "FOR EACH STATEMENT EXECUTE FUNCTION append_only()"
    )
    # Before the statement runs, so before an id is taken from the sequence; held until the entry can be seen.
    op.execute(
        "CREATE FUNCTION writing_entries() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_advisory_xact_lock_shared({SEAL_LOCK}); RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER entries_before_seal BEFORE INSERT ON entries "
        "FOR EACH STATEMENT EXECUTE FUNCTION writing_entries()"
    )


def downgrade() -> None:
    op.drop_table("seals")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP TRIGGER entries_before_seal ON entries")
        op.execute("DROP FUNCTION writing_entries()")
