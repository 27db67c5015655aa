"""`counterfoil train`: the reference learner, killed and taken up again, beside the same run uninterrupted."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from services.checkpoints.accounting import Account, Endurance, endure
from services.checkpoints.errors import CheckpointError, Incompatible
from services.checkpoints.interruption import RUNS_ON, Comparison, Interruption, interrupt
from services.checkpoints.layout import Run
from services.checkpoints.learner import LearnerConfig
from services.checkpoints.log import last_slot
from services.checkpoints.reference import RUN
from services.checkpoints.supervisor import ContributorFailed, Life
from services.cli.checkpoint_opening import Folder, check_run, refused, what_system_said
from services.cli.checkpoint_words import compared, said_of_intervals
from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output

MOST_RANKS = 16  # processes on one host; the learner has seven rows
_OFTEN = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)s|(\d{1,6})")
_MOST_STARTS = 12  # that people are told of


@click.command(cls=Command)
@click.option(
    "--root",
    type=Folder(),
    help="The checkpoints' folder; otherwise a temporary one, which is removed.",
)
@click.option("--run", "run_id", default=RUN, show_default=True, help="The run's id; with --kill-at, a new one.")
@click.option("--ranks", type=click.IntRange(1, MOST_RANKS), default=1, show_default=True, help="Contributors.")
@click.option("--resume-ranks", type=click.IntRange(1, MOST_RANKS), help="Contributors after the kill.")
@click.option("--updates", type=click.IntRange(1, 100_000), default=40, show_default=True, help="Of the whole run.")
@click.option("--checkpoint-every", type=click.IntRange(0), default=0, metavar="K", help="Also save after each K.")
@click.option("--scaler", is_flag=True, help="Scale the gradients: an overflow skips its update.")
@click.option("--kill-at", type=click.IntRange(1), metavar="N", help="Save at N, run on, and kill all at N + 2.")
@click.option(
    "--interrupt-every", "often", metavar="SECONDSs|UPDATES",
    help="Kill all again and again: each start after so many seconds of training (2.5s), or so many updates (50).",
)  # fmt: skip
@click.option("--kill-during", type=click.Choice(["save"]), help="Kill all in the middle of the save at N instead.")
@click.option("--weights-only", is_flag=True, help="Save weights alone, and see what cannot be taken up from them.")
@pass_output
def train(
    output: Output, *, root: Path | None, run_id: str, ranks: int, resume_ranks: int | None, updates: int,
    checkpoint_every: int, scaler: bool, kill_at: int | None, kill_during: str | None, weights_only: bool,
    often: str | None,
) -> None:  # fmt: skip
    """Train the reference learner on processes of their own, and compare it with an uninterrupted run.

    With --kill-at N all contributors commit a checkpoint at N, run on, are held at N + 2 and killed with SIGKILL. They
    start again, on --resume-ranks if asked, take up what is in the folder, and finish. Every field is compared after
    each update. Without --kill-at the run takes up what is in the folder, and goes on.

    With --interrupt-every every start is killed, wherever it is, until the run is done, and its time is told apart:
    useful, redone, blocked by saves, restart; beside it what the plan expects of these costs, and the interval between
    saves that would lose least beside Young's and Daly's.

    Exit codes: 0 equal in every field, 1 not equal, or refused and why, 2 wrong use, or a --root that holds no
    checkpoints.
    """
    if often is not None:
        if kill_at is not None or kill_during is not None or weights_only or resume_ranks is not None:
            raise click.UsageError(
                "--interrupt-every kills by itself: leave out --kill-at, --kill-during, --weights-only, --resume-ranks."
            )
        _again_and_again(
            output, root, run_id, often, ranks=ranks, updates=updates, every=checkpoint_every, scaler=scaler
        )
        return
    if weights_only and kill_at is None:
        kill_at = max(1, updates // 2)  # only who is taken up again can miss what was not saved
    last = updates if kill_at is None else kill_at + (0 if kill_during else RUNS_ON + 1)
    if last > updates:
        raise click.UsageError(f"--kill-at {kill_at} needs --updates of at least {last}: contributors run on past it.")
    if kill_during is not None and kill_at is None:
        raise click.UsageError("--kill-during needs --kill-at: it says which save.")
    if kill_during is not None and weights_only:
        raise click.UsageError("--kill-during and --weights-only: a save that is killed leaves no weights to look at.")
    with _folder(root, run_id, new=kill_at is not None) as folder:
        what = Interruption(
            root=folder,
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
        found = interrupt(what, output.note)
    output.result(found.document(), people=lambda: _people(output, what, found))
    if not found.equal_to_uninterrupted:
        finish(ExitCode.FOUND)


@contextmanager
def _folder(root: Path | None, run_id: str, *, new: bool) -> Iterator[Path]:
    """Where the run's checkpoints go; a contributor that ended unasked is a finding."""
    check_run(run_id)
    if root is not None:
        _check_place(root, run_id, new=new)
    with nullcontext(str(root)) if root is not None else TemporaryDirectory(prefix="counterfoil-train-") as place:
        try:
            yield Path(place)
        except ContributorFailed as error:
            raise CommandError(str(error), ExitCode.FOUND, details={"error": error.told.get("type")}) from error


def _check_place(root: Path, run_id: str, *, new: bool) -> None:
    """Before anybody trains: the run's folders can be made there, and where a new run is asked for, none has begun."""
    try:
        with Run.open(root, run_id, create=True) as run:
            taken = new and last_slot(run) > 0
    except CheckpointError as error:
        raise refused(error) from error
    except OSError as error:
        raise CommandError(
            f"{root} cannot hold checkpoints ({what_system_said(error)}). Nothing was trained, and what is there is as "
            "it was: give a folder as --root that this user can write, on a disk with room."
        ) from error
    if taken:
        raise CommandError(
            f"{root} has a run {run_id} already. Nothing was changed: to kill one, name a new --root or --run."
        )


def _again_and_again(
    output: Output, root: Path | None, run_id: str, often: str, *, ranks: int, updates: int, every: int, scaler: bool
) -> None:
    if every < 1:
        raise click.UsageError("--interrupt-every needs --checkpoint-every: a run that saves nothing retains nothing.")
    with _folder(root, run_id, new=True) as folder:
        what = Endurance(
            root=folder,
            run=run_id,
            config=LearnerConfig(schedule=updates, scaler=scaler),
            ranks=ranks,
            updates=updates,
            every=every,
            life=_life(often),
        )
        try:
            found = endure(what, output.note)
        except Incompatible as error:
            raise refused(error) from error
    output.result(found.document(), people=lambda: _endured(output, found))
    if not found.equal_to_uninterrupted:
        finish(ExitCode.FOUND)


def _life(often: str) -> Life:
    told = _OFTEN.fullmatch(often)
    if told is None or not float(told[1] or told[2]):
        raise click.UsageError(
            f"--interrupt-every {often!r} is neither seconds, such as 2.5s, nor updates, such as 50."
        )
    return Life(updates=int(told[2])) if told[2] else Life(seconds=float(told[1]))


def _endured(output: Output, found: Account) -> None:
    rows = [
        (str(number), str(each.taken_up), str(each.reached), str(each.retained), str(each.reached - each.retained),
         f"{each.seconds:.2f}")
        for number, each in enumerate(found.starts, 1)
    ]  # fmt: skip
    output.table(("start", "from update", "to", "retained", "lost", "seconds"), rows[:_MOST_STARTS])
    if len(rows) > _MOST_STARTS:
        output.say(f"and {len(rows) - _MOST_STARTS} more")
    output.say("")
    compared(output, found.measured.document(), None if found.expected is None else found.expected.document())
    output.say(
        f"\nA save after every {found.every_updates} updates ({found.interval_seconds:.3f} s of training) blocked for "
        f"{found.costs.blocked_seconds:.3f} s and was durable after {found.costs.persist_seconds:.3f} s."
    )
    said_of_intervals(output, found.best, found.young_daly, found.young_daly_seconds)
    if found.first_difference is None:
        output.say("Equal to the uninterrupted run in every field after each update, bit for bit.")
    else:
        where = found.first_difference
        output.say(f"NOT equal to the uninterrupted run: first in {where.field} after update {where.update}.")


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
