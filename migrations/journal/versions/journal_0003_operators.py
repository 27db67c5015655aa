"""What an operator needs: how an effect's workflow ended, and whether a person has taken responsibility for the effect.

Revision: journal_0003, after journal_0002.
"""

import json

import sqlalchemy as sa
from alembic import op

revision = "journal_0003"
down_revision = "journal_0002"
branch_labels = None
depends_on = None

WATCHED = "state = 'committed' AND {accepted} AND (closed_as IS NULL OR closed_as != 'completed')"
LEFT = "state = 'committed' AND {accepted} AND closed_as IS NOT NULL AND closed_as != 'completed'"


def upgrade() -> None:
    op.add_column("effects", sa.Column("closed_as", sa.String(16), nullable=True))
    op.add_column("effects", sa.Column("accepted", sa.Boolean(), nullable=False, server_default=sa.false()))
    _fold()
    op.create_index(
        "ix_effects_watched",
        "effects",
        ["key"],
        sqlite_where=sa.text(WATCHED.format(accepted="accepted IS 0")),
        postgresql_where=sa.text(WATCHED.format(accepted="accepted IS false")),
    )
    op.create_index(
        "ix_effects_left",
        "effects",
        ["key"],
        sqlite_where=sa.text(LEFT.format(accepted="accepted IS 0")),
        postgresql_where=sa.text(LEFT.format(accepted="accepted IS false")),
    )
    op.create_index("ix_effects_state", "effects", ["state"])
    op.create_index(
        "ix_effects_alarmed",
        "effects",
        ["key"],
        sqlite_where=sa.text("alarmed IS 1"),
        postgresql_where=sa.text("alarmed IS true"),
    )


def _fold() -> None:
    """Say in the rows what entries say already: those of a journal that was at this schema before.

    A row that is not the fold of its entries would count as tampered with.
    """
    connection = op.get_bind()
    entries = sa.table("entries", sa.column("id"), sa.column("key"), sa.column("kind"), sa.column("body"))
    effects = sa.table("effects", sa.column("key"), sa.column("closed_as"), sa.column("accepted", sa.Boolean()))
    told = (
        sa.select(entries.c.key, entries.c.body)
        .where(
            entries.c.kind.in_(("observation", "resolution")),
            sa.or_(entries.c.body.like('%"closed_as":%'), entries.c.body.like('%"ruling":"accepted"%')),
        )
        .order_by(entries.c.id)
    )
    known: dict[str, dict[str, object]] = {}
    for key, text in connection.execute(told):
        body = json.loads(text)
        if "closed_as" in body:
            known.setdefault(key, {})["closed_as"] = body["closed_as"]
        elif body.get("ruling") == "accepted":
            known.setdefault(key, {})["accepted"] = True
    for key, values in known.items():
        connection.execute(sa.update(effects).where(effects.c.key == key).values(values))


def downgrade() -> None:
    op.drop_index("ix_effects_alarmed", table_name="effects")
    op.drop_index("ix_effects_state", table_name="effects")
    op.drop_index("ix_effects_left", table_name="effects")
    op.drop_index("ix_effects_watched", table_name="effects")
    op.drop_column("effects", "accepted")
    op.drop_column("effects", "closed_as")
