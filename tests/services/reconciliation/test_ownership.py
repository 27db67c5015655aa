"""Which rows the sweep leaves alone, and for how long."""

from dataclasses import replace
from datetime import timedelta

import pytest

from activities.contracts import SEND_DEADLINE_SECONDS
from services.effects.records import Attempt, Seen
from services.reconciliation.recovery import OWNERSHIP_SLACK, owned
from tests.services.effects.halves import DECIDED_AT

DEADLINE = timedelta(seconds=SEND_DEADLINE_SECONDS)
MARKED = Attempt(
    attempt_id="attempt-1",
    number=1,
    not_after=DECIDED_AT + timedelta(hours=24),
    marked_at=DECIDED_AT,
    worker={"host": "worker-1", "pid": 7},
)


def _owned(*attempts: Attempt, after: timedelta, dead: bool = False) -> bool:
    return owned(attempts, now=DECIDED_AT + after, send_deadline=DEADLINE, provably_dead=lambda _worker: dead)


@pytest.mark.parametrize("after", [timedelta(0), DEADLINE, timedelta(seconds=-1)])
def test_a_fresh_mark_is_owned(after: timedelta) -> None:
    """Until its total deadline and a little more; a clock that is a little behind changes nothing."""
    assert _owned(MARKED, after=after)


@pytest.mark.parametrize("after", [DEADLINE + OWNERSHIP_SLACK, timedelta(hours=-1)])
def test_a_mark_of_another_time_is_not_owned(after: timedelta) -> None:
    """Neither an old one, nor one from the future: a clock put back by an hour would stop the sweep for an hour."""
    assert not _owned(MARKED, after=after)


def test_what_is_heard_dead_or_unmarked_is_not_owned() -> None:
    """Nobody can be at work on it."""
    assert not _owned(after=timedelta(0))
    assert not _owned(MARKED, after=timedelta(0), dead=True)
    assert not _owned(replace(MARKED, seen=Seen.UNKNOWN), after=timedelta(0))
