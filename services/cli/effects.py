"""`counterfoil effects`: what was asked of the outside, and how it stands in both halves."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

import click

from services.cli import effects_change, effects_show
from services.cli.opening import open_journal
from services.cli.output import Group, Output, pass_output
from services.cli.words import age, document, state_words
from services.effects.records import EffectRow
from services.effects.states import TERMINAL, EffectState
from services.journal.reads import Period
from services.settings import JournalSettings

LIMIT = 100
_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})", re.ASCII | re.IGNORECASE)
_UNSETTLED = tuple(state for state in EffectState if state not in TERMINAL)


def check_time(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """Read an RFC 3339 time; without an offset it would be another moment to each who reads it."""
    if value is None:
        return None
    try:
        if _RFC3339.fullmatch(value):
            return datetime.fromisoformat(value.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # a day that there is not, or one at the calendar's end
    raise click.BadParameter(
        f"{value!r:.80} is no RFC 3339 time with its offset: write 2026-01-31T12:00:00Z, or 2026-01-31T13:00:00+01:00."
    )


@click.group(cls=Group)
def effects() -> None:
    """List effects, show both halves of one, and settle what a person has to settle."""


for _command in (effects_show.show, *effects_change.COMMANDS):
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
@click.option(
    "--since",
    metavar="WHEN",
    callback=check_time,
    help="Only with an intent recorded at this time or later (RFC 3339).",
)
@click.option("--until", metavar="WHEN", callback=check_time, help="Only with an intent recorded before this time.")
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
    since: datetime | None,
    until: datetime | None,
    limit: int,
    only_keys: bool,
) -> None:
    """List what is unsettled, the oldest first; or, with --all or --state, settled effects too, the newest first.

    --closed and --alarmed list what is settled and waits for a person all the same. With --closed: what is committed,
    while its workflow failed, was cancelled, terminated or deleted, or ran out of time, as far as a sweep has seen it.

    --since and --until go by when the intent was recorded, by the journal's clock; a time is 2026-01-31T12:00:00Z, say.

    Exit codes: 0 listed (also when there are none), 2 wrong use, 3 the journal is unreachable.
    """
    if (bool(states), everything, closed, alarmed).count(True) > 1:
        raise click.UsageError("Give --state, --all, --closed or --alarmed: one of them.")
    if since is not None and until is not None and since >= until:
        raise click.UsageError("--since is not before --until: no effect can be in between.")
    recorded = Period(since=since, until=until)
    wanted = () if everything else tuple(EffectState(state) for state in states) or _UNSETTLED
    with open_journal(JournalSettings.read()) as journal:
        if closed or alarmed:
            found = (journal.left_standing if closed else journal.alarmed)(
                scope=scope, recorded=recorded, limit=limit + 1
            )
        else:
            found = journal.listed(states=wanted, scope=scope, recorded=recorded, limit=limit + 1)
        counts = journal.counts()
    rows, rest = found[:limit], len(found) > limit
    now = datetime.now(UTC)
    of = f" of {scope}" if scope else ""
    then = ", of those recorded in that time" if since or until else ""

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
            output.say(
                f"No workflow{of} has left anything standing{then}."
                if closed
                else f"No effect{of} is under an alarm{then}."
            )
        else:
            kinds = " or ".join(state.replace("_", " ") for state in wanted)
            output.say(f"No effect{of} is {kinds}{then}." if wanted else f"There are no effects{of}{then}.")
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
    return (
        effect,
        state_words(row, state=(row.closed_as or "open") if closed else ""),
        age(row.created_at, now),
        row.attempts,
        row.provider,
        row.key,
    )


def _in_all(counts: Mapping[EffectState, int]) -> str:
    each = ", ".join(f"{counts[state]} {state.replace('_', ' ')}" for state in EffectState if counts.get(state))
    return f"In the whole journal: {each or 'no effect'}."
