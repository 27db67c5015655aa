"""What is older than the provider's retention: no mark, no void, and a person decides."""

from datetime import timedelta

import sqlalchemy as sa

from services.effects.records import Seen, Source
from services.effects.settle import MARGIN, Next
from services.effects.states import EffectState
from services.journal.store import Journal
from tests.services.effects.halves import DECIDED_AT, make_answer, make_intent, make_mark, make_receipt, shows
from tests.services.journal.conftest import Clock

INTENT = make_intent()


def test_nothing_is_marked_that_is_older_than_the_providers_retention(engine: sa.Engine, clock: Clock) -> None:
    """Also where its window is still open: its receipt may have been made and forgotten (E44, G10)."""
    retention = timedelta(hours=2)
    journal = Journal(engine, recorded_by="test", clock=clock, retention=retention)
    clock.now = DECIDED_AT + retention - MARGIN + timedelta(microseconds=1)
    late = journal.begin(INTENT, make_mark("attempt-1"))
    assert (late.attempt, late.refused) == (None, "it is older than the provider's retention")
    assert journal.mark(INTENT, make_mark("attempt-2")).attempt is None
    clock.now -= timedelta(microseconds=1)
    assert journal.mark(INTENT, make_mark("attempt-3")).attempt is not None


def test_an_absence_after_the_journals_retention_leaves_it_in_doubt(engine: sa.Engine, clock: Clock) -> None:
    """It was given up and would be voided; a receipt that turns up settles it all the same (G10)."""
    retention = timedelta(hours=2)
    journal = Journal(engine, recorded_by="test", clock=clock, retention=retention)
    journal.give_up(INTENT, why="the test says so")
    observed_at = DECIDED_AT + retention
    observed = journal.observe(INTENT.key, make_answer(Seen.ABSENT, Source.LOOK_UP, observed_at=observed_at))
    assert (observed.row.state, observed.settlement.next) == (EffectState.IN_DOUBT, Next.WAIT)
    observed = journal.observe(INTENT.key, shows(make_receipt(INTENT)))
    assert observed.row.state is EffectState.COMMITTED
