"""Values of other programs' objects: what comes back is what went in, with its types."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.errors import ManifestInvalid
from services.checkpoints.records import canonical, parse
from services.checkpoints.tagged import tagged, untagged

KEYS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=4), st.integers(-9, 9), st.sampled_from(["!tuple", "$float", "!"])
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=9),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(st.integers(0, 9), st.integers(0, 9), max_size=3).map(Counter),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down: 1, 1.0 and True are three values."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(map(repr, one)) == list(map(repr, other)) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


@given(VALUES)
def test_a_value_comes_back_as_it_went_through_a_record(value: Any) -> None:
    """Tuples, Counters, keys that are numbers or that look like a tag, floats to the last bit."""
    record = parse(canonical({"value": tagged(value, "value")}))
    back = untagged(record["value"])
    # A plain object's keys are sorted in a record; nobody's setting depends on their order.
    assert same(_sorted(back), _sorted(value))


def _sorted(value: Any) -> Any:
    if type(value) is dict:
        return {key: _sorted(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return type(value)(map(_sorted, value))
    return Counter(dict(sorted(value.items()))) if isinstance(value, Counter) else value


def test_what_has_no_place_is_named() -> None:
    """By where it stands, so that a person finds it."""
    with pytest.raises(ManifestInvalid, match=r"scheduler\.steps\[1\] is a object"):
        tagged({"steps": [1, object()]}, "scheduler")


@pytest.mark.parametrize("told", [{"!set": []}, {"!tuple": 3}, {"!dict": [[1]]}, {"!dict": [[[], 1]]}, {"!other": 1}])
def test_a_tag_that_nobody_wrote_is_refused(told: Any) -> None:
    """And nothing is made of it."""
    with pytest.raises(ManifestInvalid, match="nothing was changed"):
        untagged(told)
