"""The journal's first form: decisions, effects, append-only entries.

Revision: journal_0001, after nothing.
"""

import secrets
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

from services.database import UtcDateTime

revision = "journal_0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = ("entries", "decisions")


def upgrade() -> None:
    journal = op.create_table(
        "journal",
        sa.Column("id", sa.String(32), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_journal"),
    )
    op.bulk_insert(journal, [{"id": secrets.token_hex(16), "created_at": datetime.now(UTC)}])
    op.create_table(
        "decisions",
        sa.Column("origin", sa.String(128), nullable=False),
        sa.Column("scope", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("decided_at", UtcDateTime(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.Column("recorded_by", sa.Text(), nullable=False),
        sa.CheckConstraint("generation BETWEEN 1 AND 17", name=op.f("ck_decisions_generation")),
        sa.PrimaryKeyConstraint("origin", "scope", "name", "generation", name="pk_decisions"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "effects",
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("origin", sa.String(128), nullable=False),
        sa.Column("scope", sa.String(128), nullable=False),
        sa.Column("name", sa.String(128), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(64), nullable=False),
        sa.Column("provider", sa.String(64), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("fingerprint_version", sa.String(16), nullable=False),
        sa.Column("supersedes", sa.Text(), nullable=False),
        sa.Column("decided_at", UtcDateTime(), nullable=False),
        sa.Column("last_not_after", UtcDateTime()),
        sa.Column("born_by", sa.String(16), nullable=False),
        sa.Column("given_up", sa.Boolean(), nullable=False),
        sa.Column("alarmed", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("workflow_type", sa.Text(), nullable=False),
        sa.Column("first_run_id", sa.Text(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("settled_at", UtcDateTime()),
        sa.Column("receipt", sa.Text()),
        sa.CheckConstraint(
            "state IN ('pending', 'in_doubt', 'committed', 'rejected', 'voided')", name=op.f("ck_effects_state")
        ),
        sa.CheckConstraint("born_by IN ('attempt', 'recovery')", name=op.f("ck_effects_born_by")),
        sa.CheckConstraint(
            "(settled_at IS NOT NULL) = (state IN ('committed', 'rejected', 'voided'))",
            name=op.f("ck_effects_settled_when_terminal"),
        ),
        sa.PrimaryKeyConstraint("key", name="pk_effects"),
        sa.UniqueConstraint(
            "origin", "scope", "name", "generation", name=op.f("uq_effects_origin_scope_name_generation")
        ),
    )
    op.create_index(
        "ix_effects_unsettled",
        "effects",
        ["key"],
        sqlite_where=sa.text("settled_at IS NULL"),
        postgresql_where=sa.text("settled_at IS NULL"),
    )
    op.create_table(
        "entries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False, autoincrement=True),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("recorded_at", UtcDateTime(), nullable=False),
        sa.Column("recorded_by", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.CheckConstraint(
            "kind IN ('decision', 'intent', 'attempt', 'observation', 'given_up', 'resolution', 'late_observation', "
            "'hold')",
            name=op.f("ck_entries_kind"),
        ),
        sa.PrimaryKeyConstraint("id", name="pk_entries"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_entries_key_id", "entries", ["key", "id"])
    for table in APPEND_ONLY:
        _refuse_changes(table)
    if op.get_bind().dialect.name == "sqlite":
        # INSERT OR REPLACE removes the old row without a DELETE trigger where recursive_triggers is off.
        op.execute(
            "CREATE TRIGGER entries_no_replace BEFORE INSERT ON entries "
            "WHEN EXISTS (SELECT 1 FROM entries WHERE id = NEW.id) "
            "BEGIN SELECT RAISE(ABORT, 'entries is append-only'); END"
        )
        # A trigger cannot tell REPLACE from DO NOTHING, and the latter is how the first decision wins. Both are passed
        # over without a word: the one that stands, stands.
        op.execute(
            "CREATE TRIGGER decisions_first_wins BEFORE INSERT ON decisions "
            "WHEN EXISTS (SELECT 1 FROM decisions WHERE origin = NEW.origin AND scope = NEW.scope "
            "AND name = NEW.name AND generation = NEW.generation) "
            "BEGIN SELECT RAISE(IGNORE); END"
        )


def _refuse_changes(table: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is append-only', TG_TABLE_NAME; END $$"
    )
    op.execute(
        f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION append_only()"
    )


def downgrade() -> None:
    for table in ("entries", "effects", "decisions", "journal"):
        op.drop_table(table)
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION append_only()")
