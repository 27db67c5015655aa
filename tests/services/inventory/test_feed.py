"""Reading: the feed, the ledger, reservations and stock."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from services.inventory import feed as feed_module
from services.inventory.feed import Reader
from tests.services.inventory.conftest import NOW, Caller, Service, hours
from tests.services.inventory.test_edge import assert_problem


def page(caller: Caller, **parameters: Any) -> dict[str, Any]:
    """One page of the feed."""
    document: dict[str, Any] = caller.http.get("/v1/receipts", params=parameters).raise_for_status().json()
    return document


def test_pages_of_the_feed_hold_every_receipt_once(callers: Iterator[Caller]) -> None:
    """`after` is exclusive, the last page ends at the watermark, and every receipt is word for word its own."""
    caller = next(callers)
    answers = [caller.deliver(1) for _ in range(5)]
    seen, after = [], 0
    while (got := page(caller, after=after, limit=2))["receipts"]:
        seen += got["receipts"]
        after = got["next_after"]
        assert got["watermark"] == 5
        assert len(seen) <= 5
    assert [receipt["sequence"] for receipt in seen] == [1, 2, 3, 4, 5]
    assert seen == [answer.json() for answer in answers]
    assert all(answer.text in caller.http.get("/v1/receipts").text for answer in answers)
    assert got["next_after"] == 5


def test_the_feed_of_a_tenant_without_receipts_is_empty(callers: Iterator[Caller]) -> None:
    """Nothing is at watermark 0."""
    assert page(next(callers)) == {"receipts": [], "next_after": 0, "watermark": 0}


def test_an_older_database_is_seen_by_its_watermark(caller: Caller) -> None:
    """A reader that was further than the watermark keeps its place and sees that the database went back."""
    assert page(caller, after=7) == {"receipts": [], "next_after": 7, "watermark": 1}


def test_the_feed_is_narrowed_by_sku_and_by_reference(caller: Caller) -> None:
    """Rejections are in it too; a filter that finds little still moves on to the watermark."""
    caller.deliver(1, "HOSE-B")
    body = {"lines": [{"sku": "HOSE-B", "quantity": 1}], "reference": '{"name":"reserve-filter"}'}
    caller.post("/v1/reservations", body)
    caller.reserve(100)
    caller.void("closed-key-00000001")
    by_sku = page(caller, sku="HOSE-B")
    assert [receipt["sequence"] for receipt in by_sku["receipts"]] == [2, 3]
    assert by_sku["next_after"] == by_sku["watermark"] == 5
    assert [receipt["sequence"] for receipt in page(caller, sku="FILTER-A")["receipts"]] == [1, 4]
    by_reference = page(caller, reference=body["reference"], limit=1)
    assert [receipt["sequence"] for receipt in by_reference["receipts"]] == [3]
    assert by_reference["next_after"] == 3
    assert page(caller, reference="other")["receipts"] == []
    assert page(caller, sku="HOSE-B", reference=body["reference"], after=3)["receipts"] == []


def test_a_feed_read_while_others_write_skips_nobody(callers: Iterator[Caller]) -> None:
    """A follower that never goes back has every committed key exactly once, in order."""
    caller = next(callers)
    with ThreadPoolExecutor(8) as pool:
        writes = [pool.submit(caller.deliver, 1) for _ in range(60)]
        seen: list[dict[str, Any]] = []
        after = 0
        while len(seen) < 60:
            got = page(caller, after=after)
            seen += got["receipts"]
            after = got["next_after"]
            assert after == got["watermark"] == len(seen)
    assert [receipt["sequence"] for receipt in seen] == list(range(1, 61))
    assert {receipt["key"] for receipt in seen} == {write.result().json()["key"] for write in writes}


def test_not_found_says_when_and_at_which_watermark(caller: Caller, service: Service) -> None:
    """I58: an absence is an observation: by the service's clock, before the look, at a watermark."""
    service.clock.now = NOW + hours(1)
    missing = caller.receipt("unknown-key-0000001")
    assert_problem(missing, "receipt-not-found")
    assert missing.json()["observed_at"] == "2026-06-01T13:00:00.000000Z"
    assert missing.json()["watermark"] == 1


def test_the_ledger_counts_the_effects_of_every_key(caller: Caller) -> None:
    """Signed amounts per bucket, the key and the receipt of each movement."""
    reserve, release = caller.new_key(), caller.new_key()
    for _ in range(3):
        caller.reserve(2, key=reserve)
        caller.release("reservation-1", release)
    ledger = caller.ledger()
    assert Counter(movement["key"] for movement in ledger)[reserve] == 1
    assert [
        (each["version"], each["kind"], each["quantity"], each["received"], each["available"], each["consumed"])
        for each in ledger
    ] == [(1, "delivery", 10, 10, 10, 0), (2, "reserve", 2, 0, -2, 2), (3, "release", 2, 0, 2, -2)]
    assert [each["reservation_id"] for each in ledger] == [None, "reservation-1", "reservation-1"]
    for movement in ledger:
        receipt = caller.receipt(movement["key"]).json()
        assert (receipt["receipt_id"], receipt["outcome"]) == (movement["receipt_id"], "committed")
        assert receipt["stock_versions"]["FILTER-A"] == movement["version"]


def test_the_ledger_is_read_on_from_a_version(caller: Caller, service: Service) -> None:
    """Page by page until next_after_version is the stock's version."""
    for _ in range(4):
        caller.deliver(1)
    document = caller.http.get("/v1/ledger/FILTER-A?after_version=3").json()
    assert [movement["version"] for movement in document["movements"]] == [4, 5]
    assert (document["next_after_version"], document["version"]) == (5, 5)
    assert caller.http.get("/v1/ledger/FILTER-A?after_version=5").json()["movements"] == []
    assert_problem(caller.http.get("/v1/ledger/UNKNOWN"), "sku-not-found")
    assert feed_module.MAX_PAGE == 1000
    assert b'"watermark":0' in Reader(service.engine, service.clock).feed("nobody", feed_module.FeedQuery())


def test_a_reservation_shows_where_its_units_are(caller: Caller) -> None:
    """The receipt is what happened, the reservation is how it is now."""
    body = {"lines": [{"sku": "FILTER-A", "quantity": 2}], "reference": "INC-2041"}
    receipt = caller.post("/v1/reservations", body).json()
    reservation = caller.http.get("/v1/reservations/reservation-1").json()
    assert reservation == {
        "reservation_id": "reservation-1",
        "state": "consumed",
        "key": receipt["key"],
        "receipt_id": receipt["receipt_id"],
        "reference": "INC-2041",
        "lines": [{"sku": "FILTER-A", "quantity": 2}],
        "expires_at": None,
        "created_at": receipt["created_at"],
        "confirm_key": None,
        "confirm_receipt_id": None,
        "confirmed_at": None,
        "release_key": None,
        "release_receipt_id": None,
        "released_at": None,
        "expiry_receipt_id": None,
        "expired_at": None,
    }


def test_a_sku_that_was_never_delivered_is_not_found(caller: Caller) -> None:
    """Nor is what cannot be a SKU; a rejected reservation does not create one."""
    caller.reserve(1, "UNKNOWN")
    for sku in ("UNKNOWN", "%00", "%F0%9F%92%A9", "a" * 300):
        assert_problem(caller.http.get(f"/v1/stock/{sku}"), "sku-not-found")
