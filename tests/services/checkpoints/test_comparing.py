"""What differs between two checkpoints: exactly, wherever the parts are cut, and in little memory."""

import itertools
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.checkpoints import comparing
from services.checkpoints.boxes import check_tiling, overlap
from services.checkpoints.comparing import BLOCK_BYTES, Differences, Side, _apart, _blocks, compare, document
from services.checkpoints.contribution import RecordedItem
from services.checkpoints.errors import DigestMismatch
from services.checkpoints.layout import Run
from services.checkpoints.reading import load
from tests.services.checkpoints.bench import LAUNCH, item, many, save_id, versions, writer
from tests.services.checkpoints.conftest import WEIGHTS
from tests.services.checkpoints.forging import flip, paths


def compared(run: Run, first: int, second: int, *, other: Run | None = None) -> Differences:
    """Two checkpoints."""
    return compare(Side(run=run, found=load(run, first)), Side(run=other or run, found=load(other or run, second)))


def saved(root: Path, *states: tuple[dict[str, Any], dict[str, int]], **changes: Any) -> list[int]:
    """Checkpoints of a run that one real process makes."""
    with writer(root) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        return [a.save(save_id(n), parts, at, **changes) for n, (parts, at) in enumerate(states, start=1)]


def test_what_moved_is_named_with_how_far(run: Run) -> None:
    """Versions, values, and each item: how many elements, how far at most, where first."""
    found = compared(run, 2, 4)
    assert found.versions["updates"] == (1, 3)
    assert found.versions["fetched.2"] == (2, 6)
    assert found.values == {"cursor": (2, 6)}
    assert found.settings == {}
    by_name = {(each.name, each.contributor): each for each in found.items}
    assert (by_name["w", None].count, by_name["w", None].of, by_name["w", None].max_abs) == (14, 14, 2.0)
    assert by_name["m.w", None].max_abs == 1.0
    assert by_name["w", None].first == (0, 0)
    assert [by_name["g", rank].first for rank in "012"] == [(1,)] * 3
    assert found.equal == 0


def test_a_checkpoint_equals_itself(run: Run) -> None:
    """And nothing of it is read."""
    found = compared(run, 4, 4)
    assert found.none
    assert found.equal == 6


def test_another_number_of_contributors_is_no_difference(tmp_path: Path) -> None:
    """3 and 2, whose parts begin elsewhere: the same elements, and one that is another."""
    changed = WEIGHTS.copy()
    changed[4, 1] += 0.25
    at = versions(1, fetched=2)
    three, two, other = saved(tmp_path, (many(1, 3, WEIGHTS), at), (many(1, 2, WEIGHTS), at), (many(1, 2, changed), at))
    with Run.open(tmp_path, "r1") as run:
        assert not compared(run, three, two).items
        found = {each.name: each for each in compared(run, three, other).items}
    assert (found["w"].count, found["w"].first, found["w"].max_abs) == (1, (4, 1), 0.25)
    assert (found["m.w"].count, found["m.w"].first, found["m.w"].max_abs) == (1, (4, 1), 0.125)


def test_bits_are_compared_and_not_numbers(tmp_path: Path) -> None:
    """A NaN equals itself; minus zero is another zero; what is not finite is counted apart."""
    inf, nan = float("inf"), float("nan")

    def parts(values: list[float]) -> dict[str, Any]:
        buffer = item("b", [0.0], role="buffer", placement="replicated", finite=False)
        return {"0": [*many(1, 1, WEIGHTS)["0"], buffer | {"shape": [4], "box": [[0, 4]], "data": values}]}

    one, other = saved(
        tmp_path, (parts([nan, 0.0, 1.0, inf]), versions(1)), (parts([nan, -0.0, nan, inf]), versions(1))
    )
    with Run.open(tmp_path, "r1") as run:
        (found,) = compared(run, one, other).items
    assert (found.name, found.count, found.first, found.not_finite, found.max_abs) == ("b", 2, (1,), 1, 0.0)


def test_other_names_dtypes_and_shapes_are_said_and_not_compared(tmp_path: Path) -> None:
    """What is on one side only, too."""
    at = versions(1)
    rest = many(1, 1, WEIGHTS)["0"]

    def buffer(name: str, **what: Any) -> dict[str, Any]:
        return item(name, what.pop("array", [1.0]), role="buffer", placement="replicated", **what)

    one, other = saved(
        tmp_path,
        ({"0": [*rest, buffer("a"), buffer("b"), buffer("c")]}, at),
        ({"0": [*rest, buffer("b", dtype="float32"), buffer("c", array=[[1.0]]), buffer("d")]}, at),
    )
    with Run.open(tmp_path, "r1") as run:
        found = compared(run, one, other)
    assert {each.name: each.what for each in found.items} == {
        "a": "in the first only", "b": "dtype float64 != float32", "c": "shape (1,) != (1, 1)",
        "d": "in the second only",
    }  # fmt: skip


def test_settings_are_compared_by_name(root: Path, tmp_path: Path) -> None:
    """Kind, contract, config: also of another run, in another folder."""
    (other,) = saved(
        tmp_path / "other", ({"0": [item("w", WEIGHTS)]}, versions(1)), kind="weights_only", contract={"name": "else"}
    )
    with Run.open(root, "r1") as run, Run.open(tmp_path / "other", "r1") as second:
        found = compared(run, 2, other, other=second)
    assert set(found.settings) == {"kind", "contract"}
    assert found.settings["kind"] == ("full", "weights_only")


def test_nothing_is_said_of_damaged_bytes(root: Path, run: Run) -> None:
    """The digests in the records differ, and so both are verified first."""
    _, folder = paths(root, 4)
    flip(folder / "1.bin")
    with pytest.raises(DigestMismatch):
        compared(run, 2, 4)


@pytest.mark.parametrize(
    "dtype", ["int64", "uint64", "int8", "bool", "float16", "bfloat16", "float8_e5m2", "complex64"]
)
def test_a_distance_is_exact_in_every_dtype(dtype: str) -> None:
    """Whole numbers beyond 2**53 and beyond 2**63, too."""
    cases: dict[str, tuple[list[Any], list[Any], Any]] = {
        "int64": ([-(2**63)], [2**63 - 1], 2**64 - 1), "uint64": ([0], [2**64 - 1], 2**64 - 1),
        "int8": ([-128], [127], 255), "bool": ([False], [True], 1), "complex64": ([3 + 4j], [0], 5.0),
    }  # fmt: skip
    one, other, expected = cases.get(dtype, ([1.0], [1.5], 0.5))
    kind = np.dtype(getattr(ml_dtypes, dtype)) if dtype.startswith(("bf", "float8")) else np.dtype(dtype)
    assert _apart(np.array(one, kind), np.array(other, kind)) == (expected, 0)


@settings(max_examples=200)
@given(st.data())
def test_blocks_are_the_shared_part_and_read_as_it_in_either(data: st.DataObject) -> None:
    """Any boxes of up to four dimensions, blocks of a few bytes, through real files."""
    shape = data.draw(st.lists(st.integers(1, 5), max_size=4))

    def box() -> tuple[tuple[int, int], ...]:
        ends = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in shape]
        return tuple((start, stop) for start, stop in ends)

    one, other = box(), box()
    shared = overlap(one, other)
    if shared is None:
        return
    most = comparing.BLOCK_BYTES
    comparing.BLOCK_BYTES = data.draw(st.integers(1, 12))  # type: ignore[misc]
    try:
        blocks = list(_blocks(shared, one, other, 1))
    finally:
        comparing.BLOCK_BYTES = most  # type: ignore[misc]
    inside = [tuple((a - c, b - c) for (a, b), (c, _) in zip(each, shared, strict=True)) for each in blocks]
    check_tiling([stop - start for start, stop in shared], inside)
    assert list(itertools.chain(blocks)) == sorted(blocks)
    for held in (one, other):
        whole = np.arange(int(np.prod([b - a for a, b in held])), dtype=np.uint8).reshape([b - a for a, b in held])
        for block in blocks:
            expected = whole[tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(block, held, strict=True))]
            assert comparing._read(_File(whole.tobytes()), _item(held), block).tolist() == expected.tolist()  # type: ignore[arg-type]


class _File:
    """Bytes as an open file has them."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill the target."""
        target[:] = self._data[offset : offset + len(target)]


def _item(box: tuple[tuple[int, int], ...]) -> Any:
    return RecordedItem(
        name="w", role="param", placement="sharded", dtype="uint8", global_shape=tuple(stop for _, stop in box),
        box=box, offset=0, nbytes=0, digest="", finite=True,
    )  # fmt: skip


def test_a_large_item_is_compared_in_little_memory(tmp_path: Path) -> None:
    """64 MiB a side, cut by columns on one and by rows on the other."""
    rows, columns = 1024, 8192
    box: list[tuple[list[list[int]], list[list[int]]]] = [
        ([[0, rows // 2], [0, columns]], [[rows // 2, rows], [0, columns]]),
        ([[0, rows], [0, columns // 2]], [[0, rows], [columns // 2, columns]]),
    ]
    small = many(1, 2, WEIGHTS)
    sequences = []
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        for number, boxes in enumerate(box, start=1):
            parts = {
                rank: [*small[rank], item("big", 0.0, shape=[rows, columns], box=boxes[int(rank)]) | {"fill": number}]
                for rank in ("0", "1")
            }
            sequences.append(a.save(save_id(number), parts, versions(1)))
    with Run.open(tmp_path, "r1") as run:
        sides = [Side(run=run, found=load(run, each)) for each in sequences]
        tracemalloc.start()
        found = compare(*sides)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    (big,) = found.items
    assert (big.count, big.max_abs, big.first) == (rows * columns, 1.0, (0, 0))
    assert peak < 40 * BLOCK_BYTES


def test_a_document_is_json(run: Run) -> None:
    """Infinity is a text there."""
    found = document(compared(run, 2, 4))
    assert (found["equal"], found["equal_items"]) == (False, 0)
    assert found["versions"]["updates"] == [1, 3]
    assert comparing._plain({"a": [float("inf"), 1.5]}) == {"a": ["inf", 1.5]}
