"""`counterfoil checkpoint delay-test`: exit codes, one JSON object, and what it refuses."""

import json
import sys
from pathlib import Path

from tests.services.cli.conftest import Run

ROOT = Path(__file__).parents[3]
LATE = f"{sys.executable} -m tests.services.checkpoints.late_trainer {{root}} {{rank}} {{world}} {{launch}}"


def test_a_trainer_that_reads_late_is_1_and_an_honest_one_0(counterfoil: Run, tmp_path: Path) -> None:
    """A line per run; what is mixed is named by item and update."""
    asked = ("checkpoint", "delay-test", "--run", "late", "--point", "item-copied", "--seconds", "1")
    late = counterfoil(*asked, "--command", LATE, "--json", PYTHONPATH=str(ROOT), TMPDIR=str(tmp_path))
    assert late.returncode == 1, late.stderr
    document = json.loads(late.stdout)
    assert (document["passed"], document["cells"][1]["verdict"]) == (False, "MIXED")
    assert "item-copied, contributor 0: MIXED" in late.stderr
    honest = counterfoil(*asked, "--command", f"{LATE} honest", PYTHONPATH=str(ROOT), TMPDIR=str(tmp_path))
    assert honest.returncode == 0, honest.stderr
    assert "nothing is mixed" in honest.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_none_is_wrong_use(counterfoil: Run) -> None:
    """Nothing was judged."""
    for command in ("/no/such/trainer", "'", " ", f"{sys.executable} -c pass"):
        done = counterfoil("checkpoint", "delay-test", "--run", "r", "--command", command)
        assert done.returncode == 2, done.stdout
    for wrong in (("--point", "offered"), ("--seconds", "nan"), ("--longest", "inf")):
        assert counterfoil("checkpoint", "delay-test", "--run", "r", "--command", "x", *wrong).returncode == 2
    done = counterfoil("checkpoint", "delay-test", "--run", "no/run", "--command", f"{sys.executable} -c pass")
    assert (done.returncode, "is not an id" in done.stderr) == (2, True)
