"""An incident in a data centre: decide, ask for approval where required, reserve the parts, compensate on cancel.

An approval is a decision in the journal under the name `approval`, a second person's under `approval.second`. The first
one under each name stands, so the journal is asked before a person is. A decline by anybody is final; when the time for
approval is over, the rule declines by the same way as a person does, and comes too late by the same way.
"""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.contracts import DecisionRequest, JournalActivities, StandingDecision
from services.effects.people import LONGEST_REASON, RULE, problem_with_name, same_person
from services.effects.records import Outcome, OutcomeState
from services.effects.redo import BACK_ALREADY
from workflows import policies
from workflows.effects import EffectCancelled, EffectWorkflow, release, reserve

APPROVAL = "approval"
SECOND_APPROVAL = "approval.second"
# The member of the memo that says of whom an approval is waited for.
WAITING_FOR = "waiting_for"
NOT_ASKED = "This incident needs no approval: it was decided by rule."


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One reservation that the incident needs: `{sku: units}` under the effect's stable name."""

    name: str
    quantities: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentInput:
    """An incident as `incident start` hands it over.

    Attributes:
        digest: SHA-256 of the whole incident: another matter under the same id is noticed by it.
        approvers: how many people have to approve it, 1 or 2, where approval is required.
        approval_within_seconds: how long they have, from when the incident asks; None: as long as they like.
    """

    origin: str
    title: str
    site: str
    severity: str
    approval_required: bool
    effects: list[Parts]
    digest: str
    approvers: int = 1
    approval_within_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """What a person says about an incident."""

    approved: bool
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """The decision that stands.

    Attributes:
        mine: False when somebody had decided before.
        complete: False while another person has still to approve.
        first_by: who approved before, where this is the second person's decision.
    """

    approved: bool
    by: str
    decided_at: str
    mine: bool
    complete: bool = True
    first_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentResult:
    """How an incident ended: `done`, `declined`, or `short` when something was rejected or voided."""

    status: str
    decided_by: str
    outcomes: list[Outcome]


@workflow.defn(name="Incident")
class Incident(EffectWorkflow):
    """Reserves what an incident needs, each part once."""

    @workflow.init
    def __init__(self, incident: IncidentInput) -> None:
        super().__init__()
        self._incident = incident  # here and not in `run`: an Update may come before its first line
        self._approval: StandingDecision | None = None
        self._second: StandingDecision | None = None
        self._asked_at: datetime | None = None
        self._records = 0

    @workflow.run
    async def run(self, incident: IncidentInput) -> IncidentResult:
        """Decide, perform the effects in order, and answer their outcomes."""
        self.act_for(origin=incident.origin, why={"title": incident.title, "input": incident.digest})
        decided_by = "rule: approval auto"
        if incident.approval_required:
            approved, decided_by = await self._decided(incident)
            if not approved:
                return IncidentResult(status="declined", decided_by=decided_by, outcomes=[])
        self.act_for(origin=incident.origin, why={"approved_by": decided_by})
        self.note("decision", approved_by=decided_by)
        outcomes: list[Outcome] = []
        try:
            for parts in incident.effects:
                outcomes.append(await self.perform(reserve(parts.name, parts.quantities)))  # noqa: PERF401
            await workflow.wait_condition(workflow.all_handlers_finished)
        except asyncio.CancelledError as cancelled:
            last = [cancelled.outcome] if isinstance(cancelled, EffectCancelled) else []
            await self._compensate([*outcomes, *last])
            raise
        except ApplicationError:
            if workflow.cancellation_reason() is not None:
                await self._compensate(outcomes)
            raise
        short = any(outcome.state is not OutcomeState.COMMITTED for outcome in outcomes)
        return IncidentResult(status="short" if short else "done", decided_by=decided_by, outcomes=outcomes)

    async def _compensate(self, outcomes: list[Outcome]) -> None:
        """Give everything back that stands, newest first; each release has its own key and receipt.

        Raises:
            ApplicationError: something is still held: the run then ends Failed and says what, never Cancelled.
        """
        kept = []
        for outcome in reversed(outcomes):
            if outcome.committed:
                given_back = await self.perform(release(outcome, reason="the incident was cancelled"))
                if not given_back.committed and given_back.receipt.get("reason") not in BACK_ALREADY:
                    kept.append(f"{outcome.name} ({outcome.reservation_id}, its release ended {given_back.state})")
        if kept:
            raise ApplicationError(
                f"Cancelled, but not given back: {', '.join(kept)}. The units are still held.",
                type="NotReleased",
                non_retryable=True,
            )

    async def _decided(self, incident: IncidentInput) -> tuple[bool, str]:
        """Whether it is approved, and by whom: what stands in the journal, or else what people say now."""
        standing = await self._ask(APPROVAL)
        if standing is not None:
            self._approval = self._approval or standing
            if not self._complete():
                await self._ask_for_second()
        if standing is None or not self._complete():
            await self._people(incident)
        await workflow.wait_condition(workflow.all_handlers_finished)
        final = self._second or self._approval
        if final is None or self._approval is None:
            raise ApplicationError("The approval was lost inside the workflow.", non_retryable=True)
        approved, by = _approves(final), final.body["by"]
        if approved and self._second is not None:
            by = f"{self._approval.body['by']}, {by}"
        self._show_decision(f"{'approved' if approved else 'declined'} by {by}")
        return approved, by

    async def _people(self, incident: IncidentInput) -> None:
        """Wait until they have decided, or the rule has, which declines when their time is over."""
        seconds = incident.approval_within_seconds
        self._show_waiting()
        if seconds is None:
            await workflow.wait_condition(self._complete)
            return
        try:
            await workflow.wait_condition(
                self._complete, timeout=seconds, timeout_summary="declined by the rule, unless approved before"
            )
        except TimeoutError:
            await self._approve(Approval(approved=False, by=f"{RULE} nobody approved within {seconds} s"))

    def _complete(self) -> bool:
        """Whether nothing is left to decide."""
        if self._approval is None:
            return False
        return self._second is not None or not _approves(self._approval) or self._incident.approvers == 1

    async def _approve(self, approval: Approval) -> ApprovalAnswer:
        """Record what somebody says unless it has been decided; the decision that stands."""
        first = await self._say(APPROVAL, approval)
        self._approval = first
        if self._incident.approvers == 1 or not _approves(first):
            return _answer(first)
        if same_person(first.body["by"], approval.by):
            await self._ask_for_second()
            if self._second is None:
                self._show_waiting()
                return _answer(first, complete=False)
            return _answer(first if _approves(self._second) else self._second)
        self._second = await self._say(SECOND_APPROVAL, approval)
        return _answer(self._second, first_by=first.body["by"])

    async def _say(self, name: str, approval: Approval) -> StandingDecision:
        body = {
            "approved": "yes" if approval.approved else "no",
            "by": approval.by,
            "reason": approval.reason,
            "input": self._incident.digest,
        }
        if self._incident.approvers > 1:
            body["approvers"] = str(self._incident.approvers)
        standing = await self._record(
            DecisionRequest(
                origin=self._incident.origin,
                scope=workflow.info().workflow_id,
                name=name,
                decided_at=workflow.now(),
                body=body,
            )
        )
        if standing is None:
            raise ApplicationError("The journal recorded no decision.", non_retryable=True)
        return standing

    async def _ask_for_second(self) -> None:
        second = await self._ask(SECOND_APPROVAL)
        self._second = second or self._second  # it may have been said while this was asked

    async def _ask(self, name: str) -> StandingDecision | None:
        return await self._record(
            DecisionRequest(
                origin=self._incident.origin,
                scope=workflow.info().workflow_id,
                name=name,
                decided_at=workflow.now(),
                ask_only=True,
            )
        )

    def _show_waiting(self) -> None:
        """Of whom, since when and until when; `incident show` reads it from the memo, whether or not a worker runs."""
        now, seconds = workflow.now(), self._incident.approval_within_seconds
        self._asked_at = self._asked_at or now
        command = f"counterfoil incident approve {workflow.info().workflow_id} --by NAME"
        of = "a person" if self._approval is None else f"another person than {self._approval.body['by']}"
        until = None if seconds is None else self._asked_at + timedelta(seconds=seconds)
        self._show_decision(
            f"waiting for {of} since {now:%Y-%m-%d %H:%M:%S} UTC"
            + (f", until {until:%Y-%m-%d %H:%M:%S} UTC" if until else "")
            + f": `{command}`",  # as code: Temporal's UI would make one dash of two
            waiting_for={"of": of, "since": now.isoformat(), "until": until.isoformat() if until else None},
        )

    def _show_decision(self, text: str, *, waiting_for: dict[str, str | None] | None = None) -> None:
        """In the details, and in the memo for when no worker runs; the effects' lines take their place later."""
        workflow.upsert_memo({"decision": text, WAITING_FOR: waiting_for})
        workflow.set_current_details(f"- {text}")

    async def _record(self, request: DecisionRequest) -> StandingDecision | None:
        self._records += 1
        return await workflow.execute_activity_method(
            JournalActivities.record_decision,
            request,
            activity_id=f"{request.name}#{self._records}",
            start_to_close_timeout=policies.START_TO_CLOSE,
            retry_policy=policies.RETRY,
            summary=f"{'ask for' if request.ask_only else 'record'} the decision {request.name}",
        )

    @workflow.update(name="approve", description="Approve or decline an incident that waits for a person")
    async def approve(self, approval: Approval) -> ApprovalAnswer:
        """Record what a person decided; the first decision stands, and a later one is told so."""
        if not self._incident.approval_required:
            raise ApplicationError(NOT_ASKED, non_retryable=True)
        return await self._approve(approval)

    @approve.validator
    def _check_approval(self, approval: Approval) -> None:
        if not self._incident.approval_required:
            raise ValueError(NOT_ASKED)
        problem = problem_with_name(approval.by)
        if problem:
            raise ValueError(f"An approval {problem}.")
        if len(approval.reason) > LONGEST_REASON:
            raise ValueError(f"A reason has at most {LONGEST_REASON} characters, this one has {len(approval.reason)}.")


def _approves(decision: StandingDecision) -> bool:
    return decision.body["approved"] == "yes"


def _answer(standing: StandingDecision, *, complete: bool = True, first_by: str = "") -> ApprovalAnswer:
    return ApprovalAnswer(
        approved=_approves(standing),
        by=standing.body["by"],
        decided_at=standing.decided_at.isoformat(),
        mine=standing.mine,
        complete=complete,
        first_by=first_by,
    )
