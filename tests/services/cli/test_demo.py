"""`counterfoil demo` as a person runs it: the requirements, and nothing left behind however it ends."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from services.drill.processes import wait_until
from tests.services.cli.conftest import COUNTERFOIL, Run, environment

pytestmark = pytest.mark.temporal


@pytest.mark.timeout(180)
def test_the_demo_does_what_it_says(tmp_path: Path) -> None:
    """One JSON object on stdout; every planned fault fired, nothing doubled, lost or left open; the UI is kept."""
    folder = tmp_path / "kept"
    with subprocess.Popen(
        [COUNTERFOIL, "demo", "--json", "--keep", "--folder", str(folder)],
        env=environment({}),
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        try:
            assert demo.stdout is not None
            lines = list(itertools.takewhile(lambda line: line != "}\n", demo.stdout))
            document = json.loads("".join([*lines, "}"]))
            assert document.get("failures") == []
            assert httpx.get(document["ui_url"], trust_env=False, follow_redirects=True).is_success
            demo.send_signal(signal.SIGINT)
            assert demo.stdout.read() == ""
            assert demo.wait() == 0
        finally:
            demo.kill()
    assert document["incidents"] >= 60
    assert document["effects"] == 93
    assert [(act["name"], act["unfulfilled"]) for act in document["worst_day"]] == [
        ("terminated", []), ("zombie", []), ("cancelled", []),
    ]  # fmt: skip
    # Each effect is sent, and each delayed one again, but the zombie's, which is given up.
    assert document["attempts"] >= document["effects"] + document["delayed_requests"] - 1
    assert document["kills"] == len(document["kill_proofs"]) == 7
    assert document["temporal_kills"] == len(document["temporal_kill_proofs"]) == 1
    assert document["temporal_kill_proofs"][0]["receipts"] == document["temporal_kill_proofs"][0]["pending"] > 0
    assert document["temporal_kill_to_settled_seconds"] > 0
    assert (document["lost_responses"], document["delayed_requests"]) == (12, 5)
    assert document["matched_by_receipt"] >= 5
    assert document["rejected"] == 4
    assert (document["doubled"], document["lost"], document["unresolved"]) == (0, 0, 0)
    assert document["stock_conserved"] is True
    assert document["kill_to_settled_seconds_median"] <= 2.0
    assert document["seconds"]["total"] < 150
    for proof in document["kill_proofs"]:
        assert proof["key"].startswith("cf1-")
        assert proof["receipt_id"].startswith("receipt-")
        assert proof["journal_state"] == "pending"
    assert len({proof["pid"] for proof in document["kill_proofs"]}) == 7
    assert document["kill_proofs"][-1]["key"] == "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1"
    assert {"journal.db", "inventory.db", "temporal.db", "worker-1.log"} <= {each.name for each in folder.iterdir()}


@pytest.mark.timeout(180)
def test_a_restored_training_run_undoes_no_reservation(counterfoil: Run, tmp_path: Path) -> None:
    """The weights repeat, the units do not come back, and the same position meets the same key."""
    done = subprocess.run(
        [COUNTERFOIL, "demo", "--act", "training", "--json", "--folder", str(tmp_path / "kept")],
        env=environment({}), capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["unfulfilled"] == []
    first, again = document["reservations"]
    assert first == again
    assert document["available"] == [10, 8, 8, 8, 8]
    comparison = document["comparison"]
    assert (comparison["equal_to_uninterrupted"], comparison["resumed_from"], comparison["draws"]) == (True, 17, 80)
    assert comparison["effects"]["undone"] == 0
    assert [each["reservation_id"] for each in comparison["effects"]["not_undone"]] == [first]
    assert comparison["effects"]["not_undone"][0]["key"] == document["key"]
    folder = tmp_path / "kept/checkpoints"
    shown = json.loads(counterfoil("checkpoint", "show", "--root", str(folder), "--json").stdout)
    assert shown["effects"]["statement"] == "restore does not undo effects"


@pytest.fixture
def begun(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A demo whose incidents run, its temporary folders in ours."""
    with subprocess.Popen(
        [COUNTERFOIL, "demo"],
        env=environment({"TMPDIR": str(tmp_path)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("SIGKILL"):
                    break
            yield process
        finally:
            process.kill()


def living() -> dict[int, int]:
    """Every process that runs, with its parent."""
    listed = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            listed.append(path.read_text(errors="replace"))
    # pid (name) state parent ...: the name may hold anything.
    fields = [(line.split(" ", 1)[0], *line.rpartition(")")[2].split()[:2]) for line in listed]
    if not listed:  # no /proc
        told = subprocess.run(["ps", "-axo", "pid=,stat=,ppid="], capture_output=True, text=True, check=True)
        fields = [(pid, state, parent) for pid, state, parent in map(str.split, told.stdout.splitlines())]
    return {int(pid): int(parent) for pid, state, parent in fields if not state.startswith("Z")}


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_an_interrupted_demo_leaves_no_process_and_no_folder(
    begun: subprocess.Popen[str], tmp_path: Path, number: signal.Signals, code: int
) -> None:
    """The demo alone is told; Temporal, inventory and workers sit in sessions of their own and end with it."""
    children = [pid for pid, parent in living().items() if parent == begun.pid]
    assert len(children) >= 4
    begun.send_signal(number)
    begun.communicate(timeout=60)
    assert begun.returncode == code
    assert not set(children) & set(living())
    assert list(tmp_path.iterdir()) == []


if sys.platform == "linux":  # elsewhere nothing ends a child whose parent was killed

    def test_a_demo_that_is_killed_leaves_no_process(begun: subprocess.Popen[str]) -> None:
        """The kernel tells the children."""
        children = {pid for pid, parent in living().items() if parent == begun.pid}
        assert len(children) >= 4
        begun.kill()
        begun.wait(timeout=60)
        gone = wait_until(lambda: not children & set(living()), timeout_seconds=60, what="the children are gone")
        asyncio.run(gone)


def test_a_folder_that_holds_something_is_refused(counterfoil: Run, tmp_path: Path) -> None:
    """Nothing is started over another run's databases."""
    (tmp_path / "journal.db").touch()
    done = counterfoil("demo", "--json", "--folder", str(tmp_path))
    assert done.returncode == 2
    assert "is not empty" in json.loads(done.stdout)["error"]["message"]
    assert [each.name for each in tmp_path.iterdir()] == ["journal.db"]
