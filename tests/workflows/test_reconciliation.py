"""The sweep as a workflow: every page once, repeated where it fails, whatever run it is in; and how far it is."""

import asyncio
from uuid import uuid4

import pytest
from temporalio import activity
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleHandle,
    ScheduleSpec,
)
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities import contracts
from activities.contracts import Page, PageRequest, Swept
from services.drill.processes import wait_until
from services.worker import sandbox
from workflows import policies
from workflows.reconciliation import Progress, Reconciled, Reconciliation, ReconciliationInput

pytestmark = pytest.mark.temporal
LIMIT_SECONDS = 60


class Pages(contracts.ReconciliationActivities):
    """So many pages of each kind; keys are numbers."""

    def __init__(self, effects: int, followed: int = 1) -> None:
        self._last = {"sweep": effects, "follow": followed}
        self.asked: dict[str, list[str]] = {"sweep": [], "follow": []}
        self.fails_once: set[str] = set()
        self.held: dict[str, asyncio.Event] = {}
        self.came: dict[str, asyncio.Event] = {}

    def hold(self, after_key: str) -> asyncio.Event:
        """Hold the page of effects after this key until the event is set; the one given back says that it came."""
        self.held[after_key], self.came[after_key] = asyncio.Event(), asyncio.Event()
        return self.came[after_key]

    @activity.defn(name="reconciliation.sweep_page")
    async def sweep_page(self, request: PageRequest) -> Page:
        """The next one."""
        page = self._page("sweep", request, Swept(looked_at=1))
        if request.after_key in self.held:
            self.came[request.after_key].set()
            await self.held[request.after_key].wait()
        if request.after_key in self.fails_once:
            self.fails_once.remove(request.after_key)
            raise ApplicationError("the journal is away")
        return page

    @activity.defn(name="reconciliation.follow_page")
    async def follow_page(self, request: PageRequest) -> Page:
        """The next one."""
        return self._page("follow", request, Swept(followed=1))

    def _page(self, kind: str, request: PageRequest, swept: Swept) -> Page:
        self.asked[kind].append(request.after_key)
        number = int(request.after_key or 0) + 1
        return Page(swept=swept, next_after=None if number >= self._last[kind] else str(number))


async def swept(client: Client, queue: str) -> Reconciled:
    """One sweep, to its end."""
    return await client.execute_workflow(
        Reconciliation.run, ReconciliationInput(), id=f"sweep-{uuid4().hex}", task_queue=queue
    )


@pytest.fixture
def queue() -> str:
    """A task queue of the test's own."""
    return f"sweep-{uuid4().hex}"


def worker(client: Client, queue: str, pages: Pages) -> Worker:
    """It is not started."""
    return Worker(
        client,
        task_queue=queue,
        workflows=[Reconciliation],
        activities=[pages.sweep_page, pages.follow_page],
        workflow_runner=sandbox(),
    )


async def test_a_page_that_fails_is_repeated_and_no_other(client: Client, queue: str) -> None:
    """The pages before it are done, those after it come."""
    pages = Pages(4)
    pages.fails_once = {"2"}
    async with worker(client, queue, pages):
        done = await swept(client, queue)
    assert pages.asked == {"sweep": ["", "1", "2", "2", "3"], "follow": [""]}
    assert done == Reconciled(swept=Swept(looked_at=4, followed=1))


async def test_a_long_sweep_goes_on_in_a_new_run_where_it_was(client: Client, queue: str) -> None:
    """Every page once, and all of them counted."""
    number = 2 * policies.SWEEP_PAGES_PER_RUN + 5
    pages = Pages(number)
    async with worker(client, queue, pages):
        done = await swept(client, queue)
    assert pages.asked["sweep"] == ["", *(str(one) for one in range(1, number))]
    assert done.swept == Swept(looked_at=number, followed=1)


async def test_a_sweep_says_how_far_it_is(client: Client, queue: str) -> None:
    """While a page is under way, and at the end."""
    pages = Pages(3)
    came = pages.hold("1")
    async with worker(client, queue, pages):
        handle = await client.start_workflow(
            Reconciliation.run, ReconciliationInput(), id=f"sweep-{uuid4().hex}", task_queue=queue
        )
        await asyncio.wait_for(came.wait(), LIMIT_SECONDS)
        under_way = await handle.query(Reconciliation.progress)
        pages.held["1"].set()
        done = await handle.result()
        at_the_end = await handle.query(Reconciliation.progress)
    assert under_way == Progress(part="effects", after_key="1", swept=Swept(looked_at=1))
    assert at_the_end == Progress(part="done", after_key="", swept=done.swept)


async def _ended(schedule: ScheduleHandle, client: Client, number: int) -> Reconciled:
    """Trigger it, and wait for its run of this number."""
    await schedule.trigger()

    async def started() -> str | None:
        recent = [one.action for one in (await schedule.describe()).info.recent_actions]
        runs = [one.workflow_id for one in recent if isinstance(one, ScheduleActionExecutionStartWorkflow)]
        return runs[number - 1] if len(runs) == number else None

    workflow_id = await wait_until(started, timeout_seconds=LIMIT_SECONDS, what="the Schedule has started a sweep")
    return await client.get_workflow_handle_for(Reconciliation.run, str(workflow_id)).result()


async def test_each_sweep_follows_some_workflows_and_goes_on_where_the_last_one_stopped(
    client: Client, queue: str
) -> None:
    """Whoever asks for a sweep waits for no more than that; after the last page it begins at the first."""
    some = policies.FOLLOWED_PAGES_PER_SWEEP
    pages = Pages(1, some + 2)
    action = ScheduleActionStartWorkflow(Reconciliation.run, ReconciliationInput(), id=queue, task_queue=queue)
    async with worker(client, queue, pages):
        schedule = await client.create_schedule(queue, Schedule(action=action, spec=ScheduleSpec()))
        done = [await _ended(schedule, client, number) for number in (1, 2, 3)]
        await schedule.delete()
    assert [one.swept.followed for one in done] == [some, 2, some]
    assert [one.followed_to for one in done] == [str(some), "", str(some)]
    in_all = ["", *(str(one) for one in range(1, some + 2))]
    assert pages.asked["follow"] == in_all + in_all[:some]
