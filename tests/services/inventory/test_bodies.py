"""Strict JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inventory.bodies import MAX_DEPTH, parse, parse_json
from services.inventory.contract import ReservationRequest
from services.inventory.problems import Invalid


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}{}",
        b"\xff",
        b"\xef\xbb\xbf{}",
        '{"a":1}'.encode("utf-16"),
        b'{"a":1,"a":1}',
        b'{"a":{"b":1,"b":2}}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e400}',
        b'{"a":-1e400}',
        b'{"a":' + b"9" * 21 + b"}",
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":0.' + b"1" * 5000 + b"}",
        b'{"a":"\\ud800"}',
        b'{"\\udc00":1}',
        b'{"a":"\x00"}',
        b"{'a':1}",
        b"// no\n{}",
        b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1),
        b"[" * 60000,
        b'{"a":' * 12000,
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_two_parsers_could_read_differently_is_refused(body: bytes) -> None:
    """Every one of them is the caller's error, and none of them the parser's."""
    with pytest.raises(Invalid):
        parse_json(body)


@pytest.mark.parametrize("piece", [b'\\"', b'"', b"\\", b'"\\', b'{"', b'\\"{', b'"a":'], ids=repr)
def test_no_body_takes_more_time_than_its_length(piece: bytes) -> None:
    """If a search began again within it, a megabyte would take hours; the time limit of the tests would end it."""
    body = piece * (1024 * 1024 // len(piece))
    with pytest.raises(Invalid):
        parse_json(body)
    with pytest.raises(Invalid):
        parse_json(b'"' + body)


def test_brackets_in_strings_are_no_nesting() -> None:
    """The depth is that of the document, up to 32 levels."""
    assert parse_json(b'{"a":"' + b"[{" * 100 + b'\\"[[[["}') == {"a": "[{" * 100 + '"[[[['}
    parse_json(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)


def test_a_fault_is_pointed_at_and_its_value_not_repeated() -> None:
    """The pointer says where; what was sent there may be a secret."""
    with pytest.raises(Invalid) as invalid:
        parse(b'{"lines":[{"sku":"FILTER-A","quantity":"s3cret"}],"hold/seconds":"s3cret"}', ReservationRequest)
    errors = invalid.value.members["errors"]
    assert [error["at"] for error in errors] == ["/lines/0/quantity", "/hold~1seconds"]
    assert "s3cret" not in str(errors)


@given(st.binary(max_size=200) | st.text('{}[]":,\\u0d8e1N', max_size=60).map(str.encode))
def test_no_body_breaks_the_parser(body: bytes) -> None:
    """Whatever comes, it is a request or an Invalid."""
    try:
        parse(body, ReservationRequest)
    except Invalid as invalid:
        assert invalid.members["errors"]  # noqa: PT017 - either way is right, nothing else is
