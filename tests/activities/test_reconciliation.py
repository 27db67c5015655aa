"""`reconciliation.sweep_page`: one page, its numbers, and workflows that are told."""

from datetime import timedelta

import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from activities.contracts import Page, PageRequest, Swept
from activities.reconciliation import ReconciliationActivities
from services.reconciliation.closures import Closures
from services.reconciliation.sweep import Sweep
from tests.activities.bench import Bench, intent_now


class Handle:
    """A workflow that is told, or is not there."""

    def __init__(self, told: list[tuple[str, str]], workflow_id: str, status: RPCStatusCode | None) -> None:
        self._told, self._id, self._status = told, workflow_id, status

    async def signal(self, name: str) -> None:
        """Take it, or fail as the server would."""
        self._told.append((self._id, name))
        if self._status is not None:
            raise RPCError("no", self._status, b"")


class Told(Client):
    """Temporal's client, as far as a sweep needs it."""

    def __init__(self, status: RPCStatusCode | None = None) -> None:
        self.told: list[tuple[str, str]] = []
        self._status = status

    def get_workflow_handle(self, workflow_id: str, **_options: object) -> Handle:  # type: ignore[override]
        """A handle that remembers."""
        return Handle(self.told, workflow_id, self._status)


async def page(bench: Bench, client: Client, request: PageRequest) -> Page:
    """Sweep a page, inside an activity."""
    sweep = Sweep(
        bench.journal,
        bench.between,
        send_deadline=timedelta(seconds=2.5),
        provably_dead=lambda _worker: False,
        clock=bench.clock,
    )
    found: Page = await ActivityEnvironment().run(
        ReconciliationActivities(sweep, Closures(bench.journal, client), client).sweep_page, request
    )
    return found


@pytest.mark.parametrize("status", [None, RPCStatusCode.NOT_FOUND, RPCStatusCode.UNAVAILABLE])
async def test_each_workflow_whose_effect_was_settled_is_woken(bench: Bench, status: RPCStatusCode | None) -> None:
    """G11, E07: closed, gone or out of reach, the effect is settled all the same, and the page counts it."""
    for scope in ("INC-1", "INC-2", "INC-3"):
        intent = intent_now(scope=scope)
        bench.pending(intent)
        if scope != "INC-3":
            bench.journal.give_up(intent, why="cancelled")
    bench.later(timedelta(minutes=1))
    client = Told(status)
    swept = await page(bench, client, PageRequest())
    assert swept == Page(swept=Swept(looked_at=3, voided=2, waiting=1), next_after=None)
    assert sorted(client.told) == [("INC-1", "wake"), ("INC-2", "wake")]


async def test_a_full_page_says_where_the_next_one_starts(bench: Bench) -> None:
    """By the last key of it."""
    keys = sorted(bench.pending(intent_now(scope=f"INC-{number}")).key for number in range(3))
    bench.later(timedelta(minutes=1))
    client = Told()
    first = await page(bench, client, PageRequest(limit=2))
    second = await page(bench, client, PageRequest(after_key=keys[1], limit=2))
    assert (first.next_after, second.next_after) == (keys[1], None)
    assert (first.swept.plus(second.swept).looked_at, client.told) == (3, [])
