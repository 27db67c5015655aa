"""Records of the inventory's first revision go up whole, and down again where they fit; else nothing is changed."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import migrate, open_engine, writing
from services.inventory import digests
from services.inventory.housekeeping import Housekeeping
from services.inventory.stock import StockKeeper
from services.inventory.tables import DIGESTS, METADATA, RECEIPTS
from services.inventory.verification.run import verify
from tests.postgres import Databases
from tests.services.inventory.conftest import NOW, Caller, Service, connect, running
from tests.services.inventory.verification.workload import end_hold, redo

# One more than a page of the migration; a page holds the end of one tenant and the beginning of the other.
COUNTS = {"acme": 1001, "globex": 1001}
RECEIPTS_AT_FIRST = sa.table(
    "receipts",
    *(
        sa.column(column.name, column.type)
        for column in RECEIPTS.columns
        if column.name not in {"expired_at", "key_range"}
    ),
)

Rows = dict[str, list[tuple[Any, ...]]]


@pytest.fixture
def newest(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database at the newest revision, beside the one of `url`."""
    if dialect == "sqlite":
        url = f"sqlite:///{tmp_path / 'newest.db'}"
        migrate("inventory", url)
        return url
    postgres: Databases = request.getfixturevalue("postgres")
    return postgres.migrated("inventory")


@pytest.fixture
def service(newest: str) -> Iterator[Service]:
    """A service on it."""
    with running(newest, {"token-a": "acme", "token-b": "globex"}) as started:
        yield started


def first_revisions_work(caller: Caller, quantity: int) -> None:
    """All that the first revision could do."""
    sku = "FILTER-A"
    caller.deliver(quantity, sku)
    caller.deliver(5, "FILTER-B")
    lines = [{"sku": sku, "quantity": 2}, {"sku": "FILTER-B", "quantity": 1}]
    taken = caller.post("/v1/reservations", {"lines": lines, "reference": '{"scope":"INC-1"}'}).json()
    caller.release(taken["reservation_id"])
    caller.release(taken["reservation_id"])
    caller.reserve(1, sku)
    caller.reserve(1_000, sku)
    caller.reserve(1, "UNKNOWN")
    caller.void("closed-key-00000001")
    redo(caller, 1)


def read(url: str) -> Rows:
    """Every row of every table, in some order that is always the same."""
    engine = open_engine(url)
    with engine.connect() as connection:
        metadata = sa.MetaData()
        metadata.reflect(connection)
        rows = {
            name: sorted((tuple(row) for row in connection.execute(sa.select(table))), key=repr)
            for name, table in metadata.tables.items()
        }
    engine.dispose()
    return rows


def write_as_first_revision(source: str, target: str) -> None:
    """The source's rows in the columns that the first revision has."""
    from_engine, to_engine = open_engine(source), open_engine(target)
    metadata = sa.MetaData()
    with from_engine.connect() as reading, writing(to_engine) as connection:
        metadata.reflect(connection)
        for table in METADATA.sorted_tables:
            if table.name not in metadata.tables:
                continue
            old = metadata.tables[table.name]
            rows = [dict(row) for row in reading.execute(sa.select(*(table.c[c.name] for c in old.columns))).mappings()]
            columns = [table.c[column.name] for column in old.columns]
            target_table = sa.table(table.name, *(sa.column(column.name, column.type) for column in columns))
            if rows:
                connection.execute(target_table.insert(), rows)
    from_engine.dispose()
    to_engine.dispose()


def assert_clean(url: str) -> None:
    """All that is stored is what the contract says."""
    engine = open_engine(url)
    found = verify(engine)
    engine.dispose()
    assert found.violation is None, found.violation.sentence


def test_records_of_the_first_revision_go_up_whole_and_down_again(url: str, newest: str, service: Service) -> None:
    """Digests and ranges are those of a database that was always at this revision; verify is clean."""
    for token, tenant, quantity in (("token-a", "acme", 10), ("token-b", "globex", 20)):
        with connect(service.url, token) as http:
            caller = Caller(http, tenant)
            first_revisions_work(caller, quantity)
    migrate("inventory", url, "inventory_0001")
    write_as_first_revision(newest, url)
    before = read(url)
    assert len(before["receipts"]) > 20
    assert migrate("inventory", url) == "inventory_0002"
    assert_clean(url)
    assert read(url) == read(newest)
    assert migrate("inventory", url, "inventory_0001") == "inventory_0001"
    assert read(url) == before
    migrate("inventory", url)
    assert_clean(url)
    with running(url, {"token-a": "acme"}) as again, connect(again.url, "token-a") as http:
        caller = Caller(http)
        caller.post(
            "/v1/reservations",
            {"lines": [{"sku": "FILTER-A", "quantity": 1}], "hold_seconds": 60},
            "a-new-key-after-0001",
        )
        assert caller.receipt("closed-key-00000001").json()["outcome"] == "voided"
    assert_clean(url)


@pytest.mark.parametrize("what", ["hold", "confirmed", "expired", "released hold", "without its body"])
def test_what_the_first_revision_cannot_hold_is_refused_with_nothing_changed(
    newest: str, service: Service, what: str
) -> None:
    """By the old constraints, on the way down."""
    with connect(service.url, "token-a") as http:
        caller = Caller(http)
        caller.deliver()
        if what == "without its body":
            service.clock.now += timedelta(seconds=1)
            keeper = StockKeeper(service.engine, service.clock)
            Housekeeping(service.engine, keeper, service.clock, timedelta(0)).drop_expired()
        else:
            receipt = caller.hold().json()
            if what == "confirmed":
                caller.confirm(receipt["reservation_id"])
            elif what == "expired":
                end_hold(service, caller, receipt)
            elif what == "released hold":
                caller.release(receipt["reservation_id"])
    before = read(newest)
    with pytest.raises(sa.exc.IntegrityError):
        migrate("inventory", newest, "inventory_0001")
    assert read(newest) == before
    assert_clean(newest)


def test_more_records_than_a_page_all_get_their_range_and_count(url: str) -> None:
    """Of two tenants, in whatever place of a page one ends and the other begins."""
    migrate("inventory", url, "inventory_0001")
    engine = open_engine(url)
    old = sa.MetaData()
    old.reflect(engine)
    keys = {tenant: [f"key-of-{tenant}-{number:08d}" for number in range(count)] for tenant, count in COUNTS.items()}
    with writing(engine) as connection:
        for tenant, names in keys.items():
            rows = [
                {"tenant": tenant, "sequence": sequence, "key": key, "kind": "void", "outcome": "voided"}
                | {"reason": "voided", "http_status": 410, "created_at": NOW}
                | {"receipt": "{}", "receipt_sha256": "", "problem": "{}"}
                for sequence, key in enumerate(names, start=1)
            ]
            connection.execute(RECEIPTS_AT_FIRST.insert(), rows)
            connection.execute(old.tables["keys"].insert(), [{"tenant": tenant, "key": key} for key in names])
    migrate("inventory", url)
    with engine.connect() as connection:
        ranges = connection.execute(sa.select(RECEIPTS.c.key, RECEIPTS.c.key_range)).all()
        assert {row.key: row.key_range for row in ranges} == {
            key: digests.place(key) for names in keys.values() for key in names
        }
        sums = sa.select(DIGESTS.c.tenant, sa.func.sum(DIGESTS.c.count)).where(DIGESTS.c.parent == "")
        assert {row[0]: int(row[1]) for row in connection.execute(sums.group_by(DIGESTS.c.tenant))} == COUNTS
    engine.dispose()
