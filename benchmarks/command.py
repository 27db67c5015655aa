"""The command line of the benchmarks: which, how much, and the report for people and for programs."""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks import commits, inventory, perform, recovery, report
from services.cli.output import Command, CommandError, ExitCode, Output, pass_output, run
from services.drill.processes import ProcessError, Processes, signals_cancel

Settings = perform.Settings | recovery.Settings | commits.Settings | inventory.Settings

NAMES = ("p1", "recovery", "commits", "inventory")
# Ignored by git, as `var/` is.
REPORT_FILE = Path("var") / "benchmarks.json"


def main(arguments: Sequence[str]) -> int:
    """Run a command line; the exit code."""
    return run(benchmarks, arguments, name="python -m benchmarks")


@click.command(cls=Command)
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds of all but recovery.")
@click.option(
    "--workflows", type=click.IntRange(min=1), default=160, show_default=True, help="Workflows in a round of p1."
)
@click.option(
    "--at-once", type=click.IntRange(min=1), default=16, show_default=True, help="Workflows at the same time in p1."
)
@click.option("--kills", type=click.IntRange(min=1), default=15, show_default=True, help="Kills of each kind.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Length of a measurement of commits and inventory.",
)
@click.option(
    "--receipts",
    type=click.IntRange(min=inventory.FEW),
    default=1_000_000,
    show_default=True,
    help="Receipts that the inventory grows to.",
)
@click.option(
    "--profile",
    type=click.Path(path_type=Path, file_okay=False),
    help="Profile the workers of p1, into this folder; the figures are then of no use.",
)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    default=REPORT_FILE,
    show_default=True,
    help="The report as JSON goes there too.",
)
@pass_output
def benchmarks(
    output: Output,
    *,
    names: tuple[str, ...],
    rounds: int,
    workflows: int,
    at_once: int,
    kills: int,
    seconds: float,
    receipts: int,
    profile: Path | None,
    write: Path,
) -> None:
    """Measure what durability costs, on real parts that are started and ended here; everything unless some are named.

    p1: one workflow with one effect against a bare activity. recovery: from SIGKILL to settled. commits: the journal's
    commits against bare ones. inventory: the service against its framework, against its database, and as receipts grow.
    Linux only. Exit codes: 0 measured, whatever the figures; 2 wrong use; 3 a part could not be started or ended by
    itself.
    """
    if profile is not None:
        profile.mkdir(parents=True, exist_ok=True)
    settings: dict[str, Settings] = {
        "p1": perform.Settings(rounds=rounds, workflows=workflows, at_once=at_once, profile=profile),
        "recovery": recovery.Settings(kills=kills),
        "commits": commits.Settings(rounds=rounds, seconds=seconds),
        "inventory": inventory.Settings(rounds=rounds, seconds=seconds, receipts=receipts),
    }
    document: dict[str, Any] = {"machine": report.machine()}
    tables: list[report.Table] = []
    for name in NAMES:
        if not names or name in names:
            result, told = _measured(settings[name], output.note)
            document[name] = asdict(result)
            tables += told
    text = json.dumps(document, indent=2, default=str)
    write.parent.mkdir(parents=True, exist_ok=True)
    write.write_text(text + "\n")
    output.result(json.loads(text), people="\n".join(report.lines(tables)))


def _measured(settings: Settings, tell: Callable[[str], None]) -> tuple[Any, list[report.Table]]:
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-benchmarks-"))
    try:
        with Processes() as processes:
            match settings:
                case perform.Settings():
                    measured = asyncio.run(_until_told(perform.measure(processes, folder, settings, tell)))
                    return measured, report.of_perform(measured)
                case recovery.Settings():
                    settled = asyncio.run(_until_told(recovery.measure(processes, folder, settings, tell)))
                    return settled, report.of_recovery(settled)
                case commits.Settings():
                    committed = commits.measure(processes, folder, settings, tell)
                    return committed, report.of_commits(committed)
                case inventory.Settings():
                    answered = inventory.measure(processes, folder, settings, tell)
                    return answered, report.of_inventory(answered)
    except ProcessError as error:
        raise CommandError(f"Nothing was measured. {error}", ExitCode.UNREACHABLE) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _until_told(work: Any) -> Any:
    with signals_cancel():
        return await work
