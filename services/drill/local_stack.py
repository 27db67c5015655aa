"""The local stack of `counterfoil up`: a folder that is started, stopped, and started again.

What this module guarantees:

- One folder, one running stack: a second one is refused while the first runs.
- The second start has the first one's token, ports and databases; a port that somebody else has taken meanwhile is
  replaced by a free one.
- What is secret is in files that only their owner reads, complete or not there.
"""

import fcntl
import json
import os
import shlex
import socket
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path

from services.drill.postgres import PostgresServer
from services.drill.processes import Child, Processes, free_port
from services.drill.stack import Stack, Standing, running_stack

ORIGIN = "local"
ENV_FILE = "env.sh"
INCIDENTS_FILE = "incidents.jsonl"
_STANDING_FILE = "standing.json"
_LOCK_FILE = "lock"
# What a second shell needs of the stack's environment, and nothing of this process's own.
_EXPORTED = ("COUNTERFOIL_", "TEMPORAL_")
_NOT_EXPORTED = ("COUNTERFOIL_INVENTORY_TOKENS",)  # the service's


class FolderError(Exception):
    """The folder cannot be used so: the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Postgres:
    """The server's port, and where root keeps its data."""

    port: int
    as_root: str | None


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder is ours until the block ends, however it ends.

    Raises:
        FolderError: another stack runs in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK_FILE).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderError(
                f"A stack runs in {folder} already. Nothing was started. Use it (source {folder / ENV_FILE}), or name "
                "another folder."
            ) from None
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStack:
    """A stack that runs, and what it consists of.

    Attributes:
        stack: itself.
        parts: everything that is to run while it does.
        env_file: what a second shell sources.
        incidents_file: incidents to start, which the stock is meant for.
        postgres_data: where PostgreSQL's data are, if not in the folder.
    """

    stack: Stack
    parts: tuple[Child, ...]
    env_file: Path
    incidents_file: Path
    postgres_data: str | None


@asynccontextmanager
async def local_stack(
    processes: Processes, folder: Path, *, stock: Mapping[str, int], workers: int, postgres: bool
) -> AsyncIterator[LocalStack]:
    """The folder's stack, new or as it was.

    Args:
        processes: the block that ends its processes.
        folder: `held` by the caller.
        stock: what is delivered to the inventory, once.
        workers: how many worker processes.
        postgres: whether a new stack keeps its books on PostgreSQL; the folder's own answer stands.

    Raises:
        FolderError: its databases are SQLite files, and PostgreSQL is asked for.
        ProcessError: a part did not start, or PostgreSQL is not installed.
    """
    standing, server = _standing(folder, postgres=postgres)
    parts: list[Child] = []
    if server is not None:
        running = PostgresServer(
            processes, folder, port=server.port, as_root=None if server.as_root is None else Path(server.as_root)
        )
        running.start()
        journal_url, inventory_database_url = running.stores()
        standing = replace(standing, journal_url=journal_url, inventory_database_url=inventory_database_url)
        parts.append(running.child)
    async with running_stack(
        processes, folder, stock=stock, origin=ORIGIN, workers=workers, ui=True, standing=standing, faults=False
    ) as stack:
        env_file = stack.folder / ENV_FILE
        _write_secret(env_file, exports(stack.environment()))
        incidents = stack.folder / INCIDENTS_FILE
        incidents.write_bytes(resources.files("services.drill").joinpath("incidents.jsonl").read_bytes())
        yield LocalStack(
            stack=stack,
            parts=(*parts, *stack.parts()),
            env_file=env_file,
            incidents_file=incidents,
            postgres_data=None if server is None else server.as_root,
        )


def exports(environment: Mapping[str, str]) -> str:
    """The shell lines by which a second shell finds the stack, and the program."""
    wanted = {
        name: value
        for name, value in sorted(environment.items())
        if name.startswith(_EXPORTED) and name not in _NOT_EXPORTED
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in wanted.items()]
    return "\n".join([*lines, f'export PATH={shlex.quote(sysconfig.get_path("scripts"))}:"$PATH"', ""])


def _standing(folder: Path, *, postgres: bool) -> tuple[Standing, _Postgres | None]:
    """What the folder remembers, with ports that are free now; made and written down the first time."""
    file = folder / _STANDING_FILE
    if file.exists():
        known = json.loads(file.read_text())
        standing = Standing(**known["stack"])
        server = None if known["postgres"] is None else _Postgres(**known["postgres"])
        if postgres and server is None:
            raise FolderError(
                f"The journal and the inventory of {folder} are SQLite files. Nothing was started. Leave --postgres "
                "out to go on with them, or name another folder."
            )
        if server is not None and server.as_root is not None and not Path(server.as_root).is_dir():
            raise FolderError(
                f"PostgreSQL's data of {folder} was in {server.as_root}, which is gone. Nothing was started: Temporal "
                "would go on without its journal. Name another folder."
            )
    else:
        standing = Standing()
        as_root = tempfile.mkdtemp(prefix="counterfoil-postgres-") if postgres and os.geteuid() == 0 else None
        server = _Postgres(port=free_port(), as_root=as_root) if postgres else None
    standing = replace(
        standing,
        temporal_port=_free(standing.temporal_port),
        ui_port=_free(standing.ui_port),
        inventory_port=_free(standing.inventory_port),
    )
    server = server and replace(server, port=_free(server.port))
    _write_secret(file, json.dumps({"stack": asdict(standing), "postgres": server and asdict(server)}))
    return standing, server


def _free(port: int) -> int:
    """This port, or another one if somebody has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return free_port()
    return port


def _write_secret(file: Path, text: str) -> None:
    made = file.with_suffix(".new")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
        opened.write(text)
    made.replace(file)
