"""`counterfoil`: the command line. A command's module is imported when that command is called, not before."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

import click

from services.cli.output import Group, run

# name: (module, attribute, what --help says of it). A new command is one line here and one module.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "demo": ("services.cli.demo", "demo", "The whole story on real parts: kills, lost answers, reconcile, audit."),
    "incident": ("services.cli.incident", "incident", "Start incidents, approve, cancel and look at them."),
    "reconcile": ("services.cli.reconcile", "reconcile", "Match everything unsettled to its receipt, now."),
    "audit": ("services.cli.audit", "audit", "Compare both halves, both ways: doubled, lost, unresolved, orphans."),
    "effects": ("services.cli.effects", "effects", "List effects; show both halves of one side by side."),
    "journal": ("services.cli.journal", "journal", "Show the journal's entries, in order."),
    "worker": ("services.cli.worker", "worker", "Run a worker process."),
    "setup": ("services.cli.setup", "setup", "Make what a deployment needs: attributes, Schedule, tenant marker."),
    "inventory": ("services.cli.inventory", "inventory", "Serve the mock inventory; see and deliver stock."),
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

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, *_rest: Any, **_extra: Any) -> Any:
        """Run to the end and exit: errors and interruptions are said by `services.cli.output`."""
        arguments = sys.argv[1:] if args is None else list(args)
        sys.exit(run(self, arguments, name=prog_name or "counterfoil"))


@click.group(cls=_LazyGroup)
def counterfoil() -> None:
    """Recover long-running workflows without doing anything twice.

    Exit codes: 0 done, 1 the check found something, 2 wrong use, 3 a dependency is unreachable, 130 interrupted, 70 a
    defect of counterfoil itself. Settings come from the environment (COUNTERFOIL_*).
    """


def main() -> NoReturn:
    """The entry point of the `counterfoil` program."""
    # Also where a shell started it with & and told it to ignore Ctrl-C: whoever sends SIGINT to this process means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    code = run(counterfoil, sys.argv[1:], name="counterfoil")
    if "temporalio" in sys.modules:
        _end_at_once(code)
    sys.exit(code)


def _end_at_once(code: int) -> NoReturn:
    """End without taking the interpreter down.

    Threads of Temporal's client, which nothing can stop or wait for, may still be letting go of Python's objects. When
    the interpreter is taken down under them the process aborts (SIGABRT or SIGSEGV, after its answer): seen in 7 of 90
    short processes on two busy cores (temporalio/sdk-python issue 300). Everything of ours is closed by now.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
