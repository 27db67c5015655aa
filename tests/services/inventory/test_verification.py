"""The verification: a whole life adds up, and whatever is changed behind the service's back does not."""

import shutil
import sqlite3
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.database import migrate, open_engine
from services.inventory.rules import Rule, queries
from services.inventory.tables import METADATA
from services.inventory.verification import TOLD, Verification, verify
from tests.postgres import Databases
from tests.services.inventory.conftest import Caller, Clock, connect, running

# Far behind the time at which the database's clock ends a hold of a second.
_TRIES = 10_000


def live(url: str) -> None:
    """Everything that a tenant can do, and a second tenant that does the same."""
    with running(url, {"token": "acme", "other": "globex"}) as service:
        for token in ("token", "other"):
            with connect(service.url, token) as http:
                caller = Caller(http)
                _live(caller, service.clock)


def _live(caller: Caller, clock: Clock) -> None:
    caller.deliver(10)
    caller.deliver(10, "FILTER-B")
    taken = caller.reserve(2, key="live-taken-000001").json()
    lines = [{"sku": sku, "quantity": 1} for sku in ("FILTER-A", "FILTER-B")]
    held = [caller.post("/v1/reservations", {"lines": lines, "hold_seconds": 3600}).json() for _ in range(3)]
    for reservation, verb in ((taken, "release"), (held[0], "confirm"), (held[1], "release")):
        path = f"/v1/reservations/{reservation['reservation_id']}/{verb}"
        assert caller.post(path, {}).status_code == 200
        assert caller.post(path, {}).json()["type"] == "/problems/invalid-transition"
    assert caller.reserve(99).status_code == 409
    assert caller.void("live-void-0000001").status_code == 200
    redo = caller.reserve(1, headers={"Effect-Supersedes": "live-never-000001, live-taken-000001"})
    assert redo.status_code == 201, redo.text
    assert caller.reserve(1, key="live-kept-0000001").status_code == 201
    assert caller.reserve(1, headers={"Effect-Supersedes": "live-kept-0000001"}).status_code == 409
    due = caller.post("/v1/reservations", {"lines": lines, "hold_seconds": 1}).json()
    clock.now += timedelta(seconds=2)  # SQLite's clock; PostgreSQL's goes by itself
    available = caller.available()
    assert any(caller.reserve(available + 1).status_code == 201 for _ in range(_TRIES))
    assert caller.http.get(f"/v1/reservations/{due['reservation_id']}").json()["state"] == "expired"


@pytest.fixture(scope="session")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database after a whole life."""
    file = tmp_path_factory.mktemp("lived") / "inventory.db"
    migrate("inventory", f"sqlite:///{file}")
    live(f"sqlite:///{file}")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return file


@pytest.fixture(scope="session")
def lived_on_postgres(postgres: Databases) -> str:
    """The same on PostgreSQL."""
    url = postgres.migrated("inventory")
    live(url)
    return url


@pytest.fixture
def url(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A copy of it, of the test's own."""
    if dialect == "sqlite":
        return f"sqlite:///{shutil.copy(request.getfixturevalue('lived'), tmp_path / 'inventory.db')}"
    postgres: Databases = request.getfixturevalue("postgres")
    return postgres._create(sa.make_url(request.getfixturevalue("lived_on_postgres")).database)


def verified(url: str, told_at_most: int = TOLD) -> Verification:
    """What the verification says."""
    engine = open_engine(url)
    try:
        return verify(engine, told_at_most=told_at_most)
    finally:
        engine.dispose()


def damage(url: str, *statements: str) -> None:
    """Change rows as somebody would who may do anything: no trigger, no constraint."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(str(sa.make_url(url).database), isolation_level=None)) as connection:
            for pragma in ("foreign_keys=OFF", "ignore_check_constraints=ON"):
                connection.execute(f"PRAGMA {pragma}")
            triggers = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for (name,) in triggers:
                connection.execute(f"DROP TRIGGER {name}")
            for statement in statements:
                assert connection.execute(statement).rowcount > 0, statement
        return
    with Databases(url).connect(url) as server:
        server.execute("SET session_replication_role = replica")
        for table in METADATA.tables:
            query = "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype IN ('c', 'u')"
            for (name,) in server.execute(query, (table,)).fetchall():
                server.execute(f'ALTER TABLE {table} DROP CONSTRAINT IF EXISTS "{name}" CASCADE'.encode())
        for statement in statements:
            assert server.execute(statement.encode()).rowcount > 0, statement


def test_a_whole_life_adds_up(url: str) -> None:
    """Deliveries, reservations, holds, confirms, releases, an expiry, rejections, a void and redos, of two tenants."""
    found = verified(url)
    assert (found.flaws, found.found) == ((), {})
    assert found.receipts > 40
    assert found.movements > 20


def test_an_empty_inventory_adds_up(database_url: str) -> None:
    """Nothing is nothing."""
    assert verified(database_url) == Verification(receipts=0, movements=0, flaws=(), found={})


_STUCK = "INSERT INTO keys (tenant, key) VALUES ('acme', 'live-stuck-{:06d}')"
_LINE = "INSERT INTO receipt_lines (tenant, sku, sequence, requested, granted) VALUES ('acme', 'FILTER-Z', 900, 1, 1)"
# Of each damage: what is said of it, and how it is done.
DAMAGES: tuple[tuple[str, str], ...] = (
    ("they are not 1..n,", "UPDATE receipts SET sequence = sequence + 900 WHERE key = 'live-void-0000001'"),
    ("they are not 1..n,", "UPDATE counters SET last_sequence = last_sequence - 1"),
    ("they are not as many as", "UPDATE counters SET last_reservation = last_reservation + 1"),
    ("the key is taken and has no receipt", _STUCK.format(1)),
    ("and the key is not taken", "DELETE FROM keys WHERE key = 'live-taken-000001'"),
    ("its balances do not add up", "UPDATE stock SET received = received + 1 WHERE sku = 'FILTER-A'"),
    ("its balances do not add up", "UPDATE stock SET available = -1, received = held + consumed - 1"),
    ("are not the sum of its movements", "UPDATE stock SET available = available + 1, received = received + 1"),
    ("there are movements, and no stock", "DELETE FROM stock WHERE sku = 'FILTER-B'"),
    ("its movements are not 1..n", "DELETE FROM movements WHERE key = 'live-taken-000001'"),
    ("its movements are not 1..n", "UPDATE movements SET version = version + 900 WHERE kind = 'expiry'"),
    ("not one that its receipt stands for", "UPDATE movements SET kind = 'hold' WHERE kind = 'reserve'"),
    ("not one that its receipt stands for", "UPDATE movements SET reservation_id = 'reservation-9' WHERE version = 2"),
    ("not one that its receipt stands for", "UPDATE movements SET quantity = 9 WHERE key = 'live-taken-000001'"),
    ("not one that its receipt stands for", "UPDATE movements SET sequence = 900 WHERE key = 'live-taken-000001'"),
    ("not one that its receipt stands for", "UPDATE movements SET key = 'live-other-000001' WHERE kind = 'release'"),
    ("a line of it has not moved", "UPDATE receipt_lines SET requested = requested + 1"),
    ("a line of it has not moved", "DELETE FROM movements WHERE kind = 'confirm'"),
    ("is of none of its lines", "DELETE FROM receipt_lines WHERE sku = 'FILTER-B'"),
    ("it was committed, and has no line", "DELETE FROM receipt_lines WHERE sequence = 3"),
    ("a line of no receipt", _LINE),
    (
        "and has moved something",
        "UPDATE movements SET sequence = (SELECT max(sequence) FROM receipts WHERE kind = 'void') WHERE version = 2",
    ),
    ("and grants something", "UPDATE receipt_lines SET granted = 1 WHERE granted = 0"),
    ("its reserved_by is no", "UPDATE reservations SET reserved_by = 1 WHERE reservation_id = 'reservation-1'"),
    ("its confirmed_by is no", "UPDATE reservations SET confirmed_by = 1 WHERE state = 'consumed'"),
    ("its released_by is no", "UPDATE reservations SET released_by = 900 WHERE state = 'released'"),
    ("its expired_by is no", "UPDATE reservations SET expired_by = released_by WHERE state = 'released'"),
    ("is no reservation's reserved_by", "DELETE FROM reservations WHERE reservation_id = 'reservation-1'"),
    ("is no reservation's confirmed_by", "UPDATE reservations SET confirmed_by = NULL WHERE state = 'consumed'"),
    ("is no reservation's released_by", "UPDATE reservations SET released_by = NULL WHERE state = 'released'"),
    ("is no reservation's expired_by", "UPDATE reservations SET expired_by = NULL WHERE state = 'expired'"),
    ("a line of it is not what was reserved", "UPDATE reservation_lines SET quantity = quantity + 1"),
    ("is in no line of its reservation", "DELETE FROM reservation_lines WHERE reservation_id = 'reservation-1'"),
    ("its movements are not where its state says", "UPDATE reservations SET state = 'consumed' WHERE state = 'held'"),
    (
        "its movements are not where its state says",
        "UPDATE reservations SET state = 'expired' WHERE state = 'consumed'",
    ),
    ("what is held is not the sum", "UPDATE stock SET held = held + 1, received = received + 1"),
    ("what is consumed is not the sum", "UPDATE stock SET consumed = consumed + 1, available = available - 1"),
    ("its text is not what was hashed", "UPDATE receipts SET receipt = replace(receipt, 'FILTER-A', 'FILTER-B')"),
    ("its text is not a receipt's", "UPDATE receipts SET receipt = 'nothing' WHERE kind = 'void'"),
    ("its text is not a receipt's", "UPDATE receipts SET problem = '[]' WHERE kind = 'void'"),
    ("though no retention took it", "UPDATE receipts SET receipt = NULL WHERE key = 'live-taken-000001'"),
    ("says something else than its row", "UPDATE receipts SET http_status = 299 WHERE key = 'live-taken-000001'"),
    ("carries another receipt", "UPDATE receipts SET problem = replace(problem, 'live-void', 'some-void')"),
    ("under another range than its key's", "UPDATE receipts SET key_range = 'zzzz' WHERE key = 'live-void-0000001'"),
    ("are not those of its", "UPDATE digests SET digest = '0' WHERE parent = ''"),
    ("are not those of its", "UPDATE receipts SET outcome = 'rejected' WHERE key = 'live-taken-000001'"),
    ("neither count nor digest", "DELETE FROM digests WHERE parent = ''"),
)


@pytest.mark.parametrize(("says", "statement"), DAMAGES, ids=[statement for _, statement in DAMAGES])
def test_what_was_changed_does_not_add_up(url: str, says: str, statement: str) -> None:
    """It is said what is wrong, whatever else that breaks."""
    damage(url, statement)
    assert [flaw for flaw in verified(url, told_at_most=10_000).flaws if says in flaw.says]


def test_each_query_finds_one_of_these_damages() -> None:
    """A query that finds nothing would guard nothing; that of two receipts of one key is tried below."""
    said = {says for says, _ in DAMAGES} | {"it has several receipts"}
    columns = [query.selected_columns[2] for _, query in queries()]
    sentences = [str(column.value) for column in columns if isinstance(column, sa.BindParameter)]
    assert len(sentences) == len(columns)
    assert not [sentence for sentence in sentences if not any(says in sentence for says in said)]


@pytest.mark.parametrize("dialect", ["postgresql"])
def test_two_receipts_of_one_key_are_found(url: str) -> None:
    """Not on SQLite, which lets nobody drop the constraint."""
    damage(url, "UPDATE receipts SET key = 'live-taken-000001' WHERE key = 'live-void-0000001'")
    assert "it has several receipts" in {flaw.says for flaw in verified(url).flaws}


def test_more_flaws_than_anybody_reads_are_counted(url: str) -> None:
    """The first are told one by one."""
    damage(url, *(_STUCK.format(number) for number in range(TOLD + 5)))
    found = verified(url)
    assert len(found.flaws) == TOLD
    assert found.found == {Rule.IN_PROGRESS: TOLD + 5}
