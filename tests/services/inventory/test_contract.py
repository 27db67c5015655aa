"""Keys, Effect headers, fingerprints and models."""

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError

from services.inventory.contract import (
    DeliveryRequest,
    Kind,
    LineRequest,
    ReleaseRequest,
    ReservationRequest,
    canonical,
    effect_headers,
    fingerprint,
    is_reservation_id,
    is_sku,
    parse_key,
    parse_path_key,
    rfc3339,
    to_json,
    total,
)
from services.inventory.problems import Invalid, Problem, Refused

KEY = "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1"
DEADLINE = ["2026-06-02T12:00:00Z"]


def test_the_fingerprint_is_the_published_one() -> None:
    """The contract's test vector."""
    request = ReservationRequest(lines=[LineRequest(sku="FILTER-A", quantity=2)])
    expected = "5fcfd13691813b7f8316ac2c16ad9645a6a00e0eb11209e7c8d4f3ae5b5bb1f7"
    assert fingerprint(Kind.RESERVE, {}, canonical(request)) == expected


def test_a_member_that_says_nothing_changes_no_fingerprint() -> None:
    """Null and absent are one request."""
    lines = [LineRequest(sku="FILTER-A", quantity=2)]
    assert canonical(ReservationRequest(lines=lines, reference=None)) == canonical(ReservationRequest(lines=lines))
    assert canonical(ReleaseRequest(reason=None)) == {}


def test_kind_path_and_request_each_change_the_fingerprint() -> None:
    """I41: one kind's key cannot pass for another's, nor one reservation's for another's."""
    prints = {
        fingerprint(Kind.RELEASE, {"id": "reservation-1"}, {}),
        fingerprint(Kind.RELEASE, {"id": "reservation-2"}, {}),
        fingerprint(Kind.RELEASE, {"id": "reservation-1"}, {"reason": "late"}),
        fingerprint(Kind.DELIVER, {"id": "reservation-1"}, {}),
    }
    assert len(prints) == 4


def test_lines_are_fingerprinted_as_given_and_totalled_apart() -> None:
    """Duplicate SKUs are summed, in the order in which their rows are locked."""
    lines = [LineRequest(sku=sku, quantity=quantity) for sku, quantity in (("B", 1), ("A", 2), ("B", 3))]
    assert list(total(lines).items()) == [("A", 2), ("B", 4)]
    other = [LineRequest(sku="A", quantity=2), LineRequest(sku="B", quantity=4)]
    prints = {fingerprint(Kind.RESERVE, {}, canonical(ReservationRequest(lines=each))) for each in (lines, other)}
    assert len(prints) == 2


@pytest.mark.parametrize("value", [KEY, f'"{KEY}"', "a" * 16, "A" * 128, ".~:-_0123456789aZ"])
def test_a_key_is_taken_quoted_or_bare(value: str) -> None:
    """16 to 128 characters of the alphabet."""
    assert parse_key([value]) == value.strip('"')


@pytest.mark.parametrize(
    "values",
    [
        [""],
        ["a" * 15],
        ["a" * 129],
        ["a" * 140],
        [f'"{KEY}'],
        [f'{KEY}"'],
        [f'""{KEY}""'],
        [f"{KEY} "],
        ["é" * 20],
        [KEY, KEY],
        [f"{KEY},{KEY}"],
        [f"{KEY}\n"],
        ["a" * 15 + "/"],
        ["\u0660" * 20],
    ],
)
def test_what_is_not_one_key_is_refused(values: list[str]) -> None:
    """I32: a key of 140 characters, two headers, half a quotation: refused at once."""
    with pytest.raises(Refused) as refused:
        parse_key(values)
    assert refused.value.problem is Problem.IDEMPOTENCY_KEY_INVALID


def test_no_key_is_another_problem_than_a_bad_one() -> None:
    """A caller that forgot the header reads so; a path's key is never quoted."""
    with pytest.raises(Refused) as refused:
        parse_key([])
    assert refused.value.problem is Problem.IDEMPOTENCY_KEY_MISSING
    assert parse_path_key(KEY) == KEY
    with pytest.raises(Refused):
        parse_path_key(f'"{KEY}"')


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-06-02T12:00:00Z", datetime(2026, 6, 2, 12, tzinfo=UTC)),
        ("2026-06-02t12:00:00z", datetime(2026, 6, 2, 12, tzinfo=UTC)),
        ("2026-06-02T12:00:00+00:00", datetime(2026, 6, 2, 12, tzinfo=UTC)),
        ("2026-06-02T12:00:00.5Z", datetime(2026, 6, 2, 12, 0, 0, 500000, tzinfo=UTC)),
        ("2026-06-02T12:00:00.123456999Z", datetime(2026, 6, 2, 12, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_a_deadline_is_an_rfc_3339_time_in_utc(text: str, moment: datetime) -> None:
    """Digits beyond the microsecond are cut: the deadline never moves later."""
    assert effect_headers(KEY, [text], []).not_after == moment


@pytest.mark.parametrize(
    "values",
    [
        [],
        ["2026-06-02T12:00:00Z"] * 2,
        [""],
        ["2026-06-02"],
        ["2026-06-02 12:00:00Z"],
        ["2026-06-02T12:00:00"],
        ["2026-06-02T12:00:00+02:00"],
        ["2026-06-02T12:00:00-00:00"],
        ["2026-13-02T12:00:00Z"],
        ["tomorrow"],
        ["2026-06-02T12:00:60Z"],
        ["2026-06-02T24:00:00Z"],
        ["0000-06-02T12:00:00Z"],
        ["20260602T120000Z"],
        ["2026-W23-2T12:00:00Z"],
        ["1780401600"],
    ],
)
def test_a_deadline_that_could_be_misread_is_refused(values: list[str]) -> None:
    """Absent, doubled, local or impossible: nothing is guessed."""
    with pytest.raises(Invalid):
        effect_headers(KEY, values, [])


def test_superseded_keys_are_taken_newest_first() -> None:
    """However they are listed and split, all callers lock them in one order, each once; others come last."""
    name = "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g"
    headers = effect_headers(f"{name}11", DEADLINE, [f'{name}2, "{name}10"', f"{name}9,an-older-system-0001,{name}2"])
    assert headers.supersedes == (f"{name}10", f"{name}9", f"{name}2", "an-older-system-0001")


def test_a_former_generation_that_is_listed_twice_is_one_of_the_sixteen() -> None:
    """There it is one key, and takes two places: sixteen places is what the list may have."""
    keys = [f"key-0123456789ab-g{number}" for number in range(2, 17)]
    assert effect_headers("key-0123456789ab-g18", DEADLINE, [*keys, keys[0]]).supersedes == tuple(reversed(keys))
    with pytest.raises(Invalid):
        effect_headers("key-0123456789ab-g18", DEADLINE, [*keys, keys[0], keys[0]])


@pytest.mark.parametrize(
    "values",
    [
        [""],
        [KEY],
        ["short"],
        ["key-0123456789ab-g1,"],
        [", ".join(f"key-0123456789ab-g{number}" for number in range(1, 18))],
    ],
)
def test_a_list_that_cannot_be_former_generations_is_refused(values: list[str]) -> None:
    """The own key, an empty one, or more than 16."""
    with pytest.raises(Invalid):
        effect_headers(KEY, DEADLINE, values)


@pytest.mark.parametrize("quantity", ["2", 2.0, True, 0, -1, 1_000_000_001, None])
def test_quantities_are_not_coerced(quantity: object) -> None:
    """Only a whole number from 1 to a thousand million is a quantity."""
    with pytest.raises(ValidationError):
        DeliveryRequest.model_validate({"sku": "FILTER-A", "quantity": quantity})


@pytest.mark.parametrize("sku", ["", "-A", ".", "..", "a" * 129, "a b", "a/b", "ä", "A\n", "A\x00"])
def test_a_sku_is_plain(sku: str) -> None:
    """A SKU stands in a path as it is, so the models and the paths take the same ones."""
    assert not is_sku(sku)
    with pytest.raises(ValidationError):
        DeliveryRequest(sku=sku, quantity=1)


@pytest.mark.parametrize("text", ["", "a" * 513, "ä" * 257, "a\x00b", "\ud800"])
def test_text_is_bounded_in_bytes_and_storable(text: str) -> None:
    """A reference of 512 bytes is the longest; NUL and half a character are no text."""
    with pytest.raises(ValidationError):
        ReleaseRequest(reason=text)
    assert ReleaseRequest(reason="ä" * 256).reason == "ä" * 256


@pytest.mark.parametrize("lines", [[], [{"sku": "A", "quantity": 1}] * 101])
def test_a_reservation_has_1_to_100_lines(lines: list[object]) -> None:
    """No empty reservation, and none that locks the whole stock."""
    with pytest.raises(ValidationError):
        ReservationRequest.model_validate({"lines": lines})


def test_names_and_times_have_one_spelling() -> None:
    """Microseconds always, UTC always, ASCII always."""
    assert rfc3339(datetime(2026, 6, 1, tzinfo=UTC)) == "2026-06-01T00:00:00.000000Z"
    assert to_json({"a": "ä"}) == '{"a":"\\u00e4"}'
    assert is_reservation_id("reservation-12")
    assert not any(map(is_reservation_id, ("reservation-0", "reservation-01", "reservation-", "1", "reservation-1\n")))
