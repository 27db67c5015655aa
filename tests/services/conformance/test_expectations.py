"""What the contract says of one answer by itself, on hand-made good and bad ones."""

import json
from typing import Any

import pytest

from services.conformance.exchanges import Exchange
from services.conformance.expectations import (
    PROBLEM_TYPES,
    Broken,
    digest,
    expect,
    expect_answer,
    fingerprint,
    header_faults,
    moment,
    problem_faults,
    receipt_faults,
)

HEADERS = {
    "receipt-outcome": "none",
    "idempotency-replayed": "false",
    "cache-control": "no-store",
    "x-request-id": "one",
    "content-type": "application/json",
}
REQUEST = {"lines": [{"sku": "FILTER-A", "quantity": 2}]}
COMMITTED: dict[str, Any] = {
    "schema_version": 1,
    "receipt_id": "receipt-2",
    "sequence": 2,
    "key": "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1",
    "kind": "inventory.reserve",
    "outcome": "committed",
    "reason": None,
    "request": REQUEST,
    "fingerprint": fingerprint("inventory.reserve", {}, REQUEST),
    "fingerprint_version": "cf-fp1",
    "supersedes": [],
    "reservation_id": "reservation-1",
    "lines": [{"sku": "FILTER-A", "requested": 2, "granted": 2}],
    "stock_versions": {"FILTER-A": 2},
    "expires_at": None,
    "http_status": 201,
    "created_at": "2026-06-01T12:00:02.000000Z",
    "signature": None,
}
REJECTED = COMMITTED | {
    "outcome": "rejected",
    "reason": "insufficient-stock",
    "reservation_id": None,
    "lines": [{"sku": "FILTER-A", "requested": 2, "granted": 0}],
    "stock_versions": {},
    "http_status": 409,
}
TOMBSTONE = COMMITTED | {
    "kind": "void",
    "outcome": "voided",
    "reason": "superseded",
    "request": None,
    "fingerprint": None,
    "fingerprint_version": None,
    "reservation_id": None,
    "lines": [],
    "stock_versions": {},
    "http_status": 410,
}
EXPIRY = COMMITTED | {
    "kind": "expiry",
    "request": None,
    "fingerprint": None,
    "fingerprint_version": None,
    "http_status": 200,
}
REFUSED_RELEASE = REJECTED | {
    "kind": "inventory.release",
    "reason": "predecessor-committed",
    "request": {},
    "fingerprint": fingerprint("inventory.release", {"id": "reservation-1"}, {}),
    "reservation_id": "reservation-1",
}


def answer(document: Any, status: int = 200, method: str = "POST", **headers: str | None) -> Exchange:
    """An exchange with this answer; a header of None is left out."""
    changed = HEADERS | {name.replace("_", "-"): value for name, value in headers.items()}
    return Exchange(
        method=method,
        path="/v1/reservations",
        sent_headers=(),
        sent=b"",
        status=status,
        headers={name: value for name, value in changed.items() if value is not None},
        body=json.dumps(document).encode(),
    )


def problem(name: str, status: int, **members: Any) -> dict[str, Any]:
    """A problem document."""
    return {"type": f"/problems/{name}", "title": "t", "status": status, "detail": "d", **members}


@pytest.mark.parametrize("receipt", [COMMITTED, REJECTED, TOMBSTONE, EXPIRY, REFUSED_RELEASE])
def test_a_receipt_as_the_contract_has_it_is_without_fault(receipt: dict[str, Any]) -> None:
    """One of each outcome, the service's own, and a refused move of a reservation."""
    assert receipt_faults(receipt) == []


@pytest.mark.parametrize(
    ("receipt", "change"),
    [
        (COMMITTED, {"schema_version": 2}),
        (COMMITTED, {"more": 1}),
        (COMMITTED, {"receipt_id": ""}),
        (COMMITTED, {"sequence": True}),
        (COMMITTED, {"sequence": 0}),
        (COMMITTED, {"outcome": "done"}),
        (COMMITTED, {"created_at": "2026-06-01T12:00:02Z"}),
        (COMMITTED, {"created_at": "2026-06-31T12:00:02.000000Z"}),
        (COMMITTED, {"expires_at": "soon"}),
        (COMMITTED, {"supersedes": None}),
        (COMMITTED, {"signature": "hmac-sha256:x"}),
        (COMMITTED, {"fingerprint": "0" * 64}),
        (COMMITTED, {"fingerprint_version": "cf-fp2"}),
        (COMMITTED, {"request": None}),
        (COMMITTED, {"kind": "inventory.release"}),  # another kind, another fingerprint
        (COMMITTED, {"reason": "insufficient-stock"}),
        (COMMITTED, {"http_status": 200}),
        (COMMITTED, {"lines": [{"sku": "FILTER-A", "requested": 2, "granted": 1}]}),
        (COMMITTED, {"lines": COMMITTED["lines"] * 2}),
        (COMMITTED, {"stock_versions": {}}),
        (REJECTED, {"reason": "key-voided"}),
        (REJECTED, {"http_status": 201}),
        (REJECTED, {"lines": COMMITTED["lines"]}),
        (REJECTED, {"stock_versions": {"FILTER-A": 3}}),
        (TOMBSTONE, {"reason": None}),
        (TOMBSTONE, {"http_status": 200}),
        (TOMBSTONE, {"fingerprint": "0" * 64}),
        (TOMBSTONE, {"outcome": "committed"}),
        (EXPIRY, {"outcome": "voided"}),
        (EXPIRY, {"request": {}}),
        (REFUSED_RELEASE, {"reservation_id": None}),
        (REFUSED_RELEASE, {"reservation_id": "reservation-2"}),
    ],
)
def test_each_fault_of_a_receipt_is_found(receipt: dict[str, Any], change: dict[str, Any]) -> None:
    """One member wrong, one fault or more."""
    assert receipt_faults(receipt | change)


def test_a_member_that_is_missing_is_a_fault() -> None:
    """Each of them."""
    for name in COMMITTED:
        assert receipt_faults({member: value for member, value in COMMITTED.items() if member != name})


@pytest.mark.parametrize("name", PROBLEM_TYPES)
def test_a_problem_as_the_contract_has_it_is_without_fault(name: str) -> None:
    """Its status, and its own members and no others."""
    status, members = PROBLEM_TYPES[name]
    document = problem(name, status, **dict.fromkeys(members, "x"))
    assert problem_faults(answer(document, status)) == []
    assert problem_faults(answer(document | {"more": 1}, status))
    assert problem_faults(answer(document, 418))
    assert problem_faults(answer(document | {"status": 418}, status))
    assert problem_faults(answer(document | {"detail": ""}, status))


def test_a_type_that_is_none_of_the_contracts_is_a_fault() -> None:
    """A page of a proxy, or a type of one's own; but a limit in front may say overloaded with 429."""
    assert problem_faults(answer("<p>", 502))
    assert problem_faults(answer(problem("teapot", 418), 418))
    assert problem_faults(answer(problem("overloaded", 429), 429)) == []


@pytest.mark.parametrize(
    "change",
    [
        {"receipt_outcome": None},
        {"receipt_outcome": "committed"},
        {"idempotency_replayed": "yes"},
        {"cache_control": "no-cache"},
        {"x_request_id": None},
        {"retry_after": "1"},
        {"content_type": "application/problem+json"},
    ],
)
def test_each_fault_of_the_headers_is_found(change: dict[str, str | None]) -> None:
    """One header wrong, one fault."""
    assert header_faults(answer({})) == []
    assert len(header_faults(answer({}, 200, "POST", **change))) == 1


def test_the_outcome_header_is_that_of_the_receipt() -> None:
    """In the body, in a problem, and not in what is no receipt; pages of them have none."""
    assert header_faults(answer(COMMITTED, receipt_outcome="committed")) == []
    carried = problem("insufficient-stock", 409, receipt=REJECTED)
    kept = {"receipt_outcome": "rejected", "content_type": "application/problem+json"}
    assert header_faults(answer(carried, 409, **kept)) == []
    assert header_faults(answer(COMMITTED))
    assert header_faults(answer({"receipts": []}, method="GET", receipt_outcome="committed"))


def test_retry_after_is_said_where_the_same_request_may_be_sent_again() -> None:
    """There, and there alone; and no answer is a redirect."""
    busy = answer(problem("overloaded", 503), 503, content_type="application/problem+json")
    assert header_faults(busy) == ["Retry-After is None"]
    assert "303 is a redirect" in header_faults(answer({}, 303))


def test_what_does_not_hold_is_broken_with_its_exchanges() -> None:
    """The message says what should be, and what was seen."""
    seen = answer(problem("internal", 500), 500)
    with pytest.raises(Broken) as broken:
        expect_answer(seen, 201)
    assert broken.value.message == "POST /v1/reservations should be 201; it is 500 internal"
    assert broken.value.exchanges == (seen,)
    with pytest.raises(Broken, match="409 unknown-sku; it is 500 internal"):
        expect_answer(seen, 409, "unknown-sku")
    assert expect_answer(seen, 500, "internal") is seen
    expect(True, "nothing is said")


@pytest.mark.parametrize("text", [None, 1, "", "2026-06-01T12:00:02.000000+00:00", "2026-02-30T00:00:00.000000Z"])
def test_a_time_has_one_spelling(text: object) -> None:
    """Six digits and a Z."""
    assert moment(text) is None
    assert moment("2026-06-01T12:00:02.000000Z") is not None


def test_an_empty_range_has_a_digest() -> None:
    """64 zeros; and sums wrap around."""
    assert digest([]) == "0" * 64
    assert digest([2**256 - 1, 2]) == "0" * 63 + "1"
