"""CPU accounting, of real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.machine import Meter, tree_seconds

pytestmark = pytest.mark.linux

# Burns so much CPU time as the kernel counts it, says so, and waits to be told to end.
BURN = """
import os, sys
while sum(os.times()[:2]) < 0.3:
    pass
print("burnt", flush=True)
sys.stdin.read()
"""
# The same in a child that ends and is waited for, or that lives on.
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdout.readline()
if sys.argv[2] == "ends":
    child.communicate()
while sum(os.times()[:2]) < 0.3:
    pass
print("burnt", flush=True)
sys.stdin.read()
"""


@contextmanager
def running(*arguments: str) -> Iterator[int]:
    """A process that has burnt its time; its id."""
    command = [sys.executable, "-c", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "burnt\n"
        yield process.pid


def test_a_process_is_counted() -> None:
    """Its own time, user and system."""
    with running(BURN) as pid:
        assert tree_seconds(pid) >= 0.29


@pytest.mark.parametrize("child", ["ends", "lives on"])
def test_a_descendant_is_counted_once_living_or_ended(child: str) -> None:
    """A killed worker's time is not lost, and a living one's is not counted with its parent's too."""
    with running(PARENT, BURN, child) as pid:
        assert 0.58 <= tree_seconds(pid) < 0.85  # both, and neither twice


def test_a_process_that_is_gone_has_used_nothing() -> None:
    """A part may have ended before it is read."""
    with running(BURN) as pid:
        pass
    assert tree_seconds(pid) == 0.0


def test_what_a_part_used_is_told_apart_from_the_starter() -> None:
    """The parts and this process add up; nothing of this process is a part's."""
    with running(BURN) as busy:
        meter, own_seconds = Meter({"busy": busy}), sum(os.times()[:2])
        while sum(os.times()[:2]) - own_seconds < 0.1:
            pass
        usage = meter.usage()
    assert usage.cpu_seconds["busy"] < 0.05  # what it took to say so and to begin to wait
    assert usage.cpu_seconds["starter"] >= 0.09
    assert usage.total_cpu_seconds == sum(usage.cpu_seconds.values())
    assert 0.0 <= usage.others <= 1.0
