"""`counterfoil up`: the local stack, left running for a person to look at."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from services.cli.output import Command, CommandError, ExitCode, Output, pass_output
from services.drill.local_stack import FolderError, LocalStack, held, local_stack
from services.drill.plan import examples
from services.drill.processes import Child, ProcessError, Processes, signals_cancel
from services.saved_queries import saved_queries

# How soon a part that has ended is started again.
_LOOK_SECONDS = 0.5


@click.command(cls=Command)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("var/up"),
    show_default=True,
    help="Keep databases, logs and secrets here; the next start goes on with them.",
)
@click.option(
    "--postgres",
    is_flag=True,
    help="Keep the journal and the inventory on PostgreSQL; it asks nobody on this machine for a password.",
)
@click.option("--workers", type=click.IntRange(1, 16), default=2, show_default=True, help="How many worker processes.")
@pass_output
def up(output: Output, *, folder: Path, postgres: bool, workers: int) -> None:
    """Run the local stack until Ctrl-C or SIGTERM: Temporal with its UI, journal, inventory with stock, workers.

    Needs nothing that runs already. Whatever ends by itself, or is killed to see what happens, is started again.
    Secrets are in the folder, in files that only their owner reads. With --json, one document comes when the stack is
    ready.

    Exit codes: 0 stopped, and everything is kept; 2 the folder is in use, or was begun otherwise; 3 a part could not be
    started.
    """
    try:
        with held(folder), Processes() as processes:
            asyncio.run(_until_ended(output, processes, folder, postgres=postgres, workers=workers))
    except FolderError as error:
        raise CommandError(str(error)) from error
    except ProcessError as error:
        message = f"The stack could not be started. {error} Everything is kept in {folder}."
        raise CommandError(message, ExitCode.UNREACHABLE) from error
    output.progress(f"Stopped. Everything is kept in {folder}: counterfoil up --folder {folder} goes on where it was.")


async def _until_ended(output: Output, processes: Processes, folder: Path, *, postgres: bool, workers: int) -> None:
    _, stock = examples()
    output.note("Starting Temporal, the journal, the inventory and the workers.")
    with signals_cancel():
        async with local_stack(processes, folder, stock=stock, workers=workers, postgres=postgres) as local:
            told = asyncio.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, told.set)
            _say(output, local, folder)
            while not told.is_set():
                _start_again(output, local.parts)
                with suppress(TimeoutError):
                    await asyncio.wait_for(told.wait(), _LOOK_SECONDS)
            output.progress("\nStopping the workers: what is under way comes to its end first.")
            await local.stack.stop_workers()


def _say(output: Output, local: LocalStack, folder: Path) -> None:
    stack = local.stack
    queries = saved_queries(stack.temporal.ui_url or "", stack.client.namespace)
    pids = {child.name.removeprefix("The "): child.pid for child in local.parts}
    document = {
        "ui_url": stack.temporal.ui_url,
        "saved_queries": queries,
        "temporal_address": stack.temporal.address,
        "inventory_url": stack.inventory_url,
        "folder": str(folder),
        "postgres_data": local.postgres_data,
        "env_file": str(local.env_file),
        "incidents_file": str(local.incidents_file),
        "pids": pids,
    }

    def people() -> None:
        output.say("The stack runs until Ctrl-C; whatever ends before is started again.\n")
        rows = [
            ("Temporal's UI", stack.temporal.ui_url),
            ("Temporal", stack.temporal.address),
            ("the inventory", stack.inventory_url),
            ("databases, logs", folder),
        ]
        if local.postgres_data is not None:
            rows.append(("PostgreSQL's data", f"{local.postgres_data} (root may not run it in a folder of its own)"))
        output.table(["", "where"], rows)
        output.say("\nSaved queries for Temporal's UI:")
        for saved in queries:
            output.say(f"  {saved['title']}\n    {saved['url']}")
        output.say("")
        output.table(["process", "pid"], list(pids.items()))
        output.say(f"\nIn another shell:\n\n    source {folder / local.env_file.name}\n")
        output.say(f"    counterfoil incident start {folder / local.incidents_file.name}")
        output.say("    counterfoil incident approve INC-2041 --by ada")
        output.say("    counterfoil audit\n")

    output.result(document, people=people)


def _start_again(output: Output, parts: Sequence[Child]) -> None:
    for child in parts:
        if not child.alive:
            ended, code = child.pid, child.exit_code
            child.start()
            output.progress(
                f"{child.name} (process {ended}) has ended with exit code {code}; started again as process {child.pid}."
            )
