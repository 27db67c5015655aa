"""`counterfoil incident`: what is said of a decision, also when the workflow can no longer be asked."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from services.drill.processes import wait_until
from services.drill.stack import Stack
from services.effects.keys import derive_key
from services.effects.states import EffectState
from services.saved_queries import SAVED_QUERIES
from tests.services.cli.conftest import Ask, Run
from tests.services.inventory.conftest import Caller, connect

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
    before = (await deployment.get("/v1/stock/FILTER-A"))["available"]
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
    assert (await deployment.get("/v1/stock/FILTER-A"))["available"] == before - 2


@pytest.mark.temporal
async def test_a_decision_on_an_incident_that_nobody_knows_is_wrong_use(ask: Ask) -> None:
    """Neither Temporal nor the journal has it."""
    done = await ask("incident", "approve", "INC-9", "--by", "ada")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: No incident INC-9 runs here")


def _file(folder: Path, *lines: Any) -> str:
    file = folder / "incidents.jsonl"
    file.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(file)


@pytest.mark.temporal
async def test_two_people_approve_and_it_is_said_of_whom_it_waits(deployment: Stack, ask: Ask, tmp_path: Path) -> None:
    """`show` names whom it waits for and until when; the second approval is another person's."""
    line = LINE | {"id": "INC-two", "approvers": 2, "approval_within_seconds": 3600}
    await ask("incident", "start", _file(tmp_path, line))
    first = await ask("incident", "approve", "INC-two", "--by", "ada", "--reason", "both are worn")
    assert (first.returncode, first.stdout.endswith(" Another person has to approve it too.\n")) == (0, True)
    waits = await ask("incident", "show", "INC-two")
    assert "It waits for the approval of another person than ada, since " in waits.stdout
    assert "; the rule declines it at " in waits.stdout
    assert "counterfoil incident approve INC-two --by NAME" in waits.stdout
    assert "by: ada" in waits.stdout
    assert "reason: both are worn" in waits.stdout
    document = json.loads((await ask("incident", "show", "INC-two", "--json")).stdout)
    assert document["waiting_for"]["of"] == "another person than ada"
    again = await ask("incident", "approve", "INC-two", "--by", "Ada")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    second = await ask("incident", "approve", "INC-two", "--by", "bob")
    assert second.returncode == 0
    assert second.stdout.startswith("INC-two was approved by bob at ")
    assert second.stdout.endswith(", after ada had approved it.\n")
    result = await deployment.client.get_workflow_handle("INC-two").result()
    assert (result["status"], result["decided_by"]) == ("done", "ada, bob")
    ended = await ask("incident", "approve", "INC-two", "--by", "carl", "--decline")
    assert (ended.returncode, "yours was not recorded" in ended.stdout) == (1, True)
    assert json.loads((await ask("incident", "show", "INC-two", "--json")).stdout)["waiting_for"] is None


@pytest.mark.temporal
async def test_nobody_approves_in_time_and_the_rule_is_who_declined(
    deployment: Stack, ask: Ask, tmp_path: Path
) -> None:
    """Whoever approves afterwards is told so, by the journal."""
    await ask("incident", "start", _file(tmp_path, LINE | {"id": "INC-late", "approval_within_seconds": 1}))
    result = await deployment.client.get_workflow_handle("INC-late").result()
    assert result["status"] == "declined"
    late = await ask("incident", "approve", "INC-late", "--by", "ada")
    assert late.returncode == 1
    assert late.stdout.startswith("INC-late was declined by rule: nobody approved within 1 s at ")


@pytest.mark.temporal
async def test_one_approval_of_two_on_an_incident_that_was_terminated_is_no_approval(
    deployment: Stack, ask: Ask, tmp_path: Path
) -> None:
    """Its second person has nothing to decide any more, and is not told that it is approved."""
    await ask("incident", "start", _file(tmp_path, LINE | {"id": "INC-half", "approvers": 2}))
    await ask("incident", "approve", "INC-half", "--by", "ada")
    await deployment.client.get_workflow_handle("INC-half").terminate()
    second = await ask("incident", "approve", "INC-half", "--by", "bob")
    assert (second.returncode, second.stdout) == (2, "")
    assert "INC-half does not run any more: it was approved by ada at " in second.stderr
    shown = await ask("incident", "show", "INC-half")
    assert shown.stdout.startswith("INC-half: workflow terminated\n")
    assert "waits for" not in shown.stdout


@pytest.mark.temporal
async def test_who_waits_for_a_person_over_an_effect_says_over_which(
    deployment: Stack, ask: Ask, tmp_path: Path
) -> None:
    """In doubt: another program has used its key, for what it did not get."""
    key = derive_key("workshop", "INC-doubt", "reserve-filter", 1)
    with connect(deployment.inventory_url, deployment.environment()["COUNTERFOIL_INVENTORY_TOKEN"]) as elsewhere:
        not_after = f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
        assert Caller(elsewhere, not_after=not_after).reserve(key=key, quantity=1000).status_code == 409
    await ask("incident", "start", _file(tmp_path, LINE | {"id": "INC-doubt", "approval": "auto"}))
    await wait_until(
        lambda: (row := deployment.journal.effect(key)) is not None and row.state is EffectState.IN_DOUBT,
        timeout_seconds=30.0, what="the effect is in doubt",
    )  # fmt: skip
    shown = await ask("incident", "show", "INC-doubt")
    assert f"reserve-filter waits for a person: counterfoil effects show {key}\n" in shown.stdout
    (persons,) = (saved.query for saved in SAVED_QUERIES if saved.title.startswith("In doubt"))

    async def listed() -> bool:
        found = deployment.client.list_workflows(f"{persons} AND WorkflowId = 'INC-doubt'")
        return [workflow.id async for workflow in found] == ["INC-doubt"]

    await wait_until(listed, timeout_seconds=30.0, what="the saved query finds it")
    await deployment.client.get_workflow_handle("INC-doubt").terminate()


@pytest.mark.temporal
async def test_another_matter_under_a_used_id_is_refused_with_the_old_receipts(ask: Ask, tmp_path: Path) -> None:
    """By the journal, which is asked first; the same matter is a replay, which says of when (A12)."""
    auto = LINE | {"id": "INC-old", "approval": "auto"}
    await ask("incident", "start", _file(tmp_path, auto), "--wait-seconds", "30")
    (effect,) = json.loads((await ask("incident", "show", "INC-old", "--json")).stdout)["effects"]
    other = await ask("incident", "start", _file(tmp_path, auto | {"title": "Another matter"}))
    assert other.returncode == 1
    assert f"(reserve-filter committed, {effect['receipt_id']})" in other.stdout
    same = await ask("incident", "start", _file(tmp_path, auto), "--replay", "--wait-seconds", "30", "--json")
    (started,), ended = (json.loads(same.stdout)[name] for name in ("started", "ended"))
    assert (started["what"], started["detail"][:10]) == ("replay", "replay of ")
    (outcome,) = ended["INC-old"]["outcomes"]
    assert (outcome["receipt_id"], outcome["replayed"]) == (effect["receipt_id"], True)


@pytest.mark.temporal
async def test_bad_lines_are_counted_as_lines(ask: Ask, tmp_path: Path) -> None:
    """One line with three faults is one line."""
    bad = {"id": "-", "approval": "perhaps"}
    done = await ask("incident", "start", _file(tmp_path, bad, "{"))
    assert done.returncode == 1
    assert "With Temporal: 0; refused: 0; lines that could not be read: 2.\n" in done.stdout
    assert done.stderr.count("line 1: ") > 1


def test_what_is_wrong_with_the_environment_is_said_before_the_file_is(counterfoil: Run, tmp_path: Path) -> None:
    """One thing at a time: the lines are looked at by whoever can start them."""
    file = tmp_path / "incidents.jsonl"
    file.write_text("{\n")
    done = counterfoil("incident", "start", str(file), "--json", COUNTERFOIL_ORIGIN="workshop")
    assert done.returncode == 2
    assert "COUNTERFOIL_JOURNAL_DATABASE_URL is not set" in json.loads(done.stdout)["error"]["message"]
    assert done.stderr == ""
