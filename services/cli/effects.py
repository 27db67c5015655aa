"""`counterfoil effects`: what was asked of the outside, and how it stands in both halves."""

from collections.abc import Mapping
from datetime import UTC, datetime

import click

from services.cli import effects_change, effects_show
from services.cli.opening import open_journal
from services.cli.output import Group, Output, pass_output
from services.cli.words import age, document, state_words
from services.effects.records import EffectRow
from services.effects.states import TERMINAL, EffectState
from services.settings import JournalSettings

LIMIT = 100
_UNSETTLED = tuple(state for state in EffectState if state not in TERMINAL)


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
