"""Names come from validated ids, and folders from one place."""

from pathlib import Path

import pytest

from services.checkpoints.errors import ManifestInvalid
from services.checkpoints.layout import RESERVED, Run, check_contributor, epoch_of_folder, save_folder, sequences_in


def test_a_run_is_made_once_and_opened_again(tmp_path: Path) -> None:
    """With its six folders."""
    for _ in range(2):
        with Run.open(tmp_path, "r1", create=True) as run:
            assert run.run_id == "r1"
    assert sorted(each.name for each in (tmp_path / "runs/r1").iterdir()) == [
        "RUN.json", "contracts", "data", "log", "meet", "pins", "retired",
    ]  # fmt: skip


def test_a_run_that_is_not_there_is_not_made_by_reading(tmp_path: Path) -> None:
    """A typing error in a name is not an empty run."""
    with pytest.raises(FileNotFoundError):
        Run.open(tmp_path, "r1")


def test_a_folder_under_another_runs_name_is_refused(tmp_path: Path) -> None:
    """D06: two runs are never combined."""
    Run.open(tmp_path, "r1", create=True).close()
    (tmp_path / "runs" / "r1").rename(tmp_path / "runs" / "r2")
    with pytest.raises(ManifestInvalid, match="'r1'"):
        Run.open(tmp_path, "r2")


@pytest.mark.parametrize("run", ["..", "../r1", "", "R", "a/b"])
def test_a_run_is_an_id(tmp_path: Path, run: str) -> None:
    """C47: nothing is made outside."""
    with pytest.raises(ManifestInvalid):
        Run.open(tmp_path, run, create=True)
    assert not list(tmp_path.iterdir())


def test_a_linked_folder_is_refused(tmp_path: Path) -> None:
    """C47: a run leads nowhere else."""
    Run.open(tmp_path, "r1", create=True).close()
    (tmp_path / "runs" / "r1" / "pins").rmdir()
    (tmp_path / "runs" / "r1" / "pins").symlink_to("/etc")
    with pytest.raises(ManifestInvalid, match="not a folder"):
        Run.open(tmp_path, "r1")


@pytest.mark.parametrize("name", [*sorted(RESERVED), "captured.0", "failed.1", "vote.1.2"])
def test_no_contributor_has_a_messages_name(name: str) -> None:
    """Its record would be taken for the message."""
    with pytest.raises(ManifestInvalid, match="message"):
        check_contributor(name)
    assert check_contributor("0") == "0"


def test_a_saves_folder_tells_its_epoch(tmp_path: Path) -> None:
    """And no other name does; a save id is used once."""
    assert epoch_of_folder(save_folder(12, "a" * 32)) == 12
    assert [epoch_of_folder(name) for name in ("x", "0-" + "a" * 32, "1-a", "-1-" + "a" * 32)] == [None] * 4
    assert sequences_in(["10", "9", "x", "01", ".tmp-1"]) == [9, 10]
    with Run.open(tmp_path, "r1", create=True) as run:
        run.save(1, "a" * 32, create=True).close()
        with pytest.raises(FileExistsError):
            run.save(1, "a" * 32, create=True)
