"""Recorded histories replay with this build, whatever the order in which a process hashes."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from services.worker import sandbox
from tests.histories.record import STORIES
from workflows.incident import Incident
from workflows.reconciliation import Reconciliation

FOLDER = Path(__file__).parents[1] / "histories"
HISTORIES = sorted(FOLDER.glob("*.json"))


async def replay(documents: dict[str, dict[str, Any]]) -> None:
    """Replay them; raises where this build does something else than the history says."""
    replayer = Replayer(workflows=[Incident, Reconciliation], workflow_runner=sandbox())
    for workflow_id, document in documents.items():
        await replayer.replay_workflow(WorkflowHistory.from_json(workflow_id, document))


def recorded() -> dict[str, dict[str, Any]]:
    """The recorded histories by workflow id."""
    return {f"INC-{path.stem}": json.loads(path.read_text()) for path in HISTORIES}


def test_every_story_is_recorded() -> None:
    """None is missing, and none lies about without a story."""
    assert {path.stem for path in HISTORIES} == {story.__name__ for story in STORIES}


@pytest.mark.parametrize("seed", ["0", "1", "42", "random"])
def test_recorded_histories_replay_in_a_process_of_its_own(seed: str) -> None:
    """One process misses half of the hazards of hash order."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.workflows.test_replay"],
        env=os.environ | {"PYTHONHASHSEED": seed}, cwd=FOLDER.parents[1], capture_output=True, text=True,
        check=False, timeout=100,
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, f"{len(HISTORIES)} replayed\n"), ran.stderr


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_every_activity_and_timer_of_a_history_says_in_words_what_it_is(path: Path) -> None:
    """A summary stands beside each in the UI."""
    events = json.loads(path.read_text())["events"]
    kinds = {"EVENT_TYPE_ACTIVITY_TASK_SCHEDULED", "EVENT_TYPE_TIMER_STARTED"}
    assert all(event["userMetadata"]["summary"]["data"] for event in events if event["eventType"] in kinds)


def test_journal_and_surfaces_add_no_task() -> None:
    """One workflow task to begin with and one for each answer: what is shown goes with those that there are anyway."""
    events = Counter(event["eventType"] for event in recorded()["INC-plain"]["events"])
    assert events["EVENT_TYPE_ACTIVITY_TASK_SCHEDULED"] == 2
    assert events["EVENT_TYPE_WORKFLOW_TASK_COMPLETED"] == 3


async def test_a_history_that_this_build_would_not_write_is_noticed() -> None:
    """The net itself holds: another activity where the reserve was."""
    text = (FOLDER / "plain.json").read_text().replace('"inventory.reserve"', '"inventory.other"')
    with pytest.raises(Exception, match=r"inventory\.other"):
        await replay({"INC-plain": json.loads(text)})


if __name__ == "__main__":
    asyncio.run(replay(recorded()))
    print(f"{len(HISTORIES)} replayed", flush=True)  # noqa: T201 - what the parent reads
    os._exit(0)  # a thread of the client may abort an interpreter that is being taken down
