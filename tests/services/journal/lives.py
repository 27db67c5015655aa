"""A journal with every kind of entry in it, sealed in small pages, and the hands that damage it."""

import sqlalchemy as sa

from services.effects.records import Seen, Source
from services.effects.states import EffectState
from services.journal.rows import entry_digest
from services.journal.seals import Watermark, pack_leaves, seal, seal_digest, watermark
from services.journal.store import Journal
from services.journal.tables import ENTRIES, JOURNAL, SEALS
from tests.services.effects.halves import make_answer, make_intent, make_mark, make_receipt, shows
from tests.services.journal.conftest import Clock

ENTRIES_PER_SEAL = 5


def live(engine: sa.Engine, *scopes: str) -> None:
    """Three effects in each scope: settled at once, given up in doubt, and settled with a late contradiction."""
    journal = Journal(engine, recorded_by="test", clock=Clock())
    for scope in scopes:
        done, doubted, contradicted = (make_intent(scope=scope, name=name) for name in ("done", "doubted", "late"))
        for intent in (done, doubted, contradicted):
            journal.begin(intent, make_mark(f"{scope}-{intent.name}"))
        journal.observe(done.key, shows(make_receipt(done)), attempt_id=f"{scope}-done")
        journal.observe(doubted.key, make_answer(Seen.KEY_REUSED), attempt_id=f"{scope}-doubted")
        journal.give_up(doubted, why="cancelled")
        journal.observe(contradicted.key, shows(make_receipt(contradicted)), attempt_id=f"{scope}-late")
        journal.observe(contradicted.key, shows(make_receipt(contradicted, EffectState.VOIDED), Source.LOOK_UP))


def leave_a_gap(engine: sa.Engine) -> None:
    """Let ids be lost, as a transaction that was rolled back leaves them on PostgreSQL."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("UPDATE sqlite_sequence SET seq = seq + 3 WHERE name = 'entries'")
        else:
            connection.exec_driver_sql("SELECT setval('entries_id_seq', nextval('entries_id_seq') + 2)")


def sealed_lives(engine: sa.Engine) -> Watermark:
    """28 entries in six seals, with a gap of three ids after the first fourteen; how far it has come."""
    live(engine, "INC-1")
    leave_a_gap(engine)
    live(engine, "INC-2")
    seal(engine, sealed_by="test", entries_per_seal=ENTRIES_PER_SEAL)
    return watermark(engine)


def disarm(engine: sa.Engine) -> None:
    """Take the triggers away, as whoever owns the tables can."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            names = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'trigger'").scalars().all()
            for name in names:
                connection.exec_driver_sql(f"DROP TRIGGER {name}")
        else:
            for table in ("entries", "decisions", "seals"):
                connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER USER")


def reword(connection: sa.Connection, id_: int, body: str) -> None:
    """Change an entry's body, and its digest with it."""
    entry = connection.execute(sa.select(ENTRIES).where(ENTRIES.c.id == id_)).mappings().one()
    digest = entry_digest(entry["key"], entry["kind"], body, entry["recorded_at"], entry["recorded_by"])
    connection.execute(sa.update(ENTRIES).where(ENTRIES.c.id == id_).values(body=body, digest=digest))


def reseal(connection: sa.Connection, *, first: int, last: int) -> None:
    """Compute these seals anew from the entries as they are now, each after the one before it."""
    journal_id = connection.execute(sa.select(JOURNAL.c.id)).scalar_one()
    seals = {row["number"]: dict(row) for row in connection.execute(sa.select(SEALS)).mappings()}
    for number in range(first, last + 1):
        after = seals[number - 1]["upto_id"] if number > 1 else 0
        covered = sa.select(ENTRIES.c.id, ENTRIES.c.digest).where(
            ENTRIES.c.id > after, ENTRIES.c.id <= seals[number]["upto_id"]
        )
        leaves = [(id_, digest) for id_, digest in connection.execute(covered.order_by(ENTRIES.c.id))]
        values = seals[number] | {"leaves": pack_leaves(leaves), "count": len(leaves)}
        values["previous"] = seals[number - 1]["digest"] if number > 1 else ""
        values["digest"] = seal_digest(journal_id, **{name: values[name] for name in values if name != "digest"})
        seals[number] = values
        connection.execute(sa.update(SEALS).where(SEALS.c.number == number).values(**values))
