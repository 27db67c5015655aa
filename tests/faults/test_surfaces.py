"""What an operator finds in Temporal while effects are unsettled, on a real server and within its limits."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus

from services.drill.processes import wait_until
from services.saved_queries import SAVED_QUERIES
from services.temporal import task_queue
from tests.faults.books import STOCK
from tests.faults.harness import Case, within
from tests.faults.servers import LIMIT_SECONDS
from tests.faults.workflows import OrderAtOnce, OrderInput
from workflows import search_attributes

pytestmark = pytest.mark.temporal

PENDING, UNKNOWN, _, FROZEN, STUCK, SWEEPS = (saved.query for saved in SAVED_QUERIES)
MANY = 100


async def found_by(case: Case, query: str, *ids: str) -> None:
    """Wait until visibility lists exactly these of the case's workflows."""
    mine = f"({query}) AND TaskQueue = 'counterfoil-{case.origin}'"

    async def listed() -> bool:
        return {one.id async for one in case.client.list_workflows(mine)} == set(ids)

    await wait_until(listed, timeout_seconds=LIMIT_SECONDS, what=f"{query} finds {ids}")


def shown(described: WorkflowExecutionDescription) -> dict[str, Any]:
    """The search attributes by name."""
    return {pair.key.name: pair.value for pair in described.typed_search_attributes}


async def test_an_outcome_is_unknown_for_everybody_to_see_while_its_activity_still_retries(case: Case) -> None:
    """The inventory is away, and the workflow hears nothing of its activity's tries; the saved queries follow."""
    await case.proxy.down()
    await case.worker()
    await case.start()
    await found_by(case, UNKNOWN, case.scope())
    await found_by(case, PENDING, case.scope())
    described = await case.describe()
    (activity,) = described.raw_description.pending_activities
    assert activity.attempt > 1  # no attempt limit: nothing has failed for the workflow
    row = case.journal.effect(case.key())
    assert row is not None
    assert shown(described)["UnknownSince"] == row.decided_at
    (pending,) = await case.handle().query("pending")
    assert "its outcome is unknown" in pending["waiting"]
    assert "its outcome is unknown" in await described.memo_value("effects")
    await case.proxy.up()
    assert (await case.result()).status == "done"
    await found_by(case, UNKNOWN)
    await found_by(case, PENDING)
    await found_by(case, FROZEN)
    await found_by(case, STUCK)
    assert {one.workflow_type async for one in case.client.list_workflows(SWEEPS)} == {"Reconciliation"}


async def test_with_all_workers_down_memo_and_attributes_still_say_what_is_pending(case: Case) -> None:
    """Queries and current details need a worker; a run that is ended by force keeps what it showed, frozen."""
    worker, _ = await case.unheard()
    worker.kill()
    await found_by(case, PENDING, case.scope())
    described = await case.describe()
    assert (shown(described)["EffectKey"], shown(described)["PendingEffects"]) == ([case.key()], 1)
    memo = await described.memo_value("effects")
    assert case.key() in memo
    assert "pending since" in memo
    await case.handle().terminate()
    await found_by(case, FROZEN, case.scope())
    await found_by(case, PENDING)


@pytest.mark.timeout(300)  # a hundred activities in this one process
async def test_a_hundred_pending_effects_in_one_workflow_do_not_kill_it(case: Case) -> None:
    """A15: over the server's 2,048 bytes it would be terminated; the number is true, and each effect ends."""
    wanted = [(f"reserve-filter-{number:03d}", 1) for number in range(MANY)]
    await case.proxy.down()
    async with case.own_worker(OrderAtOnce):
        handle = await case.client.start_workflow(
            OrderAtOnce.run,
            OrderInput(origin=case.origin, scope=case.scope(), wanted=wanted),
            id=case.scope(),
            task_queue=task_queue(case.origin),
            task_timeout=timedelta(seconds=10),  # a hundred effects in one task; one that times out waits ever longer
        )
        await found_by(case, f"PendingEffects = {MANY}", case.scope())
    described = await handle.describe()
    assert described.status is WorkflowExecutionStatus.RUNNING
    info = described.raw_description.workflow_execution_info
    assert len(info.search_attributes.indexed_fields["EffectKey"].data) <= search_attributes.KEY_BYTES
    assert len(info.memo.fields["effects"].data) <= search_attributes.MEMO_BYTES
    assert len(shown(described)["EffectKey"]) == search_attributes.KEY_LIMIT
    assert (await described.memo_value("effects")).endswith(" more, in the query `pending`")
    await case.proxy.up()
    async with case.own_worker(OrderAtOnce):
        outcomes = await within(handle.result(), 2 * LIMIT_SECONDS)
    states = Counter(outcome.state.value for outcome in outcomes)
    assert states == {"committed": STOCK, "rejected": MANY - STOCK}
    assert (await case.books()).available == 0
    await found_by(case, FROZEN)
