"""`counterfoil checkpoint`: what a training run has saved, whether it is still that, and what saving costs."""

import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from services.checkpoints import reading, retention
from services.checkpoints.drawing import svg
from services.checkpoints.errors import CheckpointError, Retired
from services.checkpoints.layout import Run, sequences_in
from services.checkpoints.log import read_slot
from services.checkpoints.reading import Found
from services.checkpoints.timeline import document as timeline_document
from services.checkpoints.timeline import drawn, timeline
from services.cli import checkpoint_exchange
from services.cli.checkpoint_delay import delay_test
from services.cli.checkpoint_opening import (
    Finite,
    chosen,
    opened,
    root_option,
    run_option,
    sequence_option,
    take_over_option,
    tell_skipped,
)
from services.cli.checkpoint_plan import plan_
from services.cli.checkpoint_progress import Progress
from services.cli.checkpoint_restore import restore
from services.cli.output import CommandError, ExitCode, Group, Output, finish, pass_output

LIMIT = 20
_COLUMNS = ("sequence", "attempts", "updates", "cursor", "kind", "bytes", "created", "boundary")


@click.group(cls=Group)
def checkpoint() -> None:
    """Look at the checkpoints of a training run, verify, restore, pin and prune them.

    A checkpoint is the state that the next update needs, and nothing else: restoring one repeats arithmetic and undoes
    no effect.
    """


for _command in (*checkpoint_exchange.COMMANDS, delay_test, plan_, restore):
    checkpoint.add_command(_command)


@checkpoint.command(name="list", short_help="List the checkpoints, the newest first.")
@root_option
@run_option
@click.option("--before", type=click.IntRange(1), metavar="N", help="Only older ones than this sequence.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=LIMIT, show_default=True, help="At most so many.")
@pass_output
def list_(output: Output, root: Path, run_id: str, before: int | None, limit: int) -> None:
    """List the checkpoints, the newest first, with the boundary at which each was cut.

    Sequence, attempts and updates are three numbers. Only records and sizes are looked at; `verify` reads every byte.

    Exit codes: 0 listed, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        rows: list[dict[str, Any]] = []
        newest = max(sequences_in([name.removesuffix(".json") for name in run.log.names()]), default=0)
        sequence = newest if before is None else min(newest, before - 1)
        while sequence > 0 and len(rows) < limit:
            row = _row(run, sequence)
            sequence -= 1
            if row is not None:
                rows.append(row)
    next_before = sequence + 1 if sequence > 0 else None

    def people() -> None:
        if not rows:
            output.say("There are no checkpoints.")
            return
        lines = [[row.get(name) for name in _COLUMNS[:-1]] + [row.get("reason", row.get("boundary"))] for row in rows]
        output.table((*_COLUMNS[:-1], "boundary, or what is wrong"), lines)
        if next_before is not None:
            output.say(f"\nThere may be more: --before {next_before} goes on.")

    output.result({"run": run_id, "checkpoints": rows, "next_before": next_before}, people=people)


def _row(run: Run, sequence: int) -> dict[str, Any] | None:
    try:
        if read_slot(run, sequence).kind == "open":
            return None
        return reading.summary(reading.load(run, sequence)) | {"state": "whole"}
    except FileNotFoundError:
        return {"sequence": sequence, "state": "damaged", "reason": "its record is missing: `verify` says what to do"}
    except OSError as error:
        return {"sequence": sequence, "state": "damaged", "reason": f"{type(error).__name__}: {error}"}
    except Retired as error:
        return {"sequence": sequence, "state": "retired", "reason": str(error)}
    except CheckpointError as error:
        return {"sequence": sequence, "state": "damaged", "reason": f"{type(error).__name__}: {error}"}


@checkpoint.command(short_help="Show one checkpoint: its cut, items and records.")
@root_option
@run_option
@sequence_option
@pass_output
def show(output: Output, root: Path, run_id: str, sequence: int | None) -> None:
    """Show one checkpoint: the versions of its cut, what it holds, and what it was made with.

    Exit codes: 0 shown, 1 there is none or it is damaged, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        found, skipped = chosen(run, sequence, "weights")
    tell_skipped(output, skipped)
    manifest = found.manifest
    items = [
        {"name": name, "role": parts[0][1].role, "placement": parts[0][1].placement, "dtype": parts[0][1].dtype,
         "shape": list(parts[0][1].global_shape), "contributors": [contributor for contributor, _ in parts],
         "bytes": sum(item.nbytes for _, item in parts)}
        for name, parts in sorted(found.cut.items.items())
    ]  # fmt: skip
    document = reading.summary(found) | {
        "run": run_id, "save_id": manifest.save_id, "epoch": manifest.epoch, "versions": dict(manifest.versions),
        "per_contributor": {name: dict(each) for name, each in manifest.per_contributor.items()},
        "contract": {"name": manifest.contract_name, "digest": manifest.contract_digest},
        "profiles": list(manifest.profiles), "missing": list(manifest.missing), "values": dict(manifest.values),
        "config": dict(manifest.config), "runtime": dict(manifest.runtime), "lineage": dict(manifest.lineage),
        "effects": manifest.effects, "timing": dict(manifest.timing), "writer": manifest.writer, "items": items,
    }  # fmt: skip

    def people() -> None:
        output.say(f"Checkpoint {found.sequence} of {run_id}, {manifest.kind}: {manifest.boundary}")
        output.say(f"by {len(manifest.contributors)} contributors at {manifest.created}, for {_profiles(found)}\n")
        output.table(("version", "at"), [(name, manifest.versions[name]) for name in manifest.versions])
        output.say("")
        columns = ("name", "role", "placement", "dtype", "shape", "bytes")
        output.table(("item", *columns[1:]), [[str(each[name]) for name in columns] for each in items])
        if manifest.effects is not None:
            output.say(f"\n{manifest.effects['statement']}: restore it beside its journal (--watermark).")

    output.result(document, people=people)


def _profiles(found: Found) -> str:
    return " and ".join(found.manifest.profiles) or "no profile"


@checkpoint.command(short_help="Read every byte of every checkpoint and of the log.")
@root_option
@run_option
@click.option("--sequence", "only", type=click.IntRange(1), multiple=True, metavar="N", help="Only these.")
@pass_output
def verify(output: Output, root: Path, run_id: str, only: tuple[int, ...]) -> None:
    """Read the log, the records, the sizes and every byte of the checkpoints that are kept. Nothing is changed.

    Exit codes: 0 all are what was committed, 1 the damaged are named, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        last = max(sequences_in([name.removesuffix(".json") for name in run.log.names()]), default=0)
        found = reading.verify(run, sequences=only or None, heard=Progress(output))
    damaged = [each for each in found if not each.usable]

    def people() -> None:
        looked = f"the {len(only)} that were asked for" if only else f"all of the log's {last} slots"
        output.say(f"{run_id}: {looked} were read.")
        for each in found:
            output.say(f"{'usable ' if each.usable else 'DAMAGED'} {each.sequence}: {each.reason}")
        if damaged:
            output.say(
                "Nothing was changed. A trainer takes the newest usable one; where the log has a gap it does not start."
            )
        else:
            output.say("Every checkpoint that is kept is what was committed.")

    document = {"run": run_id, "slots": last, "whole": not damaged, "found": [asdict(each) for each in found]}
    output.result(document, people=people)
    if damaged:
        finish(ExitCode.FOUND)


@checkpoint.command(name="timeline", short_help="Draw what had happened when a cut was taken.")
@root_option
@run_option
@sequence_option
@click.option("--svg", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it into this file, too.")
@pass_output
def timeline_(output: Output, root: Path, run_id: str, sequence: int | None, picture: Path | None) -> None:
    """Draw the timeline of a saved cut: each quantity with its version, what was staged, and what came later.

    The picture of --svg has no script, fits light and dark pages, and carries the timeline as JSON.

    Exit codes: 0 drawn, 1 there is no such checkpoint or it is damaged, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        found, skipped = chosen(run, sequence, "weights")
    tell_skipped(output, skipped)
    if picture is not None:
        try:
            picture.write_text(svg(found), encoding="utf-8")
        except OSError as error:
            raise CommandError(f"{picture} could not be written: {error}. The checkpoint is as it was.") from error

    def people() -> None:
        output.say(f"Checkpoint {found.sequence} of {run_id}\n")
        for line in drawn(timeline(found)):
            output.say(line)
        if picture is not None:
            output.say(f"\nDrawn: {picture}")

    document = timeline_document(found) | ({} if picture is None else {"svg": str(picture)})
    output.result(document, people=people)


@checkpoint.command(short_help="Keep a checkpoint from retention.")
@root_option
@run_option
@click.argument("sequence", type=click.IntRange(1))
@click.option("--remove", is_flag=True, help="Give it back to retention.")
@pass_output
def pin(output: Output, root: Path, run_id: str, sequence: int, remove: bool) -> None:
    """Keep checkpoint SEQUENCE from retention; this needs nothing of a trainer that runs.

    Exit codes: 0 done, 1 there is no such checkpoint or it goes already, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        was = run.pins.has(str(sequence))
        if not remove:
            retention.pin(run, sequence)
        elif was:
            retention.unpin(run, sequence)
    text = f"Checkpoint {sequence} is kept until `pin --remove {sequence}`."
    if remove:
        done = "goes to retention again" if was else "was not pinned: nothing was changed"
        text = f"Checkpoint {sequence} {done}."
    output.result({"run": run_id, "sequence": sequence, "pinned": not remove}, people=text)


@checkpoint.command(short_help="Mark what is not kept; remove what was marked a grace ago.")
@root_option
@run_option
@click.option("--keep", type=click.IntRange(2), default=2, show_default=True, help="Of the newest, each read back.")
@click.option("--every", type=click.IntRange(1), metavar="UPDATES", help="Also each whose updates divide by this.")
@click.option(
    "--grace",
    type=Finite(0),
    default=retention.GRACE_SECONDS,
    show_default=True,
    help="Seconds until removal.",
)
@take_over_option
@pass_output
def prune(
    output: Output, *, root: Path, run_id: str, keep: int, every: int | None, grace: float, take_over: bool
) -> None:
    """Mark the checkpoints that are not kept, and remove the bytes of those that were marked a grace ago.

    Kept are the newest ones that were read back whole, pins, --every, and the last finite one. A run that a trainer
    holds is refused: to prune it from outside fences the trainer, so say --take-over where it is over.

    Exit codes: 0 done, 1 refused, or something is damaged and named, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        writer = f"cli-{socket.gethostname().lower()[:32].strip('.-_') or 'host'}-{os.getpid()}"
        epoch = retention.check_idle(run, take_it_over=take_over, writer=writer)
        done = retention.prune(run, epoch, keep=keep, every=every, grace_seconds=grace)

    def people() -> None:
        rows = [(name, " ".join(map(str, numbers)) or "-") for name, numbers in asdict(done).items()]
        output.table(("", "checkpoints"), rows)
        if done.damaged:
            output.say("\nWhat is damaged is left for a person; `verify` says what is wrong with it.")

    output.result(asdict(done) | {"run": run_id}, people=people)
    if done.damaged:
        finish(ExitCode.FOUND)
