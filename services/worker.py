"""The worker process: it polls for workflows and activities until it is told to stop.

Told to stop (SIGTERM, Ctrl-C) it takes nothing new and lets each send under way come to its end, which is shorter than
the drain time. Killed, it leaves marks in the journal by which its successors know what to look up.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from temporalio.client import Client
from temporalio.common import MetricMeter
from temporalio.worker import Interceptor, Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions
from temporalio.workflow import SandboxImportNotificationPolicy

from activities.attempt import Attempts
from activities.commands import CommandActivities
from activities.contracts import HEARTBEAT_EVERY_SECONDS, SEND_DEADLINE_SECONDS
from activities.effects import EffectActivities
from activities.inventory import InventoryActivities
from activities.inventory_client import InventoryClient
from activities.journal import JournalActivities
from activities.reconciliation import ReconciliationActivities
from services.background import again_and_again
from services.database import check_durable, check_schema, open_engine
from services.effect_desk import EffectDesk
from services.effects.provider import Provider
from services.journal.operator import OperatorJournal
from services.process_identity import ProcessIdentity, identity, provably_dead
from services.reconciliation.alarms import Lookout
from services.reconciliation.closures import Closures
from services.reconciliation.neighbours import Neighbours
from services.reconciliation.sweep import Sweep
from services.sealing import keep_sealing
from services.settings import WorkerSettings
from services.telemetry import Telemetry
from services.temporal import check_search_attributes, task_queue, trigger_sweep
from workflows import policies
from workflows.effect_command import EffectCommand
from workflows.incident import Incident
from workflows.reconciliation import Reconciliation

LOG = logging.getLogger(__name__)

# A fifth of the heartbeat's time-out.
WATCH_EVERY_SECONDS = 0.2

# Sooner than anybody looks; what is counted is the whole journal.
LOOK_OUT_EVERY_SECONDS = 30.0

# Each effect in flight holds one slot and one connection.
ACTIVITIES_AT_ONCE = 100

# Pure modules that all runs share; whatever else a workflow module imports keeps the worker from starting.
PASSED_THROUGH = (
    "activities.contracts",
    "rfc8785",
    "services.effects",
    "workflows.effects",
    "workflows.policies",
    "workflows.reservations",
    "workflows.search_attributes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a worker is made of."""

    journal: OperatorJournal
    provider: Provider
    origin: str


def sandbox() -> SandboxedWorkflowRunner:
    """The runner that refuses imports nobody has listed."""
    restrictions = SandboxRestrictions.default.with_import_notification_policy(
        SandboxImportNotificationPolicy.WARN_ON_DYNAMIC_IMPORT
        | SandboxImportNotificationPolicy.RAISE_ON_UNINTENTIONAL_PASSTHROUGH
    ).with_passthrough_modules(*PASSED_THROUGH)
    return SandboxedWorkflowRunner(restrictions=restrictions)


def build(
    client: Client,
    parts: Parts,
    *,
    workflows: Sequence[type] = (),
    activities: Sequence[Callable[..., Any]] = (),
    queue: str | None = None,
    interceptors: Sequence[Interceptor] = (),
    max_cached_workflows: int = 1000,
) -> Worker:
    """Put a worker together; it is not started.

    Args:
        client: connected to Temporal.
        parts: the journal, the provider and the origin it works for.
        workflows: an author's own, beside ours.
        activities: an author's own, beside ours.
        queue: another task queue than the origin's.
        interceptors: for tests that stand at the seams.
        max_cached_workflows: 0 keeps no run between its tasks.
    """
    attempts = Attempts(parts.journal, parts.provider, asdict(identity()))
    inventory = InventoryActivities(attempts, parts.origin)
    sweep = Sweep(
        parts.journal,
        parts.provider,
        send_deadline=timedelta(seconds=SEND_DEADLINE_SECONDS),
        provably_dead=_worker_is_dead,
    )
    reconciliation = ReconciliationActivities(sweep, Closures(parts.journal, client), client)
    return Worker(
        client,
        task_queue=queue or task_queue(parts.origin),
        identity=f"{os.getpid()}@{socket.gethostname()}",
        workflows=[Incident, EffectCommand, Reconciliation, *workflows],
        activities=[
            inventory.reserve,
            inventory.confirm,
            inventory.release,
            EffectActivities(parts.journal, parts.provider, parts.origin).settle,
            CommandActivities(EffectDesk(parts.journal, parts.provider, origin=parts.origin)).command,
            JournalActivities(parts.journal, parts.origin).record_decision,
            reconciliation.sweep_page,
            reconciliation.follow_page,
            *activities,
        ],
        workflow_runner=sandbox(),
        interceptors=interceptors,
        max_cached_workflows=max_cached_workflows,
        max_concurrent_activities=ACTIVITIES_AT_ONCE,
        sticky_queue_schedule_to_start_timeout=policies.STICKY_SCHEDULE_TO_START,
        # The SDK would hold back heartbeats for 0.8 of the time-out, and a busy moment would look like a death.
        max_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_EVERY_SECONDS),
        default_heartbeat_throttle_interval=timedelta(seconds=HEARTBEAT_EVERY_SECONDS),
        graceful_shutdown_timeout=policies.DRAIN,
    )


def _worker_is_dead(worker: dict[str, Any]) -> bool:
    try:
        return provably_dead(ProcessIdentity(**worker))
    except (TypeError, OverflowError):
        return False  # written by another build: nothing is proven


async def _watch(client: Client, neighbours: Neighbours, origin: str) -> None:
    """Ask for a sweep whenever a neighbour has died: it settles at once what that one left.

    What goes wrong is said once and stops nothing: heartbeats and the Schedule find what this has missed.
    """

    async def look() -> None:
        if await asyncio.to_thread(neighbours.newly_dead):
            await trigger_sweep(client, origin)

    await asyncio.sleep(WATCH_EVERY_SECONDS)
    await again_and_again(
        look,
        every_seconds=WATCH_EVERY_SECONDS,
        say=lambda error: LOG.warning("the other workers are not watched for a moment: %s", error),
    )


async def _look_out(lookout: Lookout, telemetry: Telemetry) -> None:
    """Show what has to be looked at, again and again."""

    async def look() -> None:
        telemetry.show(await lookout.look())

    await again_and_again(
        look,
        every_seconds=LOOK_OUT_EVERY_SECONDS,
        say=lambda error: LOG.warning("nobody looks out for alarms for a moment: %s", error),
    )


async def run(
    settings: WorkerSettings,
    client: Client,
    stop: asyncio.Event,
    *,
    started: Callable[[], None],
    workflows: Sequence[type] = (),
    activities: Sequence[Callable[..., Any]] = (),
    meter: MetricMeter = MetricMeter.noop,
) -> None:
    """Check what a worker stands on, trigger a sweep, say so, and work until `stop` is set.

    Raises:
        DatabaseError: the journal cannot be used.
        NotSetUp: the namespace lacks search attributes or the Schedule.
    """
    engine = open_engine(settings.journal_database_url.get_secret_value())
    provider = InventoryClient(
        settings.inventory_url,
        settings.inventory_token.get_secret_value(),
        connections=2 * ACTIVITIES_AT_ONCE,
        ca_file=settings.inventory_ca_file,
        signing_keys=settings.signing_keys,
    )
    try:
        # One thread for each activity: those that write at the same time are committed together.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(ACTIVITIES_AT_ONCE))
        await asyncio.to_thread(check_durable, engine)
        await asyncio.to_thread(check_schema, "journal", engine)
        await check_search_attributes(client)
        name = f"worker {os.getpid()}@{socket.gethostname()}"
        journal = OperatorJournal(engine, recorded_by=name, **settings.rules)
        parts = Parts(journal=journal, provider=provider, origin=settings.origin)
        async with build(client, parts, workflows=workflows, activities=activities):
            neighbours = Neighbours(journal, host=identity().host, provably_dead=_worker_is_dead)
            await asyncio.to_thread(neighbours.newly_dead)  # what those left who are dead now, the sweep finds:
            await trigger_sweep(client, settings.origin)
            started()
            beside = (
                asyncio.create_task(_watch(client, neighbours, settings.origin)),
                asyncio.create_task(keep_sealing(engine, sealed_by=name)),
                asyncio.create_task(
                    _look_out(Lookout(journal, client, unknown_after=settings.unknown_after), Telemetry(meter))
                ),
            )
            await stop.wait()
            for task in beside:
                task.cancel()
    finally:
        await provider.close()
        engine.dispose()
