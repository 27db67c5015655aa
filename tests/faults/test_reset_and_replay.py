"""The same matter run again: reset, terminated and started again, started by two at once."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from services.drill.network_faults import DelayRequest
from services.drill.processes import wait_until
from services.incident_desk import approve_incident, start_incident
from services.incidents import Approval as ApprovalRule
from tests.faults.books import committed
from tests.faults.harness import Case, reached, within
from tests.faults.servers import LIMIT_SECONDS
from workflows.incident import Approval

pytestmark = pytest.mark.temporal


async def _answers_the_same(case: Case, receipt: dict[str, object] | None, *, replayed: bool) -> None:
    """The newest run answers the one receipt there is."""
    outcome = (await case.result()).outcomes[0]
    assert (outcome.key, outcome.state, outcome.replayed) == (case.key(), "committed", replayed)
    assert outcome.receipt == receipt == await case.receipt()


async def test_a_finished_workflow_reset_to_its_first_task_gets_its_receipt_again(case: Case) -> None:
    """E01, A01, E59: the effect is decided again, under the same key, and the journal answers."""
    await case.worker()
    await case.start()
    await case.result()
    receipt = await case.receipt()
    before = (await case.describe()).run_id
    await case.reset()
    await _answers_the_same(case, receipt, replayed=True)
    assert (await case.describe()).run_id != before
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_finished_workflow_reset_to_its_last_task_gets_its_receipt_again(case: Case) -> None:
    """E01: what the history holds already is not asked for again."""
    await case.worker()
    await case.start()
    await case.result()
    receipt = await case.receipt()
    await case.reset(to_last=True)
    await _answers_the_same(case, receipt, replayed=False)
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_workflow_reset_while_its_effect_is_unknown_finds_the_receipt(case: Case) -> None:
    """E01, A01: committed and unheard of; the new run looks up under the same key and sends nothing."""
    await case.unheard()
    receipt = await case.receipt()
    await case.reset()
    await _answers_the_same(case, receipt, replayed=False)
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_workflow_reset_to_its_last_task_while_its_effect_is_unknown_finds_the_receipt(case: Case) -> None:
    """E01, A01: the activity alone is run again."""
    await case.unheard()
    receipt = await case.receipt()
    await case.reset(to_last=True)
    await _answers_the_same(case, receipt, replayed=False)
    assert await case.books() == committed(posts=1, attempts=1)


async def test_an_approval_stands_after_a_reset_to_before_it(case: Case) -> None:
    """A03: the run has forgotten it, the journal has not; who declines now is told who approved, and when."""
    await case.worker()
    await case.proxy.down()
    await case.start(case.line(approval=ApprovalRule.REQUIRED))
    first = await approve_incident(case.client, case.scope(), Approval(approved=True, by="Ada", reason="both worn"))
    assert (first.approved, first.mine) == (True, True)
    assert await wait_until(
        lambda: case.journal.effect(case.key()), timeout_seconds=LIMIT_SECONDS, what="the effect is begun"
    )
    await case.reset(forget_updates=True)
    second = await approve_incident(case.client, case.scope(), Approval(approved=False, by="Bob", reason="too dear"))
    assert (second.approved, second.by, second.mine) == (True, "Ada", False)
    assert second.decided_at == first.decided_at
    await case.proxy.up()
    result = await case.result()
    assert (result.status, result.decided_by) == ("done", "Ada")
    assert await case.books() == committed(posts=1, attempts=2)  # the first mark met a closed door


async def test_two_approvals_stand_after_a_reset_to_before_them(case: Case) -> None:
    """A03: neither person is asked again, and a third one is told who approved."""
    await case.worker()
    await case.proxy.down()
    await case.start(replace(case.line(approval=ApprovalRule.REQUIRED), approvers=2))
    for by in ("Ada", "Bob"):
        answer = await approve_incident(case.client, case.scope(), Approval(approved=True, by=by))
        assert (answer.approved, answer.mine, answer.complete) == (True, True, by == "Bob")
    assert await wait_until(
        lambda: case.journal.effect(case.key()), timeout_seconds=LIMIT_SECONDS, what="the effect is begun"
    )
    await case.reset(forget_updates=True)
    third = await approve_incident(case.client, case.scope(), Approval(approved=False, by="Carl", reason="too dear"))
    assert (third.approved, third.by, third.first_by, third.mine) == (True, "Bob", "Ada", False)
    await case.proxy.up()
    result = await case.result()
    assert (result.status, result.decided_by) == ("done", "Ada, Bob")
    assert await case.books() == committed(posts=1, attempts=2)  # the first mark met a closed door


async def test_an_approval_that_takes_longer_than_the_send_window_is_followed_by_a_send(case: Case) -> None:
    """A09: the window runs from when the effect is decided, which is after the approval."""
    await case.worker(COUNTERFOIL_SEND_WINDOW_SECONDS="6", COUNTERFOIL_MARGIN_SECONDS="1")
    await case.start(case.line(approval=ApprovalRule.REQUIRED))
    begun = (await case.describe()).start_time

    def over() -> bool:
        return datetime.now(UTC) > begun + timedelta(seconds=7)

    await wait_until(over, timeout_seconds=LIMIT_SECONDS, what="the window and its margin are over")
    await approve_incident(case.client, case.scope(), Approval(approved=True, by="Ada"))
    assert (await case.result()).status == "done"
    row = case.journal.effect(case.key())
    assert row is not None
    assert row.decided_at > begun + timedelta(seconds=7)
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_workflow_terminated_over_an_unknown_effect_and_started_again_finds_the_receipt(case: Case) -> None:
    """A01, E13, E47, E58: without --replay the ended incident is shown; with it, the same key finds its receipt."""
    worker, _ = await case.unheard()
    await case.handle().terminate("a fault test")
    worker.kill()
    receipt = await case.receipt()
    assert (await case.start()).what == "replay"
    assert (await case.describe()).status is WorkflowExecutionStatus.TERMINATED
    again = await case.start(replay=True)
    assert (again.what, again.detail[:9]) == ("replay", "replay of")
    await case.worker()
    outcome = (await case.result()).outcomes[0]
    assert outcome.receipt == receipt
    assert await case.books() == committed(posts=1, attempts=1)
    assert {key for key, method in case.proxy.requests if method == "POST"} == {case.key()}


async def test_a_request_of_a_terminated_workflow_that_arrives_late_is_the_new_runs_replay(case: Case) -> None:
    """E13, E29, E58: two runs, two workers, two requests, one key on the wire, one effect."""
    held = case.proxy.arm(case.key(), DelayRequest())
    worker = await case.worker()
    await case.start()
    await reached(held)
    await case.handle().terminate("a fault test")
    worker.kill()
    await case.start(replay=True)
    await case.worker()
    assert (await case.result()).status == "done"
    held.release()
    await within(held.done())
    assert await case.books() == committed(posts=2, attempts=2)
    assert {key for key, method in case.proxy.requests if method == "POST"} == {case.key()}


async def test_another_matter_under_a_used_id_is_refused(case: Case) -> None:
    """A12, E47: by Temporal's memo before anything was decided, by the journal ever after."""
    other = case.line(quantity=3)
    await case.start()
    assert (await case.start()).what == "attached"
    assert (await case.start(other)).what == "refused"
    await case.worker()
    await case.result()
    for replay in (False, True):
        assert (await case.start(other, replay=replay)).what == "refused"
    assert await case.books() == committed(posts=1, attempts=1)


async def test_two_who_start_the_same_incident_at_once_make_one_effect(case: Case) -> None:
    """E14, E47: one starts it, the other attaches."""
    second = await Client.connect(case.temporal_address)
    started = await asyncio.gather(
        case.start(), start_incident(second, case.origin, case.journal, case.line()), case.start()
    )
    assert sorted(one.what for one in started) == ["attached", "attached", "started"]
    one, other = case.start_worker(), case.start_worker()
    await case.ready(one, other)
    assert (await case.result()).status == "done"
    assert await case.books() == committed(posts=1, attempts=1)
