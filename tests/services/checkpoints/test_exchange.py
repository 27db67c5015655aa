"""Export: what was committed, in files that any reader of the format loads and that an import needs nothing beside."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import load_file

from services.checkpoints import fs
from services.checkpoints.errors import CommitFailed, DigestMismatch, DuplicateContributor, ManifestInvalid, WeightsOnly
from services.checkpoints.exchange import MEMBER, Export, export, read_export
from services.checkpoints.layout import Run
from services.checkpoints.reading import load
from services.checkpoints.records import canonical, parse, sealed
from services.checkpoints.safetensors import read_header
from tests.services.checkpoints.bench import LAUNCH, contract, item, many, save_id, versions, writer
from tests.services.checkpoints.conftest import WEIGHTS
from tests.services.checkpoints.forging import flip, paths


def said(path: Path) -> dict[str, Any]:
    """A file's own record, as it is written."""
    with safetensors.safe_open(path, "np") as opened:
        found: dict[str, Any] = json.loads(opened.metadata()[MEMBER])
    return found


def parsed(path: Path, **changes: Any) -> Export:
    """A file's own record, read; with members exchanged and a true digest."""
    with fs.open_root(path.parent) as folder, folder.open(path.name) as file:
        header = read_header(file)
    record = parse(header.metadata[MEMBER].encode()) | changes
    return read_export({MEMBER: canonical(sealed(record)).decode()}, header.tensors)


def test_one_file_has_whole_arrays_under_their_own_names(run: Run, tmp_path: Path) -> None:
    """The library loads them; what is each contributor's own says whose it is."""
    done = export(run, load(run, 4), tmp_path / "out/m.safetensors")
    found = load_file(tmp_path / "out/m.safetensors")
    assert done.files == (tmp_path / "out/m.safetensors",)
    assert (done.tensors, done.data_bytes) == (6, sum(each.nbytes for each in found.values()))
    assert found["w"].tolist() == (WEIGHTS + 3).tolist()
    assert found["m.w"].tolist() == ((WEIGHTS + 3) / 2).tolist()
    assert found["b"].tolist() == [3]
    assert [found[f"g@{rank}"].tolist() for rank in "012"] == [[rank, 3] for rank in range(3)]


def test_a_file_for_each_contributor_has_its_own_parts(run: Run, tmp_path: Path) -> None:
    """A replica is written once, by the first."""
    done = export(run, load(run, 4), tmp_path / "out", per_contributor=True)
    assert done.files == tuple(tmp_path / f"out/{rank}.safetensors" for rank in range(3))
    found = [load_file(path) for path in done.files]
    assert np.concatenate([each["w"] for each in found]).tolist() == (WEIGHTS + 3).tolist()
    assert [sorted(each) for each in found] == [["b", "g", "m.w", "w"], ["g", "m.w", "w"], ["g", "m.w", "w"]]
    assert [each["box"] for each in said(done.files[1])["items"] if each["name"] == "w"] == [[[2, 5], [0, 2]]]


def test_the_weights_alone_are_said_to_be_that(run: Run, tmp_path: Path) -> None:
    """Their values and other roles stay behind; the place in the run is kept."""
    export(run, load(run, 4), tmp_path / "w.safetensors", profile="weights")
    found = parsed(tmp_path / "w.safetensors")
    assert (found.kind, [each.name for each in found.items]) == ("weights_only", ["w"])
    assert all(not each.values for each in found.parts.values())
    assert found.parts["2"].versions == versions(3)


def test_a_file_says_everything_that_the_checkpoint_said(run: Run, tmp_path: Path) -> None:
    """Contract, world, versions, values, settings; and which checkpoint it was."""
    found = load(run, 4)
    export(run, found, tmp_path / "m.safetensors")
    record = parsed(tmp_path / "m.safetensors")
    assert (record.run, record.sequence, record.manifest) == ("r1", 4, found.manifest.digest)
    assert (record.kind, record.contract.digest) == ("full", contract().digest)
    assert record.world == ("0", "1", "2")
    assert record.parts["0"].values == {"cursor": 6}
    assert record.config == {"schedule": 1000}
    assert said(tmp_path / "m.safetensors")["statement"] == "restore does not undo effects"


def test_a_damaged_item_is_not_exported(root: Path, run: Run, tmp_path: Path) -> None:
    """And no file is left that looks like one."""
    _, folder = paths(root, 4)
    flip(folder / "1.bin")
    with pytest.raises(DigestMismatch):
        export(run, load(run, 4), tmp_path / "out/m.safetensors")
    assert not list((tmp_path / "out").iterdir())


def test_what_is_there_is_never_written_over(run: Run, tmp_path: Path) -> None:
    """Neither a file, nor a folder that has something in it."""
    (tmp_path / "m.safetensors").write_text("mine")
    with pytest.raises(CommitFailed, match="there already"):
        export(run, load(run, 4), tmp_path / "m.safetensors")
    with pytest.raises(CommitFailed, match="there already"):
        export(run, load(run, 4), tmp_path, per_contributor=True)
    with pytest.raises(CommitFailed, match="stopped"):
        export(run, load(run, 4), tmp_path / "m.safetensors/m")
    assert (tmp_path / "m.safetensors").read_text() == "mine"


def test_weights_alone_are_not_exported_to_be_resumed(tmp_path: Path) -> None:
    """C46: the roles that are missing are named."""
    with writer(tmp_path / "store") as a:
        a.ask("open", writer="a", launch=LAUNCH)
        parts = {"0": [item("w", WEIGHTS)]}
        sequence = a.save(save_id(1), parts, versions(1), kind="weights_only")
    with Run.open(tmp_path / "store", "r1") as run, pytest.raises(WeightsOnly, match="moment_m"):
        export(run, load(run, sequence), tmp_path / "m.safetensors", profile="resume")


@pytest.mark.parametrize(("name", "dtype"), [("../w", "float64"), ("w", "complex128")])
def test_an_item_that_the_format_cannot_hold_is_named(name: str, dtype: str, tmp_path: Path) -> None:
    """It is not renamed, and not converted."""
    with writer(tmp_path / "store") as a:
        a.ask("open", writer="a", launch=LAUNCH)
        parts = many(1, 1, WEIGHTS)
        parts["0"].append(item(name.replace("w", "x"), [1.0], role="buffer", placement="replicated", dtype=dtype))
        sequence = a.save(save_id(1), parts, versions(1))
    with Run.open(tmp_path / "store", "r1") as run, pytest.raises(ManifestInvalid, match="x"):
        export(run, load(run, sequence), tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of one contributor's weights."""
    place = tmp_path_factory.mktemp("weights")
    with writer(place) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        sequence = a.save(save_id(1), many(1, 1, WEIGHTS), versions(1))
    with Run.open(place, "r1") as run:
        return export(run, load(run, sequence), place / "w.safetensors", profile="weights").files[0]


ITEM = {
    "tensor": "w", "name": "w", "role": "param", "dtype": "float64", "global_shape": [7, 2], "box": [[0, 7], [0, 2]],
    "contributor": "0", "digest": "0" * 64,
}  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "counterfoil-checkpoint-1"},
        {"run": "../r1"},
        {"sequence": "4"},
        {"manifest": "4"},
        {"kind": "whole"},
        {"contract": {}},
        {"contract": "contract"},
        {"world": ["0", "0"]},
        {"world": ["../0"]},
        {"world": []},
        {"parts": {}},
        {"parts": {"7": {"versions": {}, "values": {}}}},
        {"parts": {"0": {"versions": {"updates": -1}, "values": {}}}},
        {"parts": {"0": {"versions": {}, "values": []}}},
        {"items": []},
        {"items": ["w"]},
        {"items": [ITEM, ITEM]},
        {"items": [ITEM | {"tensor": "x"}]},
        {"items": [ITEM | {"name": "../w"}]},
        {"items": [ITEM | {"role": "../param"}]},
        {"items": [ITEM | {"dtype": "float32"}]},
        {"items": [ITEM | {"dtype": "object"}]},
        {"items": [ITEM | {"global_shape": [2, 7]}]},
        {"items": [ITEM | {"global_shape": [2.0, 7]}]},
        {"items": [ITEM | {"box": [[0, 8], [0, 2]]}]},
        {"items": [ITEM | {"box": [[0, 6], [0, 2]]}]},
        {"items": [ITEM | {"contributor": "7"}]},
        {"items": [ITEM | {"digest": "0"}]},
        {"config": None},
        {"lineage": []},
        {"watermark": {"journal_id": "x"}},
    ],
    ids=str,
)
def test_a_record_that_says_something_else_than_its_file_is_refused(changes: dict[str, Any], weights: Path) -> None:
    """C47: with a true digest, and whatever member it is."""
    assert parsed(weights, items=[ITEM]).items[0].name == "w"
    with pytest.raises((ManifestInvalid, DuplicateContributor)):
        parsed(weights, **{"items": [ITEM]} | changes)


def test_a_changed_record_is_no_record(run: Run, tmp_path: Path) -> None:
    """Its digest is of all of it; and a file without one is no export."""
    (file,) = export(run, load(run, 4), tmp_path / "m.safetensors").files
    with fs.open_root(tmp_path) as folder, folder.open(file.name) as opened:
        header = read_header(opened)
    with pytest.raises(DigestMismatch):
        read_export({MEMBER: header.metadata[MEMBER].replace('"sequence":4', '"sequence":5')}, header.tensors)
    with pytest.raises(ManifestInvalid, match="no export"):
        read_export({}, header.tensors)
