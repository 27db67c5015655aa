"""`counterfoil train`: exit codes, one JSON object, and what it refuses."""

import json
from pathlib import Path

from tests.services.cli.conftest import Run


def test_a_killed_run_that_is_equal_is_0(counterfoil: Run, tmp_path: Path) -> None:
    """Three processes, killed; two take it up. stdout is one object, progress is on stderr."""
    done = counterfoil(
        "train", "--root", str(tmp_path / "ckpt"), "--updates", "12", "--kill-at", "5", "--ranks", "3",
        "--resume-ranks", "2", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["equal_to_uninterrupted"] is True
    assert (document["draws"], document["updates"], document["resumed_from"]) == (24, 12, 5)
    assert (document["first_difference"], document["missing_roles"]) == (None, [])
    assert [dead["returncode"] for dead in document["killed"]] == [-9, -9, -9]
    assert len({dead["pid"] for dead in document["killed"]}) == 3
    assert "uninterrupted" in done.stderr


def test_without_a_folder_nothing_is_left(counterfoil: Run, tmp_path: Path) -> None:
    """A look costs no folder: the temporary one is removed."""
    done = counterfoil("train", "--updates", "8", "--kill-at", "3", TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "bit for bit" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_weights_alone_are_1_and_name_what_is_missing(counterfoil: Run, tmp_path: Path) -> None:
    """No full checkpoint was written, so nothing can be taken up."""
    root = str(tmp_path / "ckpt")
    done = counterfoil("train", "--root", root, "--updates", "8", "--weights-only")
    assert done.returncode == 1
    assert "moment_m, moment_v" in done.stdout
    document = json.loads(
        counterfoil("train", "--root", root, "--run", "r2", "--updates", "8", "--weights-only", "--json").stdout
    )
    assert {"moment_m", "moment_v", "cursor", "rng"} <= set(document["missing_roles"])
    assert document["equal_to_uninterrupted"] is False


def test_a_run_that_is_there_goes_on_and_is_not_killed_again(counterfoil: Run, tmp_path: Path) -> None:
    """--kill-at wants a new run; without it the run takes up what is in the folder."""
    root = str(tmp_path / "ckpt")
    first = counterfoil("train", "--root", root, "--updates", "8", "--kill-at", "3", "--kill-during", "save",
                        "--checkpoint-every", "2", "--json")  # fmt: skip
    assert (first.returncode, json.loads(first.stdout)["resumed_from"]) == (0, 2)
    again = counterfoil("train", "--root", root, "--updates", "8", "--kill-at", "3")
    assert (again.returncode, "has a run reference already" in again.stderr) == (2, True)
    on = json.loads(counterfoil("train", "--root", root, "--updates", "8", "--json").stdout)
    assert (on["equal_to_uninterrupted"], on["resumed_from"], on["killed"]) == (True, 8, [])
    other = counterfoil("train", "--root", root, "--updates", "16", "--json")
    assert other.returncode == 1
    assert "config.schedule 8 != 16" in json.loads(other.stdout)["error"]["message"]


def test_a_kill_that_cannot_come_is_wrong_use(counterfoil: Run, tmp_path: Path) -> None:
    """Contributors run on past N: there have to be updates left."""
    root = str(tmp_path / "ckpt")
    assert counterfoil("train", "--root", root, "--updates", "8", "--kill-at", "6").returncode == 2
    assert counterfoil("train", "--root", root, "--kill-during", "save").returncode == 2
    assert counterfoil("train", "--ranks", "0").returncode == 2
    both = counterfoil("train", "--root", root, "--kill-at", "4", "--kill-during", "save", "--weights-only", "--json")
    assert (both.returncode, json.loads(both.stdout)["error"]["kind"]) == (2, "wrong-use")
    assert not (tmp_path / "ckpt").exists()


def test_a_run_that_is_killed_again_and_again_is_accounted_for(counterfoil: Run, tmp_path: Path) -> None:
    """One object: measured beside expected, the starts, the best interval; `plan --measured` takes it up."""
    done = counterfoil("train", "--updates", "24", "--checkpoint-every", "4", "--interrupt-every", "9", "--json",
                       TMPDIR=str(tmp_path))  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["equal_to_uninterrupted"] is True
    assert document["measured"]["interruptions"] == len(document["starts"]) - 1 >= 2
    kinds = ("useful_seconds", "redone_seconds", "blocked_seconds", "restart_seconds")
    assert abs(sum(document["measured"][kind] for kind in kinds) - document["measured"]["total_seconds"]) < 1e-6
    planned = counterfoil("checkpoint", "plan", "--measured", "-", "--json", stdin=done.stdout)
    assert planned.returncode == 0, planned.stderr
    assert json.loads(planned.stdout)["run"] == document["measured"]
    assert json.loads(planned.stdout)["simulated"]["useful_seconds"] == document["measured"]["useful_seconds"]
    people = counterfoil("checkpoint", "plan", "--measured", "-", stdin=done.stdout).stdout
    assert "measured" in people
    assert "Young's and Daly's" in people
    assert list(tmp_path.iterdir()) == []


def test_an_interruption_that_cannot_be_is_wrong_use(counterfoil: Run) -> None:
    """Nothing is started."""
    for wrong in (("9",), ("9", "--checkpoint-every", "4", "--kill-at", "3"), ("0", "--checkpoint-every", "4"),
                  ("often", "--checkpoint-every", "4")):  # fmt: skip
        assert counterfoil("train", "--interrupt-every", *wrong).returncode == 2
    for told in ("{}", "[]", '{"measured": {"useful_seconds": "1"}, "costs": {}}', "no"):
        assert counterfoil("checkpoint", "plan", "--measured", "-", stdin=told).returncode == 2


def test_a_place_that_cannot_hold_checkpoints_is_wrong_use(counterfoil: Run, tmp_path: Path) -> None:
    """It is said before anybody trains, and no traceback of a contributor is shown."""
    (tmp_path / "file").touch()
    for place, run in (("file", "r"), ("file/below", "r"), ("there", "no/run")):
        done = counterfoil("train", "--root", str(tmp_path / place), "--run", run, "--json")
        assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (2, "wrong-use"), place
        assert done.stderr == ""
    assert not (tmp_path / "there").exists()
    told = counterfoil("train", "--root", str(tmp_path / "file" / "below"))
    assert "cannot hold checkpoints" in told.stderr
    assert "Nothing was trained" in told.stderr
    assert counterfoil("train", "--run", "no/run").returncode == 2
    assert counterfoil("train", "--root", "").returncode == 2
