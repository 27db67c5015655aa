"""The manifest: what it says of the cut is what the contributions say, or it is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.checkpoints.errors import CheckpointError, DigestMismatch, ManifestInvalid
from services.checkpoints.layout import Run
from services.checkpoints.manifest import FORMAT, read_contract, read_contributions, runtime
from services.checkpoints.reading import load
from tests.services.checkpoints import forging
from tests.services.checkpoints.bench import contract


def test_a_manifest_says_everything_that_a_restore_is_judged_by(run: Run) -> None:
    """Numbers of the cut, contract, contributors, settings, runtime, ancestry, times."""
    found = load(run, 3).manifest
    assert (found.run, found.sequence, found.epoch, found.parent, found.writer) == ("r1", 3, 1, 2, "a")
    assert (found.versions["updates"], found.per_contributor["fetched"]) == (2, {"0": 4, "1": 4, "2": 4})
    assert found.boundary == contract().boundary
    assert (found.contract_name, found.contract_digest) == ("test", contract().digest)
    assert (found.contributors, found.kind, found.profiles) == (("0", "1", "2"), "full", ("resume", "weights"))
    assert (found.values, found.config, found.effects) == ({"cursor": 4}, {"schedule": 1000}, None)
    assert found.timing == {"blocked_seconds": 0.5, "bytes": found.data_bytes}
    assert set(found.runtime) == set(runtime()) == {"python", "numpy", "blas", "cpu", "system"}


def test_all_records_together_have_a_bound(run: Run) -> None:
    """Each of three is far within its own."""
    found = load(run, 3)
    world, sizes = found.manifest.contributors, [each.record_bytes for each in found.contributions.values()]
    with run.save(found.manifest.epoch, found.manifest.save_id) as folder:
        read_contributions(folder, found.manifest.save_id, world, room=sum(sizes))
        with pytest.raises(ManifestInvalid, match="more"):
            read_contributions(folder, found.manifest.save_id, world, room=sum(sizes) - 1)


def test_no_path_stands_in_a_manifest(root: Path) -> None:
    """C47: names are derived, so that none can lead elsewhere."""
    _, folder = forging.paths(root, 3)
    assert b"/" not in (folder / "manifest.json").read_bytes().replace(b"scipy-openblas", b"")
    assert b".bin" not in (folder / "manifest.json").read_bytes()


def replaced(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one member."""

    def change(raw: Any) -> None:
        for each in path[:-1]:
            raw = raw[each]
        raw[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        replaced("run", value="r2"),
        replaced("run", value="../r1"),
        replaced("sequence", value=4),
        replaced("save_id", value="0" * 32),
        replaced("save_id", value="../x"),
        replaced("epoch", value=2),
        replaced("parent", value="2"),
        replaced("writer", value="b"),
        replaced("cut", "boundary", value="another"),
        replaced("cut", "versions", "updates", value=3),
        replaced("cut", "versions", "step", value=3),
        replaced("cut", "versions", "updates", value=-1),
        replaced("cut", "per_contributor", value={}),
        replaced("contract", "digest", value="0" * 64),
        replaced("contract", "digest", value="../contract"),
        replaced("contributors", value=["0", "1"]),
        replaced("contributors", value=["0", "1", "1"]),
        replaced("contributors", value=["1", "0", "2"]),
        replaced("contributors", value=["0", "1", "../../x"]),
        replaced("contributors", value=["0", "1", "file:/etc/passwd"]),
        replaced("records", 1, "contributor", value="0"),
        replaced("records", 1, "digest", value="0" * 64),
        replaced("records", 1, "bytes", value=1),
        replaced("records", value=[]),
        replaced("records", value=[7]),
        replaced("kind", value="some"),
        replaced("kind", value="weights_only"),
        replaced("profiles", value=["resume"]),
        replaced("absent", value=["moment_m"]),
        replaced("missing", value=["cursor"]),
        replaced("values", value={}),
        replaced("values", value={"cursor": 6}),
        replaced("config", "fields", value={"schedule": 2000}),
        replaced("effects", value={"watermark": {}}),
        replaced("format", value="counterfoil-journal-1"),
        replaced("created", value=7),
        replaced("timing", value=None),
    ],
)
def test_one_member_changed_is_refused_with_true_digests(
    root: Path, run: Run, change: Callable[[dict[str, Any]], None]
) -> None:
    """C47, C05: by a rule, where the digests cannot help. `kind` alone is a claim that weakens: it is taken as less."""
    before = load(run, 3)
    forging.manifest(root, 3, change)
    try:
        found = load(run, 3)
    except CheckpointError:
        return
    assert found.manifest.kind == "weights_only" != before.manifest.kind


def test_a_manifest_without_its_digest_is_refused(root: Path, run: Run) -> None:
    """And so is one of another digest than the log names."""
    _, folder = forging.paths(root, 3)
    other = forging.paths(root, 2)[1]
    (folder / "manifest.json").write_bytes((other / "manifest.json").read_bytes())
    with pytest.raises(DigestMismatch, match="the log names"):
        load(run, 3)
    data = (other / "manifest.json").read_bytes()
    (folder / "manifest.json").write_bytes(data.replace(b'"digest":"', b'"digesd":"'))
    with pytest.raises(ManifestInvalid):
        load(run, 3)


def test_a_record_of_an_older_save_is_not_taken_for_a_newer(root: Path, run: Run) -> None:
    """C05: rank 1's record of 100, spliced into 101, with its bytes."""
    older, newer = forging.paths(root, 2)[1], forging.paths(root, 3)[1]
    for name in ("1.json", "1.bin"):
        (newer / name).write_bytes((older / name).read_bytes())
    with pytest.raises(ManifestInvalid, match="is of save"):
        load(run, 3)


def test_a_contributor_at_another_update_is_refused_by_readers_too(root: Path, run: Run) -> None:
    """C05: with every digest made true again, the versions still speak."""
    forging.record(root, 3, "1", lambda raw: raw["versions"].update(updates=1, attempts=1, scheduler=1, cursor=2))
    with pytest.raises(CheckpointError, match="rank 1: "):
        load(run, 3)


def test_readers_check_that_shards_tile(root: Path, run: Run) -> None:
    """C50: of the moments too."""

    def move(raw: dict[str, Any]) -> None:
        (moment,) = [each for each in raw["items"] if each["name"] == "m.w"]
        start, stop = moment["box"][0]
        moment["box"][0] = [start - 1, stop - 1]

    forging.record(root, 3, "1", move)
    with pytest.raises(CheckpointError, match=r"item m\.w: element"):
        load(run, 3)


def test_a_contract_that_was_changed_is_not_used(root: Path, run: Run) -> None:
    """It is kept by its digest."""
    path = root / "runs/r1/contracts" / f"{contract().digest}.json"
    assert read_contract(run, contract().digest) == contract()
    path.write_bytes(contract(relations=[]).document())
    with pytest.raises(DigestMismatch, match="contract"):
        load(run, 3)


def test_the_format_has_a_name_of_its_own() -> None:
    """D11: no other store's file begins so."""
    assert FORMAT == "counterfoil-checkpoint-1"
