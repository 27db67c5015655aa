"""P1's figures, of usages that are made up."""

from pathlib import Path

import pytest

from benchmarks.machine import Usage
from benchmarks.perform import BASELINE, VARIANTS, Settings, summary

SETTINGS = Settings(rounds=2, workflows=100, at_once=16, profile=Path("profiles"))


def usage(seconds: float, **cpu_seconds: float) -> Usage:
    """One round of one variant."""
    return Usage(seconds=seconds, cpu_seconds=cpu_seconds, others=0.1)


def test_each_variant_is_compared_with_the_bare_activity_of_the_same_round() -> None:
    """Twice the CPU and half the throughput, in a fast round and in a slow one."""
    used = {
        BASELINE.name: [usage(1.0, worker=1.0, server=1.0), usage(2.0, worker=2.0, server=2.0)],
        "perform, SQLite": [usage(2.0, worker=3.0, server=1.0), usage(4.0, worker=6.0, server=2.0)],
    }
    bare, performed = summary(SETTINGS, used).rows
    assert (bare.cpu_ratio.median, bare.throughput_ratio.median) == (1.0, 1.0)
    assert (performed.cpu_ratio.low, performed.cpu_ratio.high) == (2.0, 2.0)
    assert (performed.throughput_ratio.low, performed.throughput_ratio.high) == (0.5, 0.5)
    assert performed.effects_per_second.high == 50.0
    assert performed.cpu_ms_by_part == {"worker": pytest.approx(45.0), "server": pytest.approx(15.0)}


def test_the_control_is_the_baseline_under_another_name() -> None:
    """On the same worker: what differs between the two is noise."""
    control = next(variant for variant in VARIANTS if "A/A" in variant.name)
    assert control.journal == BASELINE.journal
    assert control.workflow is not BASELINE.workflow
