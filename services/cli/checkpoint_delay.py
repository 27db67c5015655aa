"""`counterfoil checkpoint delay-test`: a trainer of one's own, with one contributor late at each point of a save."""

import click

from services.checkpoints.delays import SAVE
from services.checkpoints.delaytest import Cell, Trial, document
from services.checkpoints.delaytest import delay_test as run_delay_test
from services.checkpoints.errors import CheckpointError
from services.cli.checkpoint_opening import Finite, check_run
from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output


@click.command(cls=Command, name="delay-test", short_help="Run your trainer with one contributor late at each point.")
@click.option(
    "--command", required=True, metavar="TEXT",
    help="Of the trainer, with {root}, {launch}, {world}, {rank} where it takes them; without {rank} it is started "
    "once and starts its contributors itself. No shell reads it.",
)  # fmt: skip
@click.option("--world", type=click.IntRange(1, 64), default=1, show_default=True, help="How many contributors.")
@click.option("--run", "run_id", required=True, help="The id of the run that the trainer saves.")
@click.option("--point", "points", type=click.Choice(SAVE), multiple=True, help="Only these; otherwise all of them.")
@click.option("--seconds", type=Finite(0.01, 600), default=0.5, show_default=True, help="How late.")
@click.option("--longest", type=Finite(1), default=600.0, show_default=True, help="Seconds, of one run of it.")
@pass_output
def delay_test(
    output: Output, *, command: str, world: int, run_id: str, points: tuple[str, ...], seconds: float, longest: float
) -> None:
    """Run a trainer once undelayed and once per point of a save and contributor, that one being late there.

    A session inside of it hears of the test through COUNTERFOIL_CHECKPOINT_DELAY. What each run committed is judged by
    its bytes against the boundaries of the undelayed run: the save waited, or was refused by name, or the checkpoint
    is a mixture of two moments. The trainer has to be deterministic, call agree_stop once per iteration, and save into
    {root}, which is new each time.

    Exit codes: 0 waited or refused by name everywhere, 1 something is mixed, was not reached or failed, 2 wrong use.
    """
    check_run(run_id)
    trial = Trial(
        command=command, world=world, run=run_id, points=points or SAVE, seconds=seconds, longest_seconds=longest
    )
    try:
        cells = run_delay_test(trial, lambda cell: output.note(f"{_where(cell)}: {cell.verdict}"))
    except (CheckpointError, ValueError) as error:
        raise CommandError(str(error), details={"error": type(error).__name__}) from error
    output.result(document(cells), people=lambda: _people(output, cells))
    if not all(cell.passed for cell in cells):
        finish(ExitCode.FOUND)


def _people(output: Output, cells: tuple[Cell, ...]) -> None:
    rows = [(_where(cell), cell.verdict, str(cell.checkpoints), cell.says[:160]) for cell in cells]
    output.table(("late at", "verdict", "checkpoints", ""), rows)
    wrong = sum(not cell.passed for cell in cells)
    if wrong:
        output.say(f"\n{wrong} of {len(cells)} runs are neither waited nor refused by name.")
    else:
        output.say("\nWherever a contributor was late, the save waited or was refused by name; nothing is mixed.")


def _where(cell: Cell) -> str:
    return "nowhere" if cell.point is None else f"{cell.point}, contributor {cell.rank}"
