"""Reading: nothing is handed out before its digest was compared, and what is passed over is said."""

import itertools
import os
import resource
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from services.checkpoints.boxes import Box
from services.checkpoints.errors import (
    CheckpointError,
    Damaged,
    DigestMismatch,
    Incompatible,
    LayoutChanged,
    ManifestInvalid,
    Retired,
    SizeMismatch,
    WeightsOnly,
)
from services.checkpoints.layout import Run
from services.checkpoints.log import append_commit, open_epoch
from services.checkpoints.reading import (
    Want,
    bytes_of,
    check_profile,
    is_retired,
    latest,
    load,
    read_items,
    summary,
    verify,
    verify_items,
)
from services.checkpoints.records import canonical, sealed
from tests.services.checkpoints import forging
from tests.services.checkpoints.bench import LAUNCH, item, one, save_id, versions, writer
from tests.services.checkpoints.conftest import WEIGHTS


def truncate(folder: Path) -> None:
    """The newest data file ends early."""
    with (folder / "1.bin").open("r+b") as file:
        file.truncate(4096)


def empty(folder: Path) -> None:
    """C34: nothing but its name survived."""
    (folder / "2.bin").write_bytes(b"")


def lose(folder: Path) -> None:
    """A file is gone."""
    (folder / "0.bin").unlink()


def lose_record(folder: Path) -> None:
    """A record is gone."""
    (folder / "1.json").unlink()


def lose_manifest(folder: Path) -> None:
    """The manifest is gone."""
    (folder / "manifest.json").unlink()


def link(folder: Path) -> None:
    """C47: a file that leads elsewhere."""
    (folder / "1.bin").unlink()
    (folder / "1.bin").symlink_to("/etc/passwd")


def fifo(folder: Path) -> None:
    """C47: a file that would be waited for."""
    (folder / "1.json").unlink()
    os.mkfifo(folder / "1.json")


def flip_record(folder: Path) -> None:
    """One bit of a record."""
    forging.flip(folder / "1.json", 40)


@pytest.mark.parametrize("damage", [truncate, empty, lose, lose_record, lose_manifest, link, fifo, flip_record])
def test_a_damaged_newest_checkpoint_is_passed_over_and_said(
    root: Path, run: Run, damage: Callable[[Path], None]
) -> None:
    """C35: the previous one is used, the report names the other; strict raises."""
    damage(forging.paths(root, 4)[1])
    found, skipped = latest(run)
    assert found is not None
    assert found.sequence == 3
    assert [each.sequence for each in skipped] == [4]
    assert skipped[0].reason.partition(":")[0] in {"SizeMismatch", "ManifestInvalid", "DigestMismatch"}
    with pytest.raises(Damaged):
        latest(run, strict=True)
    assert [(each.sequence, each.usable) for each in verify(run)] == [(4, False)]


def test_a_flipped_bit_is_found_before_anything_is_handed_out(root: Path, run: Run) -> None:
    """C35: sizes are right and the digest is not; only what reads it is refused."""
    found = load(run, 4)
    forging.flip(forging.paths(root, 4)[1] / "1.bin", 3)
    with pytest.raises(DigestMismatch, match="item w of contributor 1"):
        read_items(run, found, [Want(name="m.w"), Want(name="w")])
    assert read_items(run, found, [Want(name="m.w")])["m.w"].tolist() == ((WEIGHTS + 3) / 2).tolist()
    with pytest.raises(DigestMismatch):
        verify_items(run, found)
    verify_items(run, found, ["m.w"])
    assert [each.sequence for each in verify(run)] == [4]


def test_an_older_one_is_asked_for_by_its_successor(run: Run) -> None:
    """All ranks move to the next older one, down to none."""
    sequences = []
    before = None
    while (found := latest(run, before=before)[0]) is not None:
        sequences.append(found.sequence)
        before = found.sequence
    assert sequences == [4, 3, 2]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_any_layout_reads_every_element_of_any_other(run: Run, world: int) -> None:
    """C50: three contributors with uneven rows to any number, weights and moments."""
    found = load(run, 4)
    for name, whole in (("w", WEIGHTS + 3), ("m.w", (WEIGHTS + 3) / 2)):
        cuts = [round(7 * rank / world) for rank in range(world + 1)]
        parts = []
        for start, stop in itertools.pairwise(cuts):
            box: Box = ((start, stop), (0, 2))
            assert bytes_of(found, [Want(name=name, box=box)]) == (stop - start) * 16
            parts.append(read_items(run, found, [Want(name=name, box=box)])[name])
        assert np.concatenate(parts).tolist() == whole.tolist()


def test_columns_are_read_from_rows(run: Run) -> None:
    """A box is a box."""
    found = load(run, 4)
    part = read_items(run, found, [Want(name="w", box=((1, 6), (1, 2)))])["w"]
    assert part.tolist() == (WEIGHTS + 3)[1:6, 1:2].tolist()


def test_each_contributor_gets_its_own_back(run: Run) -> None:
    """C08, C10: three generators under one name."""
    found = load(run, 4)
    for rank in range(3):
        assert read_items(run, found, [Want(name="g", contributor=str(rank))])["g"].tolist() == [rank, 3]
    with pytest.raises(LayoutChanged, match="3 is not one of 0, 1, 2"):
        read_items(run, found, [Want(name="g", contributor="3")])
    assert read_items(run, found, [Want(name="b")])["b"].tolist() == [3]


@pytest.mark.parametrize("want", [Want(name="x"), Want(name="w", box=((0, 8), (0, 2))), Want(name="w", box=((0, 1),))])
def test_what_is_not_there_is_not_made_up(run: Run, want: Want) -> None:
    """No zeros, no part of it."""
    with pytest.raises(Incompatible):
        read_items(run, load(run, 4), [want])


def test_arrays_that_are_read_are_nobody_elses(run: Run) -> None:
    """They may be changed."""
    found = load(run, 4)
    first = read_items(run, found, [Want(name="b")])["b"]
    first += 1
    assert read_items(run, found, [Want(name="b")])["b"].tolist() == [3]


def test_a_slot_that_holds_no_checkpoint_is_named(run: Run) -> None:
    """An `open` record, and nothing."""
    for sequence, what in ((1, "opens epoch 1"), (9, "is free")):
        with pytest.raises(ManifestInvalid, match=what):
            load(run, sequence)


def test_a_child_of_a_missing_parent_restores(root: Path, run: Run) -> None:
    """D04: `verify` reports the parent, and the child is used."""
    lose(forging.paths(root, 3)[1])
    assert latest(run)[0] is not None
    damages = verify(run)
    assert [(each.sequence, each.usable) for each in damages] == [(3, False), (4, True)]
    assert "parent 3 is damaged" in damages[1].reason
    (root / "runs/r1/retired/3").write_text("")
    (only,) = verify(run)
    assert (only.sequence, only.usable) == (4, True)
    assert "parent 3 is pruned" in only.reason


def test_a_gap_in_the_log_is_reported(root: Path, run: Run) -> None:
    """No slot is ever removed by us."""
    (root / "runs/r1/log/2.json").unlink()
    assert (2, "the log has a gap") in [(each.sequence, each.reason) for each in verify(run)]
    assert [each.sequence for each in verify(run, sequences=[4])] == [2]
    with pytest.raises(ManifestInvalid, match=r"slot 2 .* is missing"):
        open_epoch(run, LAUNCH, "b")


def test_a_mark_means_look_again_and_not_damage(root: Path, run: Run) -> None:
    """D10: before it is read, and while it is read."""
    found = load(run, 4)
    (root / "runs/r1/retired/4").write_text("")
    assert is_retired(run, 4)
    with pytest.raises(Retired):
        load(run, 4)
    lose(forging.paths(root, 4)[1])
    with pytest.raises(Retired):
        read_items(run, found, [Want(name="w")])
    newest, skipped = latest(run)
    assert newest is not None
    assert (newest.sequence, skipped) == (3, ())


def test_restoring_from_a_run_and_saving_into_it_is_no_conflict(root: Path) -> None:
    """C38: names are never used again."""
    with writer(root) as a:
        assert a.ask("open", writer="b", launch=LAUNCH) == 5
        assert a.ask("latest")["sequence"] == 4
        assert a.save(save_id(9), one(4), versions(4), parent=4) == 6
        assert a.ask("latest")["updates"] == 4
        assert a.ask("verify") == []


def test_weights_alone_do_not_resume(tmp_path: Path) -> None:
    """C46: resume uses the newest full one and says what it passed; the weights profile takes it."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(save_id(1), one(1), versions(1))
        a.save(save_id(2), {"0": [item("w", np.ones((4, 2)))]}, versions(2), kind="weights_only")
        found = a.ask("latest")
        assert found["sequence"] == 2
        assert found["skipped"][0][0] == 3
        assert "missing: moment_m" in found["skipped"][0][1]
        assert a.ask("latest", profile="weights")["sequence"] == 3
    with Run.open(tmp_path, "r1") as run:
        with pytest.raises(WeightsOnly, match="moment_m"):
            check_profile(load(run, 3), "resume")
        with pytest.raises(WeightsOnly):
            latest(run, strict=True)


def test_a_list_keeps_attempts_and_updates_apart(tmp_path: Path) -> None:
    """C28: attempt 800 holds update 799; C29: what is absent is listed."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(save_id(1), one(799), versions(799, skips=1))
        a.save(save_id(2), one(0), versions(0, skips=20))
    with Run.open(tmp_path, "r1") as run:
        row = summary(load(run, 2))
        assert (row["sequence"], row["attempts"], row["updates"]) == (2, 800, 799)
        assert summary(load(run, 3))["absent"] == ["moment_m"]


def test_a_commit_that_names_nothing_is_no_checkpoint(run: Run) -> None:
    """The log is the truth about order, and the files about content."""
    epoch = open_epoch(run, LAUNCH, "b")
    append_commit(run, epoch, save_id=save_id(7), manifest="0" * 64)
    found, skipped = latest(run)
    assert found is not None
    assert (found.sequence, [each.sequence for each in skipped]) == (4, [6])


def test_a_folder_that_cannot_be_read_is_passed_over(root: Path, run: Run) -> None:
    """Whatever stands in its place."""
    folder = forging.paths(root, 4)[1]
    folder.rename(folder.with_name("x"))
    folder.write_text("")
    found, skipped = latest(run)
    assert found is not None
    assert (found.sequence, len(skipped)) == (3, 1)
    with pytest.raises(SizeMismatch):
        read_items(run, _moved(run, folder), [Want(name="w")])


def _moved(run: Run, folder: Path) -> Any:
    folder.unlink()
    folder.with_name("x").rename(folder)
    found = load(run, 4)
    folder.rename(folder.with_name("x"))
    return found


def test_all_errors_are_of_one_family() -> None:
    """One clause catches them."""
    assert issubclass(Retired, CheckpointError)
    assert not issubclass(Retired, Damaged)


def grow(root: Path, sequence: int, nbytes: int) -> None:
    """A contributor's last item, made of so many zeros that no disk holds: a sparse file, and a record that is true."""
    path = forging.paths(root, sequence)[1] / "2.bin"
    digest = blake3()
    for _ in range(nbytes >> 20):
        digest.update(bytes(1 << 20))

    def change(raw: dict[str, Any]) -> None:
        own = raw["items"][-1]
        own.update(global_shape=[nbytes // 8], box=[[0, nbytes // 8]], nbytes=nbytes, digest=digest.hexdigest())
        own["dtype"] = "float64"
        os.truncate(path, own["offset"])
        os.truncate(path, own["offset"] + nbytes)

    forging.record(root, sequence, "2", change)
    forging.manifest(root, sequence, lambda raw: raw["records"][2].update(bytes=path.stat().st_size))


def test_a_large_item_is_verified_in_little_memory(root: Path, run: Run) -> None:
    """What it says it has is nobody's measure: a piece at a time."""
    grow(root, 4, 96 << 20)
    found = load(run, 4)
    tracemalloc.start()
    try:
        verify_items(run, found)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()
    with (forging.paths(root, 4)[1] / "2.bin").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"x")
    with pytest.raises(DigestMismatch, match="item g of contributor 2"):
        verify_items(run, found)


@pytest.mark.parametrize(("name", "number"), [("b", 1.0), ("b", np.nan), ("g", np.nan), ("g", -np.inf)])
def test_whether_an_item_is_finite_is_seen_in_its_bytes(root: Path, run: Run, name: str, number: float) -> None:
    """A record that says otherwise of bytes whose digest is true is named and refused, whoever wrote it."""
    folder = forging.paths(root, 4)[1]
    data = np.array([number, 2.0] if name == "g" else [number]).tobytes()

    def lie(raw: dict[str, Any]) -> None:
        (own,) = [each for each in raw["items"] if each["name"] == name]
        own.update(finite=not np.isfinite(number), digest=blake3(data).hexdigest())
        if own["offset"] is not None:
            with (folder / f"{raw['contributor']}.bin").open("r+b") as file:
                file.seek(own["offset"])
                file.write(data)

    for contributor in ("0", "1", "2") if name == "b" else ("0",):
        forging.record(root, 4, contributor, lie)
    found = load(run, 4)
    for asked in (
        lambda: verify_items(run, found),
        lambda: read_items(run, found, [Want(name=name, contributor="0")]),
    ):
        with pytest.raises(ManifestInvalid, match=f"item {name} of contributor 0 in checkpoint 4 is recorded as "):
            asked()
    ((damage,),) = [[each for each in verify(run) if not each.usable]]
    assert (damage.sequence, f"item {name} of contributor 0" in damage.reason) == (4, True)


def test_an_item_that_no_memory_holds_is_refused_by_name(root: Path, run: Run) -> None:
    """Incompatible with this machine, and not damaged: nobody falls back for it."""
    grow(root, 4, 512 << 20)
    found = load(run, 4)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (256 << 20), hard))
    try:
        with pytest.raises(Incompatible, match="more than there is memory for"):
            read_items(run, found, [Want(name="g", contributor="2")])
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("name", ["log/4.json", "data", "contracts"])
def test_what_may_not_be_read_is_named(root: Path, run: Run, name: str) -> None:
    """Whatever the file system says: no error of another family comes out."""
    path = root / "runs/r1" / name
    path = next(path.iterdir()) if name == "contracts" else path
    path = forging.paths(root, 4)[1] / "manifest.json" if name == "data" else path
    path.chmod(0)
    root_user = os.geteuid() == 0
    if root_user:
        os.seteuid(65534)  # whom permissions bind
    try:
        found, skipped = latest(run)
        assert 4 in [each.sequence for each in skipped]
        assert all("permission" in each.reason.lower() for each in skipped)
        assert (None if found is None else found.sequence) == (None if name == "contracts" else 3)
        assert 4 in [each.sequence for each in verify(run)]
        for ask in (lambda: latest(run, strict=True), lambda: load(run, 4)):
            with pytest.raises(Damaged, match=r"(?i)permission"):
                ask()
    finally:
        if root_user:
            os.seteuid(0)


def test_a_slot_of_a_huge_number_makes_one_gap(root: Path, run: Run) -> None:
    """And not one report for each number in between."""
    (root / "runs/r1/log/999999999999999999.json").write_text("")
    assert [(each.sequence, each.reason.partition(":")[0]) for each in verify(run)] == [
        (5, "the log has a gap up to slot 999999999999999998"), (999999999999999999, "ManifestInvalid"),
    ]  # fmt: skip
    with pytest.raises(ManifestInvalid, match="slot 5"):
        open_epoch(run, LAUNCH, "b")


def test_a_slot_that_is_gone_is_named_by_who_is_strict(root: Path, run: Run) -> None:
    """The newest record is there, and one before it is not."""
    (root / "runs/r1/log/4.json").unlink()
    found, skipped = latest(run, before=5)
    assert found is not None
    assert (found.sequence, [each.sequence for each in skipped]) == (3, [4])
    with pytest.raises(ManifestInvalid, match="slot 4"):
        latest(run, before=5, strict=True)


def test_what_a_damaged_record_holds_is_not_passed_on(root: Path, run: Run) -> None:
    """A log's record is small, and a reason is read by a person."""
    os.truncate(root / "runs/r1/log/4.json", 1 << 20)
    forging.manifest(root, 3, lambda raw: raw.update(run="x" * 1_000_000))
    found, skipped = latest(run)
    assert found is not None
    assert found.sequence == 2
    assert "more than the 65536" in skipped[0].reason
    assert len(skipped[1].reason) <= 1000


@pytest.mark.parametrize("before", [0, 2000])
def test_the_newest_is_found_however_many_there_were(root: Path, before: int) -> None:
    """As many files are opened behind two thousand earlier checkpoints as behind none."""
    with writer(root) as a:
        assert a.ask("open", writer="b", launch=LAUNCH) == 5
        for number in range(before):
            record = {"format": "counterfoil-log-1", "run": "r1", "sequence": 6 + number, "kind": "commit", "epoch": 5}
            named = {"writer": "b", "save_id": save_id(10_000 + number), "manifest": "0" * 64}
            (root / f"runs/r1/log/{6 + number}.json").write_bytes(canonical(sealed({**record, **named})))
        assert a.ask("open", writer="b", launch=LAUNCH) == 6 + before
        assert a.save(save_id(9), one(4), versions(4)) == 7 + before
    opened: list[str] = []
    sys.addaudithook(lambda event, told: opened.append(str(told[0])) if event == "open" and counting else None)
    with Run.open(root, "r1") as run:
        counting.append(True)
        found = latest(run)[0]
        counting.clear()
    assert found is not None
    assert found.sequence == 7 + before
    # The record, the folder, its manifest, the contract, one contributor's record and bytes.
    assert len(opened) == 6


counting: list[bool] = []
