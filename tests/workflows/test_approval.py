"""An approval: by one person or two, in time or not at all, and never twice."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError

from activities.contracts import StandingDecision
from tests.workflows.test_incident import ADA, BOB, approve, incident, soon
from tests.workflows.world import Stage
from workflows.incident import APPROVAL, SECOND_APPROVAL, WAITING_FOR, Approval, Incident, IncidentInput

pytestmark = pytest.mark.temporal

CARL = Approval(approved=True, by="carl")
LONG_AGO = datetime(2026, 3, 1, tzinfo=UTC)


def asks(*, approvers: int = 2, within_seconds: int | None = None) -> IncidentInput:
    """An incident that asks so many people."""
    plain = incident(approval=True)
    return IncidentInput(
        **{name: getattr(plain, name) for name in ("origin", "title", "site", "severity", "effects", "digest")},
        approval_required=True,
        approvers=approvers,
        approval_within_seconds=within_seconds,
    )


def decided(by: str, *, approved: bool = True) -> StandingDecision:
    """What the journal has."""
    return StandingDecision(
        body={"approved": "yes" if approved else "no", "by": by, "reason": ""}, decided_at=LONG_AGO, mine=True
    )


def told(stage: Stage) -> list[tuple[str, str, str]]:
    """Every decision that was asked to be recorded: its name, its answer and whose it is."""
    return [
        (request.name, request.body["approved"], request.body["by"])
        for request in stage.world.of("journal.record_decision")
        if not request.ask_only
    ]


async def of_whom(handle: WorkflowHandle[Any, Any]) -> Any:
    """Of whom it says in its memo that it waits."""
    waiting = await (await handle.describe()).memo_value(WAITING_FOR, None)
    return waiting and waiting["of"]


async def test_two_people_approve_and_they_are_two(stage: Stage) -> None:
    """The same one twice is one, however the name is written; nothing is performed before the other."""
    handle = await stage.start(Incident.run, asks())
    first = await approve(handle, ADA)
    assert (first.approved, first.by, first.mine, first.complete) == (True, "ada", True, False)
    assert await of_whom(handle) == "another person than ada"
    again = await approve(handle, Approval(approved=True, by="  ADA "))
    assert (again.by, again.complete) == ("ada", False)
    assert stage.world.of("inventory.reserve") == []
    second = await approve(handle, CARL)
    assert (second.by, second.mine, second.complete, second.first_by) == ("carl", True, True, "ada")
    result = await soon(handle)
    assert (result.status, result.decided_by) == ("done", "ada, carl")
    (intent,) = stage.world.of("inventory.reserve")
    assert intent.why["approved_by"] == "ada, carl"
    assert intent.decided_at >= stage.world.decisions[handle.id, SECOND_APPROVAL].decided_at
    assert told(stage)[-1] == (SECOND_APPROVAL, "yes", "carl")
    assert await of_whom(handle) is None


@pytest.mark.parametrize("before", [[], [ADA]], ids=["the first", "the second"])
async def test_a_decline_by_either_is_final(stage: Stage, before: list[Approval]) -> None:
    """Also where the other one has approved."""
    handle = await stage.start(Incident.run, asks())
    for one in before:
        await approve(handle, one)
    answer = await approve(handle, BOB)
    assert (answer.approved, answer.by, answer.mine, answer.complete) == (False, "bob", True, True)
    result = await soon(handle)
    assert (result.status, result.decided_by, result.outcomes) == ("declined", "bob", [])
    assert stage.world.of("inventory.reserve") == []


async def test_a_third_person_is_told_who_was_second(stage: Stage) -> None:
    """All at once: one decision under each name, and whoever comes late records none."""
    handle = await stage.start(Incident.run, asks())
    people = [Approval(approved=True, by=name) for name in ("ada", "bob", "carl")]
    answers = await asyncio.gather(*(approve(handle, one) for one in people))
    assert sorted(answer.mine for answer in answers) == [False, True, True]
    first, second = (stage.world.decisions[handle.id, name].body["by"] for name in (APPROVAL, SECOND_APPROVAL))
    assert first != second
    result = await soon(handle)
    assert result.decided_by == f"{first}, {second}"
    late = next(answer for answer in answers if not answer.mine)
    assert (late.by, late.first_by) == (second, first)


async def test_the_journal_is_asked_for_both_before_anybody_is(stage: Stage) -> None:
    """Temporal was put back to before both: what was decided stands, and nobody is asked again (A03)."""
    stage.world.decisions["INC-both", APPROVAL] = decided("ada")
    stage.world.decisions["INC-both", SECOND_APPROVAL] = decided("bob", approved=False)
    result = await soon(await stage.start(Incident.run, asks(), id="INC-both"))
    assert (result.status, result.decided_by) == ("declined", "bob")
    assert told(stage) == []


async def test_after_one_approval_in_the_journal_the_other_person_is_asked(stage: Stage) -> None:
    """Put back to between the two: the first approval is not asked for again."""
    stage.world.decisions["INC-one", APPROVAL] = decided("ada")
    handle = await stage.start(Incident.run, asks(), id="INC-one")
    assert not (await approve(handle, ADA)).complete
    assert (await approve(handle, CARL)).complete
    assert (await soon(handle)).decided_by == "ada, carl"


async def test_when_its_time_is_over_the_rule_declines(stage: Stage) -> None:
    """As a decision under the same name: whoever approves later is told so."""
    handle = await stage.start(Incident.run, asks(approvers=1, within_seconds=1))
    result = await soon(handle)
    rule = "rule: nobody approved within 1 s"
    assert (result.status, result.decided_by, result.outcomes) == ("declined", rule, [])
    assert told(stage) == [(APPROVAL, "no", rule)]
    assert stage.world.of("inventory.reserve") == []


async def test_the_time_is_for_both_people(stage: Stage) -> None:
    """One has approved, the other does not come: the rule is the second one's decision."""
    stage.world.decisions["INC-late", APPROVAL] = decided("ada")
    result = await soon(await stage.start(Incident.run, asks(within_seconds=1), id="INC-late"))
    assert (result.status, result.decided_by) == ("declined", "rule: nobody approved within 1 s")
    assert [name for name, _, _ in told(stage)] == [APPROVAL, SECOND_APPROVAL]


async def test_an_approval_that_the_journal_has_first_beats_the_clock(stage: Stage) -> None:
    """It is recorded just after the journal was asked, and the time is over: what was decided first stands."""
    stage.world.landing["INC-first", APPROVAL] = decided("ada")
    result = await soon(await stage.start(Incident.run, asks(approvers=1, within_seconds=1), id="INC-first"))
    assert (result.status, result.decided_by) == ("done", "ada")
    assert told(stage) == [(APPROVAL, "no", "rule: nobody approved within 1 s")]  # in vain


async def test_it_says_of_whom_and_until_when_it_waits(stage: Stage) -> None:
    """In the memo, which is read without a worker."""
    handle = await stage.start(Incident.run, asks(within_seconds=3600))
    await approve(handle, ADA)
    described = await handle.describe()
    waiting = await described.memo_value(WAITING_FOR)
    assert waiting["of"] == "another person than ada"
    until = datetime.fromisoformat(waiting["until"])
    assert until - timedelta(seconds=3600) <= datetime.fromisoformat(waiting["since"])
    assert f"counterfoil incident approve {handle.id} --by NAME" in await described.memo_value("decision")
    await approve(handle, BOB)


@pytest.mark.parametrize(
    ("approval", "why"),
    [
        (Approval(approved=True, by="rule: approval auto"), "a person's name"),
        (Approval(approved=False, by=" Rule: nobody"), "a person's name"),
        (Approval(approved=True, by="a" * 129), "at most 128"),
        (Approval(approved=True, by="ada\nbob"), "printable"),
        (Approval(approved=True, by="ada", reason="x" * 1001), "at most 1000"),
    ],
)
async def test_nobody_decides_as_a_rule_or_without_end(stage: Stage, approval: Approval, why: str) -> None:
    """Refused before anything is in the history; the incident waits on."""
    handle = await stage.start(Incident.run, asks(approvers=1))
    with pytest.raises(WorkflowUpdateFailedError) as raised:
        await approve(handle, approval)
    assert why in str(raised.value.cause)
    assert told(stage) == []
    await approve(handle, BOB)
    assert (await soon(handle)).decided_by == "bob"
