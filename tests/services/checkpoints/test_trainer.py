"""The contributor's program: what it does when it is alone, and what it tells."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.checkpoints.learner import Learner, LearnerConfig
from services.checkpoints.supervisor import ContributorFailed, Store, Supervisor
from services.checkpoints.trainer import saved_state

ROOT = Path(__file__).parents[3]


def test_a_contributor_whose_supervisor_is_gone_does_nothing() -> None:
    """It was started by another process than the one that it is told of."""
    task = {"supervisor": os.getppid(), "line": 0, "points": 0}
    done = subprocess.run(
        [sys.executable, "-m", "services.checkpoints.trainer", json.dumps(task)],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "Nothing was done" in done.stderr) == (1, True)


def test_a_contributor_ends_when_its_line_is_closed() -> None:
    """Where the system does not kill it with its supervisor, the socket says so."""
    ours, theirs = socket.socketpair()
    our_points, their_points = socket.socketpair()
    task = {
        "contributor": 0, "world": 1, "until": 5, "config": LearnerConfig().document(), "supervisor": os.getpid(),
        "line": theirs.fileno(), "points": their_points.fileno(), "store": None,
    }  # fmt: skip
    with our_points, subprocess.Popen(
        [sys.executable, "-m", "services.checkpoints.trainer", json.dumps(task)],
        cwd=ROOT, pass_fds=(theirs.fileno(), their_points.fileno()),
    ) as process:  # fmt: skip
        theirs.close()
        their_points.close()
        assert ours.recv(1) == b"g"
        ours.close()
        assert process.wait(60) == 1


def test_what_the_system_refuses_is_told_as_what_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A file where the store's folder should be: the supervisor names it, and no traceback is shown."""
    (tmp_path / "file").touch()
    store = Store(root=str(tmp_path / "file" / "below"), run="r1", launch="0" * 32)
    with pytest.raises(ContributorFailed, match="NotADirectoryError: The system refused") as caught:
        Supervisor(LearnerConfig(), world=1, until=3, store=store).run()
    assert caught.value.told["type"] == "NotADirectoryError"
    assert capfd.readouterr().err == ""


def test_weights_alone_are_the_weights_alone() -> None:
    """The rest is left out on purpose, values too."""
    learner = Learner(LearnerConfig())
    assert {item.role for item in saved_state(learner, "weights_only").items.values()} == {"param"}
    assert saved_state(learner, "weights_only").values == {}
    assert set(saved_state(learner, "full").items) == set(learner.state().items)
