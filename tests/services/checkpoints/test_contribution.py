"""A contribution: bytes first, record last, and nothing in it that a reader would refuse."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.checkpoints import fs
from services.checkpoints.contribution import StagedItem, nbytes_of, read_contribution, write_contribution
from services.checkpoints.errors import CheckpointError, DigestMismatch, DuplicateContributor, ManifestInvalid
from services.checkpoints.records import canonical, digest_of, sealed
from tests.services.checkpoints.bench import (
    LAUNCH,
    Answered,
    item,
    many,
    one,
    save_id,
    versions,
    writer,
)
from tests.services.checkpoints.forging import paths

SAVE = save_id(1)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[fs.Folder]:
    """A save's folder."""
    with fs.open_root(tmp_path) as opened:
        yield opened


def staged(name: str, array: Any, **changes: Any) -> StagedItem:
    """A captured array."""
    data = np.asarray(array)
    known: dict[str, Any] = {
        "role": "param", "placement": "sharded", "dtype": data.dtype.name, "global_shape": data.shape,
        "box": tuple((0, length) for length in data.shape), "buffer": memoryview(data.tobytes()),
        "digest": digest_of(data.tobytes()), "finite": True, **changes,
    }  # fmt: skip
    return StagedItem(name=name, **known)


def write(folder: fs.Folder, *items: StagedItem, lowest: bool = True, **changes: Any) -> str:
    """Contributor 0's contribution."""
    known: dict[str, Any] = {"save_id": SAVE, "contributor": "0", "versions": {"updates": 1}, "values": {}, **changes}
    return write_contribution(folder, items=items, lowest=lowest, **known)


def test_what_was_staged_is_what_is_read(folder: fs.Folder, tmp_path: Path) -> None:
    """Every item begins at a block; scalars and empty arrays too."""
    items = [
        staged("w", np.arange(5.0)), staged("none", np.zeros((0, 3))), staged("step", np.int64(7)),
        staged("half", np.ones(3, np.float16)),
    ]  # fmt: skip
    digest = write(folder, *items, values={"cursor": 2**60, "scheduler/x": 0.1})
    found = read_contribution(folder, "0")
    assert (found.digest, found.values) == (digest, {"cursor": 2**60, "scheduler/x": 0.1})
    assert [each.offset for each in found.items] == [0, 4096, 4096, 8192]
    data = (tmp_path / "0.bin").read_bytes()
    assert len(data) == found.data_bytes == 12288
    for each, made in zip(found.items, items, strict=True):
        assert each.offset is not None
        assert data[each.offset : each.offset + each.nbytes] == bytes(made.buffer)


def test_a_replica_is_written_by_the_lowest_alone(folder: fs.Folder) -> None:
    """The others record its digest."""
    replica = staged("b", np.ones(3), placement="replicated")
    write(folder, replica, staged("w", np.ones(3)))
    write(folder, replica, staged("w", np.ones(3)), lowest=False, contributor="1")
    first, second = read_contribution(folder, "0"), read_contribution(folder, "1")
    assert [each.offset for each in first.items] == [0, 4096]
    assert [each.offset for each in second.items] == [None, 0]
    assert first.items[0].digest == second.items[0].digest
    assert (first.data_bytes, second.data_bytes) == (8192, 4096)


def test_the_record_is_published_after_the_bytes_are_durable(tmp_path: Path) -> None:
    """Where a record is, its bytes are."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.ask("calls")
        a.contribute(SAVE, one(1), versions(1))
        calls = [call.replace(str(tmp_path), "") for call in a.ask("calls")]
    synced = next(at for at, call in enumerate(calls) if call.startswith("fsync") and call.endswith("0.bin"))
    linked = next(at for at, call in enumerate(calls) if call.startswith("link") and call.endswith("0.json"))
    assert max(at for at, call in enumerate(calls) if call.startswith("write") and "0.bin" in call) < synced < linked
    assert [call for call in calls[synced:linked] if call.startswith("fsync") and call.endswith("0.json")]


def test_two_processes_with_one_id_are_told_apart(tmp_path: Path) -> None:
    """The second is refused, whatever it wrote."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.contribute(SAVE, one(1), versions(1))
        with pytest.raises(Answered, match="two processes have one id") as caught:
            a.ask(
                "contribute",
                save_id=SAVE,
                contributor="0",
                lowest=True,
                items=one(2)["0"],
                versions=versions(2),
                values={},
            )
        assert caught.value.kind == "DuplicateContributor"


@pytest.mark.parametrize("call", ["write .*bin", "fsync .*bin", "create .*bin", "write .*json", "fsync .*0.json"])
def test_a_write_that_fails_publishes_nothing(tmp_path: Path, call: str) -> None:
    """C31: a full disk is reported, the previous checkpoint stands, and no fsync is tried twice."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(save_id(1), one(1), versions(1))
        a.ask("calls")
        a.ask("fail", call=call, code=28)
        with pytest.raises(Answered, match="No space left") as caught:
            a.contribute(save_id(2), one(2), versions(2))
        assert caught.value.kind == "CommitFailed"
        calls = a.ask("calls")
        assert len([each for each in calls if each.startswith("fsync") and each.endswith("0.bin")]) <= 1
        with pytest.raises(Answered) as caught:
            a.ask("commit", save_id=save_id(2), world=["0"])
        assert caught.value.kind == "ContributorMissing"
        assert a.ask("latest")["sequence"] == 2


def test_shards_of_a_half_precision_array_come_back_whole(tmp_path: Path) -> None:
    """C50: bfloat16 weights and float32 moments over uneven rows."""
    whole = np.arange(14.0).reshape(7, 2)
    parts = many(1, 3, whole)
    for items in parts.values():
        items[0]["dtype"], items[1]["dtype"] = "bfloat16", "float32"
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(SAVE, parts, versions(1))
        assert a.ask("latest")["w"] == whole.tolist()


@pytest.mark.parametrize(
    "change",
    [
        {"items": [{"offset": 4096}]},
        {"items": [{"offset": -4096}]},
        {"items": [{"offset": None}]},
        {"items": [{"offset": 0.5}]},
        {"items": [{"nbytes": 39}]},
        {"items": [{"dtype": "object"}]},
        {"items": [{"dtype": "float32"}]},
        {"items": [{"placement": "here"}]},
        {"items": [{"placement": "replicated", "box": [[0, 4]], "nbytes": 32}]},
        {"items": [{"name": ""}]},
        {"items": [{"name": "a\nb"}]},
        {"items": [{"role": "../param"}]},
        {"items": [{"box": [[0, 6]]}]},
        {"items": [{"global_shape": [2**62, 2**62], "box": [[0, 2**62], [0, 2**62]]}]},
        {"items": [{"digest": ""}]},
        {"items": [{"finite": 1}]},
        {"items": [{}, {}]},
        {"items": [{}, {"offset": 4096}]},
        {"items": [7]},
        {"items": 7},
        {"values": []},
        {"direct": None},
        {"save_id": "1"},
        {"contributor": "1"},
        {"contributor": "outcome"},
        {"versions": {"step": 1}},
        {"format": "kv-cache-1"},
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(folder: fs.Folder, tmp_path: Path, change: dict[str, Any]) -> None:
    """C47: with a digest that is true."""
    write(folder, staged("w", np.arange(5.0)))
    path = tmp_path / "0.json"
    raw = json.loads(path.read_bytes())
    if isinstance(change.get("items"), list):
        (known,) = raw["items"]
        change = {"items": [known | each if isinstance(each, dict) else each for each in change["items"]]}
    raw |= change
    if isinstance(raw["items"], list) and isinstance(raw["items"][0], dict):
        raw["items"][0]["offset"] = raw["items"][0]["offset"] if raw["items"][0]["offset"] != 0.5 else "0"
    path.write_bytes(canonical(sealed(raw)))
    with pytest.raises(ManifestInvalid):
        read_contribution(folder, "0")


def test_a_changed_record_is_a_digest_mismatch(folder: fs.Folder, tmp_path: Path) -> None:
    """C05: and a missing digest is no digest."""
    write(folder, staged("w", np.arange(5.0)))
    path = tmp_path / "0.json"
    raw = json.loads(path.read_bytes())
    path.write_bytes(canonical(raw | {"versions": {"updates": 2}}))
    with pytest.raises(DigestMismatch):
        read_contribution(folder, "0")
    path.write_bytes(canonical({key: value for key, value in raw.items() if key != "digest"}))
    with pytest.raises(ManifestInvalid):
        read_contribution(folder, "0")


def test_a_staged_item_of_another_size_than_its_box_is_not_written(folder: fs.Folder) -> None:
    """Only the view is staged, never what it is a view of."""
    with pytest.raises(ManifestInvalid, match="48 bytes"):
        write(folder, staged("w", np.arange(5.0), buffer=memoryview(np.arange(6.0).tobytes())))


@pytest.mark.parametrize("values", [{"x": {1, 2}}, {"x": b""}, {1: 2}])
def test_a_value_that_no_record_holds_is_named(folder: fs.Folder, values: Any) -> None:
    """And nothing is published."""
    with pytest.raises(ManifestInvalid, match="contributor 0"):
        write(folder, staged("w", np.arange(5.0)), values=values)
    assert not folder.has("0.json")


def test_sizes_are_multiplied_with_a_bound() -> None:
    """A shape of a record is not yet believed."""
    assert nbytes_of(((0, 3), (1, 4)), "float32") == 36
    with pytest.raises(ManifestInvalid, match="larger than any file"):
        nbytes_of(((0, 2**40), (0, 2**40)), "int8")


def test_an_id_taken_in_the_folder_is_a_duplicate(folder: fs.Folder) -> None:
    """Also when only the record is there."""
    write(folder, staged("w", np.arange(5.0)))
    folder.remove("0.bin")
    with pytest.raises(DuplicateContributor):
        write(folder, staged("w", np.arange(5.0)))


def test_items_keep_the_bench_honest(tmp_path: Path) -> None:
    """What a writer process is told is what it writes."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(SAVE, {"0": [item("w", [[1.5, 2.5]]), item("m.w", [0], role="moment_m")]}, versions(1))
        _, place = paths(tmp_path, 2)
        assert np.frombuffer((place / "0.bin").read_bytes()[:16]).tolist() == [1.5, 2.5]


def test_every_refusal_is_a_checkpoint_error() -> None:
    """So that one clause catches them all."""
    assert issubclass(DuplicateContributor, CheckpointError)


@pytest.mark.parametrize("shape", [(2**62, 0), (2**40, 0, 2**20), (2**60,)])
def test_an_array_that_cannot_be_is_not_recorded(folder: fs.Folder, shape: tuple[int, ...]) -> None:
    """Also an empty one: numpy multiplies its other lengths all the same, and a reader would end there."""
    box = ((0, 0), *((0, length) for length in shape[1:]))
    with pytest.raises(ManifestInvalid, match="larger than any file"):
        write(folder, staged("w", np.zeros(0), global_shape=shape, box=box))
