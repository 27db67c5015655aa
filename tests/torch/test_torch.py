"""A real model on real ranks: killed, taken up by new processes, and the same bits as if nothing had happened."""

import signal
from pathlib import Path

import pytest

from tests.torch.ranks import Ranks


@pytest.mark.parametrize(
    ("world", "task"),
    [
        (1, {"overflow_at": 2}),
        (2, {"overflow_at": 2, "fused": True, "over_store": True}),
        (3, {"norm": "group", "scaler": False, "digests": True}),
    ],
)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path: Path, ranks: Ranks, world: int, task: dict[str, object]) -> None:
    """From the checkpoint on, every field after each update is what it was before: moments, streams, rates, cursor."""
    killed = ranks(tmp_path / "ckpt", world, save_at=[5], until=11, die_at=10, **task)
    assert [rank.code for rank in killed] == [-signal.SIGKILL] * world, killed[0].errors
    again = ranks(tmp_path / "ckpt", world, until=10, seed=77, **task)
    assert [rank.code for rank in again] == [0] * world, again[0].errors
    skipped = int("overflow_at" in task)
    for before, after in zip(killed, again, strict=True):
        assert after.resumed == 5 - skipped
        assert after.fields == {at: before.fields[at] for at in (5, 6, 7, 8, 9, 10)}
        assert int(after.fields[10]["skips"]) == skipped
    names = set(killed[0].fields[10])
    assert {
        *("model.conv.weight", "model.shown", "optimizer.narrow.weight.exp_avg", "optimizer.out.bias.step", "rng.cpu"),
        *("rng/python", "rng/numpy", "config/optimizer", "scheduler", "scaler", "cursor", "history"),
    } <= names
    assert not {name for name in names if "again" in name or "scratch" in name}


def test_another_number_of_ranks_takes_the_whole_and_names_what_it_cannot(tmp_path: Path, ranks: Ranks) -> None:
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


def test_sharded_parameters_go_to_another_number_of_ranks(tmp_path: Path, ranks: Ranks) -> None:
    """Seven rows over two ranks, then over three: the weights and moments of the whole are the same bits."""
    task = {"model": "sharded", "norm": "group", "scaler": False}
    saved = ranks(tmp_path / "ckpt", 2, save_at=[3], until=4, **task)
    assert [rank.code for rank in saved] == [0, 0], saved[0].errors
    taken = ranks(tmp_path / "ckpt", 3, until=4, seed=9, layout_policy="fresh", **task)
    assert [rank.code for rank in taken] == [0, 0, 0], taken[0].errors
    assert [rank.resumed for rank in taken] == [3, 3, 3]
    before, after = saved[0].fields[3], taken[0].fields[3]
    wholes = {name for name in before if name.startswith("whole ")}
    assert len(wholes) == 4 * 4  # two weights and two biases, each with three moments
    assert {name: after[name] for name in wholes} == {name: before[name] for name in wholes}
