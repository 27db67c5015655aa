"""`counterfoil effects`: what was asked of the outside, and how it stands in both halves."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from services.cli import effects_change
from services.cli.opening import check_effect, find_key, open_journal
from services.cli.output import ExitCode, Group, Output, finish, pass_output
from services.cli.words import age, document, entry_words, moment, without_reference
from services.effects.records import Answer, EffectRow, Receipt, Seen
from services.effects.states import TERMINAL, EffectState
from services.journal.rows import Entry, text
from services.reconciliation.checker import RULINGS, UP_TO_A_PERSON, compare
from services.settings import InventoryClientSettings, JournalSettings

LIMIT = 100
_UNSETTLED = tuple(state for state in EffectState if state not in TERMINAL)


@click.group(cls=Group)
def effects() -> None:
    """List effects, show both halves of one, and settle what a person has to settle."""


for _command in effects_change.COMMANDS:
    effects.add_command(_command)


@effects.command(name="list", short_help="List what is unsettled, or all.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in EffectState]),
    help="Only this state; repeatable.  [default: pending and in_doubt]",
)
@click.option("--all", "everything", is_flag=True, help="Settled ones too, after the unsettled.")
@click.option(
    "--closed", is_flag=True, help="What stands of workflows that ended otherwise than Completed: release or accept it."
)
@click.option("--alarmed", is_flag=True, help="What was settled and then reported otherwise: a person compares both.")
@click.option("--scope", help="Only this scope, for example INC-2041.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=LIMIT, show_default=True, help="At most so many.")
@click.option("--keys", "only_keys", is_flag=True, help="Print the keys alone, one a line: what a command takes by -.")
@pass_output
def list_(
    output: Output,
    states: tuple[str, ...],
    *,
    everything: bool,
    closed: bool,
    alarmed: bool,
    scope: str | None,
    limit: int,
    only_keys: bool,
) -> None:
    """List what is unsettled, the oldest first; or, with --all or --state, settled effects too, the newest first.

    --closed and --alarmed list what is settled and waits for a person all the same. With --closed: what is committed,
    while its workflow failed, was cancelled, terminated or deleted, or ran out of time, as far as a sweep has seen it.

    Exit codes: 0 listed (also when there are none), 2 wrong use, 3 the journal is unreachable.
    """
    if (bool(states), everything, closed, alarmed).count(True) > 1:
        raise click.UsageError("Give --state, --all, --closed or --alarmed: one of them.")
    wanted = () if everything else tuple(EffectState(state) for state in states) or _UNSETTLED
    with open_journal(JournalSettings.read()) as journal:
        if closed or alarmed:
            found = (journal.left_standing if closed else journal.alarmed)(scope=scope, limit=limit + 1)
        else:
            found = journal.listed(states=wanted, scope=scope, limit=limit + 1)
        counts = journal.counts()
    rows, rest = found[:limit], len(found) > limit
    now = datetime.now(UTC)

    def keys() -> None:
        for row in rows:
            output.say(row.key)
        if rest:
            output.note(f"There are more: --limit {limit} was reached.")

    def people() -> None:
        if rows:
            columns = ("effect", "workflow" if closed else "state", "age", "attempts", "provider", "key")
            output.table(columns, [_line(row, now, closed=closed) for row in rows])
        elif closed or alarmed:
            of = f" of {scope}" if scope else ""
            output.say(
                f"No workflow{of} has left anything standing." if closed else f"No effect{of} is under an alarm."
            )
        else:
            kinds = " or ".join(state.replace("_", " ") for state in wanted)
            output.say(f"No effect{f' of {scope}' if scope else ''} is {kinds}." if wanted else "There are no effects.")
        output.say("")
        if rest:
            output.say(f"There are more: --limit {limit} was reached.")
        settled_too = everything or states or closed or alarmed
        output.say(_in_all(counts) + ("" if settled_too else " --all shows the settled ones too."))

    listed = [document(row) | {"age_seconds": int((now - row.created_at).total_seconds())} for row in rows]
    totals = {state.value: counts.get(state, 0) for state in EffectState}
    output.result({"effects": listed, "more": rest, "totals": totals}, people=keys if only_keys else people)


def _line(row: EffectRow, now: datetime, *, closed: bool) -> tuple[object, ...]:
    effect = f"{row.scope}/{row.name}" + (f" g{row.generation}" if row.generation > 1 else "")
    state = (row.closed_as or "open") if closed else row.state
    return (
        effect,
        state.replace("_", " ") + (" ALARM" if row.alarmed else ""),
        age(row.created_at, now),
        row.attempts,
        row.provider,
        row.key,
    )


def _in_all(counts: Mapping[EffectState, int]) -> str:
    each = ", ".join(f"{counts[state]} {state.replace('_', ' ')}" for state in EffectState if counts.get(state))
    return f"In the whole journal: {each or 'no effect'}."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Halves:
    """Both halves of one key, and what they come to together."""

    key: str
    row: EffectRow | None
    entries: tuple[Entry, ...]
    answer: Answer
    verdict: str
    exit_code: ExitCode

    @property
    def receipt(self) -> Receipt | None:
        return self.answer.receipt


@effects.command(short_help="Show both halves of one effect side by side.")
@click.argument("effect", metavar="KEY", callback=check_effect)
@pass_output
def show(output: Output, effect: str) -> None:
    """Show both halves of an effect side by side: the journal's, and the receipt that the inventory has of it now.

    KEY may be SCOPE/NAME too, with COUNTERFOIL_ORIGIN: that is the highest generation that was decided.

    Exit codes: 0 settled, and both halves agree; 1 they do not, or it is unsettled, or nobody knows the key; 2 wrong
    use; 3 the journal is unreachable, or the inventory could not be asked (the journal's half is shown all the same).
    """
    settings = InventoryClientSettings.read()
    with open_journal(JournalSettings.read()) as journal:
        key = find_key(journal, effect)
        row = journal.effect(key)
        answer = asyncio.run(_look_up(settings, key))
        if answer.receipt is not None:
            row = journal.effect(key)  # it may have been settled, or begun, between the two
        entries = journal.entries(key)
    verdict, exit_code = _judge(key, row, answer, settings.inventory_url, _ruling(entries))
    halves = _Halves(key=key, row=row, entries=entries, answer=answer, verdict=verdict, exit_code=exit_code)
    output.result(_document(halves), people=lambda: _side_by_side(output, halves))
    finish(exit_code)


def _ruling(entries: tuple[Entry, ...]) -> str:
    """What a person has said of a disagreement between the halves, in a sentence; empty where nobody has."""
    said = [entry.body for entry in entries if entry.kind == "resolution" and entry.body.get("ruling") in RULINGS]
    return f"{said[-1]['by']} has dealt with it: {said[-1]['ruling'].replace('-', ' ')}." if said else ""


async def _look_up(settings: InventoryClientSettings, key: str) -> Answer:
    from activities.inventory_client import InventoryClient  # noqa: PLC0415 - brings Temporal; a list needs neither

    client = InventoryClient(
        settings.inventory_url,
        settings.inventory_token.get_secret_value(),
        connections=1,
        ca_file=settings.inventory_ca_file,
    )
    try:
        return await client.look_up(key)
    finally:
        await client.close()


def _judge(key: str, row: EffectRow | None, answer: Answer, url: str, ruled: str) -> tuple[str, ExitCode]:
    if answer.seen is Seen.CREDENTIALS_REFUSED:
        said = f"The inventory at {url} refused the token ({answer.reason}): only the journal's half is shown. "
        return f"{said}Check COUNTERFOIL_INVENTORY_TOKEN.", ExitCode.UNREACHABLE
    if answer.seen is Seen.KEY_EXPIRED:
        return "The inventory has dropped this key's receipt: the halves cannot be compared.", ExitCode.FOUND
    if answer.seen not in {Seen.RECEIPT, Seen.ABSENT}:
        said = f"The inventory at {url} could not be asked ({answer.reason}): only the journal's half is shown. "
        return f"{said}Start it, or check COUNTERFOIL_INVENTORY_URL, and repeat.", ExitCode.UNREACHABLE
    if row is None:
        if answer.receipt is None:
            return f"Nobody knows {key}: the journal has no effect and the inventory no receipt of it.", ExitCode.FOUND
        if ruled:
            return f"The inventory has a receipt, and the journal no effect. {ruled}", ExitCode.DONE
        return "The inventory has a receipt, and the journal no effect: counterfoil audit says more.", ExitCode.FOUND
    findings = compare(row, answer.receipt)
    if not findings:
        return "Both halves agree.", ExitCode.DONE
    said = " ".join(
        f"{finding.rule}: the journal says {finding.journal}; the inventory says {finding.provider}."
        for finding in findings
    )
    if ruled and all(finding.rule in UP_TO_A_PERSON for finding in findings):
        return f"{said} {ruled}", ExitCode.DONE
    return f"{said} {findings[0].what_to_do}.", ExitCode.FOUND


def _document(halves: _Halves) -> dict[str, Any]:
    answer = halves.answer
    return {
        "key": halves.key,
        "agree": None if halves.exit_code is ExitCode.UNREACHABLE else halves.exit_code is ExitCode.DONE,
        "verdict": halves.verdict,
        "journal": None if halves.row is None else document(halves.row),
        "entries": [document(entry) for entry in halves.entries],
        "provider": {
            "seen": answer.seen.value,
            "reason": answer.reason,
            "receipt": None if halves.receipt is None else halves.receipt.body,
        },
    }


def _side_by_side(output: Output, halves: _Halves) -> None:
    row, receipt = halves.row, halves.receipt
    if row is not None:
        output.say(f"{row.scope}/{row.name}, generation {row.generation}: {halves.key}\n")
    if row is not None or receipt is not None:
        journal, provider = _of_row(row), _of_receipt(halves.answer)
        if row is None or receipt is None or journal["request"] == provider["request"]:
            for half in (journal, provider):
                half["request"] = without_reference(half.get("request", ""))
        names = [name for name in journal | provider if journal.get(name) or provider.get(name)]
        lines = [(name, journal.get(name) or None, provider.get(name) or None) for name in names]
        output.table(("", "journal", "inventory"), lines)
        output.say("")
    if halves.entries:
        output.table(
            ("id", "recorded", "kind", "what"),
            [
                (entry.id, moment(entry.recorded_at), entry.kind.replace("_", " "), entry_words(entry))
                for entry in halves.entries
            ],
        )
        output.say("")
    output.say(halves.verdict)


def _of_row(row: EffectRow | None) -> dict[str, str]:
    if row is None:
        return {"outcome": "no effect"}
    settled_by = row.receipt
    marks = [mark for mark, there in (("given up", row.given_up), ("ALARM", row.alarmed)) if there]
    return {
        "outcome": ", ".join([row.state.replace("_", " "), *marks]),
        "receipt": settled_by.receipt_id if settled_by else "",
        "reservation": (settled_by.reservation_id if settled_by else "") or "",
        "kind": row.kind,
        "request": row.request,
        "fingerprint": row.fingerprint,
        "decided": moment(row.decided_at),
        "settled": moment(row.settled_at) if row.settled_at else "",
        "attempts": str(row.attempts),
        "workflow": f"{row.workflow_type} {row.workflow_id}",
    }


def _of_receipt(answer: Answer) -> dict[str, str]:
    receipt = answer.receipt
    if receipt is None:
        return {"outcome": "no receipt" if answer.seen is Seen.ABSENT else f"not known: {answer.reason}"}
    request = receipt.body.get("request")
    return {
        "outcome": receipt.outcome.value + (f" ({receipt.reason})" if receipt.reason else ""),
        "receipt": receipt.receipt_id,
        "reservation": receipt.reservation_id or "",
        "kind": str(receipt.body.get("kind", "")),
        "request": "" if request is None else text(request),
        "fingerprint": receipt.fingerprint or "",
        "settled": moment(datetime.fromisoformat(receipt.created_at)),
    }
