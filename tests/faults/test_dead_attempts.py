"""What a dead worker left is taken up at once: a neighbour notices, and its attempt is ended by its own token."""

import asyncio
import base64
import subprocess
from dataclasses import asdict
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.testing import ActivityEnvironment

from activities.contracts import SEND_DEADLINE_SECONDS, Page, PageRequest, Swept
from activities.inventory_client import InventoryClient
from activities.reconciliation import WORKER_DIED, ReconciliationActivities, fail_attempt
from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import wait_until
from services.effects.records import Mark
from services.reconciliation.closures import Closures
from services.reconciliation.sweep import Sweep
from services.temporal import schedule_id, sweep_now
from tests.faults.books import committed
from tests.faults.harness import Case, reached, within
from tests.faults.servers import LIMIT_SECONDS
from tests.services.drill.intents import intent
from tests.services.test_process_identity import child

pytestmark = pytest.mark.temporal


async def sweep_as_if_all_were_dead(case: Case) -> Page:
    """One page of a sweep that takes every worker for dead."""
    provider = InventoryClient(str(case.http.base_url), case.token)
    sweep = Sweep(
        case.journal,
        provider,
        send_deadline=timedelta(seconds=SEND_DEADLINE_SECONDS),
        provably_dead=lambda _worker: True,
    )
    activities = ReconciliationActivities(sweep, Closures(case.journal, case.client), case.client)
    page: Page = await ActivityEnvironment().run(activities.sweep_page, PageRequest())
    await provider.close()
    return page


async def started(case: Case) -> list[HistoryEvent]:
    """How the effect's activity was started, as the history says once it has ended."""
    history = await case.handle().fetch_history()
    return [one for one in history.events if one.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED]


async def running(case: Case, attempt: int) -> PendingActivityInfo:
    """Wait until this attempt of the effect's activity runs."""

    async def runs() -> PendingActivityInfo | None:
        pending = (await case.describe()).raw_description.pending_activities
        return next((one for one in pending if one.attempt == attempt and one.HasField("last_started_time")), None)

    found = await wait_until(runs, timeout_seconds=LIMIT_SECONDS, what=f"attempt {attempt} runs")
    assert found is not None
    return found


async def test_the_sweep_ends_a_dead_workers_attempt_so_that_it_is_tried_again_at_once(case: Case) -> None:
    """G12, E10: matched to its receipt, then failed by its token; the next attempt is answered by the journal."""
    withheld = case.proxy.arm(case.key(), WithholdResponse())
    async with case.own_worker():
        await case.start()
        assert await reached(withheld) == 201
        assert (await sweep_as_if_all_were_dead(case)).swept == Swept(looked_at=1, matched=1)
        assert (await case.result()).status == "done"
        withheld.release()
        (event,) = await started(case)
        attributes = event.activity_task_started_event_attributes
        assert attributes.attempt == 2
        assert attributes.last_failure.application_failure_info.type == WORKER_DIED
        assert await case.books() == committed(posts=1, attempts=1)


async def test_the_token_of_a_dead_attempt_never_harms_its_living_successor(case: Case) -> None:
    """G12, E19: by workflow and activity id the successor would be failed; a token that is over does nothing."""
    held = case.proxy.arm(case.key(), DelayRequest())
    async with case.own_worker():
        await case.start()
        await reached(held)
        (first,) = case.journal.attempts(case.key())
        assert (await sweep_as_if_all_were_dead(case)).swept == Swept(looked_at=1, waiting=1)
        withheld = case.proxy.arm(case.key(), WithholdResponse())
        assert await reached(withheld) == 201
        before = await running(case, 2)
        await fail_attempt(case.client, base64.b64decode(first.task_token), case.key())
        after = await running(case, 2)
        assert after.last_started_time == before.last_started_time
        withheld.release()
        assert (await case.result()).status == "done"
        (event,) = await started(case)
        assert event.activity_task_started_event_attributes.attempt == 2
        held.release()
        await within(held.done())
        assert await case.books() == committed(posts=2, attempts=2)


async def test_a_standby_notices_a_neighbours_death_by_itself(case: Case) -> None:
    """G12: no sweep is due and no heartbeat is missing; a killed process's mark alone is the sign."""
    given_up = intent(case.origin, "INC-neighbour", "reserve-filter")
    schedule = case.client.get_schedule_handle(schedule_id(case.origin))
    await schedule.pause()
    await case.worker()
    await within(sweep_now(case.client, case.origin))

    async def quiet() -> bool:
        info = (await schedule.describe()).raw_description.info
        return bool(info.recent_actions) and not info.running_workflows and info.buffer_size == 0

    await wait_until(quiet, timeout_seconds=LIMIT_SECONDS, what="every sweep that was asked for has ended")
    with child("input()") as (process, who):
        case.journal.begin(given_up, Mark(attempt_id="a", task_token="", worker=asdict(who)))
        case.journal.give_up(given_up, why="a fault test says so")
        await asyncio.to_thread(_kill, process)
        assert await case.settled(given_up.key) == "voided"


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
