"""Receipts: written once, word for word the same for ever, in the order of their commits."""

import hashlib
import re
from collections.abc import Callable

import httpx
import sqlalchemy as sa

from services.database import reading
from services.inventory.contract import Receipt, to_json
from services.inventory.tables import RECEIPTS
from tests.services.inventory.conftest import Caller, Service, connect, running

MEMBERS = list(Receipt.__dataclass_fields__)


def test_a_replay_is_byte_equal_with_the_same_status(caller: Caller) -> None:
    """I49, I50: commit, rejection and tombstone: same status, body, outcome and type; only the replay mark differs."""
    reservation = caller.reserve().json()["reservation_id"]
    closed = caller.new_key()
    caller.void(closed)
    keys = [caller.new_key() for _ in range(5)]
    calls: list[Callable[[], httpx.Response]] = [
        lambda: caller.deliver(3, key=keys[0]),
        lambda: caller.reserve(2, key=keys[1]),
        lambda: caller.reserve(100, key=keys[2]),
        lambda: caller.release(reservation, keys[3]),
        lambda: caller.release(reservation, keys[4]),
    ]
    for call in calls:
        first, second, third = call(), call(), call()
        assert first.content == second.content == third.content
        assert first.status_code == second.status_code == third.status_code
        for header in ("receipt-outcome", "content-type", "cache-control"):
            assert first.headers[header] == second.headers[header]
        assert [each.headers["idempotency-replayed"] for each in (first, second, third)] == ["false", "true", "true"]
    assert caller.reserve(key=closed).content == caller.reserve(key=closed).content


def test_a_receipt_has_all_its_members_in_one_order(caller: Caller) -> None:
    """Every kind of receipt is the same flat object, and GET shows the very bytes of the answer."""
    committed = caller.reserve(2)
    assert caller.receipt(committed.json()["key"]).content == committed.content
    rejected = caller.reserve(100)
    voided = caller.void(caller.new_key())
    for receipt in (committed.json(), rejected.json()["receipt"], voided.json()):
        assert list(receipt) == MEMBERS
        assert receipt["receipt_id"] == f"receipt-{receipt['sequence']}"
        assert caller.receipt(receipt["key"]).json() == receipt
    assert committed.json()["fingerprint"] == "5fcfd13691813b7f8316ac2c16ad9645a6a00e0eb11209e7c8d4f3ae5b5bb1f7"
    assert committed.json()["fingerprint_version"] == "cf-fp1"
    assert committed.json()["request"] == {"lines": [{"quantity": 2, "sku": "FILTER-A"}]}


def test_a_receipt_says_when_by_the_clock_that_its_writers_share(caller: Caller, dialect: str) -> None:
    """On SQLite the service's own, on PostgreSQL the database's: RFC 3339, UTC, microseconds."""
    created_at = caller.reserve().json()["created_at"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", created_at)
    assert (created_at == "2026-06-01T12:00:00.000000Z") == (dialect == "sqlite")


def test_a_stored_receipt_matches_its_digest(service: Service, caller: Caller) -> None:
    """What is stored is what was answered, and a change of it could be seen."""
    answer = caller.reserve()
    refused = caller.reserve(100)
    with reading(service.engine) as connection:
        rows = connection.execute(sa.select(RECEIPTS)).all()
    for response in (answer, refused):
        row = next(row for row in rows if (row.problem or row.receipt).encode() == response.content)
        assert row.receipt == to_json(response.json().get("receipt", response.json()))
        assert hashlib.sha256(row.receipt.encode()).hexdigest() == row.receipt_sha256


def test_numbers_are_handed_out_per_tenant_and_without_a_gap(caller: Caller) -> None:
    """What stores nothing uses no number up; reservations count commits only."""
    caller.reserve(100)
    caller.reserve(1, headers={"Effect-Not-After": "2026-05-01T00:00:00Z"})
    caller.release("reservation-99")
    first, second = caller.reserve(1), caller.reserve(1)
    assert (first.json()["sequence"], second.json()["sequence"]) == (3, 4)
    assert (first.json()["reservation_id"], second.json()["reservation_id"]) == ("reservation-1", "reservation-2")


def test_no_receipt_says_when_it_was_read(database_url: str) -> None:
    """I58: the second read, by another process, is the first one's bytes: there is one copy, the primary."""
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        key = Caller(http).deliver().json()["key"]
        first = Caller(http).receipt(key).content
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        assert Caller(http).receipt(key).content == first
