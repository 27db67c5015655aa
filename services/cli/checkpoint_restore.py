"""`counterfoil checkpoint restore`: a checkpoint's arrays, each byte verified, and what a restore does not undo."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from services.checkpoints import reading
from services.checkpoints.errors import Damaged, ManifestInvalid
from services.checkpoints.layout import Run
from services.checkpoints.reading import Found, Want
from services.checkpoints.watermark import NotUndone, compare, read_watermark
from services.cli.checkpoint_opening import chosen, opened, root_option, run_option, sequence_option
from services.cli.checkpoint_progress import Progress
from services.cli.output import Command, CommandError, Output, pass_output


def _watermark(_ctx: click.Context, _param: click.Parameter, file: TextIO | None) -> Any:
    if file is None:
        return None
    try:
        return read_watermark(json.load(file))
    except (ValueError, RecursionError, ManifestInvalid):
        raise click.BadParameter(f"{file.name} is not what `journal watermark --json` prints.") from None


@click.command(cls=Command, short_help="Verify a checkpoint byte by byte and write its arrays to a folder.")
@root_option
@run_option
@sequence_option
@click.option("--profile", type=click.Choice(["resume", "weights"]), default="resume", show_default=True)
@click.option("--to", "target", type=click.Path(path_type=Path, file_okay=False), help="A new folder for its arrays.")
@click.option(
    "--watermark", "now", type=click.File(encoding="utf-8"), callback=_watermark, metavar="FILE",
    help="What `journal watermark --at SEAL --json` of the run's journal prints now; - for stdin.",
)  # fmt: skip
@click.option("--allow-pending", is_flag=True, help="Go on over keys that were pending at the cut and still are.")
@pass_output
def restore(
    output: Output, *, root: Path, run_id: str, sequence: int | None, profile: str, target: Path | None, now: Any,
    allow_pending: bool,
) -> None:  # fmt: skip
    """Verify a checkpoint byte by byte, and say what it does not undo; with --to, write its arrays as .npy files.

    A trainer restores by itself (`Session.resume`); this is for looking, and for moving weights. A checkpoint that
    carries a journal's watermark needs the journal's of this moment: one that is behind, or another, is refused.

    Exit codes: 0 verified, 1 refused and why, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        heard = Progress(output)
        found, skipped = _verified(run, sequence, profile, heard)
        report = _not_undone(found, now, allow_pending=allow_pending)
        names = [name for name in sorted(found.cut.items) if _taken(found, name, profile)]
        if target is not None:
            _write(run, found, names, target, heard)
    manifest = found.manifest
    document = {
        "sequence": found.sequence, "profile": profile, "versions": dict(manifest.versions), "items": names,
        "skipped": [asdict(each) for each in skipped], "to": None if target is None else str(target),
        "effects": None if report is None else report.document(),
    }  # fmt: skip

    def people() -> None:
        for each in skipped:
            output.say(f"passed over {each.sequence}: {each.reason}")
        updates = manifest.versions.get("updates")
        output.say(f"Checkpoint {found.sequence} (update {updates}): every byte is what was committed.")
        for line in () if report is None else report.lines():
            output.say(line)
        if target is not None:
            output.say(f"{len(names)} items are in {target}.")

    output.result(document, people=people)


def _verified(
    run: Run, sequence: int | None, profile: str, heard: Progress
) -> tuple[Found, tuple[reading.Skipped, ...]]:
    """The one that was asked for, or the newest of which every byte is what was committed, as a trainer takes it."""
    passed: tuple[reading.Skipped, ...] = ()
    before: int | None = None
    while True:
        try:
            found, skipped = chosen(run, sequence, profile, before=before)
        except CommandError as error:
            told = "".join(f"\n  {each.sequence}: {each.reason}" for each in passed)
            raise CommandError(error.message + told, error.exit_code) from error
        passed = (*passed, *skipped)
        try:
            reading.verify_items(run, found, heard=heard)
        except Damaged as damage:
            if sequence is not None:
                raise
            reason = f"{type(damage).__name__}: {damage}"
            passed, before = (*passed, reading.Skipped(sequence=found.sequence, reason=reason)), found.sequence
            continue
        return found, passed


def _not_undone(found: Found, now: Any, *, allow_pending: bool) -> NotUndone | None:
    if found.manifest.effects is None:
        return None
    kept = read_watermark(found.manifest.effects["watermark"])
    if now is None:
        at = 0 if kept.seal is None else kept.seal.number
        raise CommandError(
            f"Checkpoint {found.sequence} carries a watermark of journal {kept.journal_id}: restoring it needs that "
            f"journal's of this moment. Give what `counterfoil journal watermark --at {at} --json` prints as "
            "--watermark. Nothing was restored, and no effect is undone by a restore."
        )
    return compare(kept, now, allow_pending=allow_pending)


def _taken(found: Found, name: str, profile: str) -> bool:
    return found.cut.items[name][0][1].role in found.contract.profiles[profile]


def _write(run: Run, found: Found, names: list[str], target: Path, heard: Progress) -> None:
    if target.exists():
        raise CommandError(f"{target} is there already: name a new folder. Nothing was written.")
    part = target.with_name(f"{target.name}.part")
    try:
        part.mkdir(parents=True)
    except FileExistsError:
        raise CommandError(
            f"{part} is there already, of a restore that was interrupted or is under way: remove it, or name another "
            "folder. Nothing was written."
        ) from None
    except OSError as error:
        raise CommandError(
            f"{part} cannot be made ({error.strerror}): name another folder. Nothing was written."
        ) from error
    for name in names:
        holders = found.cut.items[name]
        own = holders[0][1].placement == "per_contributor"
        for contributor in [holder for holder, _ in holders] if own else [None]:
            want = Want(name=name, contributor=contributor)
            (array,) = reading.read_items(run, found, [want], heard=heard).values()
            file = name if contributor is None else f"{name}.{contributor}"
            np.save(part / f"{file.replace('/', '_')}.npy", array, allow_pickle=False)
    part.rename(target)
