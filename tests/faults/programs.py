"""Programs that are forked from one process which has imported everything: a start costs no second of imports.

What this module guarantees:

- What runs is the program itself, from its entry point on, with its own arguments, environment and log; of its start,
  only the interpreter's and the imports are shared.
- A program may be killed, frozen and waited for like any process, and its exit code is the kernel's word.

    python -m tests.faults.programs SOCKET

One connection to a program. In: one JSON line, what to run. Out: JSON lines, `{"pid": n}` first, `{"code": n}` last.
"""

import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Self, cast

from services.cli.main import main
from services.drill.processes import Child, ProcessError
from tests.faults.forking import die_with, serve, server_of, tell
from tests.faults.servers import COUNTERFOIL, LIMIT_SECONDS

_NEEDED = ("services.cli.worker", "temporalio.worker.workflow_sandbox", "tests.faults.workflows")


class Programs:
    """The server that forks them."""

    def __init__(self, path: str) -> None:
        self._path = path

    def child(self, argv: Sequence[str], *, name: str, log: Path, env: Mapping[str, str]) -> Child:
        """A program that has not been started; for what the arguments are see `Child`.

        Raises:
            ValueError: it is neither `counterfoil` nor a module of Python's.
        """
        if not (argv[0] == COUNTERFOIL or tuple(argv[:2]) == (sys.executable, "-m")):
            raise ValueError(f"{argv} cannot be forked")
        return _Forked(self._path, argv, name=name, log=log, env=env)


class _Forked(Child):
    def __init__(self, path: str, argv: Sequence[str], *, name: str, log: Path, env: Mapping[str, str]) -> None:
        super().__init__(argv, name=name, log=log, env=env)
        self._path = path

    def start(self) -> Self:
        """Start it; returns when it has been forked."""
        if self.alive:
            raise ProcessError(f"{self.name} runs already, as process {self.pid}.")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.touch()
        self._group_ended = False
        job = {"argv": list(self.argv), "env": dict(self._env or {}), "log": str(self.log)}
        self._process = cast("subprocess.Popen[bytes]", _Process(self._path, job))
        return self


class _Process:
    """What `Child` asks of a `Popen`: whoever forked the program has waited for it, and tells."""

    def __init__(self, path: str, job: Mapping[str, Any]) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(LIMIT_SECONDS)
        self._connection.connect(path)
        self._told = self._connection.makefile("rb")
        self._lock = threading.Lock()
        self._code: int | None = None
        self._connection.sendall(json.dumps(job).encode() + b"\n")
        self.pid = int(json.loads(self._told.readline())["pid"])

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._heard(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code."""
        code = self._heard(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return code

    def _heard(self, timeout: float | None) -> int | None:
        if self._code is None:
            ready = select.poll()
            ready.register(self._connection, select.POLLIN)
            if not ready.poll(None if timeout is None else 1000 * timeout):
                return None
            with self._lock:
                if self._code is None:
                    line = self._told.readline()
                    self._code = int(json.loads(line)["code"]) if line else -signal.SIGKILL  # the server has gone
                    self._told.close()
                    self._connection.close()
        return self._code


@asynccontextmanager
async def programs(log: Path) -> AsyncIterator[Programs]:
    """A server of programs; every one of them ends with the block."""
    async with server_of("tests.faults.programs", name="The programs' server", log=log) as path:
        yield Programs(path)


def _fork_and_wait(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as lines:
        job = json.loads(lines.readline())
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            die_with(own)
            lines.close()
            connection.close()
            _become(job["argv"], job["env"], job["log"])
        with suppress(OSError):  # it has done so itself, and perhaps ended
            os.setpgid(pid, pid)
        tell(connection, pid=pid)
        _, status = os.waitpid(pid, 0)
        with suppress(BrokenPipeError):
            tell(connection, code=os.waitstatus_to_exitcode(status))


def _become(argv: list[str], env: dict[str, str], log: str) -> NoReturn:
    """Be this program from its entry point on."""
    os.environ.clear()
    os.environ.update(env)
    for number, flags, name in ((0, os.O_RDONLY, os.devnull), (1, os.O_WRONLY | os.O_APPEND | os.O_CREAT, log)):
        opened = os.open(name, flags, 0o666)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    if argv[0] == COUNTERFOIL:
        sys.argv = argv
        main()
    sys.argv = argv[2:]
    runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1], _fork_and_wait, *_NEEDED)
