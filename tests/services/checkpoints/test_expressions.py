"""Relations: a small grammar, parsed by ourselves."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.errors import InvariantViolation, ManifestInvalid
from services.checkpoints.expressions import DEPTH, Expression, Names, parse

NAMES: Names = {"a": 2, "b": 3, "c": {"0": 4, "1": 5}}


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("a + b == 5", True),
        ("b - a - 1 == 0", True),
        ("a + b * 2 == 8", True),
        ("(a + b) * 2 == 10", True),
        ("a < b", True),
        ("a >= b", False),
        ("sum(c) == 9", True),
        ("a == 2 implies b == 4", False),
        ("a == 1 implies b == 4", True),
        ("a == 1 implies b == 4 implies a == 7", True),
        ("(a == 2 implies b == 4) implies a == 7", True),
        ("((a)) != ((b))", True),
        ("2 * (a - b) <= 0", True),
    ],
)
def test_a_relation_has_the_value_that_arithmetic_gives(text: str, true: bool) -> None:
    """Products before sums, implications from the right."""
    assert parse(text).value(NAMES) is true


_SUMS = st.recursive(
    st.integers(0, 9).map(str) | st.sampled_from(["a", "b"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda each: f"({each[0]} {each[1]} {each[2]})"),
    max_leaves=8,
)


@given(_SUMS, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), _SUMS)
def test_every_comparison_is_what_python_says(left: str, sign: str, right: str) -> None:
    """An oracle that we do not use in the product."""
    text = f"{left} {sign} {right}"
    assert parse(text).value(NAMES) is eval(text, {"a": 2, "b": 3})  # noqa: S307


@pytest.mark.parametrize(
    "text",
    [
        "", "a", "a +", "a == ", "== a", "a == b == a", "a = b", "a == b)", "(a == b", "__import__('os') == 1",
        "a.b == 1",
        "a == -1", "a / b == 1", "(a == b) + 1 == 2", "a == (b == a)", "a implies b", "a == 1 implies", "sum(1) == 1",
        "sum(a + b) == 1", "a == 1 and b == 1", "implies == 1", "a == 1" + " " * 5000, "1" * 20 + " == 1", 7,
        "(" * 17 + "a" + ")" * 17 + " == 2", "a == 1 implies " * 17 + "a == 1", "(" * 3000,
    ],
)  # fmt: skip
def test_everything_else_is_refused(text: object) -> None:
    """Also what is only too long or too deep."""
    with pytest.raises(ManifestInvalid):
        parse(text)


@given(st.text(alphabet="ab1()+-*<>=! implsum", max_size=40) | st.text(max_size=20))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    """No other error, no endless loop."""
    with suppress(ManifestInvalid):
        assert isinstance(parse(text), Expression)


def test_depth_is_bounded_and_length_is_not_depth() -> None:
    """Two thousand terms are one level."""
    inner = "(" * DEPTH + "a" + ")" * DEPTH
    assert parse(f"{inner} == 2").value(NAMES)
    assert parse("+".join(["a"] * 2000) + " == 4000").value(NAMES)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a == b", "a 2 != b 3"),
        ("a == b * 2", "a 2 != 6"),
        ("a > b", "a 2 <= b 3"),
        ("sum(c) == a", "sum(c) 9 != a 2"),
        ("a == 2 implies b == 4", "b 3 != 4"),
    ],
)
def test_what_is_false_is_said_with_both_numbers(text: str, why: str) -> None:
    """C26: scheduler 5 != updates 4."""
    assert parse(text).why_false(NAMES) == why


@pytest.mark.parametrize("text", ["d == 1", "c == 1", "sum(a) == 1"])
def test_a_name_without_such_a_value_is_no_zero(text: str) -> None:
    """It refuses the cut."""
    with pytest.raises(InvariantViolation):
        parse(text).value(NAMES)


def test_a_number_that_nobody_could_write_is_said_by_its_size() -> None:
    """Products are exact, however long; Python itself refuses to write so many digits."""
    text = "*".join(["a"] * 2000)
    assert parse(f"{text} == 0").why_false({"a": 2**63 - 1}) == "2**125999.. != 0"
    assert parse(f"0 - {text} == 0").why_false({"a": 2}) == "-2**2000.. != 0"
