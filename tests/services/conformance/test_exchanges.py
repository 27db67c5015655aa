"""One request and its answer, as they are shown."""

import json
from typing import Any

import pytest

from services.conformance.exchanges import SHOWN_CHARACTERS, Exchange

RECEIPT = {"receipt_id": "receipt-1", "outcome": "rejected", "key": "a-key-of-16-chars"}


def exchange(body: bytes, status: int = 200, sent: bytes = b"", **headers: str) -> Exchange:
    """An exchange with this answer."""
    return Exchange(
        method="POST",
        path="/v1/reservations",
        sent_headers=(("Idempotency-Key", '"a-key-of-16-chars"'),),
        sent=sent,
        status=status,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        body=body,
    )


@pytest.mark.parametrize("body", [b"", b"<p>", b"[]", b'"x"', b"[" * 100_000, b"\xff", b"{"])
def test_a_body_that_is_no_object_is_an_empty_one(body: bytes) -> None:
    """Whatever a provider answers, looking at it never raises."""
    seen = exchange(body)
    assert (seen.document, seen.problem, seen.receipt, seen.outcome) == ({}, "", {}, "")
    assert seen.said == "200"


@pytest.mark.parametrize(
    ("document", "status", "said"),
    [
        (RECEIPT, 200, "200 rejected"),
        ({"type": "/problems/insufficient-stock", "receipt": RECEIPT}, 409, "409 insufficient-stock"),
        ({"type": "/problems/internal"}, 500, "500 internal"),
        ({"type": "about:blank"}, 500, "500"),
        ({"type": 7, "outcome": "committed"}, 200, "200"),
    ],
)
def test_an_answer_is_named_by_its_problem_or_its_outcome(document: Any, status: int, said: str) -> None:
    """A receipt is found where it is the body and where a problem carries it, and nowhere else."""
    seen = exchange(json.dumps(document).encode(), status)
    assert seen.said == said
    assert seen.receipt == (RECEIPT if RECEIPT in (document, document.get("receipt")) else {})


def test_an_exchange_is_shown_with_its_bodies_and_without_what_says_nothing() -> None:
    """Enough to be repeated by hand, but for the token."""
    seen = exchange(b'{"a":1}', 400, b"{", cache_control="no-store", server="x")
    assert seen.as_text().splitlines() == [
        "> POST /v1/reservations",
        '> Idempotency-Key: "a-key-of-16-chars"',
        "> {",
        "< 400",
        "< cache-control: no-store",
        '< {"a":1}',
    ]
    shown = seen.as_document()
    assert (shown["request"], shown["status"], shown["response"]) == ("{", 400, '{"a":1}')
    assert shown["response_headers"] == {"cache-control": "no-store"}


@pytest.mark.parametrize("body", [b"a" * 100_000, "ä".encode() * 5000, b"\xff" * 3000])
def test_a_long_body_is_cut_and_its_length_said(body: bytes) -> None:
    """A body of 64 KiB is no reading; what is no text is escaped."""
    shown = exchange(body).as_document()["response"]
    assert len(shown) < SHOWN_CHARACTERS + 30
    assert shown.endswith(f"... ({len(body)} bytes)")
