"""What a person has to look at is shown where people look: in figures, in the log, in Temporal's lists."""

from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus
from temporalio.testing import ActivityEnvironment

from activities.contracts import SEND_DEADLINE_SECONDS, Page, PageRequest
from activities.inventory_client import InventoryClient
from activities.reconciliation import ReconciliationActivities
from services.drill.network_faults import WithholdResponse
from services.drill.processes import wait_until
from services.reconciliation.alarms import Alarm, AlarmKind, Lookout
from services.reconciliation.closures import Closures
from services.reconciliation.sweep import Sweep
from tests.faults.books import NAME, SKU, WANTED
from tests.faults.harness import Case, reached
from tests.faults.orders import Handle, key_of, order
from tests.faults.servers import LIMIT_SECONDS
from tests.faults.workflows import StuckOrder
from tests.services.test_telemetry import figures, free_address

pytestmark = pytest.mark.temporal


async def sweep(case: Case) -> tuple[Page, Page]:
    """One page of each part of a sweep, whatever workers there are."""
    provider = InventoryClient(str(case.http.base_url), case.token)
    sweeping = Sweep(
        case.journal,
        provider,
        send_deadline=timedelta(seconds=SEND_DEADLINE_SECONDS),
        provably_dead=lambda _worker: True,
    )
    activities = ReconciliationActivities(sweeping, Closures(case.journal, case.client), case.client)
    swept: Page = await ActivityEnvironment().run(activities.sweep_page, PageRequest())
    followed: Page = await ActivityEnvironment().run(activities.follow_page, PageRequest())
    await provider.close()
    return swept, followed


async def _task_fails(handle: Handle) -> None:
    """Wait until a workflow task of it has failed."""

    async def failed() -> bool:
        history = await handle.fetch_history()
        return any(one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED for one in history.events)

    await wait_until(failed, timeout_seconds=LIMIT_SECONDS, what="a workflow task has failed")


async def test_an_effect_of_a_workflow_that_is_stuck_is_settled_and_the_workflow_named(case: Case) -> None:
    """E07, E08: cancelled in the moment of the reserve, its task fails for ever; ended by force, the effect is listed.

    Nothing is released behind anybody's back: what was committed stands until a person judges it.
    """
    key, workflow_id = key_of(case, "stuck"), f"stuck-{case.origin}"
    withheld = case.proxy.arm(key, WithholdResponse())
    async with case.own_worker(StuckOrder):
        handle = await order(case, "stuck", (NAME, WANTED), kind=StuckOrder)
        assert await reached(withheld) == 201
        await handle.cancel()
        await _task_fails(handle)
    await sweep(case)
    row = case.journal.effect(key)
    assert row is not None
    assert row.state.value == "committed"
    lookout = Lookout(case.journal, case.client, unknown_after=timedelta(0))

    async def named() -> list[Alarm]:
        return [alarm for alarm in (await lookout.look()).alarms if alarm.kind is AlarmKind.STUCK_WORKFLOW]

    alarms = await wait_until(named, timeout_seconds=LIMIT_SECONDS, what="the stuck workflow is named")
    assert [(alarm.key, alarm.workflow_id) for alarm in alarms] == [(key, workflow_id)]
    assert workflow_id in alarms[0].said
    assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING
    await handle.terminate("it is stuck")
    _, followed = await sweep(case)
    assert (followed.swept.followed, followed.swept.left) == (1, 1)
    assert [(left.key, left.closed_as) for left in case.journal.left_standing()] == [(key, "terminated")]

    async def over() -> bool:
        return [alarm.kind for alarm in (await lookout.look()).alarms] == [AlarmKind.CLOSED_OTHERWISE]

    await wait_until(over, timeout_seconds=LIMIT_SECONDS, what="it is not stuck any more, but has left something")
    assert {entry.kind for entry in case.journal.entries(key)} == {"decision", "intent", "attempt", "observation"}


async def test_an_effect_that_nobody_can_settle_is_a_figure_a_line_of_the_log_and_found_in_temporal(
    case: Case,
) -> None:
    """E20, E23: another payload under its key; a worker that starts afterwards shows it at once."""
    headers = {"Idempotency-Key": case.key(), "Effect-Not-After": "2099-01-01T00:00:00Z"}
    another = await case.http.post("/v1/reservations", json={"lines": [{"sku": SKU, "quantity": 1}]}, headers=headers)
    assert another.status_code == 201
    await case.worker()
    await case.start()

    async def found() -> list[str]:
        query = "EffectState = 'in_doubt' AND ExecutionStatus = 'Running'"
        return [run.id async for run in case.client.list_workflows(query) if run.id == case.scope()]

    await wait_until(found, timeout_seconds=LIMIT_SECONDS, what="the doubt is visible in Temporal")
    address = free_address()
    shows = case.start_worker(COUNTERFOIL_METRICS_ADDRESS=address)
    await case.ready(shows)

    def shown() -> bool:
        return f"alarm=in_doubt key={case.key()} " in shows.log.read_text()

    await wait_until(shown, timeout_seconds=LIMIT_SECONDS, what="the worker has said so")
    read = figures(address)
    assert read['counterfoil_alarms{kind="in_doubt"}'] == 1
    assert read['counterfoil_effects{state="in_doubt"}'] == 1
    assert read["counterfoil_oldest_unknown_seconds"] > 0
