"""What a response shows, without any wire: no answer is too odd, and no pause is believed beyond reason."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from activities.inventory_client import LONGEST_PAUSE_SECONDS, classify
from services.effects.keys import canonical
from services.effects.records import Seen, Source
from services.effects.settle import settle
from services.effects.signatures import sign
from tests.activities.sending import COMMITTED, REJECTED, ROW, mark
from tests.services.effects.halves import make_intent, make_receipt


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0.0),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("9" * 400, LONGEST_PAUSE_SECONDS),
        ("86400", LONGEST_PAUSE_SECONDS),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("²", None),
        ("Mon, 01 Mar 2020 00:00:00 GMT", 0.0),
        ("Fri, 31 Dec 9999 23:59:59 -0100", LONGEST_PAUSE_SECONDS),
        ("Fri, 31 Dec 9999 23:59:59 -0000", LONGEST_PAUSE_SECONDS),
    ],
)
def test_retry_after_is_read_in_both_forms_and_never_believed_beyond_reason(value: str, seconds: float | None) -> None:
    """A pause of a day is not kept, a pause that cannot be read is none."""
    for status, name in ((429, "overloaded"), (503, "overloaded"), (409, "request-in-progress")):
        body = canonical({"type": f"/problems/{name}"})
        answer = classify(status, {"retry-after": value}, body, Source.SEND)
        assert (answer.seen, answer.retry_after_seconds) == (Seen.BUSY, seconds)


def test_retry_after_as_a_date_is_the_time_until_then() -> None:
    """Whole seconds from now, by this host's clock."""
    before = datetime.now(UTC)
    then = format_datetime(before + timedelta(seconds=30), usegmt=True)
    answer = classify(503, {"retry-after": then}, canonical({"type": "/problems/overloaded"}), Source.SEND)
    took = (datetime.now(UTC) - before).total_seconds()
    assert answer.retry_after_seconds is not None
    assert 29 - took <= answer.retry_after_seconds <= 30


@pytest.mark.parametrize("detail", ["half \ud800", "two\nlines", "\x1b[31mred", "x" * 5000])
def test_what_a_provider_says_is_one_line_that_can_be_journaled(detail: str) -> None:
    """A refusal's text goes into the journal: it can always be written there."""
    body = json.dumps({"type": "/problems/validation-failed", "detail": detail}).encode()
    answer = classify(400, {}, body, Source.SEND)
    assert answer.seen is Seen.REQUEST_REFUSED
    assert len(answer.reason) <= 300
    assert answer.reason.isprintable()
    canonical(answer.reason)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
TYPES = st.sampled_from(
    [f"/problems/{name}" for name in ("insufficient-stock", "key-voided", "receipt-not-found", "overloaded",
     "not-after-passed", "validation-failed", "predecessor-committed", "key-expired", "made-up")]
)  # fmt: skip
RECEIPTS = st.dictionaries(st.sampled_from(sorted(COMMITTED)), JSON, max_size=2).map(lambda some: COMMITTED | some)
BODIES = st.one_of(
    st.binary(max_size=200),
    JSON.map(lambda value: json.dumps(value).encode()),
    RECEIPTS.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"type": TYPES}, optional={"receipt": RECEIPTS | JSON, "predecessor": RECEIPTS | JSON,
                          "observed_at": st.datetimes().map(str) | JSON, "detail": JSON})
    .map(lambda value: json.dumps(value).encode()),
)  # fmt: skip
HEADERS = st.dictionaries(st.sampled_from(["retry-after", "content-type"]), st.text(max_size=40), max_size=2)


@settings(max_examples=600, deadline=None)
@given(
    status=st.sampled_from([200, 201, 204, 303, 400, 401, 404, 409, 410, 412, 413, 422, 429, 500, 503])
    | st.integers(100, 599),
    headers=HEADERS,
    body=BODIES,
    source=st.sampled_from(Source),
)
def test_no_response_is_too_odd_to_be_classified(
    status: int, headers: dict[str, str], body: bytes, source: Source
) -> None:
    """Never an exception; RECEIPT only with a receipt that was read; and what is said of it can be journaled."""
    answer = classify(status, headers, body, source)
    assert (answer.seen is Seen.RECEIPT) == (answer.receipt is not None)
    assert (answer.seen is Seen.ABSENT) == (answer.observed_at is not None)
    assert answer.source is source
    canonical(answer.reason)
    if answer.receipt is not None:
        canonical(answer.receipt.body)
    pause = answer.retry_after_seconds
    assert pause is None or 0 <= pause <= LONGEST_PAUSE_SECONDS
    settle(ROW, (mark(),), answer)


def signed(receipt: dict[str, Any], key: bytes = b"key-1") -> dict[str, Any]:
    """A receipt as the provider signs it."""
    return receipt | {"signature": sign(receipt, key)}


def test_with_keys_a_receipt_shows_something_only_when_one_of_them_has_signed_it() -> None:
    """Wherever it stands: as an answer, in a refusal, or as the former generation's; the reason is said."""
    former = make_receipt(make_intent(name="former")).body
    refusal: dict[str, Any] = {"type": "/problems/predecessor-committed", "receipt": signed(REJECTED)}
    answers: list[tuple[int, Callable[[dict[str, Any]], dict[str, Any]], dict[str, Any]]] = [
        (201, dict, COMMITTED),
        (409, lambda one: refusal | {"type": "/problems/unknown-sku", "receipt": one}, REJECTED),
        (409, lambda one: refusal | {"predecessor": one}, former),
    ]
    for status, document, receipt in answers:
        for one, seen, reason in (
            (signed(receipt), Seen.RECEIPT, ""),
            (signed(receipt, b"key-2"), Seen.RECEIPT, ""),
            (receipt, Seen.UNKNOWN, "it is not signed"),
            (signed(receipt, b"somebody's"), Seen.UNKNOWN, "not by any key of ours"),
            (signed(receipt) | {"reason": "changed"}, Seen.UNKNOWN, "not by any key of ours"),
        ):
            body = canonical(document(one))
            answer = classify(status, {}, body, Source.SEND, (b"key-2", b"key-1"))
            assert (answer.seen, reason in answer.reason) == (seen, True)
            assert classify(status, {}, body, Source.SEND).seen is Seen.RECEIPT
