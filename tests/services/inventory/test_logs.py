"""The log: one line for each thing that happened, which a person or a program can read."""

import json
import logging

import pytest

from services.inventory import logs
from services.inventory.exchanges import Exchange

EXCHANGE = Exchange(
    request_id="mine-1",
    method="POST",
    route="/v1/reservations",
    seconds=0.0123456,
    status=201,
    outcome="committed",
    replayed=True,
    tenant="acme",
    key="test-key-00000001-g1",
)


SENT = "s3cret"


def read_row() -> None:
    """An error as a driver makes it: a second line that repeats what was sent."""
    raise LookupError(f"no such row\nDETAIL: {SENT}")


def fail() -> None:
    """An error with another behind it."""
    try:
        read_row()
    except LookupError as error:
        raise RuntimeError(f"it failed\n[parameters: {SENT}]") from error


def test_a_request_is_one_json_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With all that one searches by, and when."""
    with logs.to_stderr("json"):
        logs.request(EXCHANGE)
    (line,) = capsys.readouterr().err.splitlines()
    members = json.loads(line)
    assert members.pop("time").endswith("Z")
    assert members == {
        "level": "info",
        "event": "request",
        "method": "POST",
        "route": "/v1/reservations",
        "status": 201,
        "outcome": "committed",
        "replayed": True,
        "problem": None,
        "seconds": 0.012346,
        "tenant": "acme",
        "key": "test-key-00000001-g1",
        "request_id": "mine-1",
    }


def test_a_request_is_one_line_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """What it was and what came of it first; what says nothing is left out."""
    with logs.to_stderr("text"):
        logs.request(EXCHANGE)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.partition(" ")[2] == (
        "INFO request POST /v1/reservations 201 outcome=committed replayed=True seconds=0.0123 tenant=acme "
        "key=test-key-00000001-g1 request_id=mine-1"
    )


def test_a_probe_that_goes_well_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Every few seconds a line would bury the others."""
    with logs.to_stderr("json"):
        logs.request(Exchange(request_id="r", method="GET", route="/livez", seconds=0, status=200))
        logs.request(Exchange(request_id="r", method="GET", route="/readyz", seconds=0, status=503))
    assert [json.loads(line)["status"] for line in capsys.readouterr().err.splitlines()] == [503]


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_error_has_its_traceback_and_not_what_was_sent(
    capsys: pytest.CaptureFixture[str], form: logs.LogFormat
) -> None:
    """Where it failed and what it came from; a driver's message goes on with the row, and that is a body."""
    with logs.to_stderr(form):
        try:
            fail()
        except RuntimeError:
            logs.event("failed", {"request_id": "mine-1"}, level=logging.ERROR)
    text = capsys.readouterr().err
    assert SENT not in text
    if form == "json":
        (line,) = text.splitlines()
        members = json.loads(line)
        assert (members["level"], members["event"], members["request_id"]) == ("error", "failed", "mine-1")
        text = members["traceback"]
    assert text.index("LookupError: no such row") < text.index("RuntimeError: it failed")
    assert "in fail" in text


def test_a_line_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody writes a second line, or to the terminal, by what he calls something."""
    with logs.to_stderr("text"):
        logs.event("odd", {"key": "a\nERROR forged \x1b[2J"})
    with logs.to_stderr("json"):
        logs.event("odd", {"key": "a\nb\u2028c"})
    people, program = capsys.readouterr().err.splitlines()
    assert "\x1b" not in people
    assert json.loads(program)["key"] == "a\nb\u2028c"


def test_of_libraries_only_warnings_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    """And of the server none: what it warns of has its line already."""
    with logs.to_stderr("json"):
        logging.getLogger("somebody").info("chatter")
        logging.getLogger("somebody").warning("%s is odd", "this")
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").error("broken")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["logger"], line["message"]) for line in lines] == [
        ("library", "somebody", "this is odd"),
        ("library", "uvicorn.error", "broken"),
    ]


def test_the_log_ends_with_its_block(capsys: pytest.CaptureFixture[str]) -> None:
    """The process is left as it was."""
    before = (logging.getLogger().level, list(logging.getLogger().handlers))
    with logs.to_stderr("json"):
        pass
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before
    logs.event("later")
    assert capsys.readouterr().err == ""
