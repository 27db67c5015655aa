"""What makes unsettled effects findable stays within what the server takes."""

import json
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.enums.v1 import IndexedValueType

from services.effects.keys import derive_key
from workflows import search_attributes

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_names_and_types_are_the_contract_with_saved_queries() -> None:
    """Two lists, a number and a time."""
    kinds = IndexedValueType
    assert {key.name: int(key.indexed_value_type) for key in search_attributes.ALL} == {
        "EffectState": kinds.INDEXED_VALUE_TYPE_KEYWORD_LIST,
        "EffectKey": kinds.INDEXED_VALUE_TYPE_KEYWORD_LIST,
        "PendingEffects": kinds.INDEXED_VALUE_TYPE_INT,
        "UnknownSince": kinds.INDEXED_VALUE_TYPE_DATETIME,
    }


def test_a_hundred_keys_stay_under_the_limits_and_the_number_is_true() -> None:
    """A15: over 2,048 bytes the server would terminate the workflow."""
    keys = [derive_key("demo", "INC-1", f"name-{number}", 17) for number in range(100)]
    states, listed, number, since = search_attributes.updates(
        states=["pending"] * 99 + ["in_doubt"], keys=keys, unknown_since=NOW
    )
    assert listed.value == keys[:40]
    assert len(json.dumps(listed.value)) <= search_attributes.KEY_BYTES
    assert number.value == 100
    assert states.value == ["in_doubt", "pending"]
    assert since.value == NOW


def test_with_nothing_unsettled_all_are_empty() -> None:
    """So that a query for what is pending does not find it."""
    states, listed, number, since = search_attributes.updates(states=[], keys=[], unknown_since=None)
    assert (states.value, listed.value, number.value, since.value) == ([], [], 0, None)


@given(st.lists(st.text(max_size=300), max_size=60))
def test_keys_of_any_length_fit(keys: list[str]) -> None:
    """The first ones, as many as go in."""
    kept = search_attributes.fitting(keys)
    assert kept == keys[: len(kept)]
    assert len(json.dumps(kept)) <= search_attributes.KEY_BYTES


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), max_size=60))
def test_a_memo_of_any_lines_fits_and_says_how_many_are_left_out(lines: list[str]) -> None:
    """Whole lines, the first ones, as many as go in."""
    text = search_attributes.fitting_lines(lines)
    assert len(json.dumps(text)) <= search_attributes.MEMO_BYTES
    if text != "\n".join(lines):
        kept = next(number for number in range(len(lines)) if text == _cut(lines, number))
        more = _cut(lines, kept + 1)
        assert len(json.dumps(more)) > search_attributes.MEMO_BYTES or kept == search_attributes.MEMO_LINES


def _cut(lines: list[str], kept: int) -> str:
    left_out = len(lines) - kept
    return "\n".join([*lines[:kept], f"- and {left_out} more, in the query `pending`"] if left_out else lines)
