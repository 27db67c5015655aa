"""Clocks that differ: Temporal's, the worker's, the inventory's."""

from datetime import UTC, datetime, timedelta

import pytest

from services.journal.operator import OperatorJournal
from tests.faults.books import committed
from tests.faults.harness import Case

pytestmark = pytest.mark.temporal


async def test_a_fresh_effect_is_no_replay_where_the_workers_clock_is_behind_temporals(case: Case) -> None:
    """Settled "before" it was asked for, by the other clock: the answer still says that it was done now."""
    case.journal = OperatorJournal(
        case.journal._engine, recorded_by="behind", clock=lambda: datetime.now(UTC) - timedelta(minutes=1)
    )
    async with case.own_worker():
        await case.start()
        outcome = (await case.result()).outcomes[0]
        assert (outcome.state, outcome.replayed) == ("committed", False)
        await case.reset()
        again = (await case.result()).outcomes[0]
        assert (again.receipt, again.replayed) == (outcome.receipt, True)
    assert await case.books() == committed()
