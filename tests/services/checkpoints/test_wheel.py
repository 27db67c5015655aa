"""The distribution of its own: built from a copy, alone in an environment, it does what docs/checkpoints.md shows."""

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDS = ("numpy", "ml_dtypes", "blake3")
TIMEOUT_SECONDS = 300
# Of this process's own Python nothing: where packages come from, and the rest.
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
pytestmark = pytest.mark.timeout(600)


def done(arguments: Sequence[str | Path], cwd: Path) -> str:
    """What a program prints that must succeed, in a world without this tree."""
    ran = subprocess.run(
        arguments,
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def pip_of(python: Path) -> list[str | Path]:
    """The beginning of a command that is about an environment which has no pip of its own."""
    return [sys.executable, "-m", "pip", "--python", python]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the wheel and what it needs, and nothing else."""
    place = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "services/checkpoints", place / "copy", ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done([*build, "--wheel-dir", place / "wheels", place / "copy"], place)
    (wheel,) = (place / "wheels").iterdir()
    done([sys.executable, "-m", "venv", "--without-pip", place / "venv"], place)
    own = place / "venv/bin/python"
    pinned = [f"{name}=={version(name)}" for name in NEEDS]
    install = [*pip_of(own), "install", "--quiet", "--no-compile", "--only-binary", ":all:"]
    done([*install, *pinned, wheel], place)
    return own


def documented() -> str:
    """The program on the page."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/checkpoints.md").read_text(), re.DOTALL)
    return str(block)


def ranks(python: Path, program: Path, root: Path, *, updates: int) -> list[str]:
    """What each of three processes prints at its end."""
    launch = secrets.token_hex(16)
    started = [
        subprocess.Popen(
            [python, program, root, str(rank), "3", launch, str(updates)],
            cwd=program.parent,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    ended = [process.communicate(timeout=TIMEOUT_SECONDS) for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], ended
    return [out for out, _ in ended]


def test_the_documented_loop_goes_on_on_three_processes(python: Path, tmp_path: Path) -> None:
    """From nothing but the wheel: 6 updates, a new start, 4 more, and the bits of 10 in one go."""
    program = tmp_path / "train.py"
    program.write_text(documented())
    ranks(python, program, tmp_path / "store", updates=6)
    second = ranks(python, program, tmp_path / "store", updates=10)
    assert [out.splitlines()[0] for out in second] == ["resumed from 6"] * 3
    whole = ranks(python, program, tmp_path / "whole", updates=10)
    assert [out.splitlines()[-1] for out in second] == [out.splitlines()[-1] for out in whole]


def test_the_reference_learner_is_in_the_wheel(python: Path, tmp_path: Path) -> None:
    """Killed on three processes and taken up on two, under the package's other name."""
    program = (
        "from pathlib import Path\n"
        "from counterfoil_checkpoints.interruption import Interruption, interrupt\n"
        "from counterfoil_checkpoints.learner import LearnerConfig\n"
        "what = Interruption(root=Path('store'), config=LearnerConfig(schedule=8), ranks=3, resume_ranks=2, updates=8,"
        " kill_at=3)\n"
        "print(interrupt(what).equal_to_uninterrupted)\n"
    )
    assert done([python, "-c", program], tmp_path) == "True\n"


def test_the_environment_has_nothing_else(python: Path, tmp_path: Path) -> None:
    """No database, no HTTP, no engine: what a training job installs is what it needs."""
    listed = done([*pip_of(python), "list", "--format", "freeze"], tmp_path)
    names = {line.partition("==")[0].lower().replace("-", "_") for line in listed.splitlines()}
    beside = {"typing_extensions"}  # blake3's own need before Python 3.12
    assert names - beside == {"counterfoil_checkpoints", *NEEDS}
