"""`counterfoil incident`: what is said of a decision, also when the workflow can no longer be asked."""

import json
from pathlib import Path

import pytest

from services.drill.stack import Stack
from tests.services.cli.conftest import Ask, Run

LINE = {
    "id": "INC-7", "title": "Coolant filters are at end of life", "site": "FRA2/B/R14-CDU", "severity": "high",
    "reported_at": "2026-11-23T05:12:40Z", "approval": "required",
    "effects": [{"name": "reserve-filter", "lines": [{"sku": "FILTER-A", "quantity": 2}]}],
}  # fmt: skip


@pytest.mark.temporal
async def test_a_decision_on_an_ended_incident_is_answered_from_the_journal(
    deployment: Stack, ask: Ask, tmp_path: Path
) -> None:
    """The same command may be repeated for ever; somebody else is told whose decision stands."""
    file = tmp_path / "incidents.jsonl"
    file.write_text(json.dumps(LINE) + "\n")
    started = await ask("incident", "start", str(file), "--json")
    assert (started.returncode, json.loads(started.stdout)["started"][0]["what"]) == (0, "started")
    first = await ask("incident", "approve", "INC-7", "--by", "ada")
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("INC-7 was approved by ada at ")
    result = await deployment.client.get_workflow_handle("INC-7").result()
    assert result["status"] == "done"
    for arguments, code, recorded in (
        (("--by", "ada"), 0, True),
        (("--by", "bob"), 0, False),
        (("--by", "bob", "--decline"), 1, False),
    ):
        again = await ask("incident", "approve", "INC-7", *arguments)
        rest = "" if recorded else " That decision stands; yours was not recorded."
        assert (again.returncode, again.stdout) == (code, f"{first.stdout.rstrip()}{rest}\n")
    cancelled = await ask("incident", "cancel", "INC-7")
    assert (cancelled.returncode, cancelled.stdout) == (2, "")
    assert cancelled.stderr.startswith("Error: INC-7 does not run any more (completed): there is nothing to cancel")
    assert (await deployment.get("/v1/stock/FILTER-A"))["available"] == 8


@pytest.mark.temporal
async def test_a_decision_on_an_incident_that_nobody_knows_is_wrong_use(ask: Ask) -> None:
    """Neither Temporal nor the journal has it."""
    done = await ask("incident", "approve", "INC-9", "--by", "ada")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: No incident INC-9 runs here")


def test_what_is_wrong_with_the_environment_is_said_before_the_file_is(counterfoil: Run, tmp_path: Path) -> None:
    """One thing at a time: the lines are looked at by whoever can start them."""
    file = tmp_path / "incidents.jsonl"
    file.write_text("{\n")
    done = counterfoil("incident", "start", str(file), "--json", COUNTERFOIL_ORIGIN="workshop")
    assert done.returncode == 2
    assert "COUNTERFOIL_JOURNAL_DATABASE_URL is not set" in json.loads(done.stdout)["error"]["message"]
    assert done.stderr == ""
