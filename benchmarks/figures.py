"""The arithmetic of a report: medians with their spread, ratios within a round, percentiles, and how each is shown.

A machine that is shared changes its speed from minute to minute. So a ratio is taken within each round, between
neighbours in time, and only then is the median of the ratios taken: never a ratio of two medians.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The median of several rounds, with the lowest and the highest."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{shown(self.median)} ({shown(self.low)}-{shown(self.high)})"


def spread(values: Sequence[float]) -> Spread:
    """The median and the extremes of at least one value."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def ratios(values: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Round by round, each value to the baseline's of the same round.

    Raises:
        ValueError: not one baseline to each value.
    """
    return spread([value / base for value, base in zip(values, baseline, strict=True)])


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not exceed (nearest rank: one that was measured)."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def shown(value: float) -> str:
    """Three digits that mean something, whatever the size."""
    for above, decimals in ((100, 0), (10, 1)):
        if abs(value) >= above:
            return f"{value:,.{decimals}f}"
    return f"{value:.2f}"
