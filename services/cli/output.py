"""What every command says, and how it ends: the one place for --json versus people.

What this module guarantees:

- With --json, stdout is one JSON document and nothing else, also when the command fails: `{"error": {...}}`. Whatever
  else is printed, by us or by a library, goes to stderr.
- The exit code is 0 done, 1 the check found something, 2 wrong use (something must be changed before the same command
  can work), 3 a dependency is unreachable (the same command may work later), 130 interrupted, 70 a defect of ours.
- Ctrl-C and a closed pipe end quietly.

The errors that people meet:

    CommandError               2 or 3; what happened, what is not lost, what to do
    SettingsError              2
    DatabaseUnreachable, CommitUnknown         3
    SchemaMismatch             2: waiting does not migrate a database
    other DatabaseError        2: a bad URL, an unknown revision, a missing driver
    TemporalUnreachable        3
    NotSetUp                   2: waiting sets nothing up
    SQLAlchemy's OperationalError, InterfaceError      3
    its other errors, where PostgreSQL refuses the role or is read-only        2: a person mends that
    httpx.TransportError       3
    Temporal's RPCError, and RuntimeError on connect   3; 2 when Temporal answered and refused
"""

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import IntEnum
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TextIO, TypeVar

import click

P = ParamSpec("P")
R = TypeVar("R")

# Wide enough for any row: a pipe has no width, and a cut SKU or key is worthless to grep.
_PIPE_COLUMNS = 10_000


class ExitCode(IntEnum):
    """How a command ends."""

    DONE = 0
    FOUND = 1
    WRONG_USE = 2
    UNREACHABLE = 3
    DEFECT = 70
    INTERRUPTED = 130


# By PostgreSQL's SQLSTATE: what waiting does not mend, and what to do about it.
_REFUSED: Mapping[str, str] = {
    "42501": (
        "Check the role in the URL; what a process's role needs, its owner grants: counterfoil migrate journal or "
        "inventory, with --grant-to ROLE."
    ),
    "25006": "Check the URL: it may be that of a standby, or of a server that was told to take no writes.",
}

_KINDS: Mapping[ExitCode, str] = {
    ExitCode.DONE: "done",
    ExitCode.FOUND: "found",
    ExitCode.WRONG_USE: "wrong-use",
    ExitCode.UNREACHABLE: "unreachable",
    ExitCode.DEFECT: "defect",
    ExitCode.INTERRUPTED: "interrupted",
}


class CommandError(Exception):
    """A command could not do its work: the message says what happened, what is not lost and what to do.

    Args:
        message: the sentences for a person.
        exit_code: WRONG_USE or UNREACHABLE.
        details: JSON members beside the message, for programs.
    """

    def __init__(
        self,
        message: str,
        exit_code: ExitCode = ExitCode.WRONG_USE,
        *,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
        self.details = dict(details or {})


class Output:
    """Where a command's answer goes.

    Args:
        as_json: whether stdout is one JSON document.
        stdout: where the answer goes.
    """

    def __init__(self, *, as_json: bool, stdout: TextIO) -> None:
        self.as_json = as_json
        self._stdout = stdout
        self._answered = False

    def note(self, text: str) -> None:
        """Say what is going on, on stderr."""
        click.echo(printable(text), err=True)

    def progress(self, text: str) -> None:
        """Say what is going on to people who watch: on stdout, or on stderr with --json."""
        if self.as_json:
            self.note(text)
        else:
            self.say(text)
            self._stdout.flush()

    def result(self, document: Mapping[str, Any], *, people: str | Callable[[], None] = "") -> None:
        """Give the command's answer, once: the document with --json, otherwise the text or what `people()` prints."""
        if self._answered:
            raise RuntimeError("a command answers once")
        self._answered = True
        if self.as_json:
            self._stdout.write(json.dumps(document, indent=2) + "\n")
        elif callable(people):
            people()
        else:
            self.say(people)
        self._stdout.flush()  # the command may go on for long

    def say(self, text: str) -> None:
        """Print text for people on stdout; only inside `result(people=...)`."""
        self._stdout.write(printable(text) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "") -> None:
        """Print a table for people; only inside `result(people=...)`.

        A terminal gets rules and cells folded between words, a pipe gets plain columns in which nothing is cut. No word
        is ever broken, for a key or a link is there to be copied: a narrow terminal breaks such a line itself. Columns
        whose cells are all numbers stand right.
        """
        from rich import box  # noqa: PLC0415 - --help must not wait for rich
        from rich.console import Console  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        class Quiet(Console):
            def on_broken_pipe(self) -> None:
                raise  # noqa: PLE0704 - called inside rich's own except block; `run` ends it quietly

        terminal = self._stdout.isatty()
        piped = io.StringIO()
        to = self._stdout if terminal else piped
        console = Quiet(file=to, markup=False, emoji=False, highlight=False, width=None if terminal else _PIPE_COLUMNS)
        cells = [[printable("-" if cell is None else str(cell)) for cell in row] for row in (columns, *rows)]
        widths = _widths(cells, console.width - 3 * len(columns))
        console.width = max(console.width, sum(widths) + 3 * len(columns))
        table = Table(
            title=title or None,
            title_justify="left",
            box=box.SIMPLE_HEAD if terminal else None,
            pad_edge=False,
            show_edge=False,
        )
        for index, column in enumerate(columns):
            numbers = bool(rows) and all(isinstance(row[index], int) for row in rows)
            table.add_column(column, justify="right" if numbers else "left", overflow="fold", width=widths[index])
        for row in cells[1:]:
            table.add_row(*row)
        console.print(table, crop=False)
        # Nothing on a terminal. rich fills the last column with blanks, which nobody wants in a file.
        self._stdout.writelines(line.rstrip(" ") + "\n" for line in piped.getvalue().split("\n")[:-1])

    def fail(self, error: CommandError) -> None:
        """Say why the command ends otherwise than done."""
        if not self.as_json:
            self.note(f"Error: {error.message}")
        elif not self._answered:
            kind = _KINDS[error.exit_code]
            body = {"kind": kind, "message": error.message, "exit_code": int(error.exit_code), **error.details}
            self.result({"error": body})
        else:
            self.note(f"Error: {error.message}")


def printable(text: str) -> str:
    """Text without characters that would move a terminal's cursor or change its colours."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else ascii(character)[1:-1] for character in text
    )


def pass_output(function: Callable[Concatenate[Output, P], R]) -> Callable[P, R]:
    """Give a command its Output as the first argument."""

    @wraps(function)
    def command(*args: P.args, **kwargs: P.kwargs) -> R:
        return function(click.get_current_context().find_object(Output) or plain(), *args, **kwargs)

    return command


def plain() -> Output:
    """What a command gets that is called without `run`."""
    return Output(as_json=False, stdout=sys.stdout)


def finish(exit_code: ExitCode) -> None:
    """End the command with this exit code, after its answer."""
    click.get_current_context().exit(int(exit_code))


class _Documented(click.Command):
    """Adds --json to a command, and lets --help keep to it."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters, then --json."""
        if not any(param.name == "as_json" for param in self.params):
            # Its value is read before click parses (see `run`): an error in parsing has to be JSON too.
            self.params.append(
                click.Option(
                    ["--json", "as_json"],
                    is_flag=True,
                    expose_value=False,
                    help="Print one JSON document on stdout; progress goes to stderr.",
                )
            )
        return super().get_params(ctx)

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """The --help option, whose text is a document with --json."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
        return option


def _show_help(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
    if value and not ctx.resilient_parsing:
        text = ctx.get_help()
        (ctx.find_object(Output) or plain()).result({"help": text}, people=text)
        ctx.exit()


class Command(_Documented):
    """A command with --json."""


class Group(_Documented, click.Group):
    """A group whose commands and groups have --json."""

    command_class = Command
    group_class = type


def run(command: click.Command, arguments: Sequence[str], *, name: str) -> int:
    """Run a command line to its end, errors said; returns the exit code."""
    own = list(arguments)
    options = own[: own.index("--")] if "--" in own else own
    stdout = sys.stdout
    output = Output(as_json="--json" in options, stdout=stdout)
    try:
        with _stdout_kept_clean(output):
            code = _invoke(command, own, name, output)
            stdout.flush()
    except BrokenPipeError:
        _discard(stdout)
        return ExitCode.INTERRUPTED
    return code


def _invoke(command: click.Command, arguments: list[str], name: str, output: Output) -> int:
    try:
        with command.make_context(name, arguments, obj=output) as ctx:
            command.invoke(ctx)
    except click.exceptions.Exit as end:
        return end.exit_code
    except (KeyboardInterrupt, click.Abort):
        if output.as_json:
            output.fail(CommandError("Interrupted.", ExitCode.INTERRUPTED))
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        raise
    except click.ClickException as error:
        if output.as_json:
            output.fail(CommandError(_plain_usage(error)))
        else:
            error.show()
        return ExitCode.WRONG_USE
    except Exception as error:  # noqa: BLE001 - whatever it is, it is said in one place
        known = explain(error)
        if known is None:
            message = f"This is a defect of counterfoil ({type(error).__name__}); its trace is on stderr."
            output.fail(CommandError(message, ExitCode.DEFECT))
            # Not exit code 1, Python's own: that means "the check found something".
            sys.excepthook(type(error), error, error.__traceback__)
            return ExitCode.DEFECT
        output.fail(known)
        return known.exit_code
    return ExitCode.DONE


def _plain_usage(error: click.ClickException) -> str:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return "A command is missing; --help lists them."
    return error.format_message()


@contextmanager
def _stdout_kept_clean(output: Output) -> Iterator[None]:
    """With --json, a stray print of any library goes to stderr instead of into the document."""
    before = sys.stdout
    if output.as_json:
        sys.stdout = sys.stderr
    elif hasattr(before, "reconfigure"):
        before.reconfigure(errors="backslashreplace")  # a title in another alphabet is no reason to fail
    try:
        yield
    finally:
        sys.stdout = before


def _discard(stream: TextIO) -> None:
    # Python flushes stdout once more when it ends, and would complain of the closed pipe then.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, stream.fileno())
    os.close(devnull)


def explain(error: BaseException) -> CommandError | None:
    """The command error that an exception stands for; None for a defect.

    Looks only into modules that are loaded: an exception of a module that nobody imported cannot be here, and a command
    that needs no Temporal does not wait for its import.
    """
    if isinstance(error, CommandError):
        return error
    for module, explainer in _EXPLAINERS:
        loaded = sys.modules.get(module)
        known = explainer(loaded, error) if loaded is not None else None
        if known is not None:
            return known
    return None


def _explain_settings(settings: Any, error: BaseException) -> CommandError | None:
    return CommandError(str(error)) if isinstance(error, settings.SettingsError) else None


def _explain_store(database: Any, error: BaseException) -> CommandError | None:
    if isinstance(error, database.DatabaseUnreachable | database.CommitUnknown):
        details = {"dependency": "database"}
        return CommandError(str(error), ExitCode.UNREACHABLE, details=details)
    return CommandError(str(error)) if isinstance(error, database.DatabaseError) else None


def _explain_namespace(temporal: Any, error: BaseException) -> CommandError | None:
    if isinstance(error, temporal.TemporalUnreachable):
        return CommandError(str(error), ExitCode.UNREACHABLE, details={"dependency": "Temporal", "where": error.where})
    return CommandError(str(error)) if isinstance(error, temporal.NotSetUp) else None


def _explain_driver(exceptions: Any, error: BaseException) -> CommandError | None:
    if not isinstance(error, exceptions.DBAPIError):
        return None
    reason = (str(error.orig).strip().splitlines() or [""])[0]
    advice = _REFUSED.get(getattr(error.orig, "sqlstate", None) or "")
    if advice is not None:
        message = f"The database refused ({reason}). Nothing of the transaction was written. {advice}"
        return CommandError(message, details={"dependency": "database", "reason": reason})
    if not isinstance(error, exceptions.OperationalError | exceptions.InterfaceError):
        return None
    message = (
        f"The database stopped answering ({reason}). What had been committed is kept; whether the last transaction was "
        "is not known. Check that the database runs, then look before you repeat the command."
    )
    return CommandError(message, ExitCode.UNREACHABLE, details={"dependency": "database", "reason": reason})


def _explain_httpx(httpx: Any, error: BaseException) -> CommandError | None:
    if not isinstance(error, httpx.TransportError):
        return None
    request = getattr(error, "_request", None)
    where = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}" if request is not None else "its address"
    reason = type(error).__name__
    message = (
        f"The inventory at {where} cannot be reached ({reason}). Start it with `counterfoil inventory`, or check "
        "COUNTERFOIL_INVENTORY_URL."
    )
    details = {"dependency": "inventory", "where": where, "reason": reason}
    return CommandError(message, ExitCode.UNREACHABLE, details=details)


def _explain_temporal(service: Any, error: BaseException) -> CommandError | None:
    where = os.environ.get("TEMPORAL_ADDRESS", "localhost:7233")
    details = {"dependency": "Temporal", "where": where}
    if isinstance(error, service.RPCError):
        status = service.RPCStatusCode
        reason = error.status.name
        if error.status not in {status.UNAVAILABLE, status.DEADLINE_EXCEEDED, status.CANCELLED, status.UNKNOWN}:
            return CommandError(f"Temporal at {where} refused ({reason}): {error.message}", details=details)
    # The client has no exception of its own for this.
    elif isinstance(error, RuntimeError) and str(error).startswith("Failed client connect"):
        reason = "no connection"
    else:
        return None
    message = (
        f"Temporal at {where} cannot be reached ({reason}). Workflows that it has accepted are not lost. Start it, or "
        "check TEMPORAL_ADDRESS."
    )
    return CommandError(message, ExitCode.UNREACHABLE, details={**details, "reason": reason})


_EXPLAINERS: tuple[tuple[str, Callable[[Any, BaseException], CommandError | None]], ...] = (
    ("services.settings", _explain_settings),
    ("services.database", _explain_store),
    ("services.temporal", _explain_namespace),
    ("sqlalchemy.exc", _explain_driver),
    ("httpx", _explain_httpx),
    ("temporalio.service", _explain_temporal),
)


def _widths(lines: Sequence[Sequence[str]], room: int) -> list[int]:
    """The columns' widths: each cell in one line where there is room, else folded; no word is broken in any case."""
    columns = list(zip(*lines, strict=True))
    whole = [max(1, *map(len, cells)) for cells in columns]
    least = [max((len(word) for cell in cells for word in cell.split()), default=1) for cells in columns]
    wanted = sum(whole) - sum(least)
    spare = min(wanted, max(0, room - sum(least)))
    return [low + ((high - low) * spare // wanted if wanted else 0) for low, high in zip(least, whole, strict=True)]
