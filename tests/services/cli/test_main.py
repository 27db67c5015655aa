"""The program as a whole: lazy, documented, and the same in every command."""

import importlib
import importlib.metadata
import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest

from services.cli.main import COMMANDS, counterfoil
from services.cli.output import Command, Group
from tests.services.cli.conftest import COUNTERFOIL, Run, environment


def _commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _commands(below, (*path, name))


def test_every_command_has_json_help_and_a_sentence() -> None:
    """Whoever adds a command with another class is told here."""
    for path, command in _commands(counterfoil):
        assert isinstance(command, Command | Group), path
        options = {name for param in command.get_params(click.Context(command)) for name in param.opts}
        assert {"--json", "--help"} <= options, path
        assert command.help, path


def test_every_command_documents_its_exit_codes_and_is_listed_in_one_whole_line() -> None:
    """A listing that ends in dots tells nothing; a group of commands only hands on their codes."""
    for path, command in _commands(counterfoil):
        if len(path) > 1:  # the first level is listed from the table of commands
            assert not command.get_short_help_str(limit=62).endswith("..."), path
        if not isinstance(command, click.Group) or path == ("inventory",):
            assert "Exit codes: 0" in (command.help or "") or path[:1] == ("migrate",), path


def test_the_version_is_said(counterfoil: Run) -> None:
    """For people and for programs."""
    version = importlib.metadata.version("counterfoil")
    assert counterfoil("--version").stdout == f"counterfoil {version}\n"
    assert json.loads(counterfoil("--version", "--json").stdout) == {"version": version}


def test_the_table_of_commands_is_true() -> None:
    """Each line names a module and a command of that name."""
    for name, (module, attribute, text) in COMMANDS.items():
        assert getattr(importlib.import_module(module), attribute).name == name
        assert text.endswith(".")


def test_help_lists_the_commands_and_imports_none_of_them() -> None:
    """--help is fast: no database, no HTTP, no Temporal, no rich."""
    probe = "import sys; from services.cli.main import counterfoil, main; sys.argv = ['counterfoil', '--help']\n"
    probe += "try: main()\nexcept SystemExit as end: assert end.code == 0\n"
    probe += "print(*(n for n in ('sqlalchemy', 'pydantic', 'httpx', 'temporalio', 'rich') if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    *text, loaded = done.stdout.splitlines()
    assert loaded == ""
    assert all(f"  {name} " in "\n".join(text) for name in COMMANDS)


def test_the_inventory_does_not_import_temporal() -> None:
    """The remote starts without the engine."""
    probe = "import sys, services.cli.inventory; print('temporalio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    "arguments",
    [("--json",), ("nothing", "--json"), ("migrate", "journal", "--nothing", "--json"), ("migrate", "--json")],
)
def test_wrong_use_with_json_is_one_document_and_2(counterfoil: Run, arguments: tuple[str, ...]) -> None:
    """Errors in parsing keep to --json too."""
    done = counterfoil(*arguments)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["kind"] == "wrong-use"
    assert done.stderr == ""


def test_wrong_use_without_json_says_the_usage_on_stderr(counterfoil: Run) -> None:
    """Stdout stays empty."""
    done = counterfoil("nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such command 'nothing'" in done.stderr


def test_help_with_json_is_a_document(counterfoil: Run) -> None:
    """--json means JSON, whatever is asked."""
    assert "Commands:" in json.loads(counterfoil("--json", "--help").stdout)["help"]


def test_a_closed_pipe_ends_quietly() -> None:
    """`counterfoil --help | true`: 130, not a word."""
    with subprocess.Popen(
        [COUNTERFOIL, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment({})
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 130


def test_an_interrupt_is_obeyed_where_a_shell_had_it_ignored() -> None:
    """A script's `counterfoil ... &` inherits an ignored SIGINT; one that is sent all the same ends it with 130."""
    waits = f"trap '' INT; exec {COUNTERFOIL} incident start -"
    settings = {"COUNTERFOIL_ORIGIN": "demo", "COUNTERFOIL_JOURNAL_DATABASE_URL": "sqlite:////nowhere/journal.db"}
    with subprocess.Popen(
        ["/bin/sh", "-c", waits], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(settings)
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"no incident\n" * 20_000)  # more than a pipe holds: written when the command reads
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


@pytest.mark.parametrize(("imported", "torn_down"), [("json", True), ("temporalio.client", False)])
def test_a_process_with_temporals_threads_ends_without_taking_the_interpreter_down(
    imported: str, *, torn_down: bool
) -> None:
    """What was said is written and the exit code is ours; a thread of Temporal's client could abort the rest."""
    probe = f"import atexit, sys, {imported}; from services.cli.main import end; atexit.register(print, 'torn down')\n"
    probe += "print('said'); end(3)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "said\n" + "torn down\n" * torn_down, "")
