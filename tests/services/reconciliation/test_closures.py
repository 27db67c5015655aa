"""Workflows of committed effects, on a real Temporal: how they ended is recorded once, and again when it changes."""

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from services.effects.commands import SENDER
from services.effects.records import Intent
from services.journal.operator import OperatorJournal
from services.journal.verification import verify
from services.reconciliation.closures import Closures, Followed
from tests.activities.bench import Bench, intent_now
from tests.workflows.conftest import client, temporal_address

__all__ = ["client", "temporal_address"]  # fixtures

pytestmark = pytest.mark.temporal
QUEUE = "closures"
ONE = {"lines": [{"sku": "FILTER-A", "quantity": 1}]}
OTHERWISE = ("failed", "canceled", "terminated", "timed_out", "deleted")


@workflow.defn(name="Ends")
class Ends:
    """A workflow that ends as it is told."""

    @workflow.run
    async def run(self, how: str) -> None:
        """End so, or wait for somebody to end it."""
        if how == "failed":
            raise ApplicationError("as told", non_retryable=True)
        if how != "completed":
            await workflow.wait_condition(lambda: False)


@pytest.fixture
async def ending(client: Client) -> AsyncIterator[None]:
    """A worker for them."""
    async with Worker(client, task_queue=QUEUE, workflows=[Ends], workflow_runner=UnsandboxedWorkflowRunner()):
        yield


async def ended(client: Client, workflow_id: str, how: str) -> None:
    """Start one and see it end so; of one that has been deleted Temporal knows as much as of one that never was."""
    if how == "deleted":
        return
    limit = timedelta(seconds=1) if how == "timed_out" else None
    handle = await client.start_workflow("Ends", how, id=workflow_id, task_queue=QUEUE, execution_timeout=limit)
    if how == "open":
        return
    if how == "canceled":
        await handle.cancel()
    if how == "terminated":
        await handle.terminate()
    with suppress(WorkflowFailureError):
        await handle.result()


async def committed(bench: Bench, scope: str) -> Intent:
    """An effect of the workflow that is called like its scope."""
    intent = intent_now(scope=scope, request=ONE)
    await bench.attempt(intent)
    return intent


def standing(journal: OperatorJournal) -> dict[str, str | None]:
    """What somebody has to release or accept: by scope, how its workflow ended."""
    return {row.scope: row.closed_as for row in journal.left_standing()}


def entries(journal: OperatorJournal) -> list[tuple[str, str | None]]:
    """What the journal has heard of workflows, in order."""
    return [
        (entry.body["seen"], entry.body["closed_as"]) for entry in journal.all_entries() if "closed_as" in entry.body
    ]


@pytest.mark.usefixtures("ending")
async def test_what_workflows_leave_standing_that_did_not_complete_is_listed(bench: Bench, client: Client) -> None:
    """G11: failed, cancelled, terminated, timed out, deleted; neither what is open nor what is completed."""
    closures = Closures(bench.journal, client)
    for how in (*OTHERWISE, "open", "completed"):
        await committed(bench, f"INC-{how}")
        await ended(client, f"INC-{how}", how)
    assert standing(bench.journal) == {}
    assert await closures.page(after_key="", limit=100) == Followed(looked_at=7, left=5)
    assert standing(bench.journal) == {f"INC-{how}": how for how in OTHERWISE}
    before = bench.journal.all_entries()
    assert await closures.page(after_key="", limit=100) == Followed(looked_at=6, left=0)  # the completed one is done
    assert bench.journal.all_entries() == before
    assert verify(bench.engine).first is None


@pytest.mark.usefixtures("ending")
async def test_a_workflow_that_starts_again_under_its_id_takes_its_effects_over(bench: Bench, client: Client) -> None:
    """Terminated, started again, completed: listed, then not, then done with; each change is one entry."""
    closures = Closures(bench.journal, client)
    await committed(bench, "INC-again")
    seen = []
    for how in ("terminated", "open", "completed"):
        if how == "completed":
            await client.get_workflow_handle("INC-again").terminate()
        await ended(client, "INC-again", how)
        await closures.page(after_key="", limit=100)
        seen.append(standing(bench.journal))
    assert seen == [{"INC-again": "terminated"}, {}, {}]
    assert entries(bench.journal) == [
        ("workflow_closed", "terminated"),
        ("workflow_open", None),
        ("workflow_closed", "completed"),
    ]
    assert bench.journal.watched() == ()


class Unreachable(Client):
    """Temporal that does not answer for one workflow."""

    def __init__(self, real: Client, workflow_id: str) -> None:
        self._real, self._lost = real, workflow_id
        self.asked: list[str] = []

    def get_workflow_handle(self, workflow_id: str, **options: Any) -> Any:
        """A handle, or what fails like a lost connection."""
        self.asked.append(workflow_id)
        if workflow_id == self._lost:
            raise RPCError("no", RPCStatusCode.UNAVAILABLE, b"")
        return self._real.get_workflow_handle(workflow_id, **options)


async def redone(bench: Bench, scope: str) -> Intent:
    """The second generation of an effect that was voided, sent for a command by a workflow of its own."""
    first = intent_now(scope=scope, request=ONE)
    bench.journal.give_up(first, why="over")
    bench.journal.observe(first.key, await bench.between.void(first.key))
    second = replace(intent_now(scope=scope, request=ONE, generation=2), workflow_type=SENDER)
    second = replace(second, workflow_id=f"effect-command-{second.key}")
    await bench.attempt(second)
    return second


@pytest.mark.usefixtures("ending")
@pytest.mark.parametrize("before", [True, False], ids=["ended before", "ends after"])
async def test_what_a_command_has_sent_is_left_standing_by_the_workflow_of_its_scope(
    bench: Bench, client: Client, *, before: bool
) -> None:
    """G11: however the sender's own workflow ended, which ends with it; the scope's is the one that was to go on."""
    closures = Closures(bench.journal, client)
    tried = "before" if before else "after"
    hows = {f"INC-{tried}-{how}": how for how in (*OTHERWISE, "open", "completed")}
    for scope, how in hows.items():
        await ended(client, scope, how if before or how == "deleted" else "open")
        second = await redone(bench, scope)
        await ended(client, second.workflow_id, "completed")
    if not before:
        gone = {"INC-after-deleted": "deleted"}
        assert await closures.page(after_key="", limit=100) == Followed(looked_at=7, left=1)
        assert standing(bench.journal) == gone  # nobody has had it
        for scope, how in hows.items():
            if how not in {"deleted", "open"}:
                await client.get_workflow_handle(scope).terminate()
                await ended(client, scope, how)
    left = 5 if before else 4
    assert await closures.page(after_key="", limit=100) == Followed(looked_at=7, left=left)
    assert standing(bench.journal) == {scope: how for scope, how in hows.items() if how in OTHERWISE}
    assert {row.generation for row in bench.journal.left_standing()} == {2}
    assert await closures.page(after_key="", limit=100) == Followed(looked_at=6, left=0)
    assert verify(bench.engine).first is None


@pytest.mark.usefixtures("ending")
async def test_a_sender_that_did_not_complete_leaves_what_it_sent_standing_too(bench: Bench, client: Client) -> None:
    """Its scope's workflow has completed, and somebody has terminated the sender, who may want it undone."""
    await ended(client, "INC-done", "completed")
    second = await redone(bench, "INC-done")
    await ended(client, second.workflow_id, "terminated")
    await Closures(bench.journal, client).page(after_key="", limit=100)
    assert standing(bench.journal) == {"INC-done": "terminated"}


async def test_a_workflow_that_cannot_be_asked_about_keeps_no_other_from_being_looked_at(
    bench: Bench, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Unreachable is not gone: nothing is concluded, and the next sweep asks again."""
    for scope in ("INC-lost", "INC-gone"):
        await committed(bench, scope)
    unreachable = Unreachable(client, "INC-lost")
    assert await Closures(bench.journal, unreachable).page(after_key="", limit=100) == Followed(looked_at=2, left=1)
    assert standing(bench.journal) == {"INC-gone": "deleted"}
    assert ["INC-lost" in record.getMessage() for record in caplog.records] == [True]
    await Closures(bench.journal, client).page(after_key="", limit=100)
    assert standing(bench.journal) == {"INC-gone": "deleted", "INC-lost": "deleted"}


async def test_pages_go_by_key_and_a_workflow_of_many_effects_is_asked_about_once_in_each(
    bench: Bench, client: Client
) -> None:
    """Two pages, one question each, every effect recorded."""
    for number in range(5):
        await bench.attempt(intent_now(scope="INC-many", name=f"reserve-{number}", request=ONE))
    asking = Unreachable(client, "")
    closures = Closures(bench.journal, asking)
    first = await closures.page(after_key="", limit=3)
    assert (first.looked_at, first.left) == (3, 3)
    assert await closures.page(after_key=first.next_after or "", limit=3) == Followed(looked_at=2, left=2)
    assert asking.asked == ["INC-many"] * 2
    assert len(bench.journal.left_standing()) == 5
