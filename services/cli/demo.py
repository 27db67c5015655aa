"""`counterfoil demo`: the whole story on embedded parts."""

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output
from services.drill.demo import ORIGIN, Demo, DemoFailed, examples, plan
from services.drill.network_faults import FaultNotReached
from services.drill.processes import ProcessError, Processes
from services.drill.report import KILL_HEADER, Report, Story, tell_story, totals
from services.drill.stack import running_stack


@click.command(cls=Command)
@click.option("--keep", is_flag=True, help="Leave everything running until Ctrl-C, for a look at Temporal's UI.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep databases and logs in this new folder; otherwise they are removed.",
)
@pass_output
def demo(output: Output, *, keep: bool, folder: Path | None) -> None:
    """Run a fleet of incidents on embedded parts, kill workers in the window, lose answers, reconcile and audit.

    Needs nothing that runs already: Temporal, the databases, the inventory and two workers are started and ended here.
    Exit codes: 0 nothing was doubled, lost or left open and every planned fault fired; 1 otherwise; 2 wrong use; 3 a
    part could not be started.
    """
    if folder is not None and folder.exists() and any(folder.iterdir()):
        raise click.BadParameter(f"{folder} is not empty: name a new folder.", param_hint="--folder")
    place = folder or Path(tempfile.mkdtemp(prefix="counterfoil-demo-"))
    try:
        with Processes() as processes:
            passed = asyncio.run(_demo(output, processes, place, keep=keep))
    except (ProcessError, DemoFailed, FaultNotReached) as error:
        raise CommandError(f"The demo could not be finished. {error}", ExitCode.UNREACHABLE) from error
    finally:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
    if not passed:
        finish(ExitCode.FOUND)


async def _demo(output: Output, processes: Processes, folder: Path, *, keep: bool) -> bool:
    tell = output.note if output.as_json else output.say
    began = time.monotonic()
    incidents, stock = examples()
    what = plan(incidents, stock)
    tell("Counterfoil: one receipt per key; an unknown outcome is shown, never guessed.\n")
    tell("Starting Temporal, a journal, an inventory behind a bad network, two workers.")
    async with running_stack(processes, folder, stock=stock, origin=ORIGIN, ui=True) as stack:
        started = round(time.monotonic() - began, 2)
        planned = what.planned
        tell(f"Starting {planned.incidents} incidents; {planned.lost_responses} responses will be lost, "
             f"{planned.delayed_requests} requests delayed, and\nworkers killed after the inventory has committed "
             "and before they hear so:\n")  # fmt: skip
        tell(KILL_HEADER)
        report, story = await Demo(stack, what, tell).run()
        document = report.document()
        document["seconds"] = {"start": started, **report.seconds}
        output.result(document, people=lambda: _people(output, report, story))
        if keep:
            await _until_told(output, f"Temporal's UI is at {stack.temporal.ui_url}. Ctrl-C ends everything.")
    return report.passed


def _people(output: Output, report: Report, story: Story) -> None:
    output.say(f"\n{story.incident_id}: {story.quantity} {story.sku}, told step by step\n")
    for line in tell_story(story):
        output.say(line)
    output.say("")
    output.table(["total", ""], totals(report))
    output.say("")
    for failure in report.failures:
        output.say(f"Failed: {failure}.")
    if report.passed:
        output.say("Passed: nothing doubled, nothing lost, nothing left open; every planned fault fired.")


async def _until_told(output: Output, text: str) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, told.set)
    output.note(text)
    sys.stdout.flush()
    await told.wait()
