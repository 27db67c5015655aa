"""The delay kit itself: it holds where it says, and its judge is not deceived. Its use is in test_saving.py."""

import threading
from collections import deque
from pathlib import Path

import numpy as np

from services.checkpoints.delays import POINTS, Hold, Late, Then, fingerprint, mixed, wait_for


def test_a_held_process_goes_on_when_it_is_let_go_and_is_held_once(tmp_path: Path) -> None:
    """Both files are in the folder; the second time it passes."""
    hold = Hold(folder=tmp_path, who="2", points=frozenset({"written"}))
    points = ("staged", "written", "written", "committed")
    thread = threading.Thread(target=lambda: deque(map(hold, points), maxlen=0))
    thread.start()
    assert wait_for(tmp_path / "written.2.held", longest_seconds=30)
    assert hold.passed == ["staged", "written"]
    (tmp_path / "written.2.go").touch()
    thread.join(timeout=30)
    assert hold.passed == ["staged", "written", "written", "committed"]


def test_a_hold_ends_by_itself_so_that_a_failing_test_ends(tmp_path: Path) -> None:
    """Nobody lets it go."""
    hold = Hold(folder=tmp_path, who="0", points=frozenset(POINTS), longest_seconds=0)
    hold("entered")
    assert (tmp_path / "entered.0.held").exists()
    assert not wait_for(tmp_path / "entered.0.go", longest_seconds=0)


def test_late_and_then_act_at_their_points_alone() -> None:
    """Elsewhere they do nothing."""
    acted: list[str] = []
    then = Then(actions={"copied": lambda: acted.append("copied")})
    for point in POINTS:
        Late(seconds={"copied": 0.001})(point)
        then(point)
    assert acted == ["copied"]


def test_the_judge_knows_one_moment_from_two() -> None:
    """By bytes: a mixture of two updates is of no moment, and so are bytes that nobody had."""
    moments = {
        update: fingerprint({"a": np.full(3, update), "b": np.full(2, 10 * update)}) for update in (1, 2)
    }  # fmt: skip
    assert mixed(moments[1], moments) is None
    assert mixed({**moments[1], "b": moments[2]["b"]}, moments) == (
        "The checkpoint is of no one moment: a is of 1, b is of 2"
    )
    torn = fingerprint({"a": np.array([1, 1, 2]), "b": np.full(2, 10)})
    assert mixed(torn, moments) == "The checkpoint is of no one moment: a is of no moment, b is of 1"
