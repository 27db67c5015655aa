"""The supervisor: real processes, joined sum by sum, held, killed, and none left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.checkpoints.group import until
from services.checkpoints.learner import Learner, LearnerConfig, row_digests, whole_digests
from services.checkpoints.supervisor import ContributorFailed, Difference, Life, Store, Supervisor, first_difference

CONFIG = LearnerConfig()


def alive(pid: int) -> bool:
    """Whether a process still runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended(pid: int) -> bool:
    """Whether a process has, also one that nobody has waited for."""
    try:
        return b") Z" in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return not alive(pid)


def test_three_processes_compute_what_one_learner_computes() -> None:
    """Every field after each update, through the sockets as in one address space."""
    ran = Supervisor(CONFIG, world=3, until=4).run()
    learner = Learner(CONFIG)
    for update in range(1, 5):
        learner.attempt(lambda own: [own])
        assert ran.fields[update] == whole_digests([row_digests(learner)])
    assert len({*ran.pids, os.getpid()}) == 4
    assert not [pid for pid in ran.pids if alive(pid)]


def test_contributors_are_held_where_they_are_killed() -> None:
    """None of them applied a later update; each died of SIGKILL, as the system says."""
    ran = Supervisor(CONFIG, world=3, until=40, hold_after=5).run()
    assert sorted(ran.fields) == [1, 2, 3, 4, 5]
    assert [dead.returncode for dead in ran.killed] == [-signal.SIGKILL] * 3
    assert [dead.pid for dead in ran.killed] == list(ran.pids)


def test_a_life_ends_by_seconds_of_training_or_by_updates(tmp_path: Path) -> None:
    """Both begin when training does, so that a slow start has as long a life."""
    store = Store(root=str(tmp_path), run="r", launch="0" * 32)
    ran = Supervisor(CONFIG, world=2, until=100_000, store=store, life=Life(seconds=0.05)).run()
    assert [dead.returncode for dead in ran.killed] == [-signal.SIGKILL] * 2
    assert len(ran.said("began")) >= 1
    store = Store(root=str(tmp_path), run="r", launch="1" * 32)
    ran = Supervisor(CONFIG, world=2, until=100_000, store=store, life=Life(updates=3)).run()
    assert sorted(ran.fields) == [1, 2, 3]


def test_a_contributor_that_dies_ends_the_run_for_all_by_name() -> None:
    """The others wait for its sum and would wait for ever."""
    supervisor: Supervisor

    def strike(update: int) -> None:
        if update == 2:
            os.kill(supervisor.ran.pids[1], signal.SIGKILL)

    supervisor = Supervisor(CONFIG, world=3, until=40, applied=strike)
    with pytest.raises(ContributorFailed, match=r"Contributor 1 \(process \d+\) ended with -9"):
        supervisor.run()
    assert not [pid for pid in supervisor.ran.pids if alive(pid)]


def test_contributors_die_with_their_supervisor() -> None:
    """SIGKILL leaves it no time to end them: the system does, or their sockets."""
    program = (
        "import os, signal\n"
        "from services.checkpoints.supervisor import Supervisor\n"
        "from services.checkpoints.learner import LearnerConfig\n"
        "def strike(update):\n"
        "    print(*supervisor.ran.pids, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "supervisor = Supervisor(LearnerConfig(), world=2, until=40, applied=strike)\n"
        "supervisor.run()\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    assert until(lambda: all(map(ended, pids)), seconds=60), f"of {pids} one lives on without its supervisor"


def test_the_first_difference_is_named_by_update_and_field() -> None:
    """Also one that is later equal again, and one that is missing."""
    same = {18: {"a": "1", "b": "2"}, 19: {"a": "3", "b": "4"}}
    assert first_difference(same, same, after=17, until=19) is None
    other = {18: {"a": "1", "b": "x"}, 19: same[19]}
    assert first_difference(same, other, after=17, until=19) == Difference(update=18, field="b")
    assert first_difference(same, other, after=18, until=19) is None
    assert first_difference(same, {18: same[18]}, after=17, until=19) == Difference(update=19, field="a")
    assert first_difference({}, {}, after=17, until=18) == Difference(update=18, field="everything")
