"""Coordinators that open and commit at once, a thousand times: one has each slot, and the log has no gap."""

from pathlib import Path

import pytest

from tests.services.checkpoints.test_log import race


def test_two_coordinators_race_a_thousand_times(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """D02: what each was told is what the log holds; within an epoch nobody else wrote."""
    race(tmp_path, processes=2, rounds=1000 if request.config.getoption("long") else 40)
