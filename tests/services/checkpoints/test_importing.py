"""Import: files become a checkpoint by the commit order of every other, or the run is as it was."""

import json
import os
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from services.checkpoints import fs, importing
from services.checkpoints.comparing import Side, compare
from services.checkpoints.dtypes import Array
from services.checkpoints.errors import Incompatible, JournalForked, ManifestInvalid, SourceChanged
from services.checkpoints.exchange import MEMBER, export
from services.checkpoints.importing import import_files, read_description
from services.checkpoints.layout import Run
from services.checkpoints.log import read_log
from services.checkpoints.reading import latest, load, verify
from services.checkpoints.records import canonical, parse, sealed
from services.checkpoints.safetensors import header_bytes, lay_out, read_header, write
from services.checkpoints.watermark import compare as compare_journals
from services.checkpoints.watermark import read_watermark
from tests.services.checkpoints.bench import (
    DOCUMENT,
    LAUNCH,
    Answered,
    Writer,
    contract,
    item,
    many,
    save_id,
    versions,
    writer,
)
from tests.services.checkpoints.conftest import WEIGHTS
from tests.services.checkpoints.forging import flip

AS: dict[str, Any] = {
    "format": "counterfoil-import-1", "contract": DOCUMENT, "versions": versions(0), "roles": {"*": "param"},
}  # fmt: skip


@pytest.fixture
def exported(run: Run, tmp_path: Path) -> Path:
    """Checkpoint 4 of three contributors, as one file."""
    return export(run, load(run, 4), tmp_path / "one.safetensors").files[0]


@pytest.fixture
def each(run: Run, tmp_path: Path) -> tuple[Path, ...]:
    """And as a file for each of them."""
    return export(run, load(run, 4), tmp_path / "each", per_contributor=True).files


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Writer]:
    """A process that imports, into a store of its own."""
    with writer(tmp_path / "new") as a:
        yield a


def imported(process: Writer, run: str, *paths: Path, **terms: Any) -> Any:
    """What the process says that it imported."""
    names = [str(path) for path in paths]
    return process.ask("import", paths=names, run=run, **{"writer": "importer", "create": True} | terms)


def refused(*paths: Path, root: Path, **terms: Any) -> None:
    """An import in this process that must not come as far as a commit."""
    given: dict[str, Any] = {"writer": "importer", "create": True} | terms
    import_files(root, "r1", paths, **given)
    pytest.fail("it was imported")


def foreign(path: Path, **arrays: Array) -> Path:
    """A file of somebody else's."""
    save_file(arrays, path, {"format": "pt"})
    return path


def changed(path: Path, **members: Any) -> Path:
    """An export whose record says something else, with a true digest."""
    with fs.open_root(path.parent) as folder, folder.open(path.name) as file:
        header = read_header(file)
    record = parse(header.metadata[MEMBER].encode())
    record |= {name: change(record[name]) if callable(change) else change for name, change in members.items()}
    metadata = {MEMBER: canonical(sealed(record)).decode()}
    path.write_bytes(header_bytes(list(header.tensors.values()), metadata) + path.read_bytes()[header.data_start :])
    return path


def files(root: Path) -> dict[str, bytes]:
    """Everything in a folder."""
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("many_files", [False, True])
def test_what_was_exported_comes_back_in_every_field(
    many_files: bool, root: Path, run: Run, process: Writer, tmp_path: Path
) -> None:
    """C31: by another process, into another store; items, versions, values, settings; and every byte is verified."""
    written = export(run, load(run, 4), tmp_path / "out", per_contributor=many_files).files
    done = imported(process, "r2", *written)
    assert (done["sequence"], done["kind"], done["profiles"]) == (2, "full", ["resume", "weights"])
    with Run.open(root, "r1") as one, Run.open(tmp_path / "new", "r2") as other:
        assert compare(Side(run=one, found=load(one, 4)), Side(run=other, found=load(other, 2))).none
        assert not verify(other)
        found = load(other, 2)
        assert found.manifest.contributors == ("0", "1", "2")
        assert found.manifest.parent is None
        assert found.manifest.config == {"schedule": 1000}
        assert found.contributions["1"].versions == load(one, 4).contributions["1"].versions


def test_foreign_weights_are_weights_and_not_more(process: Writer, tmp_path: Path) -> None:
    """C46: no role is guessed: what the next update needs is not there, and resume passes it over aloud."""
    one = foreign(tmp_path / "a.safetensors", **{"layer.w": WEIGHTS, "bias": np.ones(3, np.float16)})
    two = foreign(tmp_path / "b.safetensors", head=np.zeros((2, 2), np.float32))
    done = imported(process, "r2", one, two, description=AS | {"names": {"head": "layer.head"}})
    assert (done["kind"], done["profiles"], done["items"]) == ("weights_only", ["weights"], 3)
    with Run.open(tmp_path / "new", "r2") as run:
        found, passed = latest(run)
        assert found is None
        assert "WeightsOnly" in passed[0].reason
        assert sorted(load(run, 2).cut.items) == ["bias", "layer.head", "layer.w"]
        export(run, load(run, 2), tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert back["layer.w"].tolist() == WEIGHTS.tolist()
    assert back["bias"].dtype == np.float16


def test_foreign_files_that_are_a_whole_state_are_resumed(process: Writer, tmp_path: Path) -> None:
    """Roles by pattern, values and versions as they are said."""
    file = foreign(tmp_path / "a.safetensors", w=WEIGHTS, **{"m.w": WEIGHTS / 2})
    said = AS | {
        "kind": "full", "versions": versions(3), "values": {"cursor": 6}, "roles": {"m.*": "moment_m", "*": "param"},
    }  # fmt: skip
    assert imported(process, "r2", file, description=said)["profiles"] == ["resume", "weights"]
    with Run.open(tmp_path / "new", "r2") as run:
        found, _ = latest(run, strict=True)
    assert found is not None
    assert found.manifest.values == {"cursor": 6}


def test_an_import_is_an_epoch_of_its_own_and_fences_only_where_that_is_said(exported: Path, tmp_path: Path) -> None:
    """D16: a run that a trainer holds is refused, and its next save commits; taken over, it is fenced."""
    with writer(tmp_path / "live") as a, writer(tmp_path / "live") as b:
        a.ask("open", writer="trainer", launch=LAUNCH)
        own = item("g", [1, 1], role="rng", placement="per_contributor")
        buffer = item("b", [1], role="buffer", placement="replicated")
        parts = {rank: [*items, own, buffer] for rank, items in many(1, 3, WEIGHTS).items()}
        a.save(save_id(1), parts, versions(1))
        before = files(tmp_path / "live/runs/r1")
        with pytest.raises(Answered, match="trainer") as told:
            imported(b, "r1", exported)
        assert told.value.kind == "FencedWriter"
        assert files(tmp_path / "live/runs/r1") == before
        assert a.save(save_id(2), parts, versions(1)) == 3
        assert imported(b, "r1", exported, take_over=True)["sequence"] == 5
        with pytest.raises(Answered) as told:
            a.save(save_id(3), parts, versions(1))
        assert told.value.kind == "FencedWriter"
    with Run.open(tmp_path / "live", "r1") as run:
        found, passed = latest(run, strict=True)
        assert (found.sequence if found else None, passed) == (5, ())
        assert [each.kind for each in read_log(run)] == ["open", "commit", "commit", "open", "commit"]  # type: ignore[union-attr]


def _other_array(path: Path, name: str, array: Array) -> Path:
    """The export with one array exchanged, as somebody would make it who knows the format."""
    with fs.open_root(path.parent) as folder, folder.open(path.name) as file:
        header = read_header(file)
    arrays = load_file(path) | {name: array}
    record = parse(header.metadata[MEMBER].encode())

    def metadata_of(digests: Mapping[str, str]) -> dict[str, str]:
        for each in record["items"]:
            each["digest"] = digests[each["tensor"]]
            if each["tensor"] == name:
                shape = list(array.shape)
                each |= {"dtype": array.dtype.name, "global_shape": shape, "box": [[0, length] for length in shape]}
        return {MEMBER: canonical(sealed(record)).decode()}

    other = path.with_name(f"other-{path.name}")
    with fs.open_root(path.parent) as folder:
        plan = lay_out([(each, found.dtype.name, found.shape) for each, found in arrays.items()])
        assert write(folder, other.name, plan, lambda each: arrays[each.name], metadata_of)
    return other


def test_what_does_not_fit_the_run_is_refused_with_every_difference(root: Path, exported: Path) -> None:
    """C43, C44: shape, dtype, setting: all in one error, nothing is converted, and the run is as it was."""
    before = files(root)
    other = _other_array(_other_array(exported, "w", WEIGHTS.astype(np.float32)), "m.w", np.zeros((2, 7)))
    with pytest.raises(Incompatible) as told:
        refused(changed(other, config={"schedule": 1001}), root=root, take_over=True)
    text = " ".join(told.value.differences)
    assert "w is float64, here float32" in text
    assert "m.w has shape [7, 2], here [2, 7]" in text
    assert "config.schedule 1000 != 1001" in text
    assert len(told.value.differences) == 3
    assert files(root) == before


def test_a_wanted_difference_is_allowed_by_its_name_and_another_contract_never(root: Path, exported: Path) -> None:
    """A setting that changes is said; what a cut of this run is does not change under it."""
    done = import_files(
        root, "r1", [changed(exported, config={})], writer="i", allow=["config.schedule"], check_only=True
    )
    assert (done.committed, done.kind) == (None, "full")
    with pytest.raises(Incompatible, match="contract"):
        refused(changed(exported, contract=DOCUMENT | {"name": "else"}), root=root)


def test_settings_that_nobody_stated_are_those_of_the_run(tmp_path: Path, process: Writer) -> None:
    """So that its trainer resumes from it."""
    process.ask("open", writer="importer", launch=LAUNCH)
    process.save(save_id(1), many(1, 1, WEIGHTS), versions(1))
    file = foreign(tmp_path / "a.safetensors", w=WEIGHTS)
    assert imported(process, "r1", file, description=AS)["sequence"] == 4
    with Run.open(tmp_path / "new", "r1") as run:
        assert load(run, 4).manifest.config == {"schedule": 1000}


def _nan() -> Array:
    array = WEIGHTS.copy()
    array[6, 1] = float("nan")
    return array


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda path: changed(path, world=["0", "1"]), "ManifestInvalid"),
        (lambda path: changed(path, world=["0", "1", "2", "3"]), "ContributorMissing"),
        (lambda path: changed(path, parts=lambda parts: _moved(parts, "2", updates=4)), "CutVersionMismatch"),
        (lambda path: changed(path, parts=lambda parts: _moved(parts, "012", scheduler=5)), "InvariantViolation"),
        (lambda path: changed(path, parts=lambda parts: _moved(parts, "012", microbatch=1)), "InvariantViolation"),
        (lambda path: changed(path, items=lambda items: _item(items, "w", role="history")), "InvariantViolation"),
        (lambda path: changed(path, items=lambda items: _item(items, "m.w", name="w")), "ManifestInvalid"),
        (lambda path: changed(path, items=lambda items: _item(items, "w", global_shape=[8, 2])), "CoverageError"),
        (lambda path: changed(path, items=lambda items: _item(items, "g@1", global_shape=[8])), "ManifestInvalid"),
        (lambda path: changed(path, items=lambda items: _item(items, "w", digest="0" * 64)), "DigestMismatch"),
        (lambda path: _other_array(path, "w", _nan()), "NonFinite"),
        (lambda path: _bytes(path, lambda data: data[:-1] + bytes([data[-1] ^ 1])), "DigestMismatch"),
        (lambda path: _bytes(path, lambda data: data[:-1]), "SizeMismatch"),
    ],
)
def test_a_cut_that_is_none_is_refused_by_name_before_the_run_is_touched(
    change: Any, kind: str, exported: Path, process: Writer, tmp_path: Path
) -> None:
    """C01, C04, C20: by the same check as every save; nothing is made, opened or fenced."""
    with pytest.raises(Answered) as told:
        imported(process, "r2", change(exported))
    assert told.value.kind == kind
    assert not (tmp_path / "new/runs/r2").exists()


def _bytes(path: Path, change: Callable[[bytes], bytes]) -> Path:
    path.write_bytes(change(path.read_bytes()))
    return path


def _moved(parts: dict[str, Any], ranks: str, **at: int) -> dict[str, Any]:
    for rank in ranks:
        parts[rank]["versions"] |= at
    return parts


def _item(items: list[dict[str, Any]], tensor: str, **members: Any) -> list[dict[str, Any]]:
    return [found | members if found["tensor"] == tensor else found for found in items]


def test_files_make_a_checkpoint_all_together_or_not_at_all(each: tuple[Path, ...], run: Run, tmp_path: Path) -> None:
    """C03, C05: one is missing, one stands twice, one is of another checkpoint."""
    with pytest.raises(Exception, match="lack contributor 1 of 3"):
        refused(each[0], each[2], root=tmp_path / "new")
    with pytest.raises(Exception, match="contributor 1 is in two"):
        refused(*each, each[1], root=tmp_path / "new")
    older = export(run, load(run, 3), tmp_path / "older", per_contributor=True).files
    with pytest.raises(Incompatible, match="of checkpoint 3 of r1"):
        refused(each[0], older[1], each[2], root=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_boxes_of_several_files_tile_their_item(each: tuple[Path, ...], tmp_path: Path) -> None:
    """C50: an overlap and a gap, with true digests."""
    changed(each[1], items=lambda items: _item(items, "w", box=[[1, 4], [0, 2]]))
    with pytest.raises(Exception, match="in 2 boxes"):
        refused(*each, root=tmp_path / "new")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"format": "counterfoil-contract-1"}, "counterfoil-import-1"),
        ({"also": 1}, "no others"),
        ({"contract": {}}, "format"),
        ({"kind": "some"}, "kind"),
        ({"versions": None}, "versions"),
        ({"versions": {"steps": 1}}, "steps"),
        ({"values": []}, "values"),
        ({"roles": {"*": 1}}, "texts"),
        ({"roles": {"x": "param"}}, "no role"),
        ({"roles": {"*": "weights"}}, "no role"),
        ({"names": {"w": "v"}}, "two tensors are item v"),
        ({"names": {"w": "../v"}}, "path"),
        ({"names": {"x": "y"}}, "no file has it"),
        ({"config": {"a": None, "$b": 1}}, "no place in a record"),
        ({"kind": "full"}, "cursor"),
    ],
)
def test_a_description_that_does_not_describe_is_refused(said: dict[str, Any], words: str, tmp_path: Path) -> None:
    """What it does not say is not guessed."""
    file = foreign(tmp_path / "a.safetensors", w=WEIGHTS, v=WEIGHTS)
    with pytest.raises(Exception, match=words):
        refused(file, root=tmp_path / "new", description=AS | said)
    assert not (tmp_path / "new").exists()


def test_what_says_nothing_of_itself_needs_a_description(tmp_path: Path) -> None:
    """D11: a model's file is told to bring one; a KV cache is refused by its format, with one or without."""
    model = foreign(tmp_path / "a.safetensors", w=WEIGHTS)
    with pytest.raises(ManifestInvalid, match="counterfoil-import-1"):
        refused(model, root=tmp_path / "new")
    save_file({"w": WEIGHTS}, tmp_path / "cache", {"format": "kv-cache"})
    for description in (None, AS):
        with pytest.raises(ManifestInvalid, match="format 'kv-cache'"):
            refused(tmp_path / "cache", root=tmp_path / "new", description=description)
    with pytest.raises(ManifestInvalid, match="'counterfoil-contract-1'"):
        read_description(json.dumps(DOCUMENT).encode())
    assert read_description(json.dumps(AS).encode())["versions"] == versions(0)


def test_more_than_the_budget_is_refused_before_a_byte_is_read(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bomb may be a hole of a terabyte."""

    def never(*_: object) -> Any:
        pytest.fail("data was read")

    monkeypatch.setattr(importing, "chunks", never)
    with pytest.raises(Incompatible, match="the budget is 279"):
        refused(exported, root=tmp_path / "new", budget_bytes=279)


def test_a_bool_is_0_or_1(tmp_path: Path) -> None:
    """Any other byte is two values at once to those who read it."""
    path = tmp_path / "a.safetensors"
    path.write_bytes(header_bytes(lay_out([("w", "bool", (3,))]), {"format": "pt"}) + b"\0\1\2")
    with pytest.raises(ManifestInvalid, match="neither 0 nor 1"):
        refused(path, root=tmp_path / "new", description=AS)


def test_a_file_that_changes_between_check_and_write_is_not_committed(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was checked is what is committed: nothing is published, and the data file is gone again."""
    once = importing._checked

    def then_flipped(*arguments: Any) -> Any:
        checked = once(*arguments)
        flip(exported, -1)
        return checked

    monkeypatch.setattr(importing, "_checked", then_flipped)
    with pytest.raises(SourceChanged):
        refused(exported, root=tmp_path / "new")
    with Run.open(tmp_path / "new", "r1") as run:
        assert latest(run) == (None, ())
    assert not list((tmp_path / "new").rglob("*.bin"))


def test_a_link_of_the_callers_is_followed_and_a_fifo_is_not_read(exported: Path, tmp_path: Path) -> None:
    """A hub's cache is made of links."""
    (tmp_path / "link.safetensors").symlink_to(exported)
    done = import_files(
        tmp_path / "new", "r2", [tmp_path / "link.safetensors"], writer="i", create=True, check_only=True
    )
    assert done.items == 4
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(ManifestInvalid, match="regular"):
        refused(tmp_path / "fifo", root=tmp_path / "new")


def test_a_watermark_goes_with_its_checkpoint(process: Writer, tmp_path: Path) -> None:
    """D06: an import is no way around the journal beside which the checkpoint was made."""
    journal = {"journal_id": "0" * 32, "seal": {"number": 3, "digest": "a" * 64}, "pending": []}
    process.ask("open", writer="importer", launch=LAUNCH)
    process.save(save_id(1), many(1, 1, WEIGHTS), versions(1), effects=journal)
    with Run.open(tmp_path / "new", "r1") as run:
        (file,) = export(run, load(run, 2), tmp_path / "m.safetensors", profile="weights").files
    imported(process, "r2", file)
    with Run.open(tmp_path / "new", "r2") as run:
        effects = load(run, 2).manifest.effects
    assert effects is not None
    assert effects["watermark"] == journal
    other = journal | {"seal": {"number": 3, "digest": "b" * 64}}
    with pytest.raises(JournalForked):
        compare_journals(read_watermark(effects["watermark"]), read_watermark(other))


def test_a_large_file_is_imported_in_little_memory(tmp_path: Path) -> None:
    """It is read twice, a piece at a time: checked, then written."""
    path = tmp_path / "large.safetensors"
    size = 32 << 20
    path.write_bytes(header_bytes(lay_out([("w", "int8", (size,))]), {}) + b"\1" * size)
    tracemalloc.start()
    done = import_files(tmp_path / "new", "r1", [path], writer="i", description=AS, create=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert done.data_bytes == size
    assert peak < 3 * fs.CHUNK_BYTES
    with Run.open(tmp_path / "new", "r1") as run:
        assert not verify(run)
        assert contract().digest == load(run, 2).contract.digest
