"""A run killed and taken up again is the uninterrupted run, bit for bit: real processes, real files, SIGKILL."""

import secrets
import signal
from pathlib import Path
from typing import Any

import pytest

from services.checkpoints.errors import JournalBehind
from services.checkpoints.interruption import Interruption, interrupt
from services.checkpoints.layout import Run
from services.checkpoints.learner import LearnerConfig
from services.checkpoints.reading import latest
from services.checkpoints.supervisor import ContributorFailed, Store, Supervisor

CONFIG = LearnerConfig()
SEAL = {"number": 3, "digest": "a" * 64}


@pytest.mark.parametrize(("ranks", "resume_ranks"), [(1, 1), (3, 3), (3, 2), (2, 3)])
def test_17_updates_a_kill_and_23_more_are_40(ranks: int, resume_ranks: int, tmp_path: Path) -> None:
    """Weights, moments, optimizer step, stream, draws, cursor and history, as restored and after each update."""
    found = interrupt(
        Interruption(root=tmp_path, config=CONFIG, ranks=ranks, resume_ranks=resume_ranks, kill_at=17, updates=40)
    )
    assert found.first_difference is None
    assert found.equal_to_uninterrupted
    assert (found.draws, found.updates, found.resumed_from) == (80, 40, 17)
    assert [dead.returncode for dead in found.killed] == [-signal.SIGKILL] * ranks


def test_a_run_killed_in_a_save_is_taken_up_from_the_checkpoint_before(tmp_path: Path) -> None:
    """One contributor's record of the save was durable: it counts for nothing, and the run is equal all the same."""
    found = interrupt(
        Interruption(
            root=tmp_path, config=LearnerConfig(schedule=12), ranks=2, resume_ranks=2, updates=12, every=4, kill_at=7,
            during_save=True,
        )
    )  # fmt: skip
    assert (found.equal_to_uninterrupted, found.resumed_from) == (True, 4)
    assert [dead.returncode for dead in found.killed] == [-signal.SIGKILL] * 2


def test_skipped_attempts_are_taken_up_too(tmp_path: Path) -> None:
    """With a scaler: attempts, skips and the scale are part of the state."""
    config = LearnerConfig(schedule=10, scaler=True)
    found = interrupt(Interruption(root=tmp_path, config=config, updates=10, kill_at=4))
    assert found.equal_to_uninterrupted
    assert found.draws is not None
    assert found.draws > 20


def test_weights_alone_are_refused_and_what_is_missing_is_named(tmp_path: Path) -> None:
    """C19: the cursor, the moments and everything else that the next update needs."""
    config = LearnerConfig(schedule=10)
    found = interrupt(Interruption(root=tmp_path, config=config, updates=10, kill_at=4, weights_only=True))
    assert (found.equal_to_uninterrupted, found.resumed_from) == (False, None)
    assert {"moment_m", "moment_v", "cursor", "rng", "optimizer_step"} <= set(found.missing_roles)
    assert found.error is not None
    assert found.error["type"] == "WeightsOnly"


def test_an_older_full_checkpoint_is_taken_up_where_the_newest_has_weights_alone(tmp_path: Path) -> None:
    """C46: and the newer one is named as passed over."""
    config = LearnerConfig(schedule=10)
    interrupt(Interruption(root=tmp_path, config=config, updates=10, kill_at=3))
    # The same run goes on; a trainer that saves weights alone has put one on top.
    with Run.open(tmp_path, "reference") as run:
        full, _ = latest(run)
        assert full is not None
    _weights_on_top(tmp_path, config)
    with Run.open(tmp_path, "reference") as run:
        newest, _ = latest(run, profile="weights")
        assert newest is not None
        assert newest.manifest.kind == "weights_only"
    found = interrupt(Interruption(root=tmp_path, config=config, updates=10))
    assert (found.equal_to_uninterrupted, found.resumed_from) == (True, 3)
    ((sequence, reason),) = found.skipped
    assert sequence == newest.sequence
    assert reason.startswith("WeightsOnly: ")


def _weights_on_top(root: Path, config: LearnerConfig) -> None:

    store = Store(
        root=str(root), run="reference", launch=secrets.token_hex(16), save_at=(5,), kind="weights_only", resume=False
    )
    Supervisor(config, world=1, until=6, store=store).run()


def test_a_schedule_of_another_length_is_refused_by_its_name(tmp_path: Path) -> None:
    """C25: a rate that rises after a restart is a difference in the configuration."""
    interrupt(Interruption(root=tmp_path, config=LearnerConfig(schedule=8), updates=8, kill_at=3))
    with pytest.raises(ContributorFailed, match=r"config\.schedule 8 != 16") as caught:
        interrupt(Interruption(root=tmp_path, config=LearnerConfig(schedule=16), updates=16))
    assert caught.value.told["type"] == "Incompatible"


def _watermark(number: int, **more: Any) -> dict[str, Any]:
    return {"journal_id": "0" * 32, "seal": {"number": number, "digest": "b" * 64}, "at": SEAL, "pending": []} | more


def test_a_restore_says_what_it_does_not_undo(tmp_path: Path) -> None:
    """The manifest keeps the watermark, and the journal of now names what was committed after the cut."""
    reserved = {"key": "cf1-a-g1", "scope": "train/r1", "name": "filter@6", "reservation_id": "reservation-2"}
    found = interrupt(
        Interruption(
            root=tmp_path, config=LearnerConfig(schedule=8), updates=8, kill_at=3,
            effects=_watermark(3, seal=SEAL, at=None),
            watermark=lambda: _watermark(5, committed_since=[reserved | {"receipt_id": "receipt-9"}]),
        )
    )  # fmt: skip
    assert found.equal_to_uninterrupted
    assert found.effects is not None
    assert found.effects["undone"] == 0
    assert [each["reservation_id"] for each in found.effects["not_undone"]] == ["reservation-2"]


def test_a_restore_beside_an_older_journal_is_refused(tmp_path: Path) -> None:
    """It would let keys that are taken be asked for as if nobody had."""
    with pytest.raises(ContributorFailed) as caught:
        interrupt(
            Interruption(
                root=tmp_path, config=LearnerConfig(schedule=8), updates=8, kill_at=3,
                effects=_watermark(3, seal=SEAL, at=None), watermark=lambda: _watermark(2),
            )
        )  # fmt: skip
    assert caught.value.told["type"] == JournalBehind.__name__
