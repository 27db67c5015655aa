"""Routes, the order of checks, and the endpoints' own rules."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.inventory.conftest import NOW, Caller, Service, hours
from tests.services.inventory.test_edge import assert_problem

PAST = "2026-05-31T12:00:00Z"


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/v1/nothing", "not-found"),
        ("GET", "/v1/reservations/", "not-found"),
        ("POST", "/v1/deliveries/", "not-found"),
        ("GET", "/v1/receipts/key-0123456789abcdef/", "not-found"),
        ("DELETE", "/v1/receipts", "method-not-allowed"),
        ("POST", "/v1/receipts/key-0123456789abcdef/void", "method-not-allowed"),
        ("GET", "/v1/deliveries", "method-not-allowed"),
        ("OPTIONS", "/v1/deliveries", "method-not-allowed"),
    ],
)
def test_the_router_answers_in_problem_documents_and_never_redirects(
    caller: Caller, method: str, path: str, name: str
) -> None:
    """A slash too many is another path: a redirect could turn a POST into a GET, or send it twice."""
    response = caller.http.request(method, path)
    assert response.status_code in {404, 405}
    assert_problem(response, name)
    assert ("allow" in response.headers) == (response.status_code == 405)


def test_the_key_is_checked_before_the_body_and_the_body_before_the_deadline(caller: Caller) -> None:
    """Each check is only reached when those before it have passed, and none of them stores anything."""
    key = caller.new_key()
    good = {"Idempotency-Key": key, "Effect-Not-After": caller.not_after}
    path, body = "/v1/reservations", {"lines": [{"sku": "FILTER-A", "quantity": 1}]}
    assert_problem(caller.http.post(path, content=b"?"), "idempotency-key-missing")
    assert_problem(
        caller.http.post(path, content=b"?", headers={"Idempotency-Key": "short"}), "idempotency-key-invalid"
    )
    assert_problem(caller.http.post(path, content=b"?", headers=good), "validation-failed")
    response = caller.http.post(path, json=body, headers={"Idempotency-Key": key})
    assert_problem(response, "validation-failed")
    assert response.json()["errors"][0]["at"] == "Effect-Not-After"
    response = caller.http.post(path, json=body, headers={**good, "Effect-Supersedes": key})
    assert response.json()["errors"][0]["at"] == "Effect-Supersedes"
    assert caller.receipt(key).status_code == 404
    assert caller.available() == 10


def test_two_idempotency_keys_are_none(caller: Caller) -> None:
    """Exactly one header: with two, nobody knows which of them would be replayed."""
    key = caller.new_key()
    headers = [("Idempotency-Key", key), ("Idempotency-Key", key), ("Effect-Not-After", caller.not_after)]
    response = caller.http.post("/v1/deliveries", json={"sku": "FILTER-A", "quantity": 1}, headers=headers)
    assert response.status_code == 400
    assert_problem(response, "idempotency-key-invalid")


@pytest.mark.parametrize(
    "body",
    [
        {"lines": [{"sku": "FILTER-A", "quantity": "2"}]},
        {"lines": [{"sku": "FILTER-A", "quantity": 2.0}]},
        {"lines": [{"sku": "FILTER-A", "quantity": True}]},
        {"lines": [{"sku": "FILTER-A", "quantity": 0}]},
        {"lines": [{"sku": "FILTER-A", "quantity": 2, "price": 1}]},
        {"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 0},
        {"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 1.0},
        {"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 31_536_001},
        {"lines": []},
        {"lines": {"sku": "FILTER-A", "quantity": 2}},
        {},
        [],
        None,
        "text",
    ],
)
def test_a_body_is_exactly_what_the_model_says(caller: Caller, body: Any) -> None:
    """A bad body is 400, never 422, and uses no key up."""
    key = caller.new_key()
    response = caller.post("/v1/reservations", body, key)
    assert response.status_code == 400
    assert_problem(response, "validation-failed")
    assert response.json()["errors"]
    assert caller.reserve(key=key).status_code == 201


@pytest.mark.parametrize(
    "content",
    [b"", b"[" * 60000, b'{"sku":"A","sku":"B","quantity":1}', b'{"sku":"A","quantity":' + b"9" * 5000 + b"}"],
    ids=["empty", "deep", "twice", "long"],
)
def test_json_that_could_be_misread_is_400_on_every_keyed_route(caller: Caller, content: bytes) -> None:
    """No recursion error, no digit limit and no silent last-member-wins comes through."""
    reservation = caller.reserve().json()["reservation_id"]
    for path in ("/v1/deliveries", "/v1/reservations", f"/v1/reservations/{reservation}/release"):
        headers = {"Idempotency-Key": caller.new_key(), "Effect-Not-After": caller.not_after}
        response = caller.http.post(path, content=content, headers=headers)
        assert response.status_code == 400
        assert_problem(response, "validation-failed")


def test_after_its_deadline_a_request_is_not_executed(caller: Caller, service: Service) -> None:
    """412 by the service's own clock, at the microsecond; nothing is stored, and the key is still free."""
    key = caller.new_key()
    caller.not_after = "2026-06-01T12:00:00Z"
    service.clock.now = NOW.replace(microsecond=1)
    response = caller.reserve(key=key)
    assert response.status_code == 412
    assert_problem(response, "not-after-passed")
    assert response.headers["receipt-outcome"] == "none"
    assert caller.receipt(key).status_code == 404
    service.clock.now = NOW
    assert caller.reserve(key=key).status_code == 201
    assert caller.available() == 8


def test_a_deadline_that_has_passed_stops_no_replay(caller: Caller, service: Service) -> None:
    """I53: a caller that returns after ten days gets its receipt, for a commit, a rejection and a reused key alike."""
    committed, rejected = caller.new_key(), caller.new_key()
    first = caller.reserve(key=committed)
    refusal = caller.reserve(100, key=rejected)
    service.clock.now = NOW + hours(240)
    assert caller.reserve(key=committed).content == first.content
    assert caller.reserve(100, key=rejected).content == refusal.content
    assert caller.reserve(5, key=committed).status_code == 422
    assert caller.reserve().status_code == 412
    assert caller.available() == 8


def test_a_past_but_well_formed_deadline_is_not_a_malformed_one(caller: Caller) -> None:
    """The one is 412 and judged in the transaction, the other 400 and judged before it."""
    caller.not_after = PAST
    assert caller.deliver().status_code == 412
    caller.not_after = "yesterday"
    assert caller.deliver().status_code == 400


def test_a_quoted_and_a_bare_key_are_one_key(caller: Caller) -> None:
    """The quotation marks are the header's, not the key's."""
    key = caller.new_key()
    first = caller.reserve(key=f'"{key}"')
    assert first.json()["key"] == key
    assert caller.reserve(key=key).content == first.content
    assert caller.available() == 8


def test_tenants_share_nothing(callers: Iterator[Caller]) -> None:
    """I40: the same key and body of two tenants are two effects; a foreign key or reservation is a missing one."""
    ours, theirs = next(callers), next(callers)
    for caller in (ours, theirs):
        assert caller.deliver(key="shared-key-00000001").status_code == 201
    key = ours.new_key()
    reservation = ours.reserve(key=key).json()["reservation_id"]
    assert_problem(theirs.receipt(key), "receipt-not-found")
    assert_problem(theirs.http.get(f"/v1/reservations/{reservation}"), "reservation-not-found")
    assert_problem(theirs.release(reservation), "reservation-not-found")
    assert theirs.void(key).json()["outcome"] == "voided"
    assert ours.receipt(key).json()["outcome"] == "committed"
    assert (ours.available(), theirs.available()) == (8, 10)
    feed = theirs.http.get("/v1/receipts").json()["receipts"]
    assert [receipt["key"] for receipt in feed] == ["shared-key-00000001", key]
    assert theirs.reserve().json()["reservation_id"] == "reservation-1"


@pytest.mark.parametrize(
    "path",
    [
        "/v1/receipts?limit=0",
        "/v1/receipts?limit=1001",
        "/v1/receipts?limit=x",
        "/v1/receipts?after=-1",
        "/v1/receipts?after=1.0",
        "/v1/receipts?after=%D9%A1",
        "/v1/receipts?after=9999999999999999999",
        "/v1/receipts?after=1&after=2",
        "/v1/receipts?skus=FILTER-A",
        "/v1/receipts?sku=",
        "/v1/receipts?reference=%00",
        "/v1/ledger/FILTER-A?after_version=",
        "/v1/ledger/FILTER-A?after=1",
    ],
)
def test_a_query_that_could_mean_something_else_is_refused(caller: Caller, path: str) -> None:
    """A misspelt filter must not answer with everything."""
    response = caller.http.get(path)
    assert response.status_code == 400
    assert_problem(response, "validation-failed")


@pytest.mark.parametrize("text", ["short", "a%20b-0123456789abcdef", "a" * 129, "%22key-0123456789abcdef%22"])
def test_a_path_without_a_key_in_it_is_refused(caller: Caller, text: str) -> None:
    """GET and void take the same keys as the header, bare."""
    for response in (caller.receipt(text), caller.void(text)):
        assert response.status_code == 400
        assert_problem(response, "idempotency-key-invalid")


@pytest.mark.parametrize("name", ["reservation-99", "reservation-01", "nothing", "%00", "reservation-" + "9" * 30])
def test_an_unknown_reservation_is_not_found_and_uses_no_key_up(caller: Caller, name: str) -> None:
    """404 is not stored: the key can still be voided, or used for the right reservation."""
    key = caller.new_key()
    response = caller.post(f"/v1/reservations/{name}/release", {}, key)
    assert response.status_code == 404
    assert_problem(response, "reservation-not-found")
    assert_problem(caller.http.get(f"/v1/reservations/{name}"), "reservation-not-found")
    assert caller.receipt(key).status_code == 404


def test_a_void_may_say_nothing_but_an_empty_object(caller: Caller) -> None:
    """No member of a void's body would be heeded, so none is taken."""
    path = "/v1/receipts/key-to-be-voided-1/void"
    assert caller.http.put(path, json={"reason": "late"}).status_code == 400
    assert caller.http.put(path, content=b"{").status_code == 400
    assert caller.http.put(path, json={}).status_code == 200


def test_a_request_means_the_same_in_any_spelling(caller: Caller) -> None:
    """Order of members, white space, escapes and a null that says nothing change no fingerprint."""
    key = caller.new_key()
    first = caller.reserve(key=key)
    headers = {"Idempotency-Key": key, "Effect-Not-After": caller.not_after}
    body = {"reference": None, "lines": [{"quantity": 2, "sku": "FILTER-A"}]}
    content = json.dumps(body, indent=2).replace("FILTER", "\\u0046ILTER").encode()
    again = caller.http.post("/v1/reservations", content=content, headers=headers)
    assert again.content == first.content
