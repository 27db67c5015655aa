"""Orders, an author's own workflows, as the tests start them."""

from typing import Any

from temporalio.client import WorkflowHandle
from temporalio.common import RetryPolicy

from services.effects.keys import derive_key
from services.effects.records import Outcome
from services.temporal import task_queue
from tests.faults.books import NAME
from tests.faults.harness import Case
from tests.faults.workflows import ContinuedInput, ContinuedOrder, Order, OrderInput
from workflows import policies

Handle = WorkflowHandle[Any, list[Outcome]]


async def order(
    case: Case, workflow_id: str, *wanted: tuple[str, int], kind: Any = Order, scope: str = "", tries: int = 1
) -> Handle:
    """Start an order; it acts under its own id, or in the scope of another."""
    asked = OrderInput(origin=case.origin, scope=scope or f"{workflow_id}-{case.origin}", wanted=list(wanted))
    return await _start(case, workflow_id, kind, asked, tries)


async def continued_order(case: Case, workflow_id: str, *runs: list[tuple[str, int]]) -> Handle:
    """Start an order that continues as new between these parts."""
    asked = ContinuedInput(origin=case.origin, scope=f"{workflow_id}-{case.origin}", runs=list(runs))
    return await _start(case, workflow_id, ContinuedOrder, asked, 1)


def key_of(case: Case, workflow_id: str, name: str = NAME) -> str:
    """The key of an order's effect, as anybody can derive it."""
    return derive_key(case.origin, f"{workflow_id}-{case.origin}", name, 1)


async def _start(case: Case, workflow_id: str, kind: Any, asked: Any, tries: int) -> Handle:
    handle: Handle = await case.client.start_workflow(
        kind.run,
        asked,
        id=f"{workflow_id}-{case.origin}",
        task_queue=task_queue(case.origin),
        task_timeout=policies.TASK_TIMEOUT,
        retry_policy=RetryPolicy(maximum_attempts=tries),
    )
    return handle
