"""What is too old to be asked for, and how far back somebody may ask."""

from datetime import timedelta

from services.effects.horizon import LONGEST_HOLD, LONGEST_OUTAGE, OLDEST_COPY, forgotten, recovery_horizon
from services.effects.settle import MARGIN, SEND_WINDOW
from tests.services.effects.halves import DECIDED_AT

RETENTION = timedelta(days=60)
LAST = DECIDED_AT + RETENTION - MARGIN
MOMENT = timedelta(microseconds=1)


def test_what_was_decided_longer_ago_than_the_retention_less_the_margin_is_forgotten() -> None:
    """Two clocks differ by up to the margin, and the receipt may be as old as the decision (G10)."""
    assert not forgotten(DECIDED_AT, LAST, retention=RETENTION, margin=MARGIN)
    assert forgotten(DECIDED_AT, LAST + MOMENT, retention=RETENTION, margin=MARGIN)


def test_a_provider_that_does_not_say_when_it_looked_proves_nothing() -> None:
    """Unless it forgets nothing: then it does not matter when."""
    assert forgotten(DECIDED_AT, None, retention=RETENTION, margin=MARGIN)
    assert not forgotten(DECIDED_AT, None, retention=None, margin=MARGIN)
    assert not forgotten(DECIDED_AT, DECIDED_AT + 1000 * RETENTION, retention=None, margin=MARGIN)


def test_the_horizon_is_all_that_can_keep_an_outcome_unknown_in_turn() -> None:
    """Longer than the window and the margin, or the last send of an effect could not be asked for."""
    horizon = recovery_horizon(SEND_WINDOW, MARGIN)
    assert horizon == SEND_WINDOW + LONGEST_OUTAGE + LONGEST_HOLD + OLDEST_COPY + MARGIN
    assert recovery_horizon(2 * SEND_WINDOW, MARGIN) - horizon == SEND_WINDOW
