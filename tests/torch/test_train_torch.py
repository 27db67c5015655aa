"""examples/train_torch.py as its first lines say: killed with -9 and started again, the curve is the same."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UPDATES = 220
LIMIT_SECONDS = 100


@contextmanager
def started(tmp_path: Path, root: str) -> Iterator[subprocess.Popen[str]]:
    """The example on two ranks under torchrun, with the package by its own name as the wheel has it."""
    packages = tmp_path / "packages"
    packages.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        packages.joinpath("counterfoil_checkpoints").symlink_to(ROOT / "services/checkpoints")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with subprocess.Popen(
        [*torchrun, ROOT / "examples/train_torch.py", tmp_path / root, str(UPDATES)],
        env={**os.environ, "PYTHONPATH": str(packages), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> str:
    """What it says by its end."""
    said, errors = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0, errors
    return said


@pytest.mark.timeout(300)
def test_the_example_killed_and_resumed_has_the_curve_of_one_that_was_not(tmp_path: Path) -> None:
    """Both ranks and their launcher by SIGKILL, after a checkpoint; the loss of every update is the same number."""
    with started(tmp_path, "whole") as process:
        whole = ended(process)
    with started(tmp_path, "killed") as process:
        said, pids = "", set[int]()
        assert process.stdout is not None
        while "update 200," not in said:  # the save before it is committed by then
            said += (line := process.stdout.readline())
            assert line, "it ended by itself"
            pids |= {int(pid) for pid in re.findall(r"^process (\d+)", line)}
        assert len(pids) == 2
        for pid in {process.pid, *pids}:
            os.kill(pid, signal.SIGKILL)
    with started(tmp_path, "killed") as process:
        again = ended(process)
    assert len(re.findall(r"rank [01]: update [12]00, resumed", again)) == 2
    assert re.findall(rf"^{UPDATES} updates, .*$", again, re.MULTILINE) == re.findall(
        rf"^{UPDATES} updates, .*$", whole, re.MULTILINE
    )
    assert len((ROOT / "examples/train_torch.py").read_text().splitlines()) < 60
