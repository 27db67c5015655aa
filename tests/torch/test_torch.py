"""A real model on real ranks: killed, taken up by new processes, and the same bits as if nothing had happened."""

import signal
from pathlib import Path

import pytest

from tests.torch.ranks import ranks


@pytest.mark.parametrize(
    ("world", "task"),
    [
        (1, {"overflow_at": 2}),
        (2, {"overflow_at": 2, "fused": True, "over_store": True}),
        (3, {"norm": "group", "scaler": False, "digests": True}),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, world: int, task: dict[str, object]) -> None:
    """Every field after each update equals the uninterrupted run's: tensors, moments, steps, streams, rates, cursor."""
    whole = ranks(tmp_path / "whole", world, until=10, **task)
    assert [rank.code for rank in whole] == [0] * world, whole[0].errors
    killed = ranks(tmp_path / "ckpt", world, save_at=[5], die_at=7, **task)
    assert [rank.code for rank in killed] == [-signal.SIGKILL] * world, killed[0].errors
    again = ranks(tmp_path / "ckpt", world, until=10, seed=77, **task)
    assert [rank.code for rank in again] == [0] * world, again[0].errors
    skipped = int("overflow_at" in task)
    for before, after, through in zip(killed, again, whole, strict=True):
        assert after.resumed == 5 - skipped
        assert sorted(after.fields) == [5, 6, 7, 8, 9, 10]
        assert {**before.fields, **after.fields} == through.fields
        assert int(through.fields[10]["skips"]) == skipped
    names = set(whole[0].fields[10])
    assert {"model.conv.weight", "optimizer.narrow.weight.exp_avg", "optimizer.out.bias.step", "rng.cpu", "rng/python",
            "rng/numpy", "config/optimizer", "scheduler", "scaler", "cursor", "model.shown", "history"} <= names  # fmt: skip
    assert not {name for name in names if "again" in name or "scratch" in name}


def test_another_number_of_ranks_takes_the_whole_and_names_what_it_cannot(tmp_path: Path) -> None:
    """Replicas, the scheduler and the cursor go to any layout; a generator is its rank's own."""
    saved = ranks(tmp_path / "ckpt", 2, norm="group", save_at=[3], until=4)
    assert [rank.code for rank in saved] == [0, 0], saved[0].errors
    (refused,) = ranks(tmp_path / "ckpt", 1, norm="group", until=4, seed=9)
    assert refused.told[-1]["error"] == "LayoutChanged"
    assert "rng.cpu" in refused.told[-1]["message"]
    (taken,) = ranks(tmp_path / "ckpt", 1, norm="group", until=4, seed=9, layout_policy="fresh")
    assert taken.code == 0, taken.errors
    own = {"rng.cpu", "rng/python", "rng/numpy"}
    before, after = saved[0].fields[3], taken.fields[3]
    assert {name for name in before if before[name] != after[name]} == own
    assert set(before) == set(after)


def test_sharded_parameters_go_to_another_number_of_ranks(tmp_path: Path) -> None:
    """Seven rows over two ranks, then over three: the weights and moments of the whole are the same bits."""
    task = {"model": "sharded", "norm": "group", "scaler": False}
    saved = ranks(tmp_path / "ckpt", 2, save_at=[3], until=4, **task)
    assert [rank.code for rank in saved] == [0, 0], saved[0].errors
    same = ranks(tmp_path / "ckpt", 2, until=6, seed=9, **task)
    assert [rank.fields[4] for rank in same] == [rank.fields[4] for rank in saved], same[0].errors
    taken = ranks(tmp_path / "ckpt", 3, until=4, seed=9, layout_policy="fresh", **task)
    assert [rank.code for rank in taken] == [0, 0, 0], taken[0].errors
    assert [rank.resumed for rank in taken] == [3, 3, 3]
