"""Incidents handed to Temporal: started, attached to, refused, approved; as the command line and the demo do it.

The guard against using an id again for another matter is here: the journal is asked, so that it holds after Temporal
has forgotten the workflow.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError

from services.effects.records import EffectRow
from services.incidents import Approval as ApprovalRule
from services.incidents import Incident as IncidentLine
from services.journal.reads import JournalReads
from services.journal.rows import Decision
from services.temporal import task_queue
from workflows import policies
from workflows.incident import APPROVAL, SECOND_APPROVAL, Approval, ApprovalAnswer, Incident, IncidentInput, Parts

# Without a worker an Update waits in the server's memory only; a person waits this long.
UPDATE_TIMEOUT = timedelta(seconds=20)
INCIDENT = "Incident"  # the workflow's type
# Of another matter, in one line; `incident show` shows the rest.
_SHOWN_EFFECTS = 3


class NotConfirmed(Exception):
    """Nobody answered in time: the decision may still take effect, and the same call may be repeated."""


class Refused(Exception):
    """The workflow refused the decision; nothing was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What came of one incident: started, attached, replay or refused."""

    id: str
    what: str
    detail: str = ""


async def start_incident(
    client: Client, origin: str, journal: JournalReads, line: IncidentLine, *, replay: bool = False
) -> Started:
    """Start one incident, or say what there is under its id already.

    Raises:
        RPCError: Temporal is unreachable.
        DatabaseError: the journal is unreachable.
    """
    known = await asyncio.to_thread(journal.decisions, origin=origin, scope=line.id)
    other = next((decision for decision in known if decision.body.get("input", line.digest) != line.digest), None)
    if other is not None:
        effects = await asyncio.to_thread(journal.effects, scope=line.id, limit=_SHOWN_EFFECTS)
        held = ", ".join(_half(row) for row in effects if row.origin == origin)
        so = f" ({held})" if held else ""
        return _refused(line, f"another matter was decided under this id at {_when(other.decided_at)}{so}")
    before = f"replay of {_when(known[0].decided_at)}" if known else ""
    try:
        await client.start_workflow(
            Incident.run,
            to_input(line, origin),
            id=line.id,
            task_queue=task_queue(origin),
            task_timeout=policies.TASK_TIMEOUT,
            # Not USE_EXISTING: it attaches in silence, to another matter too.
            id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
            id_reuse_policy=(
                WorkflowIDReusePolicy.ALLOW_DUPLICATE if replay else WorkflowIDReusePolicy.REJECT_DUPLICATE
            ),
            memo={"input": line.digest},
            static_summary=line.title,
            static_details=f"- site {line.site}\n- severity {line.severity}\n- approval {_approval(line)}",
        )
    except WorkflowAlreadyStartedError:
        found = await client.get_workflow_handle(line.id).describe()
        # Workflow ids are one for the whole namespace: another deployment's incident, or an author's workflow.
        if (found.workflow_type, found.task_queue) != (INCIDENT, task_queue(origin)):
            return _refused(line, f"a {found.workflow_type} of {found.task_queue} has this id")
        if await found.memo_value("input", None) != line.digest:
            return _refused(line, f"another matter was started under this id at {_when(found.start_time)}")
        if found.close_time is None:
            return Started(id=line.id, what="attached", detail=before or f"runs since {_when(found.start_time)}")
        return Started(id=line.id, what="replay", detail=f"ended {_when(found.close_time)}; {before or 'no effects'}")
    return Started(id=line.id, what="replay" if before else "started", detail=before)


def _half(row: EffectRow) -> str:
    receipt = f", {row.receipt.receipt_id}" if row.receipt else ""
    return f"{row.name} {row.state.replace('_', ' ')}{receipt}"


def _refused(line: IncidentLine, why: str) -> Started:
    return Started(id=line.id, what="refused", detail=f"{why}; nothing was started. Use another id")


def _approval(line: IncidentLine) -> str:
    """Whose, and how soon, in a few words."""
    if line.approval is not ApprovalRule.REQUIRED:
        return line.approval.value
    whose = f"of {line.approvers} people" if line.approvers > 1 else line.approval.value
    seconds = line.approval_within_seconds
    return whose if seconds is None else f"{whose}, within {seconds} s"


def _when(moment: datetime) -> str:
    """A time as the commands write it."""
    return f"{moment:%Y-%m-%d %H:%M:%S}Z"


def to_input(line: IncidentLine, origin: str) -> IncidentInput:
    """The workflow's input for an incident of the file."""
    effects = []
    for reservation in line.effects:
        quantities: dict[str, int] = {}
        for one in reservation.lines:
            quantities[one.sku] = quantities.get(one.sku, 0) + one.quantity
        effects.append(Parts(name=reservation.name, quantities=quantities))
    return IncidentInput(
        origin=origin,
        title=line.title,
        site=line.site,
        severity=line.severity,
        approval_required=line.approval is ApprovalRule.REQUIRED,
        effects=effects,
        digest=line.digest,
        approvers=line.approvers,
        approval_within_seconds=line.approval_within_seconds,
    )


async def approve_incident(client: Client, incident_id: str, approval: Approval) -> ApprovalAnswer:
    """Send the approval as an Update whose id is made of what it says: repeated, it is the same Update.

    Raises:
        Refused: there is nothing to decide, or the approval lacks a name.
        NotConfirmed: no worker answered in time.
        RPCError: no such incident runs, or Temporal is unreachable.
    """
    words = ["approve", incident_id, approval.by, str(approval.approved), approval.reason]
    try:
        answer: ApprovalAnswer = await client.get_workflow_handle(incident_id).execute_update(
            "approve",
            approval,
            result_type=ApprovalAnswer,
            id=hashlib.sha256("\0".join(words).encode()).hexdigest(),
            rpc_timeout=UPDATE_TIMEOUT,
        )
        return answer  # noqa: TRY300 - an else after the except clauses would be far from its try
    except WorkflowUpdateRPCTimeoutOrCancelledError as error:
        raise NotConfirmed(
            f"The decision on {incident_id} is not confirmed: no worker answered within "
            f"{UPDATE_TIMEOUT.total_seconds():g} s. It may still take effect. Repeat the same command."
        ) from error
    except WorkflowUpdateFailedError as error:
        raise Refused(f"The decision on {incident_id} was refused: {error.cause} Nothing was recorded.") from error


def standing_approval(decisions: Sequence[Decision]) -> ApprovalAnswer | None:
    """What the decisions of an incident say of its approval; None where nobody has decided on it."""
    said = {decision.name: decision for decision in decisions if "approved" in decision.body}
    first, second = said.get(APPROVAL), said.get(SECOND_APPROVAL)
    if first is None:
        return None
    last = second or first
    approved = last.body["approved"] == "yes"
    return ApprovalAnswer(
        approved=approved,
        by=last.body["by"],
        decided_at=last.decided_at.isoformat(),
        mine=False,
        complete=second is not None or not approved or last.body.get("approvers", "1") == "1",
        first_by=first.body["by"] if second else "",
    )
