"""`counterfoil incident`: start incidents from a file, approve or cancel one, look at one."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, BinaryIO

import click
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.exceptions import CancelledError, TerminatedError
from temporalio.exceptions import TimeoutError as WorkflowTimeoutError
from temporalio.service import RPCError, RPCStatusCode

from services.cli.opening import open_journal
from services.cli.output import CommandError, ExitCode, Group, Output, finish, pass_output
from services.cli.words import members_in_words, moment, state_words
from services.effects.people import same_person
from services.effects.states import EffectState
from services.incident_desk import (
    NotConfirmed,
    Refused,
    Started,
    approve_incident,
    standing_approval,
    start_incident,
)
from services.incidents import Incident as IncidentLine
from services.incidents import read_incidents
from services.journal.reads import JournalReads
from services.settings import JournalSettings, OriginSettings
from services.temporal import connect
from workflows.incident import WAITING_FOR, Approval, ApprovalAnswer, Incident, IncidentResult


@click.group(cls=Group)
def incident() -> None:
    """Start incidents, approve, cancel and look at them."""


@incident.command(short_help="Start the incidents of a file, one JSON object a line.")
@click.argument("file", type=click.File("rb"))
@click.option("--replay", is_flag=True, help="Run ended incidents again: settled effects are answered, not repeated.")
@click.option("--wait-seconds", type=click.FloatRange(min=0), default=0.0, help="Wait this long for them to end.")
@pass_output
def start(output: Output, file: BinaryIO, *, replay: bool, wait_seconds: float) -> None:
    """Start the incidents of FILE, one JSON object a line (`-` reads standard input).

    Good lines are started though others are bad. An incident that runs already is attached to; one that has ended is a
    replay and says of when; another matter under a used id is refused. Exit codes: 0 all started, 1 a line was bad or
    an id refused, 2 wrong use, 3 Temporal or the journal is unreachable.
    """
    origin, settings = OriginSettings.read().origin, JournalSettings.read()
    incidents, problems = read_incidents(file)
    for problem in problems:
        output.note(str(problem))
    with open_journal(settings) as journal:
        try:
            all_of_them = _start_all(incidents, origin, journal, output, replay=replay, wait=wait_seconds)
            started, ended = asyncio.run(all_of_them)
        except KeyboardInterrupt:
            output.note("Interrupted. What was started goes on; the same command attaches to it and starts the rest.")
            raise
    refused = [one for one in started if one.what == "refused"]
    document = {
        "started": [asdict(one) for one in started],
        "problems": [asdict(problem) for problem in problems],
        "ended": ended,
    }
    rows = [(one.id, one.what, ended.get(one.id, {}).get("status", ""), one.detail) for one in started]

    def people() -> None:
        if rows:
            output.table(["incident", "what", "ended", "detail"], rows)
        output.say(
            f"With Temporal: {len(started) - len(refused)}; refused: {len(refused)}; lines that could not be read: "
            f"{len({problem.line for problem in problems})}."
        )

    output.result(document, people=people)
    if refused or problems:
        finish(ExitCode.FOUND)


async def _start_all(
    incidents: Sequence[IncidentLine], origin: str, journal: JournalReads, output: Output, *, replay: bool, wait: float
) -> tuple[list[Started], dict[str, dict[str, Any]]]:
    client = await connect()
    started = []
    for number, one in enumerate(incidents, 1):
        started.append(await start_incident(client, origin, journal, one, replay=replay))
        if number % 20 == 0:
            output.note(f"{number} of {len(incidents)} incidents started.")
    ended: dict[str, dict[str, Any]] = {}
    if wait:
        with_temporal = [one.id for one in started if one.what != "refused"]
        await _wait(client, with_temporal, ended, output, wait)
    return started, ended


async def _wait(
    client: Client, ids: Sequence[str], ended: dict[str, dict[str, Any]], output: Output, seconds: float
) -> None:
    async def one(incident_id: str) -> None:
        handle = client.get_workflow_handle_for(Incident.run, incident_id)
        try:
            ended[incident_id] = _result(await handle.result())
        except WorkflowFailureError as error:
            ended[incident_id] = {"status": _ending(error), "error": str(error.cause)}
        if len(ended) % 20 == 0:
            output.note(f"{len(ended)} of {len(ids)} incidents ended.")

    try:
        async with asyncio.timeout(seconds):
            await asyncio.gather(*(one(incident_id) for incident_id in ids))
    except TimeoutError:
        output.note(f"{len(ids) - len(ended)} incidents go on; some may wait for approval.")


def _result(result: IncidentResult) -> dict[str, Any]:
    return {
        "status": result.status,
        "decided_by": result.decided_by,
        "outcomes": [
            {"name": o.name, "key": o.key, "state": o.state, "receipt_id": o.receipt.get("receipt_id"),
             "replayed": o.replayed}
            for o in result.outcomes
        ],
    }  # fmt: skip


@incident.command(short_help="Approve or decline one that waits for a person.")
@click.argument("incident_id")
@click.option("--by", required=True, help="Who decides; recorded as claimed.")
@click.option("--decline", is_flag=True, help="Decline instead of approving.")
@click.option("--reason", default="", help="Why, for the journal.")
@pass_output
def approve(output: Output, incident_id: str, by: str, *, decline: bool, reason: str) -> None:
    """Approve or decline an incident that waits for a person.

    The first decision stands; a later one is told who decided and when, also after the incident has ended. Where two
    people have to approve, they are two; a decline by either is final. The same command may be repeated.

    Exit codes: 0 what you decided stands, 1 the opposite stands, 2 there is nothing to decide, 3 not confirmed (repeat
    the same command) or Temporal is unreachable.
    """
    answer = asyncio.run(_approve(incident_id, Approval(approved=not decline, by=by, reason=reason)))
    text = f"{incident_id} was {_standing_words(answer)}."
    recorded = answer.mine or (answer.approved is not decline and same_person(answer.by, by))
    if not recorded:
        text = f"{text} That decision stands; yours was not recorded."
    elif not answer.complete:
        text = f"{text} Another person has to approve it too."
    output.result({"incident": incident_id, **asdict(answer)}, people=text)
    if answer.approved is decline:
        finish(ExitCode.FOUND)


def _standing_words(answer: ApprovalAnswer) -> str:
    said = "approved" if answer.approved else "declined"
    before = f", after {answer.first_by} had approved it" if answer.first_by else ""
    return f"{said} by {answer.by} at {moment(datetime.fromisoformat(answer.decided_at))}{before}"


async def _approve(incident_id: str, approval: Approval) -> ApprovalAnswer:
    try:
        return await approve_incident(await connect(), incident_id, approval)
    except NotConfirmed as error:
        raise CommandError(str(error), ExitCode.UNREACHABLE) from error
    except Refused as error:
        raise CommandError(str(error)) from error
    except RPCError as error:
        standing = _standing(incident_id) if error.status is RPCStatusCode.NOT_FOUND else None
        if standing is None:
            raise _not_found(incident_id, error) from error
        if not standing.complete:
            raise CommandError(
                f"{incident_id} does not run any more: it was {_standing_words(standing)}, and by nobody else. Your "
                "decision was not recorded."
            ) from error
        return standing


def _standing(incident_id: str) -> ApprovalAnswer | None:
    """What was decided on an incident that has ended, or that Temporal has forgotten: the journal knows."""
    with open_journal(JournalSettings.read()) as journal:
        return standing_approval(journal.decisions(origin=OriginSettings.read().origin, scope=incident_id))


def _not_found(incident_id: str, error: RPCError) -> Exception:
    if error.status is not RPCStatusCode.NOT_FOUND:
        return error
    return CommandError(
        f"No incident {incident_id} runs here ({error.message}). Nothing was changed. "
        f"`counterfoil incident show {incident_id}` says what is known of it."
    )


@incident.command(short_help="Cancel one: settle, then release what it holds.")
@click.argument("incident_id")
@pass_output
def cancel(output: Output, incident_id: str) -> None:
    """Cancel an incident: what is under way is settled first, then everything it holds is released.

    Exit codes: 0 asked for, 2 no such incident runs, 3 Temporal is unreachable.
    """
    asyncio.run(_cancel(incident_id))
    text = f"{incident_id} is told to cancel: it settles what is under way, then releases what it holds."
    output.result({"incident": incident_id, "cancel": "requested"}, people=text)


async def _cancel(incident_id: str) -> None:
    try:
        handle = (await connect()).get_workflow_handle(incident_id)
        described = await handle.describe()
        await handle.cancel()  # of a workflow that has ended some servers take this without a word
    except RPCError as error:
        raise _not_found(incident_id, error) from error
    if described.status is not WorkflowExecutionStatus.RUNNING:
        ended = "ended" if described.status is None else described.status.name.lower()
        raise CommandError(
            f"{incident_id} does not run any more ({ended}): there is nothing to cancel, and nothing was changed. What "
            f"it holds: counterfoil incident show {incident_id}"
        )


@incident.command(short_help="Show its workflow, its decisions and its effects.")
@click.argument("incident_id")
@pass_output
def show(output: Output, incident_id: str) -> None:
    """Show an incident: its workflow in Temporal, its decisions and effects in the journal.

    Exit codes: 0 shown, 1 nobody knows it, 3 Temporal or the journal is unreachable.
    """
    origin = OriginSettings.read().origin
    described, result, asked = asyncio.run(_describe(incident_id))
    with open_journal(JournalSettings.read()) as journal:
        decisions = journal.decisions(origin=origin, scope=incident_id)
        effects = [row for row in journal.effects(scope=incident_id) if row.origin == origin]
    if described is None and not decisions and not effects:
        output.result({"incident": incident_id, "known": False}, people=f"Nobody knows {incident_id} here.")
        finish(ExitCode.FOUND)
    decided = standing_approval(decisions)
    waiting = asked if decided is None or not decided.complete else None
    status = described.status.name.lower() if described is not None and described.status is not None else "forgotten"
    document = {
        "incident": incident_id,
        "known": True,
        "workflow": {"status": status, "run_id": described.run_id if described else None, "result": result},
        "waiting_for": waiting,
        "decisions": [
            {"name": d.name, "generation": d.generation, "decided_at": d.decided_at.isoformat(), "body": d.body}
            for d in decisions
        ],
        "effects": [
            {"name": r.name, "generation": r.generation, "key": r.key, "state": r.state, "attempts": r.attempts,
             "receipt_id": r.receipt.receipt_id if r.receipt else None}
            for r in effects
        ],
    }  # fmt: skip

    def people() -> None:
        said = result or {}
        ended = f", {said['status']}" if "outcomes" in said else ""
        output.say(f"{incident_id}: workflow {status}{ended}")
        if said.get("status") == "failed":
            output.say(said["error"])
        if waiting is not None:
            output.say(_waiting_words(incident_id, waiting))
        if decisions:
            rows = [(d.name, moment(d.decided_at), members_in_words(d.body)) for d in decisions]
            output.say("")
            output.table(["decision", "decided at", "what"], rows)
        if effects:
            output.say("")
            output.table(
                ["effect", "state", "attempts", "receipt", "key"],
                [
                    (r.name, state_words(r), r.attempts, r.receipt.receipt_id if r.receipt else None, r.key)
                    for r in effects
                ],
            )
            for r in effects:
                if r.state is EffectState.IN_DOUBT or r.alarmed:
                    output.say(f"\n{r.name} waits for a person: counterfoil effects show {r.key}")

    output.result(document, people=people)


def _waiting_words(incident_id: str, waiting: dict[str, str | None]) -> str:
    since, until = (moment(datetime.fromisoformat(at)) if at else "" for at in (waiting["since"], waiting["until"]))
    ends = f"; the rule declines it at {until}" if until else ""
    return (
        f"It waits for the approval of {waiting['of']}, since {since}{ends}: "
        f"counterfoil incident approve {incident_id} --by NAME"
    )


async def _describe(
    incident_id: str,
) -> tuple[WorkflowExecutionDescription | None, dict[str, Any] | None, dict[str, str | None] | None]:
    """The workflow, how it ended, and of whom it waits for an approval."""
    client = await connect()
    handle: WorkflowHandle[Incident, IncidentResult] = client.get_workflow_handle_for(Incident.run, incident_id)
    try:
        described = await handle.describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return None, None, None
        raise
    if described.close_time is None:
        return described, None, await described.memo_value(WAITING_FOR, None)
    try:
        return described, _result(await handle.result()), None
    except WorkflowFailureError as error:
        return described, {"status": _ending(error), "error": str(error.cause)}, None


def _ending(error: WorkflowFailureError) -> str:
    """How a run ended that has no result."""
    match error.cause:
        case CancelledError():
            return "cancelled"
        case TerminatedError():
            return "terminated"
        case WorkflowTimeoutError():
            return "timed out"
        case _:
            return "failed"
