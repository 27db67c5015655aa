"""The statements that every effect runs, each built once.

SQLAlchemy finds a statement's compiled form by a key that it computes from the statement's parts, once for each object.
Built anew for each call, these cost a third of the CPU that the journal takes for an effect. `of_...` are parameters.
"""

import sqlalchemy as sa

from services.journal.tables import DECISIONS, EFFECTS, ENTRIES

EFFECT = sa.select(EFFECTS).where(EFFECTS.c.key == sa.bindparam("of_key"))
EFFECT_LOCKED = EFFECT.with_for_update()

# An effect in every generation, with its release.
EFFECTS_RELATED = sa.select(EFFECTS).where(
    EFFECTS.c.origin == sa.bindparam("of_origin"),
    EFFECTS.c.scope == sa.bindparam("of_scope"),
    sa.or_(EFFECTS.c.name == sa.bindparam("of_name"), EFFECTS.c.name == sa.bindparam("of_release")),
)

# What forbids a name another mark: the highest generation that was decided, and whether an alarm stands in any.
_OF_NAME: dict[str, sa.BindParameter[str]] = {name: sa.bindparam(f"of_{name}") for name in ("origin", "scope", "name")}
HIGHEST_DECIDED = sa.select(sa.func.max(DECISIONS.c.generation)).where(
    *(DECISIONS.c[name] == value for name, value in _OF_NAME.items())
)
BARS = sa.select(
    HIGHEST_DECIDED.scalar_subquery(),
    sa.exists().where(*(EFFECTS.c[name] == value for name, value in _OF_NAME.items()), EFFECTS.c.alarmed.is_(True)),
)

# The guarded update: it lands only on the version that its writer has read.
EFFECT_CHANGED = (
    sa.update(EFFECTS)
    .where(EFFECTS.c.key == sa.bindparam("of_key"), EFFECTS.c.version == sa.bindparam("of_version"))
    .returning(EFFECTS)
)

ENTRIES_OF_KEY = sa.select(ENTRIES).where(ENTRIES.c.key == sa.bindparam("of_key")).order_by(ENTRIES.c.id)
# RETURNING makes one statement of many rows, in their order. Without it psycopg sends many in a pipeline, after which
# PostgreSQL does not end the transaction of a client that is frozen (measured: no idle-in-transaction time-out then).
ENTRY_APPENDED = sa.insert(ENTRIES).returning(ENTRIES.c.id, sort_by_parameter_order=True)
