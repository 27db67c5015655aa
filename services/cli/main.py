"""`counterfoil`: the command line. A command's module is imported when that command is called, not before."""

import contextlib
import importlib
import importlib.metadata
import os
import signal
import sys
from typing import NoReturn

import click

from services.cli.output import Group, Output, plain, run

# name: (module, attribute, what --help says of it). A new command is one line here and one module.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("services.cli.demo", "demo", "The whole story on real parts: kills, lost answers, reconcile, audit."),
    "up": ("services.cli.up", "up", "The local stack, left running for a look: Temporal's UI, inventory, workers."),
    "incident": ("services.cli.incident", "incident", "Start incidents, approve, cancel and look at them."),
    "reconcile": ("services.cli.reconcile", "reconcile", "Match everything unsettled to its receipt, now."),
    "audit": ("services.cli.audit", "audit", "Compare both halves, both ways: doubled, lost, unresolved, orphans."),
    "effects": ("services.cli.effects", "effects", "List effects; show both halves of one side by side."),
    "journal": ("services.cli.journal", "journal", "Show the journal's entries in order; seal and verify them."),
    "worker": ("services.cli.worker", "worker", "Run a worker process."),
    "setup": ("services.cli.setup", "setup", "Make what a deployment needs: attributes, Schedule, tenant marker."),
    "inventory": ("services.cli.inventory", "inventory", "Serve the mock inventory; see and deliver stock."),
    "train": ("services.cli.train", "train", "The reference learner, killed and taken up again, bit for bit."),
    "checkpoint": (
        "services.cli.checkpoint",
        "checkpoint",
        "Training checkpoints: list, verify, restore, plan, prune.",
    ),
    "migrate": ("services.cli.migrate", "migrate", "Bring a database to this build's schema."),
}


class _LazyGroup(Group):
    """A group that knows its commands by name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, without an import."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, its module imported now."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table: --help imports none of them."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


def _say_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        version = importlib.metadata.version("counterfoil")
        (ctx.find_object(Output) or plain()).result({"version": version}, people=f"counterfoil {version}")
        ctx.exit()


@click.group(cls=_LazyGroup)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_say_version,
    help="Say the version.",
)
def counterfoil() -> None:
    """Recover long-running workflows without doing anything twice.

    Exit codes: 0 done, 1 the check found something, 2 wrong use, 3 a dependency is unreachable, 130 interrupted, 70 a
    defect of counterfoil itself. Settings come from the environment (COUNTERFOIL_*).
    """


def main() -> NoReturn:
    """The entry point of the `counterfoil` program."""
    # Also where a shell started it with & and told it to ignore Ctrl-C: whoever sends SIGINT to this process means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end(run(counterfoil, sys.argv[1:], name="counterfoil"))


def end(exit_code: int) -> NoReturn:
    """End the process with this exit code, everything said.

    Temporal's client has threads that the interpreter cannot stop. One that hears an answer while the interpreter is
    taken down aborts the process (SIGABRT or SIGSEGV after its answer, seen in 7 of 90 short processes on two busy
    cores; temporalio/sdk-python issue 300), so it is not taken down then. Everything of ours is closed by now.
    """
    if "temporalio" in sys.modules:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more, or it is closed
                stream.flush()
        os._exit(exit_code)
    sys.exit(exit_code)
