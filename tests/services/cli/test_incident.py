"""`counterfoil incident`: what is said of a decision when the workflow can no longer be asked."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from temporalio.service import RPCError, RPCStatusCode

from services.cli import incident as module
from services.cli.main import counterfoil
from services.cli.output import run
from services.database import migrate, open_engine
from services.journal.store import Journal
from tests.services.cli.conftest import Run
from workflows.incident import APPROVAL

DECIDED_AT = datetime(2026, 11, 30, 10, 13, 25, tzinfo=UTC)


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """INC-2041 was approved by ada and has ended; Temporal runs no incident."""
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    migrate("journal", url)
    engine = open_engine(url)
    journal = Journal(engine, recorded_by="a test", send_window=timedelta(hours=24), margin=timedelta(minutes=5))
    body = {"approved": "yes", "by": "ada", "reason": "", "input": "0" * 64}
    journal.record_decision(origin="workshop", scope="INC-2041", name=APPROVAL, decided_at=DECIDED_AT, body=body)
    engine.dispose()

    async def connect() -> None:
        return None

    async def approve_incident(*_arguments: Any) -> NoReturn:
        raise RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")

    monkeypatch.setattr(module, "connect", connect)
    monkeypatch.setattr(module, "approve_incident", approve_incident)
    monkeypatch.setenv("COUNTERFOIL_ORIGIN", "workshop")
    monkeypatch.setenv("COUNTERFOIL_JOURNAL_DATABASE_URL", url)


@pytest.mark.parametrize(
    ("arguments", "code", "recorded"),
    [
        (("--by", "ada"), 0, True),
        (("--by", "bob"), 0, False),
        (("--by", "bob", "--decline"), 1, False),
    ],
)
@pytest.mark.usefixtures("ended")
def test_a_decision_on_an_ended_incident_is_answered_from_the_journal(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, *, recorded: bool
) -> None:
    """The same command may be repeated for ever; somebody else is told whose decision stands."""
    assert run(counterfoil, ["incident", "approve", "INC-2041", *arguments], name="counterfoil") == code
    said = "INC-2041 was approved by ada at 2026-11-30 10:13:25Z."
    rest = "" if recorded else " That decision stands; yours was not recorded."
    assert capsys.readouterr().out == f"{said}{rest}\n"


@pytest.mark.usefixtures("ended")
def test_a_decision_on_an_incident_that_nobody_knows_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither Temporal nor the journal has it."""
    assert run(counterfoil, ["incident", "approve", "INC-9", "--by", "ada"], name="counterfoil") == 2
    assert capsys.readouterr().err.startswith("Error: No incident INC-9 runs here")


def test_what_is_wrong_with_the_environment_is_said_before_the_file_is(counterfoil: Run, tmp_path: Path) -> None:
    """One thing at a time: the lines are looked at by whoever can start them."""
    file = tmp_path / "incidents.jsonl"
    file.write_text("{\n")
    done = counterfoil("incident", "start", str(file), "--json", COUNTERFOIL_ORIGIN="workshop")
    assert done.returncode == 2
    assert "COUNTERFOIL_JOURNAL_DATABASE_URL is not set" in json.loads(done.stdout)["error"]["message"]
    assert done.stderr == ""
