"""The account of a run that was killed again and again: every second is of one kind."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.checkpoints import accounting
from services.checkpoints.accounting import IN_VAIN, Endurance, Lived, account, endure, kinds_of
from services.checkpoints.errors import Incompatible
from services.checkpoints.learner import LearnerConfig
from services.checkpoints.supervisor import Life, Store, Supervisor

# Ten updates of a second each, a save of half a second after each four; killed in the tenth second.
FIRST = Lived(
    started=-2.0, began=0.0, taken_up=0, ended=10.0, killed=True,
    applied={update: update + (0.5 if update > 4 else 0.0) + (0.5 if update > 8 else 0.0) for update in range(1, 10)},
    blocked=((4, 4.0, 4.5), (8, 8.5, 9.0)), saved=({"blocked_seconds": 0.5, "persist_seconds": 1.0},),
)  # fmt: skip
SECOND = Lived(
    started=10.0, began=13.0, taken_up=4, ended=19.5, killed=False,
    applied={update: 9.0 + update + (0.5 if update > 8 else 0.0) for update in range(5, 11)},
    blocked=((8, 17.0, 17.5),), saved=({"blocked_seconds": 0.5, "persist_seconds": 1.0},),
)  # fmt: skip


def test_what_the_next_start_took_up_was_useful_and_the_rest_was_done_again() -> None:
    """The first start came to 9 and its save of 8 was not durable: the second one began at 4."""
    told = account([FIRST, SECOND], updates=10, every=4)
    assert [(each.taken_up, each.reached, each.retained) for each in told.starts] == [(0, 9, 4), (4, 10, 10)]
    seconds = told.measured
    assert (seconds.useful_seconds, seconds.redone_seconds) == (4.0 + 6.0, 5.0)
    assert (seconds.blocked_seconds, seconds.restart_seconds, told.start_seconds) == (1.5, 3.0, 2.0)
    assert (seconds.interruptions, seconds.checkpoints, seconds.total_seconds) == (1, 2, 19.5)


def test_what_is_expected_is_played_with_what_was_measured() -> None:
    """The same useful seconds, one interruption after ten seconds, a save after each four."""
    told = account([FIRST, SECOND], updates=10, every=4)
    assert (told.costs.mtbf_seconds, told.costs.restart_seconds, told.interval_seconds) == (10.0, 3.0, 4.0)
    assert told.expected is not None
    assert (told.expected.interruptions, told.expected.useful_seconds, told.expected.redone_seconds) == (1, 10.0, 1.0)
    assert told.young_daly_seconds == pytest.approx(math.sqrt(2 * 10.0 * 0.5))
    assert told.best is not None
    assert told.young_daly is not None
    assert told.best.overhead <= told.young_daly.overhead


def test_a_save_that_was_cut_off_blocked_until_the_kill() -> None:
    """It was never released."""
    cut = replace(FIRST, ended=8.75, applied={update: FIRST.applied[update] for update in range(1, 9)})
    seconds = account([cut, SECOND], updates=10, every=4).measured
    assert (seconds.blocked_seconds, seconds.redone_seconds) == (0.5 + 0.25 + 0.5, 4.0)


@given(ended=st.floats(0.0, 30.0), taken_up=st.sampled_from([0, 4, 8]), gap=st.floats(0.0, 9.0))
def test_every_second_is_of_one_kind(ended: float, taken_up: int, gap: float) -> None:
    """Wherever it is killed, whatever was durable."""
    first = replace(
        FIRST, ended=ended, applied={update: at for update, at in FIRST.applied.items() if at <= ended},
        blocked=tuple(each for each in FIRST.blocked if each[1] < ended),
    )  # fmt: skip
    moved = ended + gap - SECOND.began
    second = replace(
        SECOND, began=ended + gap, taken_up=taken_up, ended=SECOND.ended + moved,
        applied={update: at + moved for update, at in SECOND.applied.items()},
        blocked=tuple((update, since + moved, until + moved) for update, since, until in SECOND.blocked),
    )  # fmt: skip
    seconds, _ = kinds_of([first, second], updates=10)
    assert seconds.total_seconds == pytest.approx(second.ended - first.began)
    assert min(seconds.useful_seconds, seconds.redone_seconds, seconds.blocked_seconds, seconds.restart_seconds) >= 0


def test_a_run_that_is_killed_again_and_again_is_the_run_uninterrupted(tmp_path: Path) -> None:
    """Two processes, killed after each nine updates; a save after each four."""
    told = endure(
        Endurance(root=tmp_path, config=LearnerConfig(schedule=24), ranks=2, updates=24, every=4, life=Life(updates=9))
    )
    assert told.first_difference is None
    assert told.measured.interruptions == len(told.starts) - 1 >= 2
    assert [each.reached - each.taken_up for each in told.starts[:-1]] == [9] * told.measured.interruptions
    assert all(each.retained % 4 == 0 for each in told.starts)
    assert told.starts[-1].reached == 24
    assert told.measured.restart_seconds > 0 < told.measured.blocked_seconds


def test_a_start_that_differs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside it runs another seed, uninterrupted: they differ from the first update on."""

    def other(config: LearnerConfig, *, store: Store | None = None, **rest: Any) -> Supervisor:
        return Supervisor(config if store else replace(config, seed=2), store=store, **rest)

    monkeypatch.setattr(accounting, "Supervisor", other)
    what = Endurance(root=tmp_path, config=LearnerConfig(schedule=4), updates=4, every=2, life=Life(updates=100))
    assert (told := endure(what)).first_difference is not None
    assert (told.first_difference.update, told.equal_to_uninterrupted) == (1, False)


def test_a_run_that_never_saves_in_time_is_called_hopeless(tmp_path: Path) -> None:
    """Instead of running for ever."""
    what = Endurance(root=tmp_path, config=LearnerConfig(schedule=8), updates=8, every=6, life=Life(updates=2))
    with pytest.raises(Incompatible, match=f"{IN_VAIN} starts after each other"):
        endure(what)
