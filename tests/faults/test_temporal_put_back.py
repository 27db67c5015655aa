"""Temporal put back to an older copy of its database, with every worker stopped and with one left alive."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType, TaskQueueKind, TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest

from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import Processes, TemporalServer, wait_until
from services.effects.records import Outcome
from services.saved_queries import SAVED_QUERIES
from services.temporal import task_queue
from tests.faults.author_worker import THIS_BUILD
from tests.faults.books import NAME, STOCK, WANTED
from tests.faults.harness import Case, open_case, reached, within
from tests.faults.orders import Handle, key_of, order
from tests.faults.servers import LIMIT_SECONDS, Bench
from tests.faults.workflows import WaitingOrder

pytestmark = pytest.mark.temporal


class _Temporal:
    """A server of the test's own, whose database may be copied and put back."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        folder.mkdir()
        self._database, self._copy = folder / "temporal.db", folder / "copy.db"
        self.server = TemporalServer(processes, database=self._database, log=folder / "temporal.log")

    async def copied(self) -> None:
        """Kill it, copy what it has on disk, and start it again."""
        self.server.kill()
        _replace(self._database, self._copy)
        await self.server.start()

    async def put_back(self) -> None:
        """Kill it, put the copy back, and start it again."""
        self.server.kill()
        _replace(self._copy, self._database)
        await self.server.start()


def _replace(source: Path, target: Path) -> None:
    """Copy a database with its write-ahead log; nobody has it open."""
    for suffix in ("", "-wal", "-shm"):
        old, new = source.with_name(source.name + suffix), target.with_name(target.name + suffix)
        new.unlink(missing_ok=True)
        if old.exists() and suffix != "-shm":
            shutil.copyfile(old, new)


@asynccontextmanager
async def _case_of_its_own(bench: Bench, name: str) -> AsyncIterator[tuple[Case, _Temporal]]:
    with Processes(grace_seconds=0) as processes:
        temporal = _Temporal(processes, bench.folder / name)
        await temporal.server.start()
        async with open_case(bench, temporal=temporal.server) as case:
            yield case, temporal


async def _each_was_done_once(case: Case, numbers: range) -> None:
    """Both halves of these incidents, and what their newest runs answered."""
    for number in numbers:
        result = await case.result(number)
        assert (result.status, result.outcomes[0].key) == ("done", case.key(number=number))
        assert result.outcomes[0].receipt == await case.receipt(case.key(number=number))
    books = await case.books()
    done = len(numbers)
    assert (books.available, books.receipts, books.movements) == (
        STOCK - done * WANTED,
        ("committed",) * done,
        ("reserve",) * done,
    )


async def test_a_temporal_put_back_while_no_worker_runs_is_told_every_outcome_by_the_journal(bench: Bench) -> None:
    """A03, A07, E04, G2, G17: it knows one effect as under way and the other not at all; both are done."""
    async with _case_of_its_own(bench, "temporal-put-back") as (case, temporal):
        withheld = case.proxy.arm(case.key(number=1), WithholdResponse())
        worker = await case.worker()
        await case.start(case.line(1))
        assert await reached(withheld) == 201
        await temporal.copied()
        await case.start(case.line(2))
        before = [(await case.result(number)).outcomes[0] for number in (1, 2)]
        worker.kill()
        await temporal.put_back()
        assert (await case.start(case.line(2))).what == "replay"
        await case.worker()
        await _each_was_done_once(case, range(1, 3))
        after = [(await case.result(number)).outcomes[0] for number in (1, 2)]
        assert [one.receipt for one in after] == [one.receipt for one in before]
        assert [case.proxy.requests[case.key(number=number), "POST"] for number in (1, 2)] == [1, 1]


ORDERS = 2
DAMAGED = next(saved.query for saved in SAVED_QUERIES if saved.title.startswith("Stuck"))


async def _sticky_queue(handle: Handle) -> str:
    """The queue of the one worker process that has the run in its cache."""
    queues = [
        event.workflow_task_scheduled_event_attributes.task_queue
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED
    ]
    return next(queue.name for queue in reversed(queues) if queue.kind == TaskQueueKind.TASK_QUEUE_KIND_STICKY)


async def _polled(case: Case, sticky_queue: str) -> bool:
    """Whether a worker asks the server for tasks of the runs in its cache."""
    queue = TaskQueue(name=sticky_queue, kind=TaskQueueKind.TASK_QUEUE_KIND_STICKY, normal_name=task_queue(case.origin))
    answer = await case.client.workflow_service.describe_task_queue(
        DescribeTaskQueueRequest(
            namespace=case.client.namespace,
            task_queue=queue,
            task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
        )
    )
    return bool(answer.pollers)


async def _events(handle: Handle, kind: EventType.ValueType) -> int:
    """How many events of a kind a history has."""
    return len([event async for event in handle.fetch_history_events() if event.event_type == kind])


async def _why_stuck(handle: Handle) -> str:
    """What the newest failure of a workflow task says."""
    return [
        event.workflow_task_failed_event_attributes.failure.message
        async for event in handle.fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ][-1]


async def _begun(case: Case, number: int) -> Handle:
    """An order that waits to be told; its worker has it in the cache."""
    handle = await order(case, f"order-{number}", (NAME, WANTED), kind=WaitingOrder)

    async def waits() -> bool:
        return not (await handle.describe()).raw_description.HasField("pending_workflow_task")

    await wait_until(waits, timeout_seconds=LIMIT_SECONDS, what="the order waits")
    return handle


async def test_runs_damaged_by_a_worker_that_outlived_an_older_temporal_are_shown_and_repaired(bench: Bench) -> None:
    """A07: why the runbook stops every worker first, and what helps if somebody did not.

    The worker remembers that its orders were told to begin; the older server has not heard of it. At the next event the
    worker goes on from its memory, and the history has an effect that nobody began. That stays unnoticed until the run
    is replayed: then TMPRL1100, at every task. Temporal's list shows such runs, and a reset to the last completed task
    cuts the false part off. Before and after, no effect is done twice.
    """
    async with _case_of_its_own(bench, "temporal-damaged") as (case, temporal):
        keys = [key_of(case, f"order-{number}") for number in range(ORDERS)]
        held = [case.proxy.arm(key, DelayRequest()) for key in keys]
        worker = await case.worker(*THIS_BUILD)
        orders = [await _begun(case, number) for number in range(ORDERS)]
        await temporal.copied()
        for each, armed in zip(orders, held, strict=True):
            await each.signal(WaitingOrder.begin)
            await reached(armed)
        sticky_queue = await _sticky_queue(orders[0])
        await case.proxy.down()  # the effects stay unknown
        await temporal.put_back()
        await wait_until(lambda: _polled(case, sticky_queue), timeout_seconds=LIMIT_SECONDS, what="the worker is back")
        for each in orders:
            await each.signal("wake")

        async def went_on() -> bool:
            done = [await _events(each, EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED) for each in orders]
            return min(done) >= 2

        await wait_until(went_on, timeout_seconds=LIMIT_SECONDS, what="each order has met the event")
        worker.kill()
        damaged = [each for each in orders if await _events(each, EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED)]
        assert damaged
        await case.worker(*THIS_BUILD)
        for each in orders:
            await each.signal("wake")

        async def shown() -> bool:
            return {run.id async for run in case.client.list_workflows(DAMAGED)} == {each.id for each in damaged}

        await wait_until(shown, timeout_seconds=LIMIT_SECONDS, what="Temporal lists the damaged runs")
        for each in damaged:
            assert "TMPRL1100" in await _why_stuck(each)
            await case.reset(workflow_id=each.id, to_last=True)
        await case.proxy.up()
        for each, key in zip(orders, keys, strict=True):
            newest: Handle = case.client.get_workflow_handle(each.id, result_type=list[Outcome])
            await newest.signal(WaitingOrder.begin)
            outcomes = await within(newest.result())
            assert [(outcome.key, outcome.receipt) for outcome in outcomes] == [(key, await case.receipt(key))]
        for armed in held:
            armed.release()
            await within(armed.done())
        books = await case.books()
        assert (books.available, books.receipts, books.movements) == (
            STOCK - WANTED * ORDERS,
            ("committed",) * ORDERS,
            ("reserve",) * ORDERS,
        )
