"""`journal.record_decision`: the first decision stands, and asking records nothing."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import DecisionRequest, StandingDecision
from activities.journal import JournalActivities
from tests.activities.bench import Bench
from tests.services.inventory.conftest import NOW

ADA = {"approved": "yes", "by": "ada"}
BOB = {"approved": "no", "by": "bob"}


async def record(bench: Bench, origin: str = "demo", **changes: Any) -> StandingDecision | None:
    """Record or ask, inside an activity."""
    request = replace(
        DecisionRequest(origin=origin, scope="INC-1", name="approval", decided_at=NOW, body=ADA), **changes
    )
    activities = JournalActivities(bench.journal, "demo")
    standing: StandingDecision | None = await ActivityEnvironment().run(activities.record_decision, request)
    return standing


async def test_asking_records_nothing(bench: Bench) -> None:
    """A workflow asks the journal before it asks a person."""
    assert await record(bench, ask_only=True) is None
    assert bench.journal.all_entries() == ()


async def test_the_first_decision_stands(bench: Bench) -> None:
    """G19, A03: the second one is told who decided and when; it records nothing."""
    first = await record(bench)
    second = await record(bench, body=BOB, decided_at=NOW + timedelta(hours=1))
    asked = await record(bench, ask_only=True, body={})
    assert first == StandingDecision(body=ADA, decided_at=NOW, mine=True)
    assert second == asked == StandingDecision(body=ADA, decided_at=NOW, mine=False)
    assert [entry.kind for entry in bench.journal.all_entries()] == ["decision"]


async def test_another_scope_or_name_has_a_decision_of_its_own(bench: Bench) -> None:
    """Keyed by origin, scope and name."""
    await record(bench)
    for changes in ({"scope": "INC-2"}, {"name": "severity"}):
        standing = await record(bench, body=BOB, **changes)
        assert standing is not None
        assert standing.mine


@pytest.mark.parametrize("ask_only", [True, False])
async def test_another_deployments_decision_is_refused(bench: Bench, *, ask_only: bool) -> None:
    """For good, and nothing is recorded or told."""
    with pytest.raises(ApplicationError, match="Nothing was recorded") as raised:
        await record(bench, "staging", ask_only=ask_only)
    assert (raised.value.type, raised.value.non_retryable) == ("OriginMismatch", True)
    assert bench.journal.all_entries() == ()
