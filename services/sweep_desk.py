"""A sweep asked for and waited for; as the command line and the demo do it."""

import asyncio

from temporalio.client import Client, ScheduleActionExecutionStartWorkflow, ScheduleHandle
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import Swept
from services.temporal import schedule_id, trigger_sweep
from workflows.reconciliation import Reconciliation

# The Schedule starts a run within some 20 ms of being asked.
_PAUSE_SECONDS = 0.05


async def sweep_now(client: Client, origin: str) -> Swept:
    """Ask for a sweep and wait for a worker to do it, without end: the caller says how long.

    Raises:
        NotSetUp: there is no Schedule.
    """
    schedule = client.get_schedule_handle(schedule_id(origin))
    before = {run.first_execution_run_id for run in await _others(schedule, set())}
    await trigger_sweep(client, origin)
    # The first sweep that started after we asked: told by its run, not by anybody's clock.
    while not (new := await _others(schedule, before)):  # noqa: ASYNC110 - what is awaited is on a server
        await asyncio.sleep(_PAUSE_SECONDS)
    run_id = new[0].first_execution_run_id
    handle = client.get_workflow_handle_for(Reconciliation.run, new[0].workflow_id, first_execution_run_id=run_id)
    return await handle.result()


async def _others(schedule: ScheduleHandle, known: set[str]) -> list[ScheduleActionExecutionStartWorkflow]:
    """The Schedule's recent runs but those that are known, oldest first."""
    try:
        recent = (await schedule.describe()).info.recent_actions
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []  # `trigger_sweep` says so
        raise
    runs = [run.action for run in recent if isinstance(run.action, ScheduleActionExecutionStartWorkflow)]
    return [run for run in runs if run.first_execution_run_id not in known]
