"""`counterfoil demo`: the whole story on embedded parts."""

import asyncio
import shutil
import signal
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click

from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output
from services.drill.demo import Demo, DemoFailed
from services.drill.network_faults import FaultNotReached
from services.drill.plan import ORIGIN, examples, plan
from services.drill.postgres import PostgresServer
from services.drill.processes import ProcessError, Processes, signals_cancel
from services.drill.report import KILL_HEADER, Report, Story, tell_story, totals, verdict
from services.drill.stack import Standing, running_stack
from services.drill.training import STOCK, TrainingAct, tell_training
from services.drill.worst_day import tell_acts

# One act, or all of them: whether everything passed.
Tell = Callable[..., Awaitable[bool]]


@click.command(cls=Command)
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C, for a look at Temporal's UI.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep databases and logs in this new folder; otherwise they are removed.",
)
@click.option("--postgres", is_flag=True, help="Keep the journal and the inventory on PostgreSQL.")
@click.option("--act", type=click.Choice(["training"]), help="One act alone: a training run beside a reservation.")
@pass_output
def demo(output: Output, *, keep: bool, folder: Path | None, postgres: bool, act: str | None) -> None:
    """Run a fleet of incidents on embedded parts, kill workers in the window, lose answers, reconcile and audit.

    With --act training: 17 updates, a checkpoint, a reservation, a crash and a restore; the weights repeat, the units
    do not come back, and the report says what is not undone.

    Needs nothing that runs already: Temporal, the databases, the inventory and two workers are started and ended here.
    Exit codes: 0 nothing was doubled, lost or left open and every planned fault fired; 1 otherwise; 2 wrong use; 3 a
    part could not be started or ended by itself.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise click.BadParameter(f"{folder} is not empty: name a new folder.", param_hint="--folder")
    place = folder or Path(tempfile.mkdtemp(prefix="counterfoil-demo-"))
    keep_folder = folder is not None
    try:
        with Processes() as processes:
            tell = _training if act == "training" else _demo
            passed = asyncio.run(_until_ended(output, processes, place, tell, keep=keep, postgres=postgres))
        keep_folder = keep_folder or not passed
    except (ProcessError, DemoFailed, FaultNotReached) as error:
        keep_folder = True
        code = ExitCode.UNREACHABLE if isinstance(error, ProcessError) else ExitCode.FOUND
        message = f"The demo could not be finished. {error} Databases and logs are in {place}."
        raise CommandError(message, code) from error
    finally:
        if not keep_folder:
            shutil.rmtree(place, ignore_errors=True)
    if not passed:
        output.note(f"Databases and logs are in {place}.")
        finish(ExitCode.FOUND)


async def _until_ended(
    output: Output, processes: Processes, folder: Path, tell: Tell, *, keep: bool, postgres: bool
) -> bool:
    with signals_cancel():
        if not postgres:
            return await tell(output, processes, folder, Standing(), keep=keep)
        server = PostgresServer(processes, folder)
        try:
            server.start()
            journal_url, inventory_database_url = server.stores()
            standing = Standing(journal_url=journal_url, inventory_database_url=inventory_database_url)
            return await tell(output, processes, folder, standing, keep=keep)
        finally:
            server.remove()


async def _training(output: Output, processes: Processes, folder: Path, standing: Standing, *, keep: bool) -> bool:
    output.progress("Counterfoil: a restore repeats arithmetic; it undoes no effect.\n")
    output.progress("Starting Temporal, a journal, an inventory, one worker; then training on three processes.\n")
    async with running_stack(
        processes, folder, stock=STOCK, origin=ORIGIN, workers=1, ui=keep, standing=standing, faults=False
    ) as stack:
        report = await TrainingAct(stack, folder).run()
        output.result(report.document(), people=lambda: _say(output, tell_training(report)))
        if keep:
            await _until_told(output, f"\nTemporal's UI is at {stack.temporal.ui_url} until Ctrl-C ends everything.")
    return report.passed


def _say(output: Output, lines: Sequence[str]) -> None:
    for line in lines:
        output.say(line)


async def _demo(output: Output, processes: Processes, folder: Path, standing: Standing, *, keep: bool) -> bool:
    began = time.monotonic()
    incidents, stock = examples()
    what = plan(incidents, stock)
    planned = what.planned
    output.progress("Counterfoil: one receipt per key; an unknown outcome is shown, never guessed.\n")
    output.progress("Starting Temporal, a journal, an inventory behind a bad network, two workers.")
    async with running_stack(processes, folder, stock=stock, origin=ORIGIN, ui=True, standing=standing) as stack:
        started = round(time.monotonic() - began, 2)
        output.progress(
            f"Starting {planned.incidents} incidents. {planned.lost_responses} responses get lost, "
            f"{planned.delayed_requests} requests come late, and {planned.kills}\n"
            "workers are killed after the inventory has committed, before they hear so:\n"
        )
        output.progress(KILL_HEADER)
        try:
            report, story = await Demo(stack, what, output.progress).run()
        except asyncio.CancelledError:
            output.progress("\nInterrupted: everything that was started is being ended.")
            raise
        seconds = {"start": started, **report.seconds, "total": round(time.monotonic() - began, 2)}
        ui_url = stack.temporal.ui_url if keep else None
        document = report.document() | {"seconds": seconds, "ui_url": ui_url}
        output.result(document, people=lambda: _people(output, report, story))
        if keep:
            await _until_told(output, f"\nTemporal's UI is at {ui_url} until Ctrl-C ends everything.")
    return report.passed


def _people(output: Output, report: Report, story: Story) -> None:
    output.say("")
    for line in tell_story(story):
        output.say(line)
    output.say("")
    for line in tell_acts(report.worst_day):
        output.say(line)
    output.say("")
    output.table(["total", ""], totals(report))
    output.say("")
    for line in verdict(report):
        output.say(line)


async def _until_told(output: Output, text: str) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, told.set)
    output.progress(text)
    await told.wait()
