"""What an operator needs: how an effect's workflow ended, and whether a person has taken responsibility for the effect.

Revision: journal_0003, after journal_0002.
"""

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


def downgrade() -> None:
    op.drop_index("ix_effects_alarmed", table_name="effects")
    op.drop_index("ix_effects_state", table_name="effects")
    op.drop_index("ix_effects_left", table_name="effects")
    op.drop_index("ix_effects_watched", table_name="effects")
    op.drop_column("effects", "accepted")
    op.drop_column("effects", "closed_as")
