"""An effect that is older than the provider's memory, and a worker that is told how long that is."""

from dataclasses import replace
from datetime import timedelta

import pytest

from services.drill.processes import wait_until
from services.effects.records import Seen
from services.effects.states import EffectState
from tests.faults.harness import Case
from tests.faults.servers import LIMIT_SECONDS
from tests.services.drill.intents import intent

pytestmark = pytest.mark.temporal

# An hour of everything: what is of three days ago is beyond it.
OF_AN_HOUR = {
    "COUNTERFOIL_SEND_WINDOW_SECONDS": "1800",
    "COUNTERFOIL_RECOVERY_HORIZON_SECONDS": "3600",
    "COUNTERFOIL_INVENTORY_RETENTION_SECONDS": "3600",
}


async def test_a_worker_that_comes_back_after_three_days_leaves_it_to_a_person(case: Case) -> None:
    """Given up and long overdue: closing the key would say that nothing was done, and nobody knows that (E44)."""
    new = intent(case.origin, case.scope(), "reserve-filter")
    old = replace(new, decided_at=new.decided_at - timedelta(days=3))
    case.journal.give_up(old, why="the incident was cancelled")

    def in_doubt() -> bool:
        row = case.journal.effect(old.key)
        return row is not None and row.state is not EffectState.PENDING

    await case.worker(**OF_AN_HOUR)
    await wait_until(in_doubt, timeout_seconds=LIMIT_SECONDS, what="the sweep has looked at it")
    row = case.journal.effect(old.key)
    assert row is not None
    assert row.state is EffectState.IN_DOUBT
    observed = case.journal.entries(old.key)[-1].body
    assert (observed["seen"], "older than the provider's retention" in observed["alarm"]) == (Seen.ABSENT, True)
    assert await case.receipt(old.key) is None  # nor a tombstone


async def test_a_worker_whose_provider_forgets_too_soon_does_not_start(case: Case) -> None:
    """Receipts kept for 15 minutes, and workflows that come back after days: said before anything is lost (E44)."""
    worker = case.start_worker(COUNTERFOIL_INVENTORY_RETENTION_SECONDS="900")
    await wait_until(lambda: not worker.alive, timeout_seconds=LIMIT_SECONDS, what="the worker has ended")
    assert worker.exit_code == 2
    assert "COUNTERFOIL_INVENTORY_RETENTION_SECONDS is not usable" in worker.log_tail()
