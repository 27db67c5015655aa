"""The numbers agree with each other and with the limits of what they bound."""

import inspect
from datetime import UTC, datetime, timedelta

from activities.contracts import HEARTBEAT_EVERY_SECONDS, SEND_DEADLINE_SECONDS, PageRequest
from activities.inventory_client import LONGEST_PAUSE_SECONDS
from services.database import LOCK_TIMEOUT_SECONDS
from services.effects.settle import MARGIN, SEND_WINDOW
from services.journal.store import Journal
from services.reconciliation.sweep import CALLS_AT_ONCE, SCOPE_SECONDS
from services.settings import WorkerSettings
from workflows import policies

DECIDED_AT = datetime(2026, 3, 1, tzinfo=UTC)


def test_an_effects_activity_may_go_on_until_its_window_and_the_margin_are_over() -> None:
    """From its decision on, not from when it is scheduled; then it is settled only."""
    whole = SEND_WINDOW + MARGIN
    assert policies.schedule_to_close(DECIDED_AT, DECIDED_AT) == whole
    assert policies.schedule_to_close(DECIDED_AT, DECIDED_AT + timedelta(hours=20)) == whole - timedelta(hours=20)
    assert policies.schedule_to_close(DECIDED_AT, DECIDED_AT + whole - timedelta(seconds=1)) == timedelta(seconds=1)
    assert policies.schedule_to_close(DECIDED_AT, DECIDED_AT + whole) is None
    assert policies.schedule_to_close(DECIDED_AT, DECIDED_AT + timedelta(days=365)) is None


def test_workflow_journal_and_settings_mean_the_same_window_and_margin() -> None:
    """By default."""
    assert (timedelta(hours=24), timedelta(minutes=5)) == (SEND_WINDOW, MARGIN)
    journal = inspect.signature(Journal.__init__).parameters
    assert (journal["send_window"].default, journal["margin"].default) == (SEND_WINDOW, MARGIN)
    settings = WorkerSettings.model_fields
    seconds = (settings["send_window_seconds"].default, settings["margin_seconds"].default)
    assert seconds == (SEND_WINDOW.total_seconds(), MARGIN.total_seconds())


def test_an_attempt_fits_into_its_activity_and_its_drain() -> None:
    """Look-up, send and the journal's lock within start-to-close; one send within the drain."""
    attempt = 2 * SEND_DEADLINE_SECONDS + LOCK_TIMEOUT_SECONDS
    assert timedelta(seconds=attempt) < policies.START_TO_CLOSE
    assert timedelta(seconds=SEND_DEADLINE_SECONDS) < policies.DRAIN
    assert timedelta(seconds=2 * HEARTBEAT_EVERY_SECONDS) < policies.HEARTBEAT


def test_a_page_of_the_sweep_ends_in_time_though_every_answer_comes_at_the_last_moment() -> None:
    """One look-up of all, then a look-up and a void for each row; a page too long would be tried for ever."""
    calls = 1 + 2 * -(-PageRequest().limit // CALLS_AT_ONCE)
    assert timedelta(seconds=calls * SEND_DEADLINE_SECONDS + LOCK_TIMEOUT_SECONDS) < policies.SWEEP_START_TO_CLOSE
    of_one_scope = SCOPE_SECONDS + 2 * SEND_DEADLINE_SECONDS + LOCK_TIMEOUT_SECONDS
    assert timedelta(seconds=of_one_scope) < policies.SWEEP_START_TO_CLOSE


def test_an_effect_is_tried_without_an_attempt_limit_and_never_seldom() -> None:
    """Up to five seconds between tries, up to five minutes between rounds."""
    assert policies.RETRY.maximum_attempts == 0
    assert policies.RETRY.maximum_interval == timedelta(seconds=5)
    assert policies.FIRST_PAUSE < policies.LONGEST_PAUSE
    assert timedelta(seconds=LONGEST_PAUSE_SECONDS) == policies.LONGEST_PAUSE
