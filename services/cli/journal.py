"""`counterfoil journal`: what was recorded, in order."""

import click

from services.cli.opening import check_effect, find_key, open_journal
from services.cli.output import ExitCode, Group, Output, finish, pass_output
from services.cli.words import document, entry_words, moment
from services.settings import JournalSettings

LIMIT = 100


@click.group(cls=Group)
def journal() -> None:
    """Show what the journal at COUNTERFOIL_JOURNAL_DATABASE_URL recorded. Nothing is changed."""


@journal.command(short_help="Show entries in order: all, or those of one effect.")
@click.argument("effect", metavar="[KEY]", required=False, callback=check_effect)
@click.option("--after", type=click.IntRange(0), default=0, metavar="ID", help="Only entries after this one.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=LIMIT, show_default=True, help="At most so many.")
@pass_output
def show(output: Output, effect: str | None, after: int, limit: int) -> None:
    """Show entries in order: all of them, or those of one KEY (or SCOPE/NAME, with COUNTERFOIL_ORIGIN).

    With --json every member is shown; `next_after` is what to give to --after for the rest, and null at the end.

    Exit codes: 0 shown, 1 the journal knows nothing of KEY, 2 wrong use, 3 the journal is unreachable.
    """
    with open_journal(JournalSettings.read()) as opened:
        key = None if effect is None else find_key(opened, effect)
        if key is None:
            found, known = opened.all_entries(after_id=after, limit=limit + 1), True
        else:
            of_key = opened.entries(key)
            found, known = tuple(entry for entry in of_key if entry.id > after), bool(of_key)
    entries, rest = found[:limit], len(found) > limit
    next_after = entries[-1].id if rest else None

    def people() -> None:
        if not known:
            output.say(f"The journal has no entry of {key}.")
        elif not entries:
            output.say("There are no entries." if after == 0 else f"There are no entries after {after}.")
        else:
            names = ("id", "recorded", "kind", "key", "what") if key is None else ("id", "recorded", "kind", "what")
            rows = [
                (
                    entry.id,
                    moment(entry.recorded_at),
                    entry.kind.replace("_", " "),
                    *([entry.key] if key is None else []),
                    entry_words(entry),
                )
                for entry in entries
            ]
            output.table(names, rows)
        if rest:
            output.say(f"\nThere are more: --after {next_after} goes on.")

    output.result({"entries": [document(entry) for entry in entries], "next_after": next_after}, people=people)
    if not known:
        finish(ExitCode.FOUND)
