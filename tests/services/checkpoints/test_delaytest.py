"""The delay test of a user's own trainer: one that reads late fails, one that does not passes."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from services.checkpoints.delaytest import (
    FAILED,
    MIXED,
    NOT_REACHED,
    REFUSED,
    UNJUDGED,
    WAITED,
    Cell,
    Trial,
    _judged,
    _Seen,
    delay_test,
    document,
)
from services.checkpoints.errors import Incompatible

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _this_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers that the test starts import the tree that is tested."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def trainer(how: str, *points: str, seconds: float = 0.3) -> Trial:
    """The trainer of late_trainer.py."""
    program = f"{sys.executable} -m tests.services.checkpoints.late_trainer"
    return Trial(
        command=f"{program} {{root}} {{rank}} {{world}} {{launch}} {how}", world=2, run="late", points=points,
        seconds=seconds,
    )  # fmt: skip


def verdicts(cells: tuple[Cell, ...]) -> list[str]:
    """Of the delayed runs."""
    return [cell.verdict for cell in cells[1:]]


def test_a_trainer_that_reads_its_live_arrays_late_fails() -> None:
    """Its records agree with themselves; the bytes of two items are of two updates."""
    cells = delay_test(trainer("late", "item-copied", seconds=1.0))
    assert verdicts(cells) == [MIXED, MIXED]
    assert re.search(r"a of 0 is of update \d.* b of 0 is of update \d", cells[1].says)
    assert document(cells)["passed"] is False


def test_the_same_trainer_that_saves_at_its_boundary_passes() -> None:
    """Wherever somebody is late, the others wait."""
    cells = delay_test(trainer("honest", "item-copied", "released", "recorded"))
    assert [cell.verdict for cell in cells] == [WAITED] * 6
    assert {cell.checkpoints for cell in cells} == {1}
    assert document(cells)["passed"] is True


def test_a_save_that_does_not_wait_so_long_is_refused_by_name() -> None:
    """And that is a pass: nothing is mixed. The others wait longer for the coordinator than it does for them."""
    cells = delay_test(trainer("impatient", "copied", seconds=4.0))
    assert verdicts(cells) == [WAITED, REFUSED]
    assert "ContributorMissing" in cells[2].says


def test_the_loop_on_the_page_passes(tmp_path: Path) -> None:
    """The program of docs/checkpoints.md, on this tree's package."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text(), re.DOTALL)
    program = tmp_path / "train.py"
    program.write_text(block.replace("counterfoil_checkpoints", "services.checkpoints"))
    command = f"{sys.executable} {program} {{root}} {{rank}} {{world}} {{launch}} 6"
    trial = Trial(command=command, world=2, run="example", points=("copied", "staged"), seconds=0.2)
    assert [cell.verdict for cell in delay_test(trial)] == [WAITED] * 5


def test_what_cannot_be_judged_is_refused_at_once() -> None:
    """A command that is none, a trainer that fails undelayed, one that saves nothing, a point that no save has."""
    quiet = Trial(command=f"{sys.executable} -c pass", world=1, run="r")
    with pytest.raises(Incompatible, match="left 0 boundaries and 0 checkpoints"):
        delay_test(quiet)
    with pytest.raises(Incompatible, match="it ended with 3: no GPU"):
        delay_test(replace(quiet, command=f"{sys.executable} -c \"print('no GPU'); exit(3)\""))
    with pytest.raises(Incompatible, match="it did not end in time"):
        delay_test(replace(quiet, command=f"{sys.executable} -c 'import signal; signal.pause()'", longest_seconds=0.2))
    with pytest.raises(Incompatible, match="cannot be started"):
        delay_test(replace(quiet, command="/no/such/trainer"))
    with pytest.raises(Incompatible, match="No save has a point 'verified'"):
        delay_test(replace(quiet, points=("verified",)))


MOMENTS = {look: {"a of 0": f"a{look}", "b of 0": f"b{look}"} for look in (1, 2)}
WHOLE = _Seen(returncode=0, said="", moments=MOMENTS, updates={1: 10, 2: 20}, taken=[(2, 10, MOMENTS[1])])
LATE = replace(WHOLE, late=True)


@pytest.mark.parametrize(
    ("seen", "verdict", "says"),
    [
        (LATE, WAITED, "one boundary"),
        (WHOLE, NOT_REACHED, "never came to copied"),
        (
            replace(LATE, taken=[(2, 10, {"a of 0": "a1", "b of 0": "b2"})]),
            MIXED,
            "a of 0 is of update 10, b of 0 is of",
        ),
        (replace(LATE, taken=[(2, 10, MOMENTS[2])]), MIXED, "says update 10 and has the bytes of 20"),
        (replace(LATE, damaged=["checkpoint 2 is not"], taken=[], moments={}), MIXED, "checkpoint 2 is not"),
        (replace(LATE, moments={1: {"a of 0": "x"}}), UNJUDGED, "at update 10"),
        (replace(LATE, taken=[], refused=["SourceChanged"]), REFUSED, "SourceChanged"),
        (replace(LATE, taken=[], returncode=1, said="x.errors.CommitFailed: no"), REFUSED, "CommitFailed"),
        (replace(LATE, taken=[], returncode=1, said="KeyError: 1"), FAILED, "it ended with 1: KeyError"),
        (replace(LATE, taken=[], returncode=None), FAILED, "did not end in time"),
        (replace(LATE, taken=[]), FAILED, "0 checkpoints, 1 undelayed"),
    ],
)
def test_each_run_has_the_verdict_that_it_deserves(seen: _Seen, verdict: str, says: str) -> None:
    """What was late and whole waited; what is mixed, wrongly named, missing or unnamed is no pass."""
    cell = _judged(seen, WHOLE, "copied", 0)
    assert (cell.verdict, says in cell.says) == (verdict, True)
    assert cell.passed == (verdict in (WAITED, REFUSED))
