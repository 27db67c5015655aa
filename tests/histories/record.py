"""Records the histories that are replayed: run it when a workflow's behaviour changes on purpose.

    .venv/bin/python -m tests.histories.record

It starts a Temporal dev server, runs real workflows against scripted activities and writes one JSON file for each story
beside this module. A history that is there already is kept: old ones are what running workflows look like. Remove a
file to record it again.
"""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle

from services.drill.processes import Processes, TemporalServer
from services.effects.records import OutcomeState
from services.temporal import add_search_attributes
from tests.workflows.world import Stage, fails_for_good, stage_of
from workflows.incident import Approval, Incident, IncidentInput, Parts

FOLDER = Path(__file__).parent

Story = Callable[[Stage], Awaitable[WorkflowHandle[Any, Any]]]


def incident(*names: str, approval: bool = False, **asks: int) -> IncidentInput:
    """An incident that needs these parts, and asks so many people for so long."""
    parts = [Parts(name=name, quantities={"FAN-80MM": 2}) for name in names]
    return IncidentInput(
        origin="demo", title="Fan tray 3 reports two stalled rotors", site="FRA2/B/R04", severity="high",
        approval_required=approval, effects=parts, digest="d" * 64, **asks,
    )  # fmt: skip


async def plain(stage: Stage) -> WorkflowHandle[Any, Any]:
    """Two effects, decided by rule."""
    return await stage.start(Incident.run, incident("reserve-fans", "reserve-screws"), id="INC-plain")


async def approved(stage: Stage) -> WorkflowHandle[Any, Any]:
    """A person approves, another one comes too late."""
    handle = await stage.start(Incident.run, incident("reserve-fans", approval=True), id="INC-approved")
    await stage.world.until("journal.record_decision")
    people = [Approval(approved=True, by="ada"), Approval(approved=False, by="bob", reason="too dear")]
    await asyncio.gather(*(handle.execute_update("approve", one) for one in people))
    return handle


async def declined(stage: Stage) -> WorkflowHandle[Any, Any]:
    """A person declines."""
    handle = await stage.start(Incident.run, incident("reserve-fans", approval=True), id="INC-declined")
    await handle.execute_update("approve", Approval(approved=False, by="bob"))
    return handle


async def approved_by_two(stage: Stage) -> WorkflowHandle[Any, Any]:
    """A person approves, twice; then another one does, within the time."""
    asks = incident("reserve-fans", approval=True, approvers=2, approval_within_seconds=3600)
    handle = await stage.start(Incident.run, asks, id="INC-approved_by_two")
    await stage.world.until("journal.record_decision")
    for by in ("ada", "Ada", "bob"):
        await handle.execute_update("approve", Approval(approved=True, by=by))
    return handle


async def expired(stage: Stage) -> WorkflowHandle[Any, Any]:
    """One of two approves, and the time is over: the rule declines."""
    asks = incident("reserve-fans", approval=True, approvers=2, approval_within_seconds=3)
    handle = await stage.start(Incident.run, asks, id="INC-expired")
    await handle.execute_update("approve", Approval(approved=True, by="ada"))
    return handle


async def settled(stage: Stage) -> WorkflowHandle[Any, Any]:
    """The activity fails for good, settle asks for the same key again, a wake ends the pause."""
    stage.world.attempts.append(fails_for_good)
    handle = await stage.start(Incident.run, incident("reserve-fans"), id="INC-settled")
    await stage.world.until("effects.settle")
    await handle.signal(Incident.wake)
    return handle


async def cancelled(stage: Stage) -> WorkflowHandle[Any, Any]:
    """Cancelled over an attempt that commits: two releases, newest first."""
    held = stage.world.hold(stage.world.commit)

    async def commits_meanwhile(request: Any) -> Any:
        return stage.world.ends(request.intent, OutcomeState.COMMITTED)

    stage.world.attempts.extend([stage.world.commit, held])
    stage.world.settles.append(commits_meanwhile)
    handle = await stage.start(Incident.run, incident("reserve-fans", "reserve-screws"), id="INC-cancelled")
    await stage.world.until("inventory.reserve")
    await stage.world.until("inventory.reserve")
    await handle.cancel()
    await stage.world.until("inventory.release")
    held.let_go.set()
    return handle


async def reset(stage: Stage) -> WorkflowHandle[Any, Any]:
    """Done, then reset to its first task: the effect is asked for again."""
    handle = await stage.start(Incident.run, incident("reserve-fans"), id="INC-reset")
    await handle.result()
    finished = [
        event.event_id
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    ]
    await stage.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=stage.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=handle.id),
            reason="recorded",
            workflow_task_finish_event_id=finished[0],
            request_id="reset",
        )
    )
    return stage.client.get_workflow_handle(handle.id)


STORIES: tuple[Story, ...] = (plain, approved, approved_by_two, declined, expired, settled, cancelled, reset)


def without_traces(value: Any) -> Any:
    """The same without stack traces: replay does not read them, and they name one machine's folders."""
    if isinstance(value, dict):
        return {name: without_traces(inner) for name, inner in value.items() if name != "stackTrace"}
    return [without_traces(inner) for inner in value] if isinstance(value, list) else value


async def record() -> None:
    """Record what is not there."""
    with tempfile.TemporaryDirectory() as folder, Processes() as processes:
        server = TemporalServer(processes, database=Path(folder) / "temporal.db", log=Path(folder) / "temporal.log")
        await server.start()
        client = await Client.connect(server.address)
        await add_search_attributes(client)
        for story in STORIES:
            path = FOLDER / f"{story.__name__}.json"
            if await asyncio.to_thread(path.exists):
                continue
            async with stage_of(client) as stage:
                handle = await story(stage)
                await asyncio.gather(handle.result(), return_exceptions=True)
                history = await handle.fetch_history()
            document = without_traces(json.loads(history.to_json()))
            await asyncio.to_thread(path.write_text, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(record())
