"""The arithmetic of a report."""

import pytest

from benchmarks.figures import percentile, ratios, shown, spread


def test_one_odd_round_moves_the_spread_and_not_the_median() -> None:
    """A neighbour's burst in one round of five is seen, and does not decide."""
    found = spread([10.0, 11.0, 90.0, 9.0, 10.5])
    assert (found.median, found.low, found.high) == (10.5, 9.0, 90.0)
    assert str(found) == "10.5 (9.00-90.0)"


def test_a_ratio_is_taken_within_its_round() -> None:
    """A machine that became half as fast changes both values of a round, and no ratio."""
    found = ratios([11.0, 22.0, 44.0], [10.0, 20.0, 40.0])
    assert (found.low, found.median, found.high) == pytest.approx((1.1, 1.1, 1.1))


def test_a_ratio_without_its_baseline_is_refused() -> None:
    """A round that lost one of its two is no round."""
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])


@pytest.mark.parametrize(("percent", "expected"), [(50, 2.0), (75, 3.0), (76, 4.0), (99, 4.0), (100, 4.0), (0, 1.0)])
def test_a_percentile_is_a_value_that_was_measured(percent: float, expected: float) -> None:
    """Of four values the 99th percentile is the greatest: nothing is interpolated."""
    assert percentile([4.0, 1.0, 3.0, 2.0], percent) == expected


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")]
)
def test_a_figure_is_shown_with_as_many_digits_as_mean_something(value: float, text: str) -> None:
    """Whatever its size."""
    assert shown(value) == text
