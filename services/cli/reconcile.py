"""`counterfoil reconcile`: ask for a sweep now and wait for it."""

import asyncio

import click
from temporalio.client import Client, ScheduleActionExecutionStartWorkflow, ScheduleHandle
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import Swept
from services.cli.output import Command, CommandError, ExitCode, Output, pass_output
from services.drill.processes import wait_until
from services.settings import OriginSettings
from services.temporal import connect, schedule_id, trigger_sweep
from workflows.reconciliation import Reconciliation

DAY_SECONDS = 24 * 60 * 60.0  # the caller's own limit is the one that counts


@click.command(cls=Command)
@click.option(
    "--timeout-seconds", type=click.FloatRange(min=1), default=60.0, show_default=True, help="How long to wait."
)
@pass_output
def reconcile(output: Output, timeout_seconds: float) -> None:
    """Match everything unsettled to its receipt, now, and say what came of it.

    The sweep looks receipts up and voids what has been given up or whose send window is over; it sends nothing. A
    worker does the work. Exit codes: 0 done, 2 not set up, 3 Temporal is unreachable or no worker answered in time: the
    sweep is asked for and runs when one does.
    """
    swept = asyncio.run(_reconcile(OriginSettings.read().origin, timeout_seconds, output))
    document = {name: getattr(swept, name) for name in Swept.__slots__}
    rows = [
        ("unsettled effects looked at", swept.looked_at),
        ("settled by a receipt", swept.matched),
        ("settled by closing the key", swept.voided),
        ("left to a live attempt", swept.owned),
        ("still waiting: their workflow goes on, or a person decides", swept.waiting),
        ("the inventory gave no usable answer", swept.unheard),
    ]
    output.result(document, people=lambda: output.table(["reconciled", "effects"], rows))


async def _reconcile(origin: str, timeout_seconds: float, output: Output) -> Swept:
    client = await connect()
    schedule = client.get_schedule_handle(schedule_id(origin))
    try:
        async with asyncio.timeout(timeout_seconds):
            before = {run.first_execution_run_id for run in await _runs(schedule)}
            await trigger_sweep(client, origin)
            output.note("The sweep is asked for; waiting for a worker to do it.")
            return await _result(client, schedule, before)
    except TimeoutError as error:
        raise CommandError(
            f"No worker finished the sweep within {timeout_seconds:g} s. It is asked for and runs when one does; "
            "nothing is lost. Check that a worker runs: counterfoil worker",
            ExitCode.UNREACHABLE,
        ) from error


async def _runs(schedule: ScheduleHandle) -> list[ScheduleActionExecutionStartWorkflow]:
    try:
        recent = (await schedule.describe()).info.recent_actions
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return []  # `trigger_sweep` says so
        raise
    return [run.action for run in recent if isinstance(run.action, ScheduleActionExecutionStartWorkflow)]


async def _result(client: Client, schedule: ScheduleHandle, before: set[str]) -> Swept:
    """The result of the first sweep that started after we asked: told by its run, not by anybody's clock."""

    async def new_runs() -> list[ScheduleActionExecutionStartWorkflow]:
        return [run for run in await _runs(schedule) if run.first_execution_run_id not in before]

    run = (await wait_until(new_runs, timeout_seconds=DAY_SECONDS, what="the sweep has started"))[0]
    handle = client.get_workflow_handle_for(
        Reconciliation.run, run.workflow_id, first_execution_run_id=run.first_execution_run_id
    )
    return await handle.result()
