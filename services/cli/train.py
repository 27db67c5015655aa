"""`counterfoil train`: the reference learner, killed and taken up again, beside the same run uninterrupted."""

from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from services.checkpoints.errors import CheckpointError
from services.checkpoints.interruption import RUNS_ON, Comparison, Interruption, interrupt
from services.checkpoints.layout import Run
from services.checkpoints.learner import LearnerConfig
from services.checkpoints.log import last_slot
from services.checkpoints.reference import RUN
from services.checkpoints.supervisor import ContributorFailed
from services.cli.checkpoint import refused
from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output

MOST_RANKS = 16  # processes on one host; the learner has seven rows


@click.command(cls=Command)
@click.option(
    "--root",
    type=click.Path(path_type=Path, file_okay=False),
    help="The checkpoints' folder; otherwise a temporary one, which is removed.",
)
@click.option("--run", "run_id", default=RUN, show_default=True, help="The run's id; with --kill-at, a new one.")
@click.option("--ranks", type=click.IntRange(1, MOST_RANKS), default=1, show_default=True, help="Contributors.")
@click.option("--resume-ranks", type=click.IntRange(1, MOST_RANKS), help="Contributors after the kill.")
@click.option("--updates", type=click.IntRange(1, 100_000), default=40, show_default=True, help="Of the whole run.")
@click.option("--checkpoint-every", type=click.IntRange(0), default=0, metavar="K", help="Also save after each K.")
@click.option("--scaler", is_flag=True, help="Scale the gradients: an overflow skips its update.")
@click.option("--kill-at", type=click.IntRange(1), metavar="N", help="Save at N, run on, and kill all at N + 2.")
@click.option("--kill-during", type=click.Choice(["save"]), help="Kill all in the middle of the save at N instead.")
@click.option("--weights-only", is_flag=True, help="Save weights alone, and see what cannot be taken up from them.")
@pass_output
def train(
    output: Output, *, root: Path | None, run_id: str, ranks: int, resume_ranks: int | None, updates: int,
    checkpoint_every: int, scaler: bool, kill_at: int | None, kill_during: str | None, weights_only: bool,
) -> None:  # fmt: skip
    """Train the reference learner on processes of their own, and compare it with an uninterrupted run.

    With --kill-at N all contributors commit a checkpoint at N, run on, are held at N + 2 and killed with SIGKILL. They
    start again, on --resume-ranks if asked, take up what is in the folder, and finish. Every field is compared after
    each update. Without --kill-at the run takes up what is in the folder, and goes on.

    Exit codes: 0 equal in every field, 1 not equal, or refused and why, 2 wrong use.
    """
    if weights_only and kill_at is None:
        kill_at = max(1, updates // 2)  # only who is taken up again can miss what was not saved
    last = updates if kill_at is None else kill_at + (0 if kill_during else RUNS_ON + 1)
    if last > updates:
        raise click.UsageError(f"--kill-at {kill_at} needs --updates of at least {last}: contributors run on past it.")
    if kill_during is not None and kill_at is None:
        raise click.UsageError("--kill-during needs --kill-at: it says which save.")
    if kill_during is not None and weights_only:
        raise click.UsageError("--kill-during and --weights-only: a save that is killed leaves no weights to look at.")
    if root is not None and kill_at is not None:
        _check_new(root, run_id)
    with nullcontext(str(root)) if root is not None else TemporaryDirectory(prefix="counterfoil-train-") as place:
        what = Interruption(
            root=Path(place),
            run=run_id,
            config=LearnerConfig(schedule=updates, scaler=scaler),
            ranks=ranks,
            resume_ranks=resume_ranks or ranks,
            updates=updates,
            every=checkpoint_every,
            kill_at=kill_at,
            during_save=kill_during is not None,
            weights_only=weights_only,
        )
        try:
            found = interrupt(what, output.note)
        except ContributorFailed as error:
            raise CommandError(str(error), ExitCode.FOUND, details={"error": error.told.get("type")}) from error
    output.result(found.document(), people=lambda: _people(output, what, found))
    if not found.equal_to_uninterrupted:
        finish(ExitCode.FOUND)


def _check_new(root: Path, run_id: str) -> None:
    try:
        with Run.open(root, run_id) as run:
            taken = last_slot(run) > 0
    except FileNotFoundError:
        return
    except CheckpointError as error:
        raise refused(error) from error
    if taken:
        raise CommandError(
            f"{root} has a run {run_id} already. Nothing was changed: with --kill-at, name a new --root or --run."
        )


def _people(output: Output, what: Interruption, found: Comparison) -> None:
    for dead in found.killed:
        output.say(f"process {dead.pid} killed: return code {dead.returncode}")
    for sequence, reason in found.skipped:
        output.say(f"passed over checkpoint {sequence}: {reason}")
    if found.missing_roles:
        output.say(f"Weights alone do not make the next update. Missing: {', '.join(found.missing_roles)}.")
        output.say("Nothing was resumed, and the weights are whole: `checkpoint restore --profile weights` reads them.")
        return
    where = f"{what.ranks} -> {what.resume_ranks} contributors" if what.kill_at else f"{what.resume_ranks} contributors"
    output.say(f"{where}, taken up at update {found.resumed_from}, {found.updates} updates, {found.draws} draws")
    if found.equal_to_uninterrupted:
        output.say("Equal to the uninterrupted run in every field after each update, bit for bit.")
        return
    difference = found.first_difference
    where = "" if difference is None else f": first in {difference.field} after update {difference.update}"
    output.say(f"NOT equal to the uninterrupted run{where}.")
