"""A commit, by real processes: the old checkpoint or the new one, whole, wherever the process dies."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.checkpoints.layout import Run
from services.checkpoints.reading import load
from tests.services.checkpoints.bench import (
    DOCUMENT,
    LAUNCH,
    Answered,
    Writer,
    item,
    many,
    one,
    save_id,
    versions,
    writer,
)

WHOLE = np.arange(6.0).reshape(3, 2)


def refused(a: Writer, kind: str, **commit: Any) -> str:
    """A commit is refused by this name, and the checkpoint before it is still the newest."""
    with pytest.raises(Answered) as caught:
        a.ask("commit", save_id=save_id(2), **commit)
    assert caught.value.kind == kind, caught.value
    assert "nothing was published" in caught.value.message
    assert a.ask("latest")["sequence"] == 2
    return caught.value.message


@pytest.fixture
def saved(tmp_path: Path) -> Any:
    """A process that has committed update 100 of three contributors."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        assert a.save(save_id(1), many(100, 3, WHOLE), versions(100)) == 2
        yield a


def contribute(a: Writer, at: list[dict[str, int]], parts: dict[str, Any] | None = None) -> None:
    """Each contributor's record, each at its own position."""
    a.ask("declare", save_id=save_id(2))
    parts = parts or many(101, len(at), WHOLE)
    for number, (contributor, items) in enumerate(parts.items()):
        a.ask(
            "contribute", save_id=save_id(2), contributor=contributor, lowest=number == 0, items=items,
            versions=at[number], values={"cursor": at[0]["cursor"]} if number == 0 else {},
        )  # fmt: skip


def test_one_rank_that_is_an_update_behind_refuses_the_commit(saved: Writer) -> None:
    """C04: rank 2 contributes 100, the others 101; the latest stays the checkpoint of update 100."""
    contribute(saved, [versions(101), versions(101), versions(100)])
    message = refused(saved, "CutVersionMismatch", world=["0", "1", "2"])
    assert "rank 2: updates 100 != 101" in message
    assert saved.ask("latest")["updates"] == 100


def test_updates_that_agree_modulo_eight_are_no_cut(saved: Writer) -> None:
    """D06: 2 and 10."""
    contribute(saved, [versions(2), versions(10)])
    assert "rank 1: updates 10 != 2" in refused(saved, "CutVersionMismatch", world=["0", "1"])


def test_a_cursor_captured_before_it_advanced_refuses_the_commit(saved: Writer) -> None:
    """C14: three updates of two, cursor 4."""
    contribute(saved, [{**versions(3), "cursor": 4}])
    assert "cursor 4 != 6" in refused(saved, "InvariantViolation", world=["0"])


def test_a_scheduler_ahead_of_its_updates_refuses_the_commit(saved: Writer) -> None:
    """C26: attempt 5 was skipped."""
    contribute(saved, [{**versions(4, skips=1), "scheduler": 5}])
    assert "scheduler 5 != updates 4" in refused(saved, "InvariantViolation", world=["0"])


def test_ranks_that_hold_one_name_differently_are_kept_or_refused_as_declared(saved: Writer) -> None:
    """C10, C08: never one of them for all."""
    parts = many(101, 2, WHOLE)
    for rank in parts:
        parts[rank].append({**parts["0"][0], "name": "b", "role": "buffer", "placement": "replicated", "shape": [1],
                            "box": [[0, 1]], "data": [float(rank)]})  # fmt: skip
    contribute(saved, [versions(101)] * 2, parts)
    assert "item b of rank 1" in refused(saved, "ReplicaDivergence", world=["0", "1"])


def test_a_missing_record_refuses_the_commit(saved: Writer) -> None:
    """The set of contributors is complete, or there is no checkpoint."""
    contribute(saved, [versions(101)] * 3)
    refused(saved, "ContributorMissing", world=["0", "1", "2", "3"])


def test_a_record_that_is_not_the_one_reported_refuses_the_commit(saved: Writer) -> None:
    """C05: what the coordinator was told and what it reads are compared."""
    contribute(saved, [versions(101)] * 3)
    refused(saved, "DigestMismatch", world=["0", "1", "2"], digests={"1": "0" * 64})


def test_a_contributor_twice_refuses_the_commit(saved: Writer) -> None:
    """One id once."""
    contribute(saved, [versions(101)] * 2)
    with pytest.raises(Answered) as caught:
        saved.ask("commit", save_id=save_id(2), world=["0", "1", "1"])
    assert caught.value.kind == "DuplicateContributor"


def test_a_role_that_was_dropped_refuses_the_commit(saved: Writer) -> None:
    """C44: the masters of half-precision weights, required by the contract."""
    contribute(saved, [versions(101)])
    contract = {
        "roles": {**DOCUMENT["roles"], "master": {"required": True, "placement": "sharded"}},
        "profiles": {**DOCUMENT["profiles"], "resume": ["param", "moment_m", "cursor", "master"]},
    }
    message = refused(saved, "InvariantViolation", world=["0"], contract=contract)
    assert "missing: master" in message


def test_an_update_saved_again_by_fewer_ranks_has_their_files_alone(tmp_path: Path) -> None:
    """C22: update 100 of four, then again of two."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        assert a.save(save_id(1), many(100, 4, np.ones((8, 2))), versions(100)) == 2
        assert a.save(save_id(2), many(100, 2, np.ones((8, 2))), versions(100)) == 3
    with Run.open(tmp_path, "r1") as run:
        assert load(run, 3).manifest.contributors == ("0", "1")
        assert load(run, 2).manifest.contributors == ("0", "1", "2", "3")
    folders = {
        each.name: sorted(path.name for path in each.iterdir()) for each in (tmp_path / "runs/r1/data").iterdir()
    }
    assert folders[f"1-{save_id(2)}"] == ["0.bin", "0.json", "1.bin", "1.json", "declare", "manifest.json"]


def test_a_save_without_an_update_says_that_its_moments_are_absent(tmp_path: Path) -> None:
    """C29: twenty attempts, all skipped."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(save_id(1), one(0), versions(0, skips=20))
    with Run.open(tmp_path, "r1") as run:
        assert load(run, 2).manifest.absent == ("moment_m",)
        assert load(run, 2).manifest.profiles == ("resume", "weights")


def test_the_order_of_a_commit_is_the_guarantee(saved: Writer, tmp_path: Path) -> None:
    """Manifest, folder, its parent, then the record: synced, linked, and synced up to the root."""
    contribute(saved, [versions(101)] * 3)
    saved.ask("calls")
    saved.ask("commit", save_id=save_id(2), world=["0", "1", "2"])
    folder = f"data/1-{save_id(2)}"
    calls = [call.replace(f"{tmp_path}", "").replace("/runs/r1/", "") for call in saved.ask("calls")]
    assert [call for call in calls if call.split()[0] in {"fsync", "link"}] == [
        "fsync contracts",
        f"fsync {folder}/manifest.json", f"link {folder}/manifest.json", f"fsync {folder}", "fsync data",
        "fsync log/3.json", "link log/3.json", "fsync log", "fsync /runs/r1", "fsync /runs", "fsync ",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "call", ["fsync .*manifest", "link .*manifest", "fsync .*data/1-", "fsync .*/data$", "write .*log/3"]
)
def test_a_call_that_fails_before_the_link_publishes_nothing(saved: Writer, call: str) -> None:
    """C31, and no fsync is tried again."""
    contribute(saved, [versions(101)] * 3)
    saved.ask("calls")
    saved.ask("fail", call=call, code=5)
    refused(saved, "CommitFailed", world=["0", "1", "2"])
    assert len([each for each in saved.ask("calls") if each.endswith("manifest.json") and "fsync" in each]) <= 1


def saving(a: Writer, number: int) -> None:
    """Everything that a save does, in one process."""
    a.contribute(save_id(number), many(number, 2, WHOLE + number), versions(number))
    a.ask("commit", save_id=save_id(number), world=["0", "1"])


@pytest.mark.parametrize("moment", ["before", "after"])
def test_wherever_a_save_is_killed_the_old_or_the_new_checkpoint_is_there(tmp_path: Path, moment: str) -> None:
    """Each file-system call in turn: SIGKILL, then a fresh process reads all of it and saves again."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        saving(a, 1)
        a.ask("calls")
        saving(a, 2)
        calls = a.ask("calls")
    total = len(calls)
    linked = 1 + next(at for at, call in enumerate(calls) if call.startswith("link") and "/log/" in call)
    a = Writer(tmp_path)
    try:
        a.ask("open", writer="w0", launch=LAUNCH)
        for number in range(1, total + 1):
            at = number + 2
            before = a.ask("latest")
            a.ask("die", number=number, moment=moment)
            with pytest.raises(EOFError):
                saving(a, at)
            a.close()
            assert a.process.returncode == -signal.SIGKILL, "the point was not reached"
            a = Writer(tmp_path)
            a.ask("open", writer=f"w{number}", launch=LAUNCH)
            found = a.ask("latest")
            new = number > linked or (number == linked and moment == "after")
            expected = (at, (WHOLE + at).tolist()) if new else (before["updates"], before["w"])
            assert (found["updates"], found["w"]) == expected, calls[number - 1]
            assert found["skipped"] == []
            assert a.ask("verify", sequences=[found["sequence"]]) == []
        saving(a, 10_000)
        assert a.ask("latest")["updates"] == 10_000
        assert a.ask("verify") == []
    finally:
        a.kill()


def test_a_contract_that_a_dead_coordinator_linked_is_made_durable_and_read_back(saved: Writer, tmp_path: Path) -> None:
    """Without it nothing could be read: it may be linked and not durable, or not be it."""
    contribute(saved, [versions(101)] * 3)
    saved.ask("calls")
    saved.ask("commit", save_id=save_id(2), world=["0", "1", "2"])
    calls = [call for call in saved.ask("calls") if call.endswith(("contracts", "log/3.json"))]
    assert calls[0] == f"fsync {tmp_path}/runs/r1/contracts"
    (only,) = (tmp_path / "runs/r1/contracts").iterdir()
    only.write_bytes(b"{}")
    saved.contribute(save_id(3), many(102, 3, WHOLE), versions(102))
    with pytest.raises(Answered) as caught:
        saved.ask("commit", save_id=save_id(3), world=["0", "1", "2"])
    assert caught.value.kind == "ManifestInvalid"
    assert not (tmp_path / "runs/r1/log/4.json").exists()


def small_disk(root: Path) -> list[str]:
    """The beginning of a command that sees a file system of 1 MiB there; or files of 64 KiB, where none is mounted."""
    mounted = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=1m none "$0" && exec "$@"', str(root)]
    if subprocess.run([*mounted, "true"], check=False, capture_output=True).returncode == 0:
        return mounted
    return ["sh", "-c", 'ulimit -f 128 && exec "$@"', "sh"]


def test_a_disk_that_fills_up_keeps_what_was_acknowledged_and_takes_saves_again(tmp_path: Path) -> None:
    """C31: the kernel's own refusal, wherever in a save it comes; what retention frees is room for the next save."""
    with writer(tmp_path, under=small_disk(tmp_path)) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        acknowledged = 1
        with pytest.raises(Answered) as caught:  # noqa: PT012 - every save is larger than the one before it
            for updates in range(1, 100):
                rows = np.full((500 * updates, 2), updates)
                items = [item("w", rows), item("m.w", rows, role="moment_m")]
                acknowledged = a.save(save_id(updates), {"0": items}, versions(updates))
        assert acknowledged > 3
        assert caught.value.kind in {"CommitFailed", "OSError"}
        assert "No space left" in caught.value.message or "File too large" in caught.value.message
        found = a.ask("latest")
        assert (found["sequence"], found["updates"]) == (acknowledged, acknowledged - 1)
        assert a.ask("verify") == []
        with suppress(Answered):  # a mark needs room, too
            a.ask("prune", now=4e9)
        assert a.ask("prune", now=5e9)["kept"] == [acknowledged - 1, acknowledged]
        assert a.save(save_id(200), many(200, 1, WHOLE), versions(200)) == acknowledged + 1
        assert a.ask("verify") == []
