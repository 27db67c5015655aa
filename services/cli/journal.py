"""`counterfoil journal`: what was recorded, in order, and whether it is still what was recorded."""

import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import click

from services.cli.opening import check_effect, find_key, open_journal, open_journal_engine
from services.cli.output import CommandError, ExitCode, Group, Output, finish, pass_output
from services.cli.words import document, entry_words, moment
from services.journal import seals
from services.journal.export import BeyondTheEnd
from services.journal.export import export as export_journal
from services.journal.seals import SealMark, Watermark
from services.journal.since import since
from services.journal.verification import Verification
from services.journal.verification import verify as verify_journal
from services.settings import JournalSettings

LIMIT = 100
_PROGRESS_EVERY = 100_000
_NUMBERS = 2**63  # more than any database counts


@click.group(cls=Group)
def journal() -> None:
    """Show, export, seal and verify what COUNTERFOIL_JOURNAL_DATABASE_URL recorded. No entry is changed."""


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


@journal.command(short_help="Write everything to a file, as JSON lines.")
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
@click.option("--after", type=click.IntRange(0), default=0, metavar="ID", help="Only what entries after this one tell.")
@pass_output
def export(output: Output, file: str, after: int) -> None:
    """Write decisions, effects, entries and seals to FILE (`-`: stdout), one JSON object a line, as they are stored.

    It is one moment of the journal, and ends with a line `end`; a FILE is there only when it is whole. The next export
    goes on with --after and the number that this one says: entries that are not sealed yet come again, none is missed.

    Exit codes: 0 written, 2 wrong use, or FILE cannot be written, 3 the journal is unreachable.
    """
    if file == "-" and output.as_json:
        raise click.UsageError("With --json, stdout is for the answer: name a FILE.")
    try:
        with open_journal_engine(JournalSettings.read()) as engine, _written(file) as lines:
            digest = hashlib.sha256()
            for number, record in enumerate(export_journal(engine, after=after), 1):
                line = json.dumps(record, ensure_ascii=False, separators=(",", ":"), default=repr).encode() + b"\n"
                digest.update(line)
                lines.write(line)
                if number % _PROGRESS_EVERY == 0:
                    output.note(f"{number:,} lines written.")
    except BeyondTheEnd as error:
        raise CommandError(
            f"{error} Nothing was exported. The number is another journal's, or this one was put back to an older "
            "copy: export it whole, without --after."
        ) from error
    counts = {kind: record[kind] for kind in ("decision", "effect", "entry", "seal")}
    said = ", ".join(
        _counted(count, kind, "entries" if kind == "entry" else f"{kind}s") for kind, count in counts.items()
    )
    text = f"{said}. The next export goes on with --after {record['go_on_after']}."
    if file == "-":
        output.note(text)
        return
    output.result(
        {"file": file, "sha256": digest.hexdigest(), **record}, people=f"{file}: {text}\nSHA-256 {digest.hexdigest()}"
    )


@contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    """A file that takes its place when it is whole and on the disk; or stdout."""
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    part = Path(f"{file}.part")
    try:
        with part.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(file)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in {str(part), file}:
            raise CommandError(f"{file} cannot be written ({error.strerror}). Nothing was exported.") from error
        raise


@journal.command(short_help="Say how far the journal has come, to be kept elsewhere.")
@click.option("--at", type=click.IntRange(0), metavar="SEAL", help="What was committed since this seal; 0: ever.")
@pass_output
def watermark(output: Output, at: int | None) -> None:
    """Say how far the journal has come: its id, its last entry, its last seal, and what is not sealed yet.

    Keep what --json prints where whoever can change the journal cannot change it; `verify --against` compares it. A
    training checkpoint keeps it too, with the keys that are `pending`; `--at` with the number of the seal in it says
    what was `committed_since`, which no restore of the checkpoint undoes.

    Exit codes: 0 said, 1 the journal has no such SEAL, 2 wrong use, 3 the journal is unreachable.
    """
    with open_journal_engine(JournalSettings.read()) as engine:
        found = since(engine, at)
    stands = found.stands

    def people() -> None:
        output.table(("journal", stands.journal_id), [*_rows(stands), ("keys without an outcome", len(found.pending))])
        if at is None:
            return
        if at > 0 and found.at is None:
            output.say(f"\nThe journal has no seal {at}: it is behind whoever saw one, or another journal.")
            return
        output.say(f"\nCommitted since seal {at}: {len(found.committed)}")
        if found.committed:
            rows = [(each.key, f"{each.scope}/{each.name}", each.reservation_id) for each in found.committed]
            output.table(("key", "effect", "reservation"), rows)

    document = asdict(stands) | {
        "at": None if found.at is None else asdict(found.at),
        "pending": list(found.pending),
        "committed_since": [asdict(each) for each in found.committed],
    }
    output.result(document, people=people)
    if at and found.at is None:
        finish(ExitCode.FOUND)


def _rows(stands: Watermark) -> list[tuple[str, object]]:
    last = stands.seal
    return [
        ("last entry", stands.last_entry_id),
        ("last seal", "none" if last is None else f"{last.number}, up to entry {last.upto_id}, {last.digest}"),
        ("unsealed entries", stands.unsealed),
    ]


@journal.command(short_help="Seal all entries up to now.")
@pass_output
def seal(output: Output) -> None:
    """Seal all entries up to now, and say the last seal. Workers seal every few seconds: this is for a seal at once.

    While a writer holds an entry uncommitted nothing is sealed, and that is said; with --json `held_up` is then true.
    What --json prints is a watermark too, to be kept elsewhere for `verify --against`.

    Exit codes: 0 done, 2 wrong use, 3 the journal is unreachable.
    """
    with open_journal_engine(JournalSettings.read()) as engine:
        sealing = seals.seal(engine, sealed_by=f"journal seal {os.getpid()}@{socket.gethostname()}")
        stands = seals.watermark(engine)

    def people() -> None:
        output.say(f"Sealed {_counted(sealing.entries, 'entry', 'entries')}.")
        if sealing.held_up:
            output.say("A writer holds an entry that is not committed yet. Nothing is lost; seal again in a moment.")
        output.say("")
        output.table(("journal", stands.journal_id), _rows(stands))

    output.result(asdict(stands) | {"sealed": sealing.entries, "held_up": sealing.held_up}, people=people)


def _counted(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _kept(_ctx: click.Context, _param: click.Parameter, file: TextIO | None) -> Watermark | None:
    """Read what `seal --json` or `watermark --json` printed."""
    if file is None:
        return None
    try:
        told: dict[str, Any] = json.load(file)
        last = told["seal"]
        mark = None if last is None else SealMark(**{name: last[name] for name in SealMark.__slots__})
        kept = Watermark(**{name: told[name] for name in Watermark.__slots__} | {"seal": mark})
        numbers = [kept.last_entry_id, kept.unsealed, *([] if mark is None else [mark.number, mark.upto_id])]
        if not all(type(number) is int and 0 <= number < _NUMBERS for number in numbers):
            raise ValueError("a number that no journal has")  # noqa: TRY301 - it is told below, as the others are
    except (ValueError, KeyError, TypeError, RecursionError):
        raise click.BadParameter(f"{file.name} is not what `journal watermark --json` prints.") from None
    return kept


@journal.command(short_help="Say whether every entry is what was sealed.")
@click.option(
    "--against",
    type=click.File(encoding="utf-8"),
    callback=_kept,
    metavar="FILE",
    help="A watermark kept elsewhere: what `seal --json` or `watermark --json` printed; - for stdin.",
)
@pass_output
def verify(output: Output, against: Watermark | None) -> None:
    """Say whether every entry is what was sealed, and every row the fold of its entries. Nothing is changed.

    The first bad place is named, and what else there is is counted. A tail that was cut off together with its seals, a
    journal put back to a copy and seals that were made anew are found with --against alone.

    Exit codes: 0 nothing is wrong, 1 something is, 2 wrong use, 3 the journal is unreachable.
    """
    with open_journal_engine(JournalSettings.read()) as engine:
        found = verify_journal(
            engine, against=against, progress=lambda count: output.note(f"{count:,} entries looked at.")
        )
    document = {
        "intact": found.first is None,
        "first": None if found.first is None else asdict(found.first),
        "found": dict(found.found),
        "entries": found.entries,
        **asdict(found.stands),
    }
    output.result(document, people=lambda: _show_verification(output, found, compared=against is not None))
    if found.first is not None:
        finish(ExitCode.FOUND)


def _show_verification(output: Output, found: Verification, *, compared: bool) -> None:
    sealed = found.entries - found.stands.unsealed
    output.say(
        f"Journal {found.stands.journal_id}: {_counted(found.entries, 'entry', 'entries')}, {sealed:,} of them sealed."
    )
    if found.first is None:
        output.say("Every entry is what was recorded, and every row is the fold of its entries.")
        output.say(
            "It goes on from the watermark that was kept."
            if compared
            else "That nothing was cut off at the end, a watermark kept elsewhere can tell: --against FILE."
        )
        return
    output.say(f"\nThe first bad place is {found.first.where}: {found.first.says}.\n")
    output.table(("wrong", "times"), [(damage, count) for damage, count in sorted(found.found.items())])
    output.say("\nNothing was changed. Keep a copy of this database before anybody repairs it.")
