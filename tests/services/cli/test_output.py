"""What a command says and how it ends: stdout with --json, exit codes, Ctrl-C, closed pipes."""

import io
import json
import re
import sys
from collections.abc import Callable

import click
import httpx
import pytest
import sqlalchemy as sa
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from services.cli.output import Command, CommandError, ExitCode, Output, explain, finish, pass_output, run
from services.database import DatabaseError, DatabaseUnreachable, SchemaMismatch
from services.settings import SettingsError


def _command(body: Callable[[Output], None]) -> click.Command:
    @click.command(cls=Command)
    @pass_output
    def command(output: Output) -> None:
        """Do it."""
        body(output)

    return command


@pytest.mark.parametrize(("as_json", "stdout", "stderr"), [(True, "", "going on\n"), (False, "going on\n", "")])
def test_progress_goes_where_people_watch(
    capsys: pytest.CaptureFixture[str], as_json: bool, stdout: str, stderr: str
) -> None:
    """Never into the document."""
    Output(as_json=as_json, stdout=sys.stdout).progress("going on")
    assert capsys.readouterr() == (stdout, stderr)


def test_with_json_a_stray_print_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever a library prints, stdout is one document."""

    def body(output: Output) -> None:
        print("chatter")  # noqa: T201
        output.note("progress")
        output.result({"done": "ä"}, people="Done.")

    assert run(_command(body), ["--json"], name="x") == 0
    seen = capsys.readouterr()
    assert json.loads(seen.out) == {"done": "ä"}
    assert seen.err == "chatter\nprogress\n"


def test_without_json_people_get_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The text on stdout, progress on stderr."""

    def body(output: Output) -> None:
        output.note("progress")
        output.result({"done": 1}, people="Done.")

    assert run(_command(body), [], name="x") == 0
    assert capsys.readouterr() == ("Done.\n", "progress\n")


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (CommandError("Wrong."), 2, "wrong-use"),
        (CommandError("Gone.", ExitCode.UNREACHABLE), 3, "unreachable"),
        (SettingsError("Unset."), 2, "wrong-use"),
        (DatabaseUnreachable("Away."), 3, "unreachable"),
        (SchemaMismatch("Old."), 2, "wrong-use"),
        (DatabaseError("Bad URL."), 2, "wrong-use"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("own"), 70, "defect"),
    ],
)
def test_every_error_is_a_document_with_the_same_exit_code(
    capsys: pytest.CaptureFixture[str], error: BaseException, code: int, kind: str
) -> None:
    """The kind, the message and the code are in the JSON; without --json only stderr speaks, with the same code."""

    def body(_output: Output) -> None:
        raise error

    assert run(_command(body), ["--json"], name="x") == code
    said = json.loads(capsys.readouterr().out)["error"]
    assert (said["kind"], said["exit_code"]) == (kind, code)
    assert run(_command(body), [], name="x") == code
    seen = capsys.readouterr()
    assert seen.out == ""
    assert ("Traceback" in seen.err) is (code == 70)


def test_a_check_that_found_something_ends_with_1_after_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is printed, the code is 1."""

    def body(output: Output) -> None:
        output.result({"unmatched": 3})
        finish(ExitCode.FOUND)

    assert run(_command(body), ["--json"], name="x") == 1
    assert json.loads(capsys.readouterr().out) == {"unmatched": 3}


def test_an_error_after_the_answer_does_not_make_a_second_document(capsys: pytest.CaptureFixture[str]) -> None:
    """Stdout stays one document, stderr says the error, the code tells."""

    def body(output: Output) -> None:
        output.result({"done": 1})
        raise CommandError("Late.", ExitCode.UNREACHABLE)

    assert run(_command(body), ["--json"], name="x") == 3
    seen = capsys.readouterr()
    assert json.loads(seen.out) == {"done": 1}
    assert seen.err == "Error: Late.\n"


def test_a_table_in_a_pipe_is_neither_cut_nor_coloured_nor_interpreted() -> None:
    """Long cells stay whole, markup and escape sequences are plain text, numbers stand right."""
    stdout = io.StringIO()
    Output(as_json=False, stdout=stdout).table(["key", "n"], [["k" * 300, 5], ["[bold]x\x1b[31m", 12345]], title="T")
    lines = stdout.getvalue().splitlines()
    assert "k" * 300 in stdout.getvalue()
    assert "[bold]x\\x1b[31m" in stdout.getvalue()
    assert "\x1b" not in stdout.getvalue()
    assert any(line.endswith("    5") for line in lines)
    assert all(line == line.rstrip() for line in lines)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_on_a_terminal_of_80_columns_folds_between_words_and_breaks_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sentence goes on in the next line; a key or a link stays whole, to be copied, however long it is."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    for word, widest in (("k" * 40, 80), ("k" * 150, 170)):
        stdout = _Terminal()
        Output(as_json=False, stdout=stdout).table(["key", "what"], [[word, "of some words " * 12]])
        text = re.sub(r"\x1b\[[0-9;]*m", "", stdout.getvalue())
        assert word in text
        assert text.count("words") == 12
        assert max(len(line) for line in text.splitlines()) <= widest


def test_text_that_stdout_cannot_encode_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ASCII terminal gets an escape."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert run(_command(lambda output: output.result({}, people="Kühlung")), [], name="x") == 0
    assert raw.getvalue() == b"K\\xfchlung\n"


def test_httpx_that_cannot_connect_is_said_with_the_address() -> None:
    """Which dependency, where, and what to run."""
    with pytest.raises(httpx.ConnectError) as caught:
        httpx.get("http://127.0.0.1:1/v1/stock/secret?token=hunter2", trust_env=False)
    known = explain(caught.value)
    assert known is not None
    assert known.exit_code == ExitCode.UNREACHABLE
    assert "The inventory at http://127.0.0.1:1 cannot be reached" in known.message
    assert "counterfoil inventory" in known.message
    assert "hunter2" not in known.message


@pytest.mark.anyio
async def test_temporal_that_cannot_be_reached_is_said_with_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's bare RuntimeError is recognised, and address and remedy are named."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    with pytest.raises(RuntimeError) as caught:
        await Client.connect("127.0.0.1:1")
    known = explain(caught.value)
    assert known is not None
    assert known.exit_code == ExitCode.UNREACHABLE
    assert known.message.startswith("Temporal at 127.0.0.1:1 cannot be reached (no connection).")
    assert known.message.endswith("Start it, or check TEMPORAL_ADDRESS.")


@pytest.mark.parametrize(
    ("status", "code"),
    [(RPCStatusCode.UNAVAILABLE, 3), (RPCStatusCode.DEADLINE_EXCEEDED, 3), (RPCStatusCode.NOT_FOUND, 2)],
)
def test_an_answer_of_temporal_that_refuses_is_not_called_unreachable(status: RPCStatusCode, code: int) -> None:
    """Unavailable may work later, a refusal does not."""
    known = explain(RPCError("namespace", status, b""))
    assert known is not None
    assert known.exit_code == code
    assert "Temporal at " in known.message


def test_a_database_that_is_lost_in_the_middle_is_unreachable() -> None:
    """The driver's own error, from a statement that was running, without the statement."""
    engine = sa.create_engine("sqlite:////nonexistent/journal.db")
    with pytest.raises(sa.exc.OperationalError) as caught:
        engine.connect()
    known = explain(caught.value)
    assert known is not None
    assert known.exit_code == ExitCode.UNREACHABLE
    assert "unable to open database file" in known.message


def test_a_runtime_error_of_our_own_stays_a_defect() -> None:
    """Only Temporal's sentence is taken for a lost connection."""
    assert explain(RuntimeError("loop is closed")) is None
