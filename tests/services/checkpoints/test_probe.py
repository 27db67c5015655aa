"""What a session does under a delay test; without one, nothing."""

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.checkpoints.delays import nowhere
from services.checkpoints.errors import CommitFailed, Incompatible
from services.checkpoints.probe import VARIABLE, Delay, Probe
from services.checkpoints.records import digest_of
from services.checkpoints.state import Item, State, Versioned


def left(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """What a session left."""
    file = folder / f"{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_nothing_is_probed_unless_the_environment_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And what it says is a test's, or is refused: a session that ignored it would pass untested."""
    monkeypatch.delenv(VARIABLE, raising=False)
    assert Probe.asked_for(0, nowhere) is None
    monkeypatch.setenv(VARIABLE, Delay(folder=str(tmp_path)).told())
    assert Probe.asked_for(0, nowhere) is not None
    for wrong in ("1", "no", '{"folder": "x", "other": 1}'):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(Incompatible, match="unset it"):
            Probe.asked_for(0, nowhere)


def test_one_contributor_is_late_at_one_point_once_in_each_save(tmp_path: Path) -> None:
    """Whoever else holds the session is asked at each point as before."""
    asked: list[str] = []
    delay = Delay(folder=str(tmp_path), point="item-copied", rank=1, seconds=0.001)
    for rank in (0, 1):
        probe = Probe(delay, rank, asked.append)
        for point in ("entered", "item-copied", "item-copied", "entered", "item-copied", "copied"):
            probe(point)
    assert left(tmp_path, 0) == []
    assert left(tmp_path, 1) == [{"rank": 1, "late": "item-copied"}] * 2
    assert len(asked) == 12


def test_a_boundary_is_what_the_arrays_hold_on_the_trainers_own_thread(tmp_path: Path) -> None:
    """Elsewhere training may go on meanwhile: that is no boundary."""
    probe = Probe(Delay(folder=str(tmp_path)), 0, nowhere)
    probe.boundary(1)
    array = np.arange(6.0).reshape(2, 3).T
    probe.knows(State(items={"a": Item(role="param", array=array)}, versions=Versioned({})))
    probe.boundary(2)
    other = threading.Thread(target=probe.boundary, args=(3,))
    other.start()
    other.join()
    probe.refused(CommitFailed("full"))
    digest = digest_of(np.ascontiguousarray(array).tobytes())
    assert left(tmp_path) == [
        {"rank": 0, "look": 2, "updates": 2, "items": {"a": digest}}, {"rank": 0, "refused": "CommitFailed"},
    ]  # fmt: skip
