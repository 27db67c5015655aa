"""`counterfoil up` as a person runs it: ready, used from a second shell, stopped, and started again."""

import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.drill.local_stack import held
from tests.services.cli.conftest import COUNTERFOIL, INCIDENT, Run, environment

pytestmark = [pytest.mark.temporal, pytest.mark.timeout(300)]


@contextmanager
def running(folder: Path, *options: str, end: signal.Signals = signal.SIGTERM) -> Iterator[dict[str, Any]]:
    """A stack that is ready, and its document; ended by a signal, gently."""
    with subprocess.Popen(
        [COUNTERFOIL, "up", "--json", "--folder", str(folder), *options],
        env=environment({}), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            lines = list(itertools.takewhile(lambda line: line != "}\n", process.stdout))
            yield json.loads("".join([*lines, "}"])) | {"stderr": process.stderr}
            process.send_signal(end)
            rest, said = process.communicate(timeout=60)
            assert (process.returncode, rest) == (0, "")
            assert said.endswith(
                f"Stopped. Everything is kept in {folder}: counterfoil up --folder {folder} goes on where it was.\n"
            )
        finally:
            process.kill()


def shell(document: dict[str, Any], *arguments: str, stdin: str = "") -> dict[str, Any]:
    """A second shell's command: it has what env.sh says and nothing else."""
    command = f". {shlex.quote(document['env_file'])}; {shlex.join(['counterfoil', *arguments, '--json'])}"
    done = subprocess.run(
        ["sh", "-c", command],
        env={"PATH": os.defpath}, input=stdin, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def used(document: dict[str, Any]) -> None:
    """An incident goes through from a second shell."""
    started = shell(document, "incident", "start", "-", "--wait-seconds", "60", stdin=json.dumps(INCIDENT))
    assert started["ended"]["INC-1"]["status"] == "done"


def available(document: dict[str, Any]) -> int:
    """How many FILTER-A there are."""
    return int(shell(document, "inventory", "stock", "FILTER-A")["stock"][0]["available"])


def test_a_stack_is_ready_is_used_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """Addresses that answer, secrets in a file of one's own; the second start keeps stock, books and addresses."""
    folder = tmp_path / "up"
    with running(folder) as first:
        assert httpx.get(first["ui_url"], trust_env=False, follow_redirects=True).is_success
        assert httpx.get(f"{first['inventory_url']}/readyz", trust_env=False).is_success
        assert len([name for name in first["pids"] if name.startswith("worker")]) == 2
        assert Path(first["env_file"]).stat().st_mode & 0o777 == 0o600
        secret = Path(first["env_file"]).read_text().partition("COUNTERFOIL_INVENTORY_TOKEN=")[2].splitlines()[0]
        assert secret not in json.dumps({name: str(value) for name, value in first.items()})
        used(first)
        assert available(first) == 8

        # Whoever is killed to see what happens is started again.
        os.kill(first["pids"]["worker 1"], signal.SIGKILL)
        assert any("started again as process" in line for line in first["stderr"])

    with running(folder, "--workers", "1", end=signal.SIGINT) as second:
        same = ("ui_url", "temporal_address", "inventory_url", "folder", "env_file")
        assert {name: second[name] for name in same} == {name: first[name] for name in same}
        assert [name for name in second["pids"] if name.startswith("worker")] == ["worker 1"]
        assert available(second) == 8
        assert shell(second, "incident", "show", "INC-1")
        assert shell(second, "audit")


def test_a_stack_on_postgres_goes_on_where_it_was(tmp_path: Path) -> None:
    """The books are there again, without saying so a second time."""
    folder = tmp_path / "up"
    elsewhere = None
    try:
        with running(folder, "--postgres", "--workers", "1") as first:
            elsewhere = first["postgres_data"]
            assert "PostgreSQL" in first["pids"]
            assert "export COUNTERFOIL_JOURNAL_DATABASE_URL=postgresql://" in Path(first["env_file"]).read_text()
            used(first)
        with running(folder, "--workers", "1") as second:
            assert available(second) == 8
            assert shell(second, "audit")
    finally:
        if elsewhere is not None:
            shutil.rmtree(elsewhere)


def test_a_folder_in_use_is_refused(counterfoil: Run, tmp_path: Path) -> None:
    """Two stacks on one journal would be one deployment under two Temporals."""
    with held(tmp_path):
        done = counterfoil("up", "--json", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "runs in" in json.loads(done.stdout)["error"]["message"]
