"""Processes that are forked from one which has imported everything: a life costs a fork, not a start of Python.

What this module guarantees:

- What is forked is killed by the kernel with who forked it, that one with the server, and the server with the tests.
- Nothing of the server is in it but what it has imported: no loop, no thread, no connection.

A server forks one process for each connection, which forks the one that lives and tells how that ended.
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from services.certificates import trusted
from services.drill.processes import Processes, wait_until
from tests.faults.servers import LIMIT_SECONDS, environment

_ROOT = Path(__file__).parents[2]
_PR_SET_PDEATHSIG = 1
# What a first request imports, and a first statement on either database: it would take most of a child's life.
_NEEDED_SOON = ("anyio._backends._asyncio", "httpcore", "h11", "psycopg", "encodings.utf_16_be")


@asynccontextmanager
async def server_of(module: str, *, name: str, log: Path) -> AsyncIterator[str]:
    """Run a module that calls `serve`; the path of its socket. Whatever it has forked ends with the block."""
    with tempfile.TemporaryDirectory(prefix="forks-") as folder, Processes(grace_seconds=0) as processes:
        path = str(Path(folder) / "socket")  # the path of a socket must be short
        server = processes.start(
            [sys.executable, "-m", module, path], name=name, log=log, env=environment(PYTHONPATH=str(_ROOT))
        )

        def listening() -> bool:
            server.require_alive()
            return Path(path).exists()

        await wait_until(listening, timeout_seconds=LIMIT_SECONDS, what=f"{name} listens")
        yield path


def serve(path: str, fork_and_tell: Callable[[socket.socket], None], *needed: str) -> NoReturn:
    """Fork a process for each connection, for ever.

    Args:
        path: of the socket.
        fork_and_tell: what that process does.
        needed: what to import before.
    """
    for name in (*needed, *_NEEDED_SOON):
        importlib.import_module(name)
    trusted(None)  # read here, it is read for all
    gc.freeze()  # else each child's first collection copies every page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that fork and tell
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(64)
        Path(f"{path}.new").rename(path)  # who sees it can connect
        while True:
            connection, _ = listener.accept()
            server = os.getpid()
            if os.fork() == 0:
                listener.close()
                die_with(server)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                fork_and_tell(connection)
                os._exit(0)
            connection.close()


def die_with(parent: int) -> None:
    """Let the kernel kill this process with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def tell(connection: socket.socket, **what: Any) -> None:
    """Tell one thing: a line of JSON."""
    connection.sendall(json.dumps(what).encode() + b"\n")
