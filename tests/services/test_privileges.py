"""What a process's role may do on a real PostgreSQL: the store's whole work, and no change of what is written."""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
from psycopg import sql

from services.database import DatabaseError, Section, check_schema, open_engine
from services.effects.states import EffectState
from services.inventory.tables import METADATA as INVENTORY
from services.journal.store import Journal
from services.journal.tables import METADATA as JOURNAL
from services.privileges import grant, privileges, require_grantable
from tests.postgres import Databases
from tests.services.effects.halves import DECIDED_AT, make_intent, make_mark, make_receipt, shows
from tests.services.inventory.conftest import Caller, connect, running

TABLES: dict[Section, sa.MetaData] = {"journal": JOURNAL, "inventory": INVENTORY}
PASSWORD = "correct-horse"  # noqa: S105 - of a role that lives as long as its test
_numbers = itertools.count(1)


@dataclass
class Role:
    """An ordinary role, and the databases in which it was granted something."""

    databases: Databases
    name: str
    granted_in: list[str] = field(default_factory=list)

    def granted(self, section: Section) -> tuple[str, str]:
        """A migrated database in which the role may work: its URL as the owner and as the role."""
        url = self.databases.migrated(section)
        self.granted_in.append(url)
        grant(url, TABLES[section], self.name)
        return url, sa.make_url(url).set(username=self.name, password=PASSWORD).render_as_string(hide_password=False)


@pytest.fixture
def role(postgres: Databases) -> Iterator[Role]:
    """This test's role."""
    name = sql.Identifier(f"counterfoil_test_{os.getpid()}_role_{next(_numbers)}")
    with postgres.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, PASSWORD))
    role = Role(postgres, name.as_string().strip('"'))
    yield role
    for url in role.granted_in:
        with postgres.connect(url) as connection:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(name))
    with postgres.connect() as connection:
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


def test_a_worker_does_all_its_work_in_its_role(role: Role) -> None:
    """Begin, mark, own, observe, give up, decide and read: nothing of it needs more."""
    _, url = role.granted("journal")
    engine = open_engine(url)
    try:
        check_schema("journal", engine)
        journal = Journal(engine, recorded_by="test", clock=lambda: DECIDED_AT)
        intent, other = make_intent(), make_intent(name="reserve-other")
        journal.begin(intent, make_mark("attempt-1"))
        assert journal.mark(intent, make_mark("attempt-2")).attempt is not None
        settled = journal.observe(intent.key, shows(make_receipt(intent)), attempt_id="attempt-2")
        assert settled.row.state is EffectState.COMMITTED
        late = shows(make_receipt(intent, EffectState.REJECTED))
        assert journal.observe(intent.key, late, attempt_id="attempt-1").row.alarmed
        journal.own(other)
        assert journal.give_up(other, why="cancelled").given_up
        decision, first = journal.record_decision(
            origin="demo", scope="INC-2041", name="approval", decided_at=DECIDED_AT, body={"by": "ada"}
        )
        again, second = journal.record_decision(
            origin="demo", scope="INC-2041", name="approval", decided_at=DECIDED_AT, body={"by": "bob"}
        )
        assert (first, second, again) == (True, False, decision)
        assert len(journal.snapshot().effects) == 2
        assert journal.journal_id()
    finally:
        engine.dispose()


def test_the_inventory_does_all_its_work_in_its_role(role: Role) -> None:
    """Deliver, reserve, replay, release, void, read."""
    _, url = role.granted("inventory")
    with running(url, {"token-1": "tenant-1"}) as service, connect(service.url, "token-1") as http:
        caller = Caller(http)
        assert caller.deliver().status_code == 201
        reserved = caller.reserve(key="reserve-key-00000001-g1")
        assert caller.reserve(key="reserve-key-00000001-g1").json() == reserved.json()
        assert caller.release(reserved.json()["reservation_id"]).is_success
        assert caller.void("another-key-00000001-g1").is_success
        assert caller.available() == 10
        assert len(caller.ledger()) == 3


CHANGES = [
    "UPDATE entries SET body = '{}'",
    "DELETE FROM entries",
    "TRUNCATE entries",
    "UPDATE decisions SET body = '{}'",
    "DELETE FROM decisions",
    "DELETE FROM effects",
    "TRUNCATE effects",
    "UPDATE journal SET id = 'another'",
    "INSERT INTO journal (id, created_at) VALUES ('another', now())",
    "UPDATE alembic_version SET version_num = 'x'",
    "SELECT setval('entries_id_seq', 1)",
    "ALTER TABLE entries DISABLE TRIGGER ALL",
    "DROP TRIGGER entries_append_only ON entries",
    "SET session_replication_role = replica",
    "CREATE OR REPLACE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$",
    "DROP TABLE entries",
    "ALTER TABLE entries RENAME TO old_entries",
    "CREATE TABLE mine (x int)",
]


def test_a_worker_changes_nothing_that_is_written(role: Role) -> None:
    """Not by a statement, and not by switching off the triggers first: permission denied, or not the owner."""
    owner_url, url = role.granted("journal")
    engine = open_engine(owner_url)
    Journal(engine, recorded_by="test", clock=lambda: DECIDED_AT).begin(make_intent(), make_mark("attempt-1"))
    engine.dispose()
    with role.databases.connect(url) as connection:
        before = connection.execute("SELECT * FROM entries ORDER BY id").fetchall()
        assert len(before) == 3
        for change in CHANGES:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(change)
        assert connection.execute("SELECT * FROM entries ORDER BY id").fetchall() == before


def test_what_was_granted_before_is_taken_back(role: Role) -> None:
    """Granting again is how a role that may too much comes to what it needs; and it may be repeated."""
    owner_url, url = role.granted("journal")
    with role.databases.connect(owner_url) as owner, role.databases.connect(url) as worker:
        owner.execute(sql.SQL("GRANT ALL ON ALL TABLES IN SCHEMA public TO {}").format(sql.Identifier(role.name)))
        may_delete = sql.SQL("SELECT has_table_privilege('effects', 'DELETE')")
        assert worker.execute(may_delete).fetchone() == (True,)
        assert grant(owner_url, JOURNAL, role.name) == grant(owner_url, JOURNAL, role.name) == privileges(JOURNAL)
        assert worker.execute(may_delete).fetchone() == (False,)


def test_a_process_updates_rows_of_these_tables_only() -> None:
    """Everything else is append-only to it, a table that is added tomorrow too; of receipts only the body may go."""
    updated = {table for each in TABLES.values() for table, verbs in privileges(each).items() if "UPDATE" in verbs}
    assert updated == {"effects", "counters", "stock", "reservations", "digests", "receipts"}
    assert not {verb for each in TABLES.values() for verbs in privileges(each).values() for verb in verbs} - {
        "SELECT", "INSERT", "UPDATE"
    }  # fmt: skip


def test_a_role_that_nothing_can_be_kept_from_is_refused(role: Role) -> None:
    """A superuser, or who may become the owner: its grants would look like a guard and be none."""
    url = role.databases.migrated("journal")
    with role.databases.connect(url) as connection:
        owner = connection.info.user
        grant_owner, revoke_owner = (
            sql.SQL(text).format(sql.Identifier(owner), sql.Identifier(role.name))
            for text in ("GRANT {} TO {}", "REVOKE {} FROM {}")
        )
        connection.execute(grant_owner)
        with pytest.raises(DatabaseError, match=r"nothing could be kept from it\. Nothing was changed"):
            require_grantable(url, role.name)
        connection.execute(revoke_owner)
    require_grantable(url, role.name)
    with pytest.raises(DatabaseError, match="nothing could be kept from it"):
        require_grantable(url, owner)


def test_the_owner_of_the_database_is_refused_when_another_owns_the_tables(role: Role) -> None:
    """The database's owner owns the schema `public`, and whoever owns a schema may drop every table in it."""
    url = role.databases.migrated("journal")
    with role.databases.connect(url) as connection:
        database = sql.Identifier(connection.info.dbname)
        connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(database, sql.Identifier(role.name)))
        try:
            with pytest.raises(DatabaseError, match=r"nothing could be kept from it\. Nothing was changed"):
                grant(url, JOURNAL, role.name)
        finally:
            owner = sql.Identifier(connection.info.user)
            connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(database, owner))
    grant(url, JOURNAL, role.name)
    role.granted_in.append(url)


def test_a_role_that_has_more_from_another_role_is_refused(role: Role) -> None:
    """What is taken back is what was granted to the role itself; what it inherits would stay."""
    url = role.databases.migrated("journal")
    with role.databases.connect(url) as connection:
        connection.execute(sql.SQL("GRANT pg_write_all_data TO {}").format(sql.Identifier(role.name)))
        with pytest.raises(DatabaseError, match=r"DELETE.*Nothing was changed"):
            grant(url, JOURNAL, role.name)
        connection.execute(sql.SQL("REVOKE pg_write_all_data FROM {}").format(sql.Identifier(role.name)))
        connection.execute("GRANT DELETE ON effects TO PUBLIC")
        with pytest.raises(DatabaseError, match=r"DELETE.*effects.*Nothing was changed"):
            grant(url, JOURNAL, role.name)
        may_read = connection.execute("SELECT has_table_privilege(%s, 'entries', 'SELECT')", [role.name])
        assert may_read.fetchone() == (False,)


def test_a_role_that_is_not_there_is_named(role: Role) -> None:
    """It is made by whoever gives it its password."""
    with pytest.raises(
        DatabaseError, match=r"no role nobody-of-that-name\. Nothing was changed\. Make it: CREATE ROLE"
    ):
        require_grantable(role.databases.empty(), "nobody-of-that-name")


def test_sqlite_has_no_roles(tmp_path: Path) -> None:
    """It is said before anything is migrated, and no file is made."""
    with pytest.raises(DatabaseError, match=r"has no roles.*Nothing was changed"):
        require_grantable(f"sqlite:///{tmp_path}/journal.db", "worker")
    assert list(tmp_path.iterdir()) == []
