"""The plan: the floor, the interval and the loss, and a simulation whose seconds add up."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.errors import Incompatible
from services.checkpoints.plan import Costs, best_interval, plan, simulate

COSTS = Costs(
    checkpoint_bytes=2 * 10**12,
    bandwidth_bytes_per_second=20e9,
    mtbf_seconds=6 * 3600.0,
    blocked_seconds=5.0,
    persist_seconds=120.0,
    restart_seconds=60.0,
)


def test_2_tb_at_20_gb_a_second_take_100_seconds() -> None:
    """Whatever was measured for less was not these bytes: asynchronous saving hides time, not bytes."""
    assert plan(COSTS).floor_seconds == 100.0
    assert plan(replace(COSTS, persist_seconds=3.0)).persist_seconds == 100.0


def test_the_interval_is_young_and_dalys_and_the_loss_half_of_it_and_the_save() -> None:
    """sqrt(2 * MTBF * blocked seconds)."""
    made = plan(COSTS)
    assert made.interval_seconds == math.sqrt(2 * 21600.0 * 5.0)
    assert made.loss_seconds == made.interval_seconds / 2 + 120.0
    assert made.blocked_fraction == 5.0 / made.interval_seconds


def test_saves_do_not_begin_more_often_than_they_end() -> None:
    """One is in flight at a time."""
    assert plan(replace(COSTS, blocked_seconds=0.0)).interval_seconds == 120.0


@pytest.mark.parametrize(
    ("name", "value"),
    [("bandwidth_bytes_per_second", 0.0), ("mtbf_seconds", 0.0), ("blocked_seconds", -1.0),
     ("persist_seconds", math.nan), ("mtbf_seconds", math.inf)],
)  # fmt: skip
def test_numbers_of_which_nothing_follows_are_refused(name: str, value: float) -> None:
    """By name, and with no division by zero."""
    changed: dict[str, Any] = {name: value}
    with pytest.raises(Incompatible, match=name):
        plan(replace(COSTS, **changed))


def interruptions(*after: float) -> Callable[[], float]:
    """Interruptions at these moments of each life, and then no more."""
    rest = iter((*after, *([math.inf] * 3)))
    return lambda: next(rest)


def test_an_interruption_loses_what_was_trained_since_the_last_durable_capture() -> None:
    """Saves at 100 and 200 of training; the one of 200 is not durable when the run dies."""
    costs = Costs(
        checkpoint_bytes=0, bandwidth_bytes_per_second=1.0, mtbf_seconds=1.0,
        blocked_seconds=1.0, persist_seconds=10.0, restart_seconds=7.0,
    )  # fmt: skip
    # 100 trained, 1 blocked, 100 trained, 1 blocked, 8 trained: the second save needs 10 seconds and had 8.
    done = simulate(costs, interval_seconds=100, useful_seconds=250, until_interrupted=interruptions(210.0))
    assert (done.interruptions, done.redone_seconds, done.restart_seconds) == (1, 108.0, 7.0)
    assert (done.blocked_seconds, done.useful_seconds, done.checkpoints) == (3.0, 250, 2)
    # With 12 seconds it was durable.
    done = simulate(costs, interval_seconds=100, useful_seconds=250, until_interrupted=interruptions(214.0))
    assert (done.redone_seconds, done.checkpoints) == (12.0, 2)


def test_ten_thousand_saves_are_played_as_one_by_one() -> None:
    """Interrupted after 9,999 and a half of them, each of 4 seconds of training and 1 of waiting."""
    costs = Costs(
        checkpoint_bytes=0, bandwidth_bytes_per_second=1.0, mtbf_seconds=1.0, blocked_seconds=1.0, persist_seconds=4.0
    )
    done = simulate(
        costs, interval_seconds=4, useful_seconds=40_002, until_interrupted=interruptions(9_999 * 5.0 + 2.0)
    )  # fmt: skip
    # The save that was begun last is not durable: two seconds of training and the four before it are done again.
    assert (done.interruptions, done.redone_seconds, done.useful_seconds) == (1, 6.0, 40_002)
    assert (done.blocked_seconds, done.checkpoints) == (9_999 + 2.0, 9_998 + 1)


def test_an_interruption_while_training_is_blocked_loses_no_less() -> None:
    """The capture was not done: nothing of it counts."""
    costs = Costs(
        checkpoint_bytes=0, bandwidth_bytes_per_second=1.0, mtbf_seconds=1.0, blocked_seconds=4.0, persist_seconds=0.0
    )
    done = simulate(costs, interval_seconds=10, useful_seconds=10.5, until_interrupted=interruptions(12.0))
    assert (done.redone_seconds, done.blocked_seconds, done.checkpoints) == (10.0, 2.0 + 4.0, 1)


def test_a_run_that_cannot_save_between_interruptions_is_called_hopeless() -> None:
    """Instead of running for ever."""
    with pytest.raises(Incompatible, match="interrupted more often than it can save"):
        simulate(
            COSTS, interval_seconds=600, useful_seconds=3600, until_interrupted=lambda: 10.0, at_most_interruptions=50
        )


@given(seed=st.integers(0, 1000), interval=st.floats(200.0, 5000.0), blocked=st.floats(0.0, 30.0))
def test_every_second_of_a_run_is_of_one_kind(seed: int, interval: float, blocked: float) -> None:
    """Useful, redone, blocked, restarting: their sum is the run, measured by its interruptions."""
    costs = replace(COSTS, blocked_seconds=blocked)
    lives: list[float] = []
    drawn = iter(range(1, 10_000))

    def until() -> float:
        lives.append(3000.0 + 137.0 * ((seed + next(drawn)) % 29))
        return lives[-1]

    done = simulate(costs, interval_seconds=interval, useful_seconds=20_000.0, until_interrupted=until)
    last = done.total_seconds - sum(lives[:-1]) - done.interruptions * costs.restart_seconds
    assert -1e-6 <= last <= lives[-1] + 1e-6
    assert done.restart_seconds == done.interruptions * 60.0


def test_a_seed_is_one_run() -> None:
    """Who runs it again sees the same numbers."""
    runs = [simulate(COSTS, interval_seconds=600, useful_seconds=1e5, seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]


def test_the_best_interval_that_was_played_is_near_young_and_dalys() -> None:
    """Where saves are short beside the time between interruptions; and no other one that was tried loses less."""
    best, young = best_interval(replace(COSTS, persist_seconds=0.0, checkpoint_bytes=0))
    assert young is not None
    assert best.overhead <= young.overhead < 1.02 * (1 + best.overhead) - 1
    assert young.interval_seconds / 2 <= best.interval_seconds <= young.interval_seconds * 2


def test_no_interval_is_best_where_none_makes_progress() -> None:
    """Interrupted each second, and a save takes minutes."""
    with pytest.raises(Incompatible, match="No interval makes progress"):
        best_interval(replace(COSTS, mtbf_seconds=1.0), seeds=(0,))
    with pytest.raises(Incompatible, match="save always"):
        best_interval(replace(COSTS, blocked_seconds=0.0, persist_seconds=0.0, checkpoint_bytes=0))
