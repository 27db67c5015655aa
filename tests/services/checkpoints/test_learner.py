"""The reference learner: the same bits in any layout, from any restored moment."""

import threading
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints.learner import (
    ROLES,
    Gather,
    Learner,
    LearnerConfig,
    learning_rate,
    row_digests,
    rows_of,
    sample_at,
    stream_from,
    stream_words,
    whole_digests,
)


def alone(own: bytes) -> Sequence[bytes]:
    """The gathering of a single contributor."""
    return [own]


def together(world: int) -> list[Gather]:
    """What joins the contributors of one process, each in a thread of its own; only the arithmetic is looked at."""
    board: list[bytes] = [b""] * world
    barrier = threading.Barrier(world)

    def gathering(contributor: int) -> Gather:
        def gather(own: bytes) -> Sequence[bytes]:
            board[contributor] = own
            barrier.wait(10)
            everything = list(board)
            barrier.wait(10)
            return everything

        return gather

    return [gathering(contributor) for contributor in range(world)]


def run(learners: Sequence[Learner], updates: int) -> None:
    """Let all contributors of a run make attempts until so many updates are applied."""

    def one(learner: Learner, gather: Gather) -> None:
        while learner.updates < updates:
            learner.attempt(gather)

    if len(learners) == 1:
        one(learners[0], alone)
        return
    pairs = zip(learners, together(len(learners)), strict=True)
    threads = [threading.Thread(target=one, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def digests(learners: Sequence[Learner]) -> dict[str, str]:
    """The whole model's fields."""
    return whole_digests([row_digests(learner) for learner in learners])


def layout(config: LearnerConfig, world: int) -> list[Learner]:
    """All contributors of a run that starts."""
    return [Learner(config, contributor, world) for contributor in range(world)]


def carry_over(before: Sequence[Learner], after: Sequence[Learner], left_out: str = "") -> None:
    """Give the whole state of one layout to another, but a field."""
    for name in before[0].sharded():
        whole = np.concatenate([learner.sharded()[name] for learner in before])
        for learner in after:
            if name != left_out:
                learner.sharded()[name][:] = whole[learner.rows.start : learner.rows.stop]
    for learner in after:
        for name, array in before[0].replicated().items():
            if name != left_out:
                learner.replicated()[name][:] = array
        learner.versions.adopt(before[0].versions.timeline())


@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("world", [2, 3])
def test_the_layout_changes_no_bit(world: int, scaler: bool) -> None:
    """Rows are added in row order, whoever holds them."""
    config = LearnerConfig(scaler=scaler)
    one, many = layout(config, 1), layout(config, world)
    for update in (1, 2, 7):
        run(one, update)
        run(many, update)
        assert digests(one) == digests(many)


def test_40_updates_draw_80_times_and_see_each_sample_10_times() -> None:
    """Two samples an update, each one draw and one step of the cursor."""
    (learner,) = learners = layout(LearnerConfig(), 1)
    run(learners, 40)
    assert [learner.versions[name] for name in ("draws", "cursor", "forwards", "attempts")] == [80, 80, 80, 40]
    assert learner.history[39] < learner.history[0]
    assert np.count_nonzero(learner.history) == 40


@pytest.mark.parametrize(("before", "after"), [(1, 1), (3, 3), (3, 2), (2, 3)])
def test_17_and_23_updates_are_40(before: int, after: int) -> None:
    """In every field after each update, from a state carried over to new learners of another layout."""
    config = LearnerConfig()
    whole, first, second = layout(config, 1), layout(config, before), layout(config, after)
    run(whole, 17)
    run(first, 17)
    carry_over(first, second)
    for update in range(18, 41):
        run(whole, update)
        run(second, update)
        assert digests(whole) == digests(second)


def fields() -> list[str]:
    """Every array that a state has."""
    learner = Learner(LearnerConfig())
    return [*learner.sharded(), *(name for name in learner.replicated() if name != "scale")]


@pytest.mark.parametrize("left_out", fields())
def test_a_field_that_is_not_carried_over_makes_another_run(left_out: str) -> None:
    """Each array is needed: weights with moments reset go another way, and the comparison sees it."""
    config = LearnerConfig()
    whole, first, second = layout(config, 1), layout(config, 1), layout(config, 1)
    run(whole, 18)
    run(first, 17)
    carry_over(first, second, left_out)
    run(second, 18)
    assert digests(whole) != digests(second)


def test_an_overflow_skips_its_update_and_nothing_else() -> None:
    """Attempts, cursor and draws go on; updates, scheduler and the optimizer's step do not."""
    (learner,) = learners = layout(LearnerConfig(scaler=True), 1)
    run(learners, 5)
    counts = learner.versions.timeline()
    assert counts["skips"] > 0
    assert counts["attempts"] == counts["updates"] + counts["skips"]
    assert counts["scheduler"] == counts["updates"] == int(learner.optimizer_step[0]) == 5
    assert counts["cursor"] == counts["draws"] == counts["forwards"] == 2 * counts["attempts"]


def test_a_scale_that_is_a_power_of_two_changes_no_update() -> None:
    """What is scaled and unscaled is the same bits: only a skip is a difference."""
    config = LearnerConfig()
    plain, scaled = layout(config, 1), layout(LearnerConfig(scaler=True), 1)
    scaled[0].scale[:] = 2.0
    run(plain, 3)
    run(scaled, 3)
    assert scaled[0].versions["skips"] == 0
    assert digests(plain)["weights"] == digests(scaled)["weights"]


@given(rows=st.integers(1, 200), world=st.integers(1, 40))
def test_the_contributors_rows_are_all_rows_once_in_order(rows: int, world: int) -> None:
    """Whatever the numbers are, also where some have none."""
    parts = [rows_of(contributor, world, rows) for contributor in range(world)]
    assert [row for part in parts for row in part] == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("contributor", [-1, 3])
def test_a_contributor_that_is_none_of_them_is_refused(contributor: int) -> None:
    """It would hold rows that another one holds."""
    with pytest.raises(ValueError, match="is not one of 3"):
        rows_of(contributor, 3, 7)


def test_8_of_8_is_epoch_1_position_0() -> None:
    """Epoch and position are derived from the one global count."""
    config = LearnerConfig()
    assert sample_at(config, 7)[:2] == (0, 7)
    assert sample_at(config, 8)[:2] == (1, 0)
    assert sample_at(config, 11)[:2] == (1, 3)


def ids(config: LearnerConfig, start: int, count: int) -> list[int]:
    """Which samples follow."""
    return [sample_at(config, cursor)[2] for cursor in range(start, start + count)]


def test_a_later_epoch_has_its_own_order_also_after_a_restart() -> None:
    """C16: from epoch 1, position 3 on, the ids are those of the uninterrupted run, and not epoch 0's."""
    config = LearnerConfig()
    uninterrupted = ids(config, 0, 24)
    assert ids(config, 11, 13) == uninterrupted[11:]
    assert sorted(uninterrupted[8:16]) == sorted(uninterrupted[:8]) == list(range(8))
    assert uninterrupted[8:16] != uninterrupted[:8]


def test_the_order_does_not_depend_on_what_training_has_drawn() -> None:
    """C17: the shuffle has a seed of its own, so a stream restored in the middle of an epoch moves no sample."""
    assert ids(LearnerConfig(seed=1), 0, 20) == ids(LearnerConfig(seed=2), 0, 20)
    assert ids(LearnerConfig(order_seed=1), 0, 20) != ids(LearnerConfig(order_seed=2), 0, 20)


def test_another_length_of_the_schedule_is_another_rate() -> None:
    """C25: a schedule rebuilt with another length raises the rate, so its length is part of the configuration."""
    rates = [learning_rate(LearnerConfig(schedule=schedule), 17) for schedule in (40, 80)]
    assert rates[0] < rates[1]
    assert LearnerConfig().document()["schedule"] == 40


@given(seed=st.integers(0, 2**64), draws=st.integers(0, 20), half=st.booleans())
def test_a_stream_goes_on_from_its_words(seed: int, draws: int, half: bool) -> None:
    """128-bit state and increment and the kept half word: six words, nothing lost."""
    stream = np.random.Generator(np.random.PCG64(seed))
    stream.random(draws)
    if half:
        stream.integers(0, 2**31, dtype=np.uint32)
    again = stream_from(stream_words(stream))
    assert again.integers(0, 2**31, 3, np.uint32).tolist() == stream.integers(0, 2**31, 3, np.uint32).tolist()
    assert again.random(3).tolist() == stream.random(3).tolist()


def test_contributors_that_differ_in_what_all_of_them_hold_are_found() -> None:
    """A difference is never hidden by taking one of them."""
    parts = [row_digests(learner) for learner in layout(LearnerConfig(), 2)]
    parts[1]["updates"] = ["5"]
    with pytest.raises(ValueError, match="different values of updates"):
        whole_digests(parts)


def test_every_byte_changes_under_an_odd_mark() -> None:
    """The mark is odd from before the first byte changes until after the last one did."""
    learner = Learner(LearnerConfig())
    marks: list[int] = []

    def watching(own: bytes) -> Sequence[bytes]:
        marks.extend(learner.versions.read().values())
        return [own]

    first = learner.versions.read()
    before = row_digests(learner)
    learner.attempt(watching)
    assert first == {"model": 0}
    assert marks == [1, 1]
    assert learner.versions.read() == {"model": 2}
    assert row_digests(learner) != before


def test_a_state_holds_every_array_and_its_place_in_the_whole() -> None:
    """The live arrays, sharded by rows or whole, each with its role."""
    states = [learner.state() for learner in layout(LearnerConfig(), 3)]
    for name, role in ROLES.items():
        items = [state.items[name] for state in states]
        assert {item.role for item in items} == {role}
        assert len({item.shape for item in items}) == 1
    assert [state.items["weights"].part for state in states] == [
        ((0, 3), (0, 5)), ((3, 5), (0, 5)), ((5, 7), (0, 5)),
    ]  # fmt: skip
    assert set(states[0].items) == set(ROLES)
    assert states[0].values["cursor"] == {"samples": 0}
