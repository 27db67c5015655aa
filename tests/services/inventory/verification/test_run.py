"""The verification: a correct database is clean, and every single change of one is found and named."""

import contextlib
import hashlib
import sqlite3
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.database import DatabaseUnreachable, open_engine
from services.inventory.tables import COUNTERS, METADATA, MOVEMENTS, RECEIPTS, RESERVATIONS, STOCK
from services.inventory.verification import run
from services.inventory.verification.findings import Rule
from services.inventory.verification.run import verify
from tests.services.inventory.conftest import Caller, connect, running
from tests.services.inventory.verification.changes import Change, changes
from tests.services.inventory.verification.conftest import Bare
from tests.services.inventory.verification.workload import SIGNING_KEY, mixed

S1, S2, S3, S4, S5, S6, S8, S9, S10 = (Rule(f"S{number}") for number in (1, 2, 3, 4, 5, 6, 8, 9, 10))
RECEIPT, SEQUENCE, DIGEST, EXPIRED, ROW = Rule.RECEIPT, Rule.SEQUENCE, Rule.DIGEST, Rule.EXPIRED, Rule.ROW
RESERVATION, HOLD = Rule.RESERVATION, Rule.HOLD

# What a change breaks, by column or by what is done to the row.
BROKEN: Mapping[str, Mapping[str, set[Rule]]] = {
    "counters": {
        "row": {SEQUENCE},
        "tenant": {SEQUENCE},
        "last_sequence": {SEQUENCE},
        "last_reservation": {SEQUENCE},
        "expired_through": {EXPIRED},
    },
    "digests": {
        "row": {DIGEST},
        "tenant": {DIGEST, SEQUENCE},
        "parent": {DIGEST},
        "prefix": {DIGEST},
        "count": {DIGEST},
        "digest": {DIGEST},
    },
    "keys": {"row": {S1, S8}, "tenant": {S8, SEQUENCE}, "key": {S1, S8}},
    "receipts": {
        "row": {S1, SEQUENCE},
        "tenant": {SEQUENCE},
        "sequence": {SEQUENCE, RECEIPT},
        "key": {S1, S8, ROW, RECEIPT},
        "kind": {RECEIPT},
        "outcome": {RECEIPT},
        "reason": {RECEIPT},
        "fingerprint": {RECEIPT},
        "fingerprint_version": {RECEIPT},
        "reservation_id": {RECEIPT, S5, S6, S10, RESERVATION},
        "reference": {RECEIPT},
        "http_status": {RECEIPT},
        "created_at": {RECEIPT, S5},
        "receipt": {S9, EXPIRED},
        "receipt_sha256": {S9},
        "problem": {Rule.PROBLEM, EXPIRED},
        "expired_at": {EXPIRED},
        "key_range": {DIGEST},
    },
    "receipt_lines": {
        "row": {RECEIPT},
        "tenant": {RECEIPT, SEQUENCE},
        "sku": {RECEIPT, S5},
        "sequence": {RECEIPT},
        "requested": {RECEIPT},
        "granted": {RECEIPT},
    },
    "stock": {
        "row": {S2, S3},
        "tenant": {S3, SEQUENCE},
        "sku": {S3},
        "received": {S2},
        "available": {S2},
        "held": {S2},
        "consumed": {S2},
        "version": {S4},
    },
    "reservations": {
        "row": {S6},
        "tenant": {S6, SEQUENCE},
        "reservation_id": {S6},
        "state": {S6, RESERVATION},
        "expires_at": {HOLD, S5},
        "reserved_by": {S6},
        "confirmed_by": {RESERVATION},
        "released_by": {S10, RESERVATION},
        "expired_by": {S10, RESERVATION},
    },
    "reservation_lines": {
        "row": {S6},
        "tenant": {S6, SEQUENCE},
        "reservation_id": {S6},
        "sku": {S6},
        "quantity": {S6},
    },
    "movements": {
        "row": {S4},
        "tenant": {S3, S4},
        "sku": {S3, S4},
        "version": {S4},
        "kind": {S5},
        "quantity": {S5},
        "received": {S2},
        "available": {S2},
        "held": {S2},
        "consumed": {S2},
        "sequence": {S5, RECEIPT},
        "key": {S5},
        "reservation_id": {S5},
        "created_at": {S5},
    },
}
# Of a receipt whose body retention has taken, nothing else tells these.
TOLD_BY_THE_BODY = {"fingerprint flipped", "reference", "receipt_sha256", "created_at"}


def told(table: sa.Table, change: Change) -> bool:
    """Whether anything that is stored can contradict a change."""
    column, _, how = change.what.partition(" ")
    body_gone = table is RECEIPTS and change.row["receipt"] is None
    return not (body_gone and how != "emptied" and TOLD_BY_THE_BODY & {column, change.what}) and not (
        body_gone and column == "reference"
    )


def test_a_correct_database_is_clean_and_counted(filled: Callable[[str], str], dialect: str) -> None:
    """All kinds, outcomes and reasons, two tenants, receipts with and without their bodies, all of them signed."""
    engine = open_engine(filled(dialect))
    found = verify(engine, (SIGNING_KEY,))
    assert found.violation is None
    with engine.connect() as connection:
        count = {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in METADATA.sorted_tables
        }
        gone = sa.select(sa.func.count()).select_from(RECEIPTS).where(RECEIPTS.c.receipt.is_(None))
        assert found.checked.expired_receipts == connection.execute(gone).scalar_one() > 0
    checked = found.checked
    assert (checked.tenants, checked.receipts, checked.keys) == (2, count["receipts"], count["keys"])
    assert (checked.skus, checked.movements) == (count["stock"], count["movements"])
    assert (checked.reservations, checked.ranges) == (count["reservations"], count["digests"])
    assert checked.signatures == checked.receipts - checked.expired_receipts
    assert verify(engine).checked.signatures == 0
    engine.dispose()


@pytest.mark.timeout(300)  # some hundred verifications
@pytest.mark.parametrize("name", [table.name for table in METADATA.sorted_tables])
def test_every_single_change_of_a_table_is_found_and_named(
    bare: Bare, name: str, dialect: str, request: pytest.FixtureRequest
) -> None:
    """Each column flipped, emptied or filled, and rows deleted and doubled, in a row of each sort.

    What is read is judged without a database, so the short form tries one change in five on PostgreSQL, and on SQLite
    every other one, from the second on.
    """
    table = METADATA.tables[name]
    first, each = (0, 5) if dialect == "postgresql" else (1, 2)
    if request.config.getoption("long"):
        first, each = 0, 1
    wrong = []
    for change in list(changes(bare, table))[first::each]:
        column, _, how = change.what.partition(" ")
        missing = how == "emptied" and not table.columns[column].nullable
        expected = {ROW} if missing else BROKEN[name][column]
        with bare.changed(table, change.statement, **change.values):
            violation = bare.found()
        if told(table, change):
            if violation.rule not in expected:
                wrong.append((change.what, change.row, violation.sentence))
        else:
            assert violation.rule in expected | {Rule.KEPT}
    assert wrong == []
    assert bare.found().rule is Rule.KEPT


@pytest.mark.parametrize(
    ("table", "statement", "rules"),
    [
        # Another row of the same table, with its values or with two rows' values exchanged.
        (STOCK, "UPDATE stock SET available = available - 1, held = held + 1 WHERE tenant = 'acme'", {S3}),
        (
            STOCK,
            (
                "INSERT INTO stock SELECT tenant, 'FILTER-C', received, available, held, consumed, version FROM stock "
                "WHERE tenant = 'acme' AND sku = 'FILTER-A'"
            ),
            {S4},
        ),
        (
            MOVEMENTS,
            (
                "UPDATE movements SET sequence = CASE sequence WHEN 1 THEN 3 ELSE 1 END "
                "WHERE tenant = 'acme' AND sku = 'FILTER-A' AND sequence IN (1, 3)"
            ),
            {S5, RECEIPT},
        ),
        (
            RECEIPTS,
            (
                "UPDATE receipts SET receipt = (SELECT r.receipt FROM receipts r WHERE r.tenant = 'globex' AND "
                "r.sequence = receipts.sequence) WHERE tenant = 'acme' AND receipt IS NOT NULL"
            ),
            {S9, EXPIRED},
        ),
        (
            RECEIPTS,
            (
                "DELETE FROM receipts WHERE tenant = 'globex' AND "
                "sequence = (SELECT last_sequence FROM counters WHERE tenant = 'globex')"
            ),
            {SEQUENCE},
        ),
        (
            RESERVATIONS,
            "UPDATE reservations SET state = 'consumed', expires_at = NULL WHERE tenant = 'acme' AND state = 'held'",
            {S6},
        ),
        (COUNTERS, "INSERT INTO counters VALUES ('nobody', 3, 0, 0)", {SEQUENCE}),
        (COUNTERS, "UPDATE counters SET expired_through = 1 WHERE tenant = 'globex'", {EXPIRED}),
    ],
)
def test_changes_that_fit_together_in_one_table_are_found(
    bare: Bare, table: sa.Table, statement: str, rules: set[Rule]
) -> None:
    """What balances in itself is held against the other tables."""
    assert bare.rule(table, statement) in rules


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize(
    ("table", "statement"),
    [
        (STOCK, "UPDATE stock SET available = 'many'"),
        (STOCK, "UPDATE stock SET version = 1.5"),
        (RECEIPTS, "UPDATE receipts SET receipt = CAST(receipt AS BLOB)"),
        (RECEIPTS, "UPDATE receipts SET created_at = 'yesterday'"),
        (RECEIPTS, "UPDATE receipts SET expired_at = '2026-13-01 00:00:00.000000' WHERE receipt IS NULL"),
        (RECEIPTS, "UPDATE receipts SET key = CAST(x'ff' AS TEXT) WHERE sequence = 40"),
        (RECEIPTS, "UPDATE receipts SET tenant = CAST(x'ff' AS TEXT) WHERE sequence = 40"),
        (MOVEMENTS, "UPDATE movements SET reservation_id = x'00'"),
    ],
)
def test_what_no_service_could_have_written_is_a_finding(bare: Bare, table: sa.Table, statement: str) -> None:
    """Another type, a time that is none, bytes that are not UTF-8: SQLite keeps them all."""
    assert bare.rule(table, statement) in {ROW, SEQUENCE}


@pytest.mark.parametrize("dialect", ["sqlite"])
@pytest.mark.parametrize(
    "text",
    [
        "x'ff'", "'[1'", "'[]'", "'null'", "'{}'", "'{\"sequence\":NaN}'", "''",
        "printf('%.*c', 100000, '[')", "'1' || printf('%.*c', 6000, '0')", "replace(receipt, '1', '1.0')",
        "replace(receipt, '{\"schema', '{ \"schema')", "replace(receipt, '\"outcome\"', '\"outcome\":1,\"outcome\"')",
    ],
)  # fmt: skip
def test_a_text_that_is_no_receipt_is_a_finding_also_with_its_hash(bare: Bare, text: str) -> None:
    """Whoever changes a text can change what is stored beside it too."""
    raw = bare.engine.raw_connection()
    raw.driver_connection.create_function("sha256", 1, _sha256)  # type: ignore[union-attr]
    raw.close()
    statement = f"UPDATE receipts SET receipt = CAST({text} AS TEXT) WHERE receipt IS NOT NULL AND sequence > 30"  # noqa: S608 - a text of the list above
    assert bare.rule(RECEIPTS, statement) is S9
    with bare.changed(RECEIPTS, statement):
        again = "UPDATE receipts SET receipt_sha256 = sha256(CAST(receipt AS BLOB)) WHERE receipt IS NOT NULL"
        assert bare.rule(RECEIPTS, again) in {S9, RECEIPT}


def _sha256(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def test_a_database_at_work_is_clean(database_url: str) -> None:
    """It looks at one moment, again and again while eight callers write, until it has seen them do so."""
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        mixed(service, caller)
        done = threading.Event()

        def write(number: int) -> int:
            written = 0
            while not done.is_set():
                caller.deliver(2, f"SKU-{number % 3}")
                receipt = caller.reserve(1, f"SKU-{number % 3}").json()
                caller.release(receipt["reservation_id"])
                caller.void(caller.new_key())
                written += 4
            return written

        with ThreadPoolExecutor(8) as pool:
            writers = [pool.submit(write, number) for number in range(8)]
            try:
                seen: list[int] = []
                while len(seen) < 5 or seen[-1] == seen[0]:
                    found = verify(service.engine)
                    assert found.violation is None, found.violation.sentence
                    seen.append(found.checked.receipts)
            finally:
                done.set()
        assert seen == sorted(seen)
        assert seen[-1] > seen[0]
        assert sum(writer.result() for writer in writers) > 0
        assert verify(service.engine).violation is None


def test_progress_is_told(filled: Callable[[str], str], dialect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then."""
    monkeypatch.setattr(run, "PROGRESS_EVERY", 10)
    told_: list[int] = []
    engine = open_engine(filled(dialect))
    verify(engine, progress=told_.append)
    engine.dispose()
    assert told_[:3] == [10, 20, 30]


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_a_damaged_file_is_a_finding(filled: Callable[[str], str], dialect: str, tmp_path: Path) -> None:
    """Pages that hold nothing readable, wherever they are."""
    source = filled(dialect).removeprefix("sqlite:///")
    path = tmp_path / "damaged.db"
    with closing(sqlite3.connect(source)) as whole, closing(sqlite3.connect(path)) as copy:
        whole.backup(copy)
    pages = path.stat().st_size // 4096
    data = path.read_bytes()
    for page in range(3, pages, 3):
        path.write_bytes(data[: page * 4096] + b"\xff" * 4096 + data[(page + 1) * 4096 :])
        engine = open_engine(f"sqlite:///{path}")
        # Where it cannot even be opened, that is said.
        with contextlib.suppress(DatabaseUnreachable):
            assert verify(engine).violation is not None
        engine.dispose()


@pytest.mark.parametrize("dialect", ["postgresql"])
def test_a_connection_that_is_lost_is_no_finding(
    filled: Callable[[str], str], dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever runs it again may find nothing."""
    monkeypatch.setattr(run, "PROGRESS_EVERY", 10)
    engine = open_engine(filled(dialect))

    def cut(_count: int) -> None:
        with engine.connect() as other:
            other.execute(
                sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                        "AND pid <> pg_backend_pid()")
            )  # fmt: skip

    with pytest.raises(DatabaseUnreachable, match="was lost while it was read"):
        verify(engine, progress=cut)
    engine.dispose()
