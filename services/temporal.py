"""Temporal as the processes of Counterfoil use it: the connection, the search attributes, the Schedule, a sweep.

Where Temporal is comes from its own environment configuration (TEMPORAL_ADDRESS, TEMPORAL_NAMESPACE, TLS, API keys,
profiles); nothing of it is a setting of ours.
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleHandle,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.envconfig import ClientConfig
from temporalio.runtime import Runtime
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import Swept
from workflows import policies, search_attributes
from workflows.reconciliation import Progress, Reconciled, Reconciliation, ReconciliationInput

# The Schedule starts a run within some 20 ms of being asked.
_SWEEP_PAUSE_SECONDS = 0.05
# Often enough to see that it goes on.
PROGRESS_EVERY_SECONDS = 1.0
# More of the client's words than this nobody reads.
_REASON_CHARACTERS = 120


class TemporalUnreachable(Exception):
    """Temporal cannot be reached: the message says where and what to run.

    Args:
        message: the sentences for a person.
        where: the address that was tried.
    """

    def __init__(self, message: str, *, where: str) -> None:
        super().__init__(message)
        self.where = where


class NotSetUp(Exception):
    """Temporal answers, but the namespace lacks what `counterfoil setup` makes."""


def task_queue(origin: str) -> str:
    """The task queue of a deployment's workers."""
    return f"counterfoil-{origin}"


def schedule_id(origin: str) -> str:
    """The Schedule of a deployment's sweep."""
    return f"reconciliation-{origin}"


async def connect(runtime: Runtime | None = None) -> Client:
    """Connect as Temporal's environment configuration says.

    Args:
        runtime: another one than the process's default, for its figures.

    Raises:
        TemporalUnreachable: nobody answers there, or it refuses us.
        NotSetUp: it has no such namespace.
    """
    config = ClientConfig.load_client_connect_config()
    address = config.get("target_host", "localhost:7233")
    config["target_host"] = address
    namespace = config.get("namespace", "default")
    try:
        client = await Client.connect(**config, runtime=runtime)
        # Asked for now: to every later question a namespace that is not there answers like a workflow that is not.
        await client.workflow_service.describe_namespace(DescribeNamespaceRequest(namespace=namespace))
    except (RuntimeError, RPCError) as error:
        if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
            raise NotSetUp(
                f"Temporal at {address} has no namespace {namespace}. Nothing was changed. Set "
                f"TEMPORAL_NAMESPACE, or make it: temporal operator namespace create --namespace {namespace}"
            ) from error
        raise TemporalUnreachable(
            f"Temporal at {address} cannot be reached ({_reason(error)}). Nothing was changed or lost. Start it "
            "(temporal server start-dev) or set TEMPORAL_ADDRESS.",
            where=address,
        ) from error
    return client


def _reason(error: Exception) -> str:
    """What the client's many words come to: the system's own message where it is in there, else their beginning."""
    if isinstance(error, RPCError):
        return error.status.name
    system = re.search(r'kind: \w+, (?:message|error): "([^"]+)"', str(error))
    if system is not None:
        return system[1]
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line if len(line) <= _REASON_CHARACTERS else line[:_REASON_CHARACTERS] + "..."


_WANTED = {key.name: int(key.indexed_value_type) for key in search_attributes.ALL}


async def _attributes(client: Client) -> dict[str, int]:
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    return {name: int(kind) for name, kind in listed.custom_attributes.items()}


async def check_search_attributes(client: Client) -> None:
    """Compare names and types; the server accepts the same name with another type in silence.

    Raises:
        NotSetUp: one is missing or has another type.
    """
    have = await _attributes(client)
    missing = sorted(name for name in _WANTED if name not in have)
    other = sorted(name for name, kind in _WANTED.items() if have.get(name, kind) != kind)
    if other:
        raise NotSetUp(
            f"The search attributes {', '.join(other)} of namespace {client.namespace} have another type than this "
            "build needs. Nothing was changed. Use another namespace, or remove them there if nothing else uses them."
        )
    if missing:
        raise NotSetUp(
            f"Namespace {client.namespace} lacks the search attributes {', '.join(missing)}. Nothing is lost. "
            "Run: counterfoil setup"
        )


async def add_search_attributes(client: Client) -> list[str]:
    """Register what is missing, then check; the names that were added.

    Raises:
        NotSetUp: one has another type.
    """
    have = await _attributes(client)
    missing = {name: kind for name, kind in _WANTED.items() if name not in have}
    if missing:
        await client.operator_service.add_search_attributes(
            AddSearchAttributesRequest(
                namespace=client.namespace,
                search_attributes={name: IndexedValueType.ValueType(kind) for name, kind in missing.items()},
            )
        )
    await check_search_attributes(client)
    return sorted(missing)


async def ensure_schedule(client: Client, origin: str) -> bool:
    """Make the sweep's Schedule, or bring it to this build's form; whether it is new."""
    schedule = Schedule(
        action=ScheduleActionStartWorkflow(
            Reconciliation.run,
            ReconciliationInput(),
            id=schedule_id(origin),
            task_queue=task_queue(origin),
            task_timeout=policies.TASK_TIMEOUT,
            static_summary="match pending intents to receipts",
        ),
        spec=ScheduleSpec(intervals=[ScheduleIntervalSpec(every=policies.SWEEP_EVERY)]),
        # A sweep that is asked for while one runs runs after it: what became pending meanwhile is not missed.
        policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.BUFFER_ONE, catchup_window=timedelta(minutes=1)),
    )
    try:
        await client.create_schedule(schedule_id(origin), schedule)
    except ScheduleAlreadyRunningError:

        def update(found: ScheduleUpdateInput) -> ScheduleUpdate:
            schedule.state = found.description.schedule.state  # a pause that somebody set stays
            return ScheduleUpdate(schedule=schedule)

        await client.get_schedule_handle(schedule_id(origin)).update(update)
        return False
    return True


async def trigger_sweep(client: Client, origin: str) -> ScheduleHandle:
    """Ask for a sweep now.

    Raises:
        NotSetUp: there is no Schedule.
    """
    handle = client.get_schedule_handle(schedule_id(origin))
    try:
        await handle.trigger(overlap=ScheduleOverlapPolicy.BUFFER_ONE)
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotSetUp(
                f"Namespace {client.namespace} has no Schedule {schedule_id(origin)}: nothing would be reconciled. "
                "Run: counterfoil setup"
            ) from error
        raise
    return handle


async def sweep_now(client: Client, origin: str, told: Callable[[Progress], None] = lambda _progress: None) -> Swept:
    """Ask for a sweep and wait for a worker to do it, without end: the caller says how long.

    Args:
        client: connected to Temporal.
        origin: whose sweep.
        told: how far it is, from time to time, while it goes on.

    Raises:
        NotSetUp: there is no Schedule.
    """
    schedule = client.get_schedule_handle(schedule_id(origin))
    before = {run.first_execution_run_id for run in await _others(schedule, set())}
    await trigger_sweep(client, origin)
    # The first sweep that started after we asked: told by its run, not by anybody's clock.
    while not (new := await _others(schedule, before)):  # noqa: ASYNC110 - what is awaited is on a server
        await asyncio.sleep(_SWEEP_PAUSE_SECONDS)
    run_id = new[0].first_execution_run_id
    handle = client.get_workflow_handle_for(Reconciliation.run, new[0].workflow_id, first_execution_run_id=run_id)
    asking = asyncio.create_task(_ask(handle, told))
    try:
        return (await handle.result()).swept
    finally:
        asking.cancel()


async def _ask(handle: WorkflowHandle[Reconciliation, Reconciled], told: Callable[[Progress], None]) -> None:
    """Ask a sweep how far it is, again and again; what goes unanswered is asked again."""
    while True:
        await asyncio.sleep(PROGRESS_EVERY_SECONDS)
        with suppress(RPCError, WorkflowQueryFailedError, WorkflowQueryRejectedError):
            told(await handle.query(Reconciliation.progress))


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
