"""The meeting of one launch, between real processes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.checkpoints.meeting import new_launch
from tests.services.checkpoints.crew import Crew


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes of this test alone."""
    with Crew(tmp_path) as playing:
        yield playing


def test_words_reach_everybody_and_a_name_can_be_taken_back_by_who_said_it(crew: Crew) -> None:
    """Gathered at the coordinator, broadcast from it; nothing but the coordinator's words is left in the folder."""
    launch = new_launch()
    players = crew.play("meeting-words", 3, launch=launch)
    assert [player.said for player in players] == [[{"sum": 3}, {"sum": 3}]] * 3
    assert sorted(path.name for path in crew.root.glob(f"runs/r1/meet/{launch}/*")) == [
        "here.0", "here.1", "here.2", "sum.1", "sum.2",
    ]  # fmt: skip


def test_who_does_not_speak_in_time_is_named(crew: Crew) -> None:
    """C49: contributors 1 and 3 never start, and 2 has spoken."""
    launch = new_launch()
    crew.start("meeting-words", 4, ranks=[2], launch=launch)
    crew.there(f"runs/r1/meet/{launch}/rank.1.2")
    (coordinator,) = crew.play("meeting-words", 4, ranks=[0], launch=launch, seconds=0.1)
    assert coordinator.last["error"] == "ContributorMissing"
    assert coordinator.last["message"].startswith("Contributor 1, 3 did not say")


def test_a_coordinator_that_does_not_speak_in_time_is_lost(crew: Crew) -> None:
    """The others do not wait for ever."""
    (player,) = crew.play("meeting-words", 2, ranks=[1], seconds=0.3)
    assert player.last["error"] == "CoordinatorLost"


def test_two_processes_of_one_rank_are_found_out(crew: Crew) -> None:
    """One id once: the second to say a word is told."""
    launch = new_launch()
    crew.play("meeting-words", 2, ranks=[1], launch=launch, seconds=0.1)
    (second,) = crew.play("meeting-words", 2, ranks=[1], launch=launch, seconds=0.1)
    assert second.last["error"] == "DuplicateContributor"


def test_a_word_of_a_dead_launch_is_never_read(crew: Crew) -> None:
    """D12: the same run and rank, a fresh launch: who is alone now is alone."""
    assert [player.last for player in crew.play("meeting-words", 2)] == [{"sum": 1}] * 2
    (alone,) = crew.play("meeting-words", 2, ranks=[1], seconds=0.1)
    assert alone.last["error"] == "CoordinatorLost"


def test_an_error_ends_a_gathering_at_once_and_travels_by_name(crew: Crew) -> None:
    """The coordinator does not wait for contributor 2, which never comes."""
    players = crew.play("meeting-failing", 3, ranks=[0, 1])
    assert [player.last for player in players] == [
        {"error": "NonFinite", "message": "contributor 1: item w holds NaN"}
    ] * 2


@pytest.mark.parametrize("ended", [0, 1])
def test_who_has_ended_is_not_waited_for(crew: Crew, ended: int) -> None:
    """A deadline of an hour: the coordinator and a contributor, each killed while the other waits for it."""
    launch = new_launch()
    (dead,) = crew.start("meeting-held", 2, ranks=[ended], launch=launch)
    crew.there(f"runs/r1/meet/{launch}/here.{ended}")
    dead.kill()
    (player,) = crew.play("meeting-words", 2, ranks=[1 - ended], launch=launch, seconds=3600)
    assert player.last["error"] == ("ContributorMissing" if ended else "CoordinatorLost")


def test_who_has_ended_is_gone_and_who_is_stopped_or_of_another_kernel_is_not(crew: Crew) -> None:
    """The lock goes with its process; no conclusion is drawn from what another kernel may hold."""
    launch = new_launch()
    (stopped,) = crew.start("meeting-words", 2, ranks=[0], launch=launch)
    crew.there(f"runs/r1/meet/{launch}/here.0")
    os.kill(stopped.pid, signal.SIGSTOP)
    assert [player.last for player in crew.play("meeting-gone", 2, ranks=[1], launch=launch)] == [{"gone": False}]
    stopped.kill()
    (player,) = crew.play("meeting-gone", 3, ranks=[2], launch=launch)
    assert player.last == {"gone": True}
    folder = crew.root / "runs/r1/meet" / launch
    folder.joinpath("here.0").write_text('{"kernel":"another"}')
    (player,) = crew.play("meeting-gone", 4, ranks=[3], launch=launch)
    assert player.last == {"gone": False}
