"""The folder of a local stack: held by one, remembered by the next, and its secrets for nobody else."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from services.drill import local_stack
from services.drill.local_stack import FolderError, exports, held


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody else listens on this port."""
    with closing(socket.create_server(("127.0.0.1", port))):
        yield


def test_one_folder_holds_one_stack(tmp_path: Path) -> None:
    """The second is refused while the first runs, and not after it."""
    with held(tmp_path / "new"):
        with pytest.raises(FolderError, match=r"runs in .*new already\. Nothing was started"), held(tmp_path / "new"):
            pytest.fail("two of them")
        with held(tmp_path / "another"):
            pass
    with held(tmp_path / "new"):
        pass


def test_the_second_start_has_what_the_first_had(tmp_path: Path) -> None:
    """Token and ports; only a port that somebody has taken is another one, and that one is remembered."""
    first, server = local_stack._standing(tmp_path, postgres=False)
    assert server is None
    assert local_stack._standing(tmp_path, postgres=False) == (first, None)
    with taken(first.ui_port):
        moved, _ = local_stack._standing(tmp_path, postgres=False)
    assert moved.ui_port != first.ui_port
    assert (moved.token, moved.temporal_port, moved.inventory_port) == (
        first.token, first.temporal_port, first.inventory_port
    )  # fmt: skip
    assert local_stack._standing(tmp_path, postgres=False) == (moved, None)


def test_a_folder_keeps_to_its_kind_of_database(tmp_path: Path) -> None:
    """Temporal's history beside an empty journal would be another stack's."""
    local_stack._standing(tmp_path, postgres=False)
    with pytest.raises(FolderError, match=r"are SQLite files\. Nothing was started"):
        local_stack._standing(tmp_path, postgres=True)


def test_postgres_is_remembered_with_its_data(tmp_path: Path) -> None:
    """Without the option too; and data that are gone are not made anew in silence."""
    _, server = local_stack._standing(tmp_path, postgres=True)
    assert server is not None
    assert local_stack._standing(tmp_path, postgres=False)[1] == server
    if server.as_root is not None:  # only root keeps them elsewhere
        shutil.rmtree(server.as_root)
        with pytest.raises(FolderError, match=r"which is gone\. Nothing was started"):
            local_stack._standing(tmp_path, postgres=True)


def test_only_its_owner_reads_a_secret(tmp_path: Path) -> None:
    """Also where a file that everybody reads was there before."""
    file = tmp_path / "env.sh"
    file.write_text("old")
    file.chmod(0o644)
    before = os.umask(0)
    try:
        local_stack._write_secret(file, "new")
    finally:
        os.umask(before)
    assert (file.stat().st_mode & 0o777, file.read_text()) == (0o600, "new")
    assert list(tmp_path.iterdir()) == [file]


def test_a_second_shell_gets_the_stack_and_nothing_else(tmp_path: Path) -> None:
    """A real shell reads it back, whatever the values hold; the service's tokens are the service's."""
    odd = 'it\'s $HOME; "quoted"'
    env_file = tmp_path / "env.sh"
    env_file.write_text(
        exports(
            {"COUNTERFOIL_ORIGIN": odd, "COUNTERFOIL_INVENTORY_TOKENS": "t=secret", "TEMPORAL_ADDRESS": "a:1", "X": "1"}
        )
    )
    done = subprocess.run(
        ["sh", "-c", f'. "{env_file}"; env; command -v counterfoil'],
        env={"PATH": os.defpath}, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert f"COUNTERFOIL_ORIGIN={odd}" in lines
    assert "TEMPORAL_ADDRESS=a:1" in lines
    assert lines[-1].endswith("/counterfoil")
    assert "secret" not in done.stdout
    assert "X=1" not in lines
