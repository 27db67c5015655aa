"""Records: one spelling, bounded, strict."""

import math
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.errors import DigestMismatch, ManifestInvalid
from services.checkpoints.records import (
    canonical,
    check_digest,
    check_id,
    check_random,
    digest_of,
    parse,
    record_digest,
    sealed,
    unsealed,
)

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXTS.filter(lambda text: not text.startswith("$")), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS.filter(lambda text: not text.startswith("$")), VALUES, max_size=4))
def test_what_is_written_is_read_back_bit_for_bit(record: dict[str, Any]) -> None:
    """Floats to the last bit, integers of any size, and no second spelling."""
    data = canonical(record)
    assert repr(parse(data)) == repr(parse(canonical(parse(data))))
    assert canonical(parse(data)) == data


@given(st.floats())
def test_a_float_keeps_its_bits(value: float) -> None:
    """Zero's sign too."""
    found = parse(canonical({"x": value}))["x"]
    assert math.copysign(1, found) == math.copysign(1, value) or math.isnan(value)
    assert found == value or (math.isnan(found) and math.isnan(value))


def test_floats_and_large_integers_are_tagged() -> None:
    """As other readers would round them."""
    assert canonical({"b": 0.125, "a": 2**53, "c": 2**53 + 1}) == (
        b'{"a":9007199254740992,"b":{"$float":"0x1p-3"},"c":{"$int":"9007199254740993"}}'
    )


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"a":NaN}',
        b'{"a":1.5}',
        b'{"a": 1}',
        b'{"b":1,"a":1}',
        b"[]",
        b"{",
        b"\xff",
        b'{"a":"\\ud800"}',
        b'{"a":9007199254740993}',
        b'{"a":{"$int":"1"}}',
        b'{"a":{"$int":"x"}}',
        b'{"a":{"$float":"0x1.0p-3"}}',
        b'{"a":{"$float":"zero"}}',
        b'{"a":{"$float":"0x1p-3","b":1}}',
        b'{"a":' + b"[" * 40 + b"]" * 40 + b"}",
        b"[" * 200_000,
        b'{"a":' + b"1" * 5000 + b"}",
    ],
)
def test_every_other_spelling_is_refused(data: bytes) -> None:
    """Twice the same key, a number that rounds, depth without end: named, before anything is believed."""
    with pytest.raises(ManifestInvalid):
        parse(data)


@given(st.binary(max_size=60))
def test_no_bytes_do_anything_but_parse_or_be_refused(data: bytes) -> None:
    """Whatever a disk gives back."""
    with suppress(ManifestInvalid):
        parse(data)


def test_a_record_longer_than_its_bound_is_not_parsed() -> None:
    """The bound is on bytes."""
    with pytest.raises(ManifestInvalid, match="more than the 10"):
        parse(canonical({"a": "x" * 20}), limit=10)


def test_a_persons_document_may_have_spaces_and_fractions() -> None:
    """And still no key twice, and no number that is none."""
    assert parse(b'{ "rtol": 1e-6 }', by_hand=True) == {"rtol": 1e-6}
    with pytest.raises(ManifestInvalid, match="twice"):
        parse(b'{"a": 1, "a": 2}', by_hand=True)
    with pytest.raises(ManifestInvalid, match="NaN"):
        parse(b'{"a": NaN}', by_hand=True)


def test_a_digest_is_of_everything_but_itself() -> None:
    """A record that was changed, or has none, is refused."""
    record = sealed({"format": "f", "value": 1})
    assert record["digest"] == record_digest(record) == digest_of(canonical({"format": "f", "value": 1}))
    assert unsealed(canonical(record), form="f") == record
    with pytest.raises(DigestMismatch):
        unsealed(canonical({**record, "value": 2}), form="f")
    with pytest.raises(ManifestInvalid, match="digest"):
        unsealed(canonical({"format": "f", "value": 1}), form="f")


def test_another_stores_file_is_refused_by_its_format_name() -> None:
    """D11: a journal's export, a cache of another kind."""
    with pytest.raises(ManifestInvalid, match="counterfoil-journal"):
        unsealed(canonical(sealed({"format": "counterfoil-journal-1"})), form="counterfoil-checkpoint-1")


@pytest.mark.parametrize("text", ["", "..", "a..b", "../x", "A", "-a", "a/b", "a" * 65, "a\n", "\u0661", 7, None])
def test_no_path_comes_in_as_an_id(text: object) -> None:
    """C47: a name is made of ids, and an id is nobody's way out."""
    with pytest.raises(ManifestInvalid):
        check_id(text)


def test_ids_digests_and_random_bits_are_told_apart() -> None:
    """D06: a small number is no generation."""
    assert check_id("run-1.a_b") == "run-1.a_b"
    assert check_random("0" * 32) == "0" * 32
    for wrong in ("2", "0" * 64, 2):
        with pytest.raises(ManifestInvalid):
            check_random(wrong)
    with pytest.raises(ManifestInvalid):
        check_digest("0" * 32)


@pytest.mark.parametrize("value", [{"$x": 1}, {1: 2}, {"a": object()}, {"a": "\ud800"}, {"a": {"b"}}, {"a": b"x"}])
def test_what_has_no_spelling_is_not_written(value: Any) -> None:
    """It would be read back as something else."""
    with pytest.raises(ValueError, match=r"key|record|surrogates"):
        canonical(value)
