"""`counterfoil checkpoint`: what a training run has saved, whether it is still that, and what saving costs."""

import json
import os
import socket
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np

from services.checkpoints import reading, retention
from services.checkpoints.drawing import svg
from services.checkpoints.errors import CheckpointError, Damaged, ManifestInvalid, Retired
from services.checkpoints.layout import Run, sequences_in
from services.checkpoints.log import read_slot
from services.checkpoints.plan import Costs, Tried, best_interval, plan, simulate
from services.checkpoints.reading import Found, Want
from services.checkpoints.timeline import document as timeline_document
from services.checkpoints.timeline import drawn, measured, timeline
from services.checkpoints.watermark import NotUndone, compare, read_watermark
from services.cli import checkpoint_exchange
from services.cli.checkpoint_delay import delay_test
from services.cli.checkpoint_opening import Finite, Folder, chosen, opened, refused
from services.cli.checkpoint_opening import root_option as _root
from services.cli.checkpoint_opening import run_option as _run
from services.cli.checkpoint_opening import sequence_option as _sequence
from services.cli.checkpoint_opening import take_over_option as _take_over
from services.cli.checkpoint_progress import Progress
from services.cli.checkpoint_words import compared, measured_run, said_of_intervals
from services.cli.output import CommandError, ExitCode, Group, Output, finish, pass_output

LIMIT = 20
_COLUMNS = ("sequence", "attempts", "updates", "cursor", "kind", "bytes", "created", "boundary")


@click.group(cls=Group)
def checkpoint() -> None:
    """Look at the checkpoints of a training run, verify, restore, pin and prune them.

    A checkpoint is the state that the next update needs, and nothing else: restoring one repeats arithmetic and undoes
    no effect.
    """


for _command in (*checkpoint_exchange.COMMANDS, delay_test):
    checkpoint.add_command(_command)


def _tell(output: Output, skipped: tuple[reading.Skipped, ...]) -> None:
    """That what is shown is not the newest, and why."""
    for each in skipped:
        output.note(f"passed over {each.sequence}: {each.reason}")


@checkpoint.command(name="list", short_help="List the checkpoints, the newest first.")
@_root
@_run
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
@_root
@_run
@_sequence
@pass_output
def show(output: Output, root: Path, run_id: str, sequence: int | None) -> None:
    """Show one checkpoint: the versions of its cut, what it holds, and what it was made with.

    Exit codes: 0 shown, 1 there is none or it is damaged, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        found, skipped = chosen(run, sequence, "weights")
    _tell(output, skipped)
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
@_root
@_run
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
@_root
@_run
@_sequence
@click.option("--svg", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw it into this file, too.")
@pass_output
def timeline_(output: Output, root: Path, run_id: str, sequence: int | None, picture: Path | None) -> None:
    """Draw the timeline of a saved cut: each quantity with its version, what was staged, and what came later.

    The picture of --svg has no script, fits light and dark pages, and carries the timeline as JSON.

    Exit codes: 0 drawn, 1 there is no such checkpoint or it is damaged, 2 wrong use or no such run.
    """
    with opened(root, run_id) as run:
        found, skipped = chosen(run, sequence, "weights")
    _tell(output, skipped)
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


@checkpoint.command(name="plan", short_help="Say what saving costs and how often it is worth it.")
@click.option("--bytes", "size", type=click.IntRange(0), help="Of one checkpoint.")
@click.option(
    "--bandwidth", type=Finite(0, min_open=True), metavar="BYTES/S", help="That all contributors write together."
)
@click.option("--mtbf", type=Finite(0, min_open=True), metavar="SECONDS", help="Mean time between two interruptions.")
@click.option("--blocked", type=Finite(0), metavar="SECONDS", help="That a save keeps training from going on.")
@click.option("--persist", type=Finite(0), metavar="SECONDS", help="From the capture until it is durable.")
@click.option("--restart", type=Finite(0), metavar="SECONDS", help="From an interruption to training.")
@click.option(
    "--simulate", "training", type=Finite(0, min_open=True), metavar="SECONDS", help="Play a run of so much training."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated interruptions.")
@click.option("--root", type=Folder(), help="Take what was measured in this store.")
@click.option(
    "--measured", "ran", type=click.File(encoding="utf-8"), callback=measured_run, metavar="FILE",
    help="Take what `train --interrupt-every --json` printed, and say it beside what is expected; - for stdin.",
)  # fmt: skip
@_run
@pass_output
def plan_(
    output: Output, *, size: int | None, bandwidth: float | None, mtbf: float | None, blocked: float | None,
    persist: float | None, restart: float | None, training: float | None, seed: int, root: Path | None, run_id: str,
    ran: dict[str, Any] | None,
) -> None:  # fmt: skip
    """Say the least time a save takes, the interval that loses least, and what an interruption costs.

    The floor is bytes / bandwidth: asynchronous saving hides time, not bytes. The interval is Young's and Daly's,
    sqrt(2 * MTBF * blocked seconds). With --root, what is not given is what the newest checkpoint measured; with
    --measured, what that run did, whose account then stands beside what was to be expected of it.

    Exit codes: 0 said, 1 the run cannot be planned or has no checkpoint, 2 wrong use.
    """
    known: dict[str, Any] = {}
    if ran is not None:
        known = dict(ran["costs"])
        size, bandwidth = size or 0, bandwidth or 1.0
        training = ran["measured"]["useful_seconds"] if training is None else training
    if bandwidth is None or (mtbf is None and ran is None):
        raise click.UsageError("Give --bandwidth and --mtbf, or --measured of a run that was interrupted.")
    if root is not None:
        with opened(root, run_id) as run:
            found, skipped = chosen(run, None, "weights")
        _tell(output, skipped)
        known |= dict(found.manifest.timing) | {"sequence": found.sequence, "data_bytes": found.manifest.data_bytes}
    elif size is None:
        raise click.UsageError("Give --bytes, or --root of a run that has a checkpoint.")
    costs = Costs(
        checkpoint_bytes=known["data_bytes"] if size is None else size,
        bandwidth_bytes_per_second=bandwidth,
        mtbf_seconds=(measured(known, "mtbf_seconds") or 0.0) if mtbf is None else mtbf,
        blocked_seconds=(measured(known, "blocked_seconds") or 0.0) if blocked is None else blocked,
        persist_seconds=(measured(known, "persist_seconds") or 0.0) if persist is None else persist,
        restart_seconds=(measured(known, "restart_seconds") or 0.0) if restart is None else restart,
    )
    try:
        made = plan(costs)
        interval = made.interval_seconds if ran is None else ran["interval_seconds"]
        played = (
            None if training is None else simulate(costs, interval_seconds=interval, useful_seconds=training, seed=seed)
        )
        best: tuple[Tried | None, Tried | None] = (None, None) if played is None else best_interval(costs)
    except CheckpointError as error:
        raise refused(error) from error
    document = {
        "costs": asdict(costs), "plan": made.document(), "measured": known or None,
        "simulated": None if played is None else played.document(),
        "best": None if best[0] is None else asdict(best[0]),
        "young_daly": None if best[1] is None else asdict(best[1]),
        "run": None if ran is None else ran["measured"],
    }  # fmt: skip

    def people() -> None:
        output.table(("", "seconds"), [
            ("a save takes at least (bytes / bandwidth)", f"{made.floor_seconds:.3f}"),
            ("from capture to durable", f"{made.persist_seconds:.3f}"),
            ("between two saves", f"{made.interval_seconds:.3f}"),
            ("lost by one interruption, on average", f"{made.loss_seconds:.3f}"),
        ])  # fmt: skip
        output.say(
            f"\nOf the time, {made.blocked_fraction:.2%} is blocked by saves, and {made.lost_fraction:.2%} is lost by "
            "interruptions. Asynchronous saving hides time, not bytes."
        )
        if played is not None:
            output.say(f"\nPlayed, with a save after each {interval:.3f} s of training:")
            compared(output, None if ran is None else ran["measured"], played.document())
            said_of_intervals(output, *best, made.interval_seconds)

    output.result(document, people=people)


def _watermark(_ctx: click.Context, _param: click.Parameter, file: TextIO | None) -> Any:
    if file is None:
        return None
    try:
        return read_watermark(json.load(file))
    except (ValueError, RecursionError, ManifestInvalid):
        raise click.BadParameter(f"{file.name} is not what `journal watermark --json` prints.") from None


@checkpoint.command(short_help="Verify a checkpoint byte by byte and write its arrays to a folder.")
@_root
@_run
@_sequence
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


@checkpoint.command(short_help="Keep a checkpoint from retention.")
@_root
@_run
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
@_root
@_run
@click.option("--keep", type=click.IntRange(2), default=2, show_default=True, help="Of the newest, each read back.")
@click.option("--every", type=click.IntRange(1), metavar="UPDATES", help="Also each whose updates divide by this.")
@click.option(
    "--grace",
    type=Finite(0),
    default=retention.GRACE_SECONDS,
    show_default=True,
    help="Seconds until removal.",
)
@_take_over
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
