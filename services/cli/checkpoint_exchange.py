"""`counterfoil checkpoint export | import | diff`: checkpoints as safetensors files, and what differs between two."""

import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from services.checkpoints import comparing, importing
from services.checkpoints.comparing import Differences, ItemDifference, Side
from services.checkpoints.errors import CheckpointError, ManifestInvalid
from services.checkpoints.exchange import export
from services.cli.checkpoint_opening import (
    Folder,
    check_place,
    check_run,
    chosen,
    opened,
    refused,
    root_option,
    run_option,
    sequence_option,
    take_over_option,
    unreadable,
)
from services.cli.checkpoint_progress import Progress
from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output

_SHOWN = 40
_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)


@click.command(cls=Command, name="export", short_help="Write a checkpoint, or its weights, as safetensors files.")
@root_option
@run_option
@sequence_option
@click.option("--profile", type=click.Choice(["resume", "weights"]), help="Only what this needs; otherwise everything.")
@click.option("--to", "target", type=click.Path(path_type=Path), required=True, help="A new file; or a new folder.")
@click.option("--per-contributor", is_flag=True, help="One file for each contributor, in the folder --to.")
@pass_output
def export_(
    output: Output, *, root: Path, run_id: str, sequence: int | None, profile: str | None, target: Path,
    per_contributor: bool,
) -> None:  # fmt: skip
    """Write a checkpoint as safetensors, each byte verified on the way: one file of whole arrays that any reader of the
    format loads, or one for each contributor with its own parts.

    Contract, versions, values, boxes and digests are in the files' metadata: `checkpoint import` needs nothing else.

    Exit codes: 0 written, 1 refused or damaged, 2 wrong use, no such run, or the target is taken.
    """  # noqa: D205 - what click shows as one paragraph
    _check_target(target, per_contributor=per_contributor)
    with opened(root, run_id) as run:
        found, skipped = chosen(run, sequence, profile or "weights")
        done = export(run, found, target, profile=profile, per_contributor=per_contributor, heard=Progress(output))
    document = {
        "run": run_id, "sequence": found.sequence, "profile": profile, "files": [str(each) for each in done.files],
        "tensors": done.tensors, "data_bytes": done.data_bytes,
        "skipped": [{"sequence": each.sequence, "reason": each.reason} for each in skipped],
    }  # fmt: skip

    def people() -> None:
        for each in skipped:
            output.say(f"passed over {each.sequence}: {each.reason}")
        output.say(f"Checkpoint {found.sequence} of {run_id}: {done.tensors} tensors, {done.data_bytes} bytes, in")
        for file in done.files:
            output.say(f"  {file}")

    output.result(document, people=people)


def _check_target(target: Path, *, per_contributor: bool) -> None:
    try:
        taken = any(target.iterdir()) if per_contributor and target.is_dir() else os.path.lexists(target)
    except OSError as error:
        raise CommandError(f"{target} cannot be looked into ({error.strerror}). Nothing was written.") from error
    if taken:
        raise CommandError(f"{target} is there already: name a new target. Nothing was written.")
    check_place(target if per_contributor else target.parent)


@click.command(
    cls=Command, name="import", short_help="Check safetensors files and commit them as a run's newest checkpoint."
)
@root_option
@run_option
@click.argument("files", type=_FILE, nargs=-1, required=True)
@click.option("--as", "described", type=_FILE, help="What foreign files are: contract, versions, roles, names.")
@click.option("--allow", multiple=True, metavar="NAME", help="A difference from the run that is wanted: config.x.")
@click.option("--budget", type=click.IntRange(0), default=importing.BUDGET_BYTES, show_default=True, help="In bytes.")
@click.option("--new", is_flag=True, help="Make the run where it is not there.")
@click.option("--check", is_flag=True, help="Check everything and commit nothing.")
@take_over_option
@pass_output
def import_(
    output: Output, *, root: Path, run_id: str, files: tuple[Path, ...], described: Path | None,
    allow: tuple[str, ...], budget: int, new: bool, check: bool, take_over: bool,
) -> None:  # fmt: skip
    """Check FILES, all bytes of them, and commit them as the newest checkpoint of a run; a refused import changes
    nothing and fences nobody.

    Files that `checkpoint export` wrote say what they are. For others --as names a document of the format
    counterfoil-import-1. A run that a trainer holds is refused; say --take-over where it is over.

    Exit codes: 0 committed (or checked), 1 refused and why, 2 wrong use or no such run.
    """  # noqa: D205 - what click shows as one paragraph
    if new:
        check_run(run_id)
        check_place(root)
    else:
        with opened(root, run_id):
            pass  # there is such a run, or what is missing is said
    writer = f"import-{socket.gethostname().lower()[:32].strip('.-_') or 'host'}-{os.getpid()}"
    try:
        document = None if described is None else _document(described)
        done = importing.import_files(
            root, run_id, files, writer=writer, description=document, allow=allow, budget_bytes=budget,
            take_over=take_over, create=new, check_only=check, heard=Progress(output),
        )  # fmt: skip
    except CheckpointError as error:
        raise refused(error) from error
    except OSError as error:
        raise unreadable(error) from error
    sequence = None if done.committed is None else done.committed.sequence
    answer = {
        "run": run_id, "sequence": sequence, "digest": None if done.committed is None else done.committed.digest,
        "kind": done.kind, "versions": dict(done.versions), "profiles": list(done.profiles), "items": done.items,
        "data_bytes": done.data_bytes,
    }  # fmt: skip
    at = ", ".join(f"{name} {value}" for name, value in done.versions.items()) or "no versions"
    serves = " and ".join(done.profiles) or "no profile"
    text = f"{done.items} items, {done.data_bytes} bytes, {done.kind}, for {serves}, at {at}."
    state = f"Checkpoint {sequence} of {run_id}" if sequence is not None else "Whole, and nothing was committed"
    output.result(answer, people=f"{state}: {text}")


def _document(path: Path) -> dict[str, Any]:
    if path.stat().st_size > importing.DESCRIPTION_BYTES:
        raise CommandError(f"{path} is longer than {importing.DESCRIPTION_BYTES} bytes. Nothing was changed.")
    try:
        return importing.read_description(path.read_bytes())
    except ManifestInvalid as error:
        raise CommandError(f"{path} does not say what the files are: {error}. Nothing was changed.") from error


@click.command(cls=Command, name="diff", short_help="Show what differs between two checkpoints, element by element.")
@root_option
@run_option
@click.argument("first", type=click.IntRange(1))
@click.argument("second", type=click.IntRange(1))
@click.option("--other-root", type=Folder(), help="Where SECOND is, if elsewhere.")
@click.option("--other-run", metavar="RUN", help="Whose SECOND is, if another's.")
@pass_output
def diff(
    output: Output, *, root: Path, run_id: str, first: int, second: int, other_root: Path | None, other_run: str | None
) -> None:
    """Show what differs between the checkpoints FIRST and SECOND: versions, values, settings, and per item how many
    elements, by how much at most, and where the first is. Another number of contributors is no difference.

    Exit codes: 0 they are equal, 1 they differ, or one is damaged, 2 wrong use or no such run.
    """  # noqa: D205 - what click shows as one paragraph
    with ExitStack() as both:
        sides = []
        for where, whose, sequence in (
            (root, run_id, first),
            (other_root or root, other_run or run_id, second),
        ):
            run = both.enter_context(opened(where, whose))
            sides.append(Side(run=run, found=chosen(run, sequence, "weights")[0]))
        found = comparing.compare(*sides)
    document = {"first": first, "second": second, **comparing.document(found)}
    output.result(document, people=lambda: _say(output, found))
    if not found.none:
        finish(ExitCode.FOUND)


def _say(output: Output, found: Differences) -> None:
    if found.none:
        output.say(f"Equal: {found.equal} items bit for bit, and all versions, values and settings.")
        return
    rows = [
        (what, name, _short(one), _short(other))
        for what, pairs in (("version", found.versions), ("value", found.values), ("setting", found.settings))
        for name, (one, other) in pairs.items()
    ]
    if rows:
        output.table(("", "name", "first", "second"), rows)
        output.say("")
    if found.items:
        output.table(("item", "differing", "of", "largest", "first at"), [_row(each) for each in found.items])
        output.say("")
    output.say(f"{len(found.items)} items differ, {found.equal} are equal bit for bit.")


def _row(item: ItemDifference) -> tuple[str, ...]:
    name = item.name if item.contributor is None else f"{item.name} of {item.contributor}"
    if item.what is not None:
        return name, item.what, "", "", ""
    largest = "" if item.max_abs is None else f"{item.max_abs:g}"
    if item.not_finite:
        largest = f"{largest} and {item.not_finite} not finite".strip()
    return name, str(item.count), str(item.of), largest, str(list(item.first or ()))


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


COMMANDS = (export_, import_, diff)
