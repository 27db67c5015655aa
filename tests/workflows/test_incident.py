"""An incident: decided by rule or by a person, performed in order, compensated on cancel."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import (
    WithStartWorkflowOperation,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, CancelledError

from activities.contracts import StandingDecision
from services.effects.records import Intent, OutcomeState
from services.effects.states import EffectState
from tests.workflows.world import Stage, fails_for_good, waiting
from workflows import policies
from workflows.incident import Approval, ApprovalAnswer, Incident, IncidentInput, Parts

pytestmark = pytest.mark.temporal

ADA = Approval(approved=True, by="ada", reason="spare parts are there")
BOB = Approval(approved=False, by="bob", reason="too dear")


def incident(*names: str, approval: bool = False) -> IncidentInput:
    """An incident that needs these parts."""
    return IncidentInput(
        origin="demo",
        title="Fan tray 3 reports two stalled rotors",
        site="FRA2/B/R04",
        severity="high",
        approval_required=approval,
        effects=[Parts(name=name, quantities={"FAN-80MM": 2}) for name in names or ("reserve-fans",)],
        digest="d" * 64,
    )


async def approve(handle: WorkflowHandle[Any, Any], approval: Approval) -> ApprovalAnswer:
    """Decide, and hear which decision stands."""
    answer: ApprovalAnswer = await handle.execute_update("approve", approval, result_type=ApprovalAnswer)
    return answer


async def soon(handle: Any) -> Any:
    """Its result."""
    async with asyncio.timeout(60):
        return await handle.result()


async def test_an_automatic_incident_performs_its_parts_in_order(stage: Stage) -> None:
    """Decided by rule; each outcome is in the result."""
    result = await soon(await stage.start(Incident.run, incident("a", "b", "c")))
    assert (result.status, result.decided_by) == ("done", "rule: approval auto")
    assert [outcome.name for outcome in result.outcomes] == ["a", "b", "c"]
    assert [intent.name for intent in stage.world.of("inventory.reserve")] == ["a", "b", "c"]
    (why, *_) = [intent.why for intent in stage.world.of("inventory.reserve")]
    assert why == {"title": incident().title, "input": "d" * 64, "approved_by": "rule: approval auto"}
    assert stage.world.of("journal.record_decision") == []


async def test_a_part_that_is_refused_leaves_the_incident_short(stage: Stage) -> None:
    """The others are performed all the same."""

    async def refuse(intent: Intent) -> Any:
        return stage.world.ends(intent, OutcomeState.REJECTED)

    stage.world.attempts.append(refuse)
    result = await soon(await stage.start(Incident.run, incident("a", "b")))
    assert result.status == "short"
    assert [outcome.state for outcome in result.outcomes] == [OutcomeState.REJECTED, OutcomeState.COMMITTED]


async def test_nothing_is_performed_before_a_person_has_approved(stage: Stage) -> None:
    """The journal is asked first; the decision's time comes before the effect's."""
    handle = await stage.start(Incident.run, incident(approval=True))
    await stage.world.until("journal.record_decision")
    assert stage.world.of("inventory.reserve") == []
    answer = await approve(handle, ADA)
    assert (answer.approved, answer.by, answer.mine) == (True, "ada", True)
    result = await soon(handle)
    assert (result.status, result.decided_by) == ("done", "ada")
    asked, told = stage.world.of("journal.record_decision")
    assert (asked.ask_only, told.ask_only, told.body["input"]) == (True, False, "d" * 64)
    (intent,) = stage.world.of("inventory.reserve")
    assert intent.decided_at >= told.decided_at
    assert intent.why["approved_by"] == "ada"


async def test_a_declined_incident_performs_nothing(stage: Stage) -> None:
    """It says who declined."""
    handle = await stage.start(Incident.run, incident(approval=True))
    await approve(handle, BOB)
    result = await soon(handle)
    assert (result.status, result.decided_by, result.outcomes) == ("declined", "bob", [])
    assert stage.world.of("inventory.reserve") == []


async def test_the_first_decision_stands_and_the_second_person_is_told_who_decided(stage: Stage) -> None:
    """Both at once; whoever comes second hears the first one's name and answer."""
    handle = await stage.start(Incident.run, incident(approval=True))
    both = await asyncio.gather(*(approve(handle, one) for one in (ADA, BOB)))
    assert sorted(answer.mine for answer in both) == [False, True]
    assert len({(answer.approved, answer.by, answer.decided_at) for answer in both}) == 1
    result = await soon(handle)
    assert result.decided_by == both[0].by


async def test_a_decision_in_the_journal_is_asked_for_before_a_person(stage: Stage) -> None:
    """A03: Temporal was put back to before the approval: the journaled one stands, whoever is asked now."""
    decided_at = datetime(2026, 3, 1, tzinfo=UTC)
    stage.world.decisions["INC-A03", "approval"] = StandingDecision(
        body={"approved": "yes", "by": "ada", "reason": ""}, decided_at=decided_at, mine=True
    )
    result = await soon(await stage.start(Incident.run, incident(approval=True), id="INC-A03"))
    assert (result.status, result.decided_by) == ("done", "ada")


@pytest.mark.parametrize("by", ["", "   ", "\t"])
async def test_an_approval_without_a_name_is_refused_and_leaves_nothing(stage: Stage, by: str) -> None:
    """The validator: nothing is in the history, nothing in the journal."""
    handle = await stage.start(Incident.run, incident(approval=True))
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await approve(handle, Approval(approved=True, by=by))
    assert "needs the name" in str(raised.value.cause)
    history = await handle.fetch_history()
    assert not [
        event for event in history.events if event.HasField("workflow_execution_update_accepted_event_attributes")
    ]
    await approve(handle, ADA)
    await soon(handle)


async def test_an_automatic_incident_takes_no_approval_not_even_with_its_start(stage: Stage) -> None:
    """The update may arrive with the start, before the first line of the workflow has run."""
    start = WithStartWorkflowOperation(
        Incident.run,
        incident(),
        id="INC-auto",
        id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
        task_queue=stage.queue,
        task_timeout=policies.TASK_TIMEOUT,
    )
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await stage.client.execute_update_with_start_workflow(
            "approve", ADA, start_workflow_operation=start, result_type=ApprovalAnswer
        )
    assert "needs no approval" in str(raised.value.cause)
    assert stage.world.of("journal.record_decision") == []
    assert (await soon(await start.workflow_handle())).status == "done"


async def test_cancelled_while_it_waits_for_a_person_it_ends_with_nothing_done(stage: Stage) -> None:
    """No effect, no settle."""
    handle = await stage.start(Incident.run, incident(approval=True))
    await stage.world.until("journal.record_decision")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await soon(handle)
    assert isinstance(raised.value.cause, CancelledError)
    assert {name for name, _ in stage.world.asked} == {"journal.record_decision"}


async def test_cancelled_it_gives_back_all_that_stands_newest_first(stage: Stage) -> None:
    """Two are committed, the third is under way and is voided: two releases, each under a key of its own."""
    held = stage.world.hold(stage.world.commit)

    async def hold(intent: Intent) -> Any:
        holding.set()
        return await held(intent)

    holding = asyncio.Event()
    stage.world.attempts.extend([stage.world.commit, stage.world.commit, hold])
    handle = await stage.start(Incident.run, incident("a", "b", "c"))
    await holding.wait()
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await soon(handle)
    assert isinstance(raised.value.cause, CancelledError)
    assert [intent.name for intent in stage.world.of("inventory.release")] == ["b.g1.release", "a.g1.release"]
    assert [request.intent.name for request in stage.world.of("effects.settle")] == ["c"]
    held.let_go.set()


async def _cancelled_after_commit(stage: Stage, release_ends: OutcomeState, **receipt: str) -> Any:
    """How an incident ends whose one part is committed, which is cancelled, and whose release ends so."""
    held = stage.world.hold(stage.world.commit)
    stage.world.attempts.append(held)

    async def end_release(intent: Intent) -> Any:
        standing = stage.world.ends(intent, release_ends)
        if standing.outcome is not None:
            standing.outcome.receipt.update(receipt)
        return standing

    stage.world.attempts.append(end_release)
    stage.world.settles.append(lambda request: stage.world.commit(request.intent))
    handle = await stage.start(Incident.run, incident("a"))
    await stage.world.until("inventory.reserve")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await soon(handle)
    held.let_go.set()
    return raised.value.cause


@pytest.mark.parametrize("ended", [OutcomeState.VOIDED, OutcomeState.REJECTED])
async def test_it_never_ends_cancelled_while_something_is_still_held(stage: Stage, ended: OutcomeState) -> None:
    """E16, E70: a release that did not commit is said, with what is held; the run ends failed."""
    cause = await _cancelled_after_commit(stage, ended)
    assert isinstance(cause, ApplicationError)
    assert cause.type == "NotReleased"
    assert f"a (reservation-1, its release ended {ended})" in str(cause)


@pytest.mark.parametrize("reason", ["invalid-transition", "hold-expired"])
async def test_what_somebody_else_or_time_gave_back_is_given_back(stage: Stage, reason: str) -> None:
    """The inventory refuses to release what is back already: nothing is held, the run ends cancelled."""
    cause = await _cancelled_after_commit(stage, OutcomeState.REJECTED, reason=reason)
    assert isinstance(cause, CancelledError)


async def test_a_cancel_that_meets_another_payload_gives_back_what_stands_all_the_same(stage: Stage) -> None:
    """The second key is another payload's: the run fails with both payloads, and the first part is released."""
    stage.world.attempts.extend([stage.world.commit, fails_for_good])

    async def mismatched(request: Any) -> Any:
        state = EffectState.COMMITTED if request.given_up else EffectState.PENDING
        return waiting(request.intent, mismatch="A and B", state=state, send_again=False)

    stage.world.settles.extend([mismatched, mismatched])
    handle = await stage.start(Incident.run, incident("a", "b"))
    await stage.world.until("effects.settle")
    await handle.cancel()
    with pytest.raises(WorkflowFailureError) as raised:
        await soon(handle)
    assert isinstance(raised.value.cause, ApplicationError)
    assert raised.value.cause.type == "FingerprintMismatch"
    assert [intent.name for intent in stage.world.of("inventory.release")] == ["a.g1.release"]
