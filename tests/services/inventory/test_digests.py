"""Digests per range of keys: what they are made of, and that they are kept."""

import hashlib

import rfc8785
import sqlalchemy as sa

from services.inventory.digests import item, place, to_hex, total
from tests.services.inventory.conftest import Caller, Service


def test_a_digest_is_a_sum_that_no_order_changes() -> None:
    """Modulo 2**256, as 64 hex digits; an item is what the contract says."""
    one = item("key-0000000000000001", "committed", "receipt-1")
    two = item("key-0000000000000002", "voided", "receipt-2")
    canonical = rfc8785.dumps(["cf-rd1", "key-0000000000000001", "committed", "receipt-1"])
    assert to_hex(one) == hashlib.sha256(canonical).hexdigest()
    assert total([one, two]) == total([two, one])
    assert to_hex(total([2**256 - 1, 2])) == f"{1:064x}"


def test_every_receipt_is_in_its_ranges(caller: Caller) -> None:
    """From the whole to the range to the receipts: counts and digests add up on every level, whatever the outcome."""
    held = caller.hold(1).json()
    caller.reserve(100)
    caller.void("closed-key-00000001")
    caller.confirm(held["reservation_id"])
    receipts = caller.http.get("/v1/receipts").json()["receipts"]

    def digest(prefix: str) -> dict[str, object]:
        answer: dict[str, object] = caller.http.get("/v1/receipts/digests", params={"prefix": prefix}).json()
        return answer

    expected = {one["key"]: item(one["key"], one["outcome"], one["receipt_id"]) for one in receipts}
    assert len(expected) == 5
    for prefix in ("", *{place(key)[:2] for key in expected}, *{place(key) for key in expected}, "0000"):
        inside = {
            key: one for key, one in expected.items() if hashlib.sha256(key.encode()).hexdigest().startswith(prefix)
        }
        answer = digest(prefix)
        assert (answer["count"], answer["digest"]) == (len(inside), to_hex(total(inside.values())))
        listed = answer["receipts"]
        assert isinstance(listed, list)
        assert {one["key"] for one in listed} == (set(inside) if len(prefix) == 4 else set())


def test_a_prefix_is_nothing_else(caller: Caller) -> None:
    """Odd lengths, capitals and more digits than there are."""
    for prefix in ("a", "abc", "AB", "zz", "abcdef", " "):
        assert caller.http.get("/v1/receipts/digests", params={"prefix": prefix}).status_code == 400


def test_a_page_is_of_one_moment_whatever_commits_meanwhile(service: Service, caller: Caller) -> None:
    """Count and watermark belong together: a receipt that lands between the two reads is in neither."""
    landed: list[int] = []

    def land(_connection: object, _cursor: object, text: str, *_: object) -> None:
        if text.startswith("SELECT digests.prefix") and not landed:
            landed.append(0)
            landed.append(caller.deliver(1).status_code)

    sa.event.listen(service.engine, "before_cursor_execute", land)
    page = caller.http.get("/v1/receipts/digests").json()
    sa.event.remove(service.engine, "before_cursor_execute", land)
    assert landed == [0, 201]
    assert page["count"] == page["watermark"] == 1
    assert caller.http.get("/v1/receipts/digests").json()["count"] == 2
