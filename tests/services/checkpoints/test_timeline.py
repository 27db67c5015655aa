"""The timeline of a saved cut: every quantity with its version, in order."""

import pytest

from services.checkpoints.interruption import Interruption, interrupt
from services.checkpoints.layout import Run
from services.checkpoints.learner import LearnerConfig
from services.checkpoints.reading import Found, load
from services.checkpoints.timeline import document, drawn, timeline


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """A checkpoint of two contributors after three updates and the scaler's skips."""
    root = tmp_path_factory.mktemp("store")
    config = LearnerConfig(schedule=6, scaler=True)
    interrupt(Interruption(root=root, config=config, ranks=2, resume_ranks=1, updates=6, kill_at=3))
    with Run.open(root, "reference") as run:
        return load(run, 2)


def test_every_quantity_stands_with_its_version(found: Found) -> None:
    """What the cut's versions are, and nothing is left out."""
    steps = {step.what: step for step in timeline(found) if step.phase == "before"}
    assert {name: step.version for name, step in steps.items()} == dict(found.manifest.versions)
    assert steps["updates"].version == 3
    attempts, skips = steps["attempts"].version, steps["skips"].version
    assert attempts is not None
    assert skips is not None
    assert skips > 0
    assert attempts == 3 + skips


def test_what_came_later_stands_after_the_release(found: Found) -> None:
    """Each contributor's staging, the release, and the first mutation that is not in the checkpoint."""
    steps = timeline(found)
    assert [step.phase for step in steps] == sorted(
        (step.phase for step in steps), key=["before", "capture", "after"].index
    )
    assert [step.who for step in steps if step.what == "staging"] == ["0", "1"]
    (later,) = [step for step in steps if step.what == "first later mutation"]
    assert later.version == found.manifest.versions["attempts"] + 1
    assert steps[-1].version == 2


def test_it_is_drawn_and_told_as_json(found: Found) -> None:
    """One line a step, under three heads."""
    steps = timeline(found)
    lines = drawn(steps)
    assert len(lines) == len(steps) + 3
    assert lines[0] == "--+-- in the cut"
    assert max(map(len, lines)) <= 120
    assert [step["what"] for step in document(found)["steps"]] == [step.what for step in steps]
    assert drawn(()) == []
