"""The command line, for real."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.command import NAMES, REPORT_FILE, main

ROOT = Path(__file__).parents[2]


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A run of the command line, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )


def test_commits_are_measured_for_real_and_told_as_json(tmp_path: Path) -> None:
    """SQLite and a real PostgreSQL, each with every number of callers; the file says the same as stdout."""
    file = tmp_path / "report.json"
    small = ["--rounds", "1", "--seconds", "0", "--write", str(file), "--json"]
    done = measured("commits", *small)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads(file.read_text())
    assert {(row["database"], row["callers"]) for row in document["commits"]["rows"]} == {
        (database, callers) for database in ("SQLite", "PostgreSQL") for callers in (1, 8, 32)
    }
    assert all(row["pairs_to_bare"]["median"] > 0 for row in document["commits"]["rows"])
    assert "commits, round 1 of 1" in done.stderr


def test_the_inventory_is_measured_for_real_and_told_to_people(tmp_path: Path) -> None:
    """Every cell of both databases and of the empty service, in one short round."""
    file = tmp_path / "report.json"
    small = ["--rounds", "1", "--seconds", "0", "--receipts", "1200", "--write", str(file)]
    done = measured("inventory", *small)
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())["inventory"]
    cells = {tuple(row["cell"].values()) for row in found["rows"]}
    assert len(found["rows"]) == len(cells) == 20
    assert {row["database"] for row in found["commits"]} == {"SQLite", "PostgreSQL"}
    assert "POST, PostgreSQL: " in done.stdout
    assert "From 1,000 receipts to 1,200" in done.stdout


def test_a_benchmark_that_is_not_there_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    """And those that are there are named."""
    assert main(["p9"]) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in NAMES)


def test_the_report_is_written_where_git_does_not_look() -> None:
    """A measurement changes no working tree."""
    ignored = subprocess.run(["git", "check-ignore", str(REPORT_FILE)], cwd=ROOT, check=False, timeout=30)
    assert ignored.returncode == 0
