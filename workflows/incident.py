"""An incident in a data centre: decide, ask for approval where required, reserve the parts, compensate on cancel."""

import asyncio
from dataclasses import dataclass

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from activities.contracts import DecisionRequest, JournalActivities, StandingDecision
from services.effects.records import Outcome, OutcomeState
from services.effects.redo import BACK_ALREADY
from workflows import policies
from workflows.effects import EffectCancelled, EffectWorkflow, release, reserve

APPROVAL = "approval"
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
    """

    origin: str
    title: str
    site: str
    severity: str
    approval_required: bool
    effects: list[Parts]
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """What a person says about an incident."""

    approved: bool
    by: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """The decision that stands; `mine` is False when somebody had decided before."""

    approved: bool
    by: str
    decided_at: str
    mine: bool


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
        self._records = 0

    @workflow.run
    async def run(self, incident: IncidentInput) -> IncidentResult:
        """Decide, perform the effects in order, and answer their outcomes."""
        self.act_for(origin=incident.origin, why={"title": incident.title, "input": incident.digest})
        decided_by = "rule: approval auto"
        if incident.approval_required:
            approval = await self._decided(incident)
            decided_by = approval.body["by"]
            if approval.body["approved"] != "yes":
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

    async def _decided(self, incident: IncidentInput) -> StandingDecision:
        """The approval that stands in the journal, or else the one that a person gives now."""
        standing = await self._record(
            DecisionRequest(
                origin=incident.origin,
                scope=workflow.info().workflow_id,
                name=APPROVAL,
                decided_at=workflow.now(),
                ask_only=True,
            )
        )
        if standing is not None:
            self._approval = self._approval or standing
        else:
            self._show_decision(
                f"waiting for a person since {workflow.now():%Y-%m-%d %H:%M:%S} UTC: "
                f"counterfoil incident approve {self._scope} --by NAME"
            )
            await workflow.wait_condition(lambda: self._approval is not None)
        await workflow.wait_condition(workflow.all_handlers_finished)
        if self._approval is None:
            raise ApplicationError("The approval was lost inside the workflow.", non_retryable=True)
        said = "approved" if self._approval.body["approved"] == "yes" else "declined"
        self._show_decision(f"{said} by {self._approval.body['by']}")
        return self._approval

    def _show_decision(self, text: str) -> None:
        """In the details, and in the memo for when no worker runs; the effects' lines take their place later."""
        workflow.upsert_memo({"decision": text})
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
        standing = await self._record(
            DecisionRequest(
                origin=self._incident.origin,
                scope=workflow.info().workflow_id,
                name=APPROVAL,
                decided_at=workflow.now(),
                body={
                    "approved": "yes" if approval.approved else "no",
                    "by": approval.by,
                    "reason": approval.reason,
                    "input": self._incident.digest,
                },
            )
        )
        if standing is None:
            raise ApplicationError("The journal recorded no decision.", non_retryable=True)
        self._approval = standing
        return ApprovalAnswer(
            approved=standing.body["approved"] == "yes",
            by=standing.body["by"],
            decided_at=standing.decided_at.isoformat(),
            mine=standing.mine,
        )

    @approve.validator
    def _check_approval(self, approval: Approval) -> None:
        if not approval.by.strip():
            raise ValueError("An approval needs the name of the person who gives it.")
        if not self._incident.approval_required:
            raise ValueError(NOT_ASKED)
