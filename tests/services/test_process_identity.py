"""Death is proven or not claimed: with real processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from services import process_identity
from services.process_identity import UNKNOWN, ProcessIdentity, identity, provably_dead

pytestmark = pytest.mark.linux

TELL = "from services.process_identity import identity; i = identity(); print(i.pid, i.started_at_ticks, flush=True);"


@contextmanager
def child(code: str) -> Iterator[tuple[subprocess.Popen[str], ProcessIdentity]]:
    """A Python process that tells its identity, then runs the code."""
    with subprocess.Popen(
        [sys.executable, "-c", TELL + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            pid, started = process.stdout.readline().split()
            yield process, replace(identity(), pid=int(pid), started_at_ticks=int(started))
        finally:
            process.kill()


def test_a_running_process_is_not_dead() -> None:
    """Neither this one nor a child."""
    assert not provably_dead(identity())
    with child("input()") as (process, who):
        assert who.pid == process.pid
        assert not provably_dead(who)


def test_a_stopped_process_is_not_dead() -> None:
    """SIGSTOP may be followed by SIGCONT."""
    with child("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)") as (process, who):
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert not provably_dead(who)


def test_a_killed_process_is_dead_before_and_after_it_is_reaped() -> None:
    """A zombie sends nothing any more."""
    with child("input()") as (process, who):
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert provably_dead(who)
        process.wait()
        assert provably_dead(who)


def test_a_process_whose_first_thread_ended_is_not_dead() -> None:
    """The kernel shows Z for it while another thread still sends."""
    exit_thread = 60 if os.uname().machine == "x86_64" else 93  # 93 in the table that all newer machines share
    code = (
        "import ctypes, os, pathlib, threading\n"
        "def rest():\n"
        "    stat = pathlib.Path(f'/proc/{os.getpid()}/stat')\n"
        "    while ') Z ' not in stat.read_text(): pass\n"
        "    print('zombie', flush=True); input()\n"
        "threading.Thread(target=rest).start()\n"
        f"ctypes.CDLL(None).syscall({exit_thread}, 0)\n"
    )
    with child("\n" + code) as (process, who):
        assert process.stdout is not None
        assert process.stdout.readline() == "zombie\n"
        assert not provably_dead(who)


def test_a_pid_that_belongs_to_a_later_process_is_dead() -> None:
    """The start time tells the two apart."""
    assert provably_dead(replace(identity(), started_at_ticks=identity().started_at_ticks - 1))


@pytest.mark.parametrize(
    "change", [{"host": "elsewhere"}, {"boot_id": "another boot"}, {"boot_id": UNKNOWN}, {"pid": 0}]
)
def test_what_cannot_be_known_here_is_not_dead(change: dict[str, str | int]) -> None:
    """Another host, another boot, an unknown boot, no pid: never guessed, though no such process is here."""
    with child("") as (process, who):
        process.wait()
        assert provably_dead(who)
        assert not provably_dead(ProcessIdentity(**(asdict(who) | change)))


def test_without_proc_nothing_is_dead(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on macOS: identities can be made, deaths cannot be proven."""
    with child("") as (process, who):
        process.wait()
    monkeypatch.setattr(process_identity, "_PROC", tmp_path)
    here = identity()
    assert (here.pid, here.boot_id, here.started_at_ticks) == (os.getpid(), UNKNOWN, 0)
    assert not provably_dead(who)
    assert not provably_dead(replace(who, host=here.host, boot_id=UNKNOWN))


def test_a_command_name_with_parentheses_does_not_confuse() -> None:
    """The state stands after the last parenthesis; here the kernel's name of the process is `) Z 0 (`."""
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 0 ('); print('named', flush=True); input()"
    with child(code) as (process, who):
        assert process.stdout is not None
        assert process.stdout.readline() == "named\n"
        assert ") Z 0 (" in Path(f"/proc/{process.pid}/stat").read_text()
        assert not provably_dead(who)


def test_the_host_names_its_namespaces() -> None:
    """Two containers of one machine differ though name and boot are equal."""
    assert str(Path("/proc/self/ns/pid").readlink()) in identity().host
