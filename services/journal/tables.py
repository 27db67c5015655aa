"""The journal's tables, for SQLite and PostgreSQL alike.

- `entries`, `decisions` and `seals` are append-only: triggers refuse UPDATE, DELETE and REPLACE (see the migrations).
- A row of `effects` is the fold of its key's entries; both change in one transaction.
- A worker's role on PostgreSQL may append everywhere, update `effects`, and nothing else (`services.privileges`).
"""

import sqlalchemy as sa

from services.database import UtcDateTime
from services.privileges import may

METADATA = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# One row: 128 random bits, written once by the migration; a copy of the journal has the same.
JOURNAL = sa.Table(
    "journal",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("created_at", UtcDateTime, nullable=False),
    info=may("SELECT"),
)

# The first one wins, by its primary key.
DECISIONS = sa.Table(
    "decisions",
    METADATA,
    sa.Column("origin", sa.String(128), primary_key=True),
    sa.Column("scope", sa.String(128), primary_key=True),
    sa.Column("name", sa.String(128), primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("decided_at", UtcDateTime, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # canonical JSON
    sa.Column("recorded_at", UtcDateTime, nullable=False),
    sa.Column("recorded_by", sa.Text, nullable=False),
    sa.CheckConstraint("generation BETWEEN 1 AND 17", name="generation"),
    sqlite_with_rowid=False,  # a hidden row number would be a second key, by which a row could be replaced
)

EFFECTS = sa.Table(
    "effects",
    METADATA,
    sa.Column("key", sa.String(128), primary_key=True),
    sa.Column("origin", sa.String(128), nullable=False),
    sa.Column("scope", sa.String(128), nullable=False),
    sa.Column("name", sa.String(128), nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("kind", sa.String(64), nullable=False),
    sa.Column("provider", sa.String(64), nullable=False),
    sa.Column("path", sa.Text, nullable=False),  # canonical JSON
    sa.Column("request", sa.Text, nullable=False),  # canonical JSON: the bytes that are sent
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("fingerprint_version", sa.String(16), nullable=False),
    sa.Column("supersedes", sa.Text, nullable=False),  # canonical JSON
    sa.Column("decided_at", UtcDateTime, nullable=False),  # only ever lowered
    sa.Column("last_not_after", UtcDateTime),  # the latest ever marked
    sa.Column("born_by", sa.String(16), nullable=False),
    sa.Column("given_up", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("alarmed", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("workflow_id", sa.Text, nullable=False),
    sa.Column("workflow_type", sa.Text, nullable=False),
    sa.Column("first_run_id", sa.Text, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("settled_at", UtcDateTime),
    sa.Column("receipt", sa.Text),  # canonical JSON, as it settled the effect; null where a person asserted the end
    sa.Column("closed_as", sa.String(16)),  # how its workflow ended, once that was seen
    sa.Column("accepted", sa.Boolean(create_constraint=False), nullable=False, server_default=sa.false()),
    sa.UniqueConstraint("origin", "scope", "name", "generation"),
    sa.CheckConstraint("state IN ('pending', 'in_doubt', 'committed', 'rejected', 'voided')", name="state"),
    sa.CheckConstraint("born_by IN ('attempt', 'recovery')", name="born_by"),
    sa.CheckConstraint(
        "(settled_at IS NOT NULL) = (state IN ('committed', 'rejected', 'voided'))", name="settled_when_terminal"
    ),
    info=may("SELECT", "INSERT", "UPDATE"),
)
# What is unsettled is found in the same time whatever the journal's size.
sa.Index(
    "ix_effects_unsettled",
    EFFECTS.c.key,
    sqlite_where=EFFECTS.c.settled_at.is_(None),
    postgresql_where=EFFECTS.c.settled_at.is_(None),
)
# What stands for a workflow that is open, or that ended otherwise than Completed; of the rest nobody has to take care.
WATCHED = sa.and_(
    EFFECTS.c.state == "committed",
    EFFECTS.c.accepted.is_(False),
    sa.or_(EFFECTS.c.closed_as.is_(None), EFFECTS.c.closed_as != "completed"),
)
sa.Index("ix_effects_watched", EFFECTS.c.key, sqlite_where=WATCHED, postgresql_where=WATCHED)
# Of these, what an ended workflow has left: every worker looks for it, however many are open.
LEFT = sa.and_(
    EFFECTS.c.state == "committed",
    EFFECTS.c.accepted.is_(False),
    EFFECTS.c.closed_as.is_not(None),
    EFFECTS.c.closed_as != "completed",
)
sa.Index("ix_effects_left", EFFECTS.c.key, sqlite_where=LEFT, postgresql_where=LEFT)
# Every worker counts them, again and again; rows are wide, and a count of this reads none.
sa.Index("ix_effects_state", EFFECTS.c.state)
# A late observation that nobody has dealt with: every worker looks for them, again and again.
sa.Index(
    "ix_effects_alarmed",
    EFFECTS.c.key,
    sqlite_where=EFFECTS.c.alarmed.is_(True),
    postgresql_where=EFFECTS.c.alarmed.is_(True),
)

ENTRIES = sa.Table(
    "entries",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("key", sa.String(128), nullable=False),
    sa.Column("kind", sa.String(32), nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # canonical JSON
    sa.Column("recorded_at", UtcDateTime, nullable=False),
    sa.Column("recorded_by", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.CheckConstraint(
        "kind IN ('decision', 'intent', 'attempt', 'observation', 'given_up', 'resolution', "
        "'late_observation', 'hold')",
        name="kind",
    ),
    sa.Index("ix_entries_key_id", "key", "id"),
    sqlite_autoincrement=True,  # an id is never used twice, not even after the newest entry was cut off
)

# Digests that chain the entries, in the order of their ids; written and read by services.journal.seals.
SEALS = sa.Table(
    "seals",
    METADATA,
    sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("upto_id", sa.BigInteger, nullable=False),  # the last entry it covers
    sa.Column("count", sa.Integer, nullable=False),  # of the entries it covers: ids may have gaps
    sa.Column("previous", sa.String(64), nullable=False),  # the digest of the seal before it; empty in the first
    sa.Column("leaves", sa.LargeBinary, nullable=False),  # of each entry its id, 8 bytes, and its digest, 32 bytes
    sa.Column("sealed_at", UtcDateTime, nullable=False),
    sa.Column("sealed_by", sa.Text, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.CheckConstraint("number >= 1", name="number"),
)
