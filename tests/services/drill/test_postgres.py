"""A real PostgreSQL, stopped and killed in every way: what was committed is there, and no process is left."""

import os
import pwd
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.drill.copies import copy_of
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes

PARENT = """
import signal, sys
from pathlib import Path
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes
with Processes() as processes:
    PostgresServer(processes, Path(sys.argv[1])).start()
    print("started", flush=True)
    if sys.argv[2] == "rest":
        signal.pause()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """One that these tests may stop and start again."""
    with Processes() as processes:
        server = PostgresServer(processes, tmp_path_factory.mktemp("server"))
        server.start()
        try:
            yield server
        finally:
            server.remove()


def test_what_was_committed_is_there_after_every_end(server: PostgresServer) -> None:
    """After a fast stop, an immediate stop and SIGKILL, on the same port; what was not committed is not."""
    url = server.create_database("notes")
    with server.connect("notes") as connection:
        connection.execute("CREATE TABLE notes (id integer PRIMARY KEY)")
    for number, end in enumerate((server.stop, server.stop_immediately, server.kill)):
        with server.connect("notes") as connection:
            connection.execute("INSERT INTO notes VALUES (%s)", (number,))
        with closing(server.connect("notes")) as other:
            other.autocommit = False
            other.execute("INSERT INTO notes VALUES (100)")
            end()
            assert not server.child.alive
        server.start()
        assert server.url("notes") == url
        with server.connect("notes") as connection:
            rows = connection.execute("SELECT id FROM notes ORDER BY id").fetchall()
        assert rows == [(each,) for each in range(number + 1)]


def test_a_database_is_made_as_a_copy_of_another(server: PostgresServer) -> None:
    """With everything that is in it."""
    url = server.create_database("origin")
    with server.connect("origin") as connection:
        connection.execute("CREATE TABLE here AS SELECT 1 AS id")
    copy_of(url, "copied")
    with server.connect("copied") as connection:
        assert connection.execute("SELECT id FROM here").fetchall() == [(1,)]


@pytest.mark.linux
def test_it_runs_as_nobody_when_root_starts_it_and_opens_no_folder_of_ours(
    server: PostgresServer, tmp_path: Path
) -> None:
    """PostgreSQL refuses root; its data is its own, and the folder that was given stays as closed as it was."""
    root = os.geteuid() == 0
    expected = pwd.getpwnam("nobody").pw_uid if root else os.geteuid()
    assert Path(f"/proc/{server.child.pid}").stat().st_uid == expected
    data = Path(server.child.argv[server.child.argv.index("-D") + 1])
    assert (data.stat().st_uid, data.stat().st_mode & 0o777) == (expected, 0o700)
    folders = [tmp_path, *tmp_path.parents]
    before = [(folder.stat().st_mode, folder.stat().st_uid) for folder in folders]
    with Processes() as processes:
        other = PostgresServer(processes, tmp_path)
        other.start()
        assert [(folder.stat().st_mode, folder.stat().st_uid) for folder in folders] == before
        assert (tmp_path in Path(other.child.argv[2]).parents) == (not root)
        other.remove()


@pytest.mark.linux
@pytest.mark.parametrize("killed", [False, True], ids=["its block ends", "its parent is killed"])
def test_no_process_of_it_is_left(tmp_path: Path, killed: bool) -> None:
    """Its log is a pipe that each of them keeps open: it ends when the last of them has."""
    os.mkfifo(tmp_path / "postgres.log")
    log = os.open(tmp_path / "postgres.log", os.O_RDONLY | os.O_NONBLOCK)
    argv = [sys.executable, "-c", PARENT, str(tmp_path), "rest" if killed else "end"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "started\n"
        if killed:
            parent.kill()
        assert parent.wait(60) == (-signal.SIGKILL if killed else 0)
    os.set_blocking(log, True)
    while select.select([log], [], [], 60)[0]:
        if not os.read(log, 65536):
            break
    else:
        pytest.fail("a process of it is left")
    os.close(log)
