"""Sessions of real processes: what all agree on, and what one of them alone cannot undo."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.checkpoints.contract import Contract
from services.checkpoints.delays import wait_for
from services.checkpoints.errors import ManifestInvalid
from services.checkpoints.session import Session
from services.checkpoints.state import Item, State, Versioned
from tests.services.checkpoints.crew import PATIENCE_SECONDS, Crew, Player
from tests.services.checkpoints.session_stories import whole

# Nobody waits for them in a test: what ends before the test's own limit was not ended by one of them.
HOURS = {"entry_seconds": 3600.0, "capture_seconds": 3600.0, "persist_seconds": 3600.0, "margin_seconds": 3600.0}


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes of this test alone."""
    with Crew(tmp_path) as playing:
        yield playing


def told(players: list[Player], step: str) -> list[list[dict[str, Any]]]:
    """What each said of a step, by contributor."""
    for player in players:
        assert player.said, player.errors
    return [[said for said in player.said if said.get("step") == step] for player in players]


@pytest.mark.parametrize("world", [1, 3])
def test_what_was_captured_is_what_comes_back_whatever_the_trainer_did_since(crew: Crew, world: int) -> None:
    """C01 C07 C11 C13: arrays, moments, each one's own generator and cursor, values and counters, of update 4."""
    players = crew.play("script", world, steps=[["update", 4], ["async"], ["update", 3], ["wait"], ["tell"]])
    assert told(players, "wait") == [[{"step": "wait", "saved": 2, "updates": 4}]] * world
    assert [each[0]["state"] for each in told(players, "tell")] == [whole(7, rank) for rank in range(world)]
    players = crew.play("script", world, steps=[["resume"]])
    for rank, (resumed,) in enumerate(told(players, "resume")):
        assert (resumed["sequence"], resumed["skipped"], resumed["state"]) == (2, [], whole(4, rank))


def test_a_run_without_a_checkpoint_begins_as_it_is(crew: Crew) -> None:
    """Nobody resumes, and nothing is touched."""
    players = crew.play("script", 2, steps=[["resume"], ["latest"]])
    assert told(players, "resume") == [[{"step": "resume", "there": False, "untouched": True}]] * 2
    assert told(players, "latest") == [[{"step": "latest", "latest": None, "skipped": []}]] * 2


def test_a_dead_start_is_never_heard_and_its_checkpoint_is_resumed_by_all(crew: Crew) -> None:
    """D12: killed in the middle of its second save; the next start of the same run reads nothing of what it said."""
    crew.play("script", 3, steps=[["update", 2], ["save"], ["update"], ["save"]])
    steps = [["resume"], ["update"], ["async"], ["await", "never"]]
    players = crew.start("script", 3, steps=steps, by_rank={2: {"hold": ["staged"]}})
    crew.held("staged", 2)
    for player in players:
        player.kill()
    players = crew.play("script", 3, steps=[["resume"], ["update"], ["save"]])
    for rank, (resumed,) in enumerate(told(players, "resume")):
        assert (resumed["sequence"], resumed["state"]) == (3, whole(3, rank))
    assert [each["saved"] for (each,) in told(players, "save")] == [6, 6, 6]


def test_contributors_of_different_contracts_or_worlds_do_not_begin(crew: Crew) -> None:
    """Both are named, at both, and the run's log stays empty."""
    players = crew.play("script", 2, steps=[], by_rank={1: {"contract": {"boundary": "somewhere else"}}})
    assert [player.last["error"] for player in players] == ["Incompatible", "Incompatible"]
    assert "contributor 1: contract" in players[0].last["message"]
    assert not list(crew.root.glob("runs/r1/log/*"))
    players = crew.play("script", 2, steps=[], by_rank={1: {"world": 3}})
    assert [player.last["error"] for player in players] == ["Incompatible", "Incompatible"]


def test_a_contributor_beyond_the_coordinators_world_does_not_begin(crew: Crew) -> None:
    """Contributor 2 of 3 with a coordinator of 2: nobody would keep what it saves."""
    players = crew.play("script", 2, ranks=[0, 1, 2], steps=[["update"], ["save"]], by_rank={2: {"world": 3}})
    assert players[2].last["error"] == "Incompatible"
    assert "world 2 != 3" in players[2].last["message"]
    assert [saved["saved"] for (saved,) in told(players[:2], "save")] == [2, 2]


def test_a_contributor_that_does_not_start_leaves_the_run_to_whoever_has_it(crew: Crew) -> None:
    """Nobody is fenced before all have met."""
    (player,) = crew.play("script", 2, ranks=[0], steps=[], deadlines={"entry_seconds": 0.5})
    assert (player.last["error"], player.last["message"][:13]) == ("ContributorMissing", "Contributor 1")
    assert not list(crew.root.glob("runs/r1/log/*"))


def test_a_stop_signal_between_two_looks_stops_all_at_one_update(crew: Crew) -> None:
    """D17: it comes to contributor 1 after its look at update 6; all stop at 7, and update 7 is what is saved."""
    players = crew.play("until-stopped", 3, by_rank={1: {"signalled": [6]}})
    assert [player.last for player in players] == [{"stopped": 7, "saved": 7}] * 3


def test_a_look_at_different_updates_is_refused_by_both_numbers(crew: Crew) -> None:
    """Ranks out of step would stop at different updates."""
    players = crew.play("script", 2, steps=[["stop"], ["update"], ["stop"]], by_rank={1: {"steps": [["stop"]] * 2}})
    for first, second in told(players, "stop"):
        assert first == {"step": "stop", "stop": False}
        assert second["error"] == "CutVersionMismatch"
        assert second["message"].startswith("rank 1: updates 0 != 1")


def test_who_comes_late_to_a_look_hears_how_it_ended(crew: Crew) -> None:
    """D14: two looks of the coordinator have ended without contributor 1, and no coordinator is called lost."""
    late = [["await", "late"], ["stop"], ["stop"]]
    looks = [["patience", {"entry_seconds": 0.1}], ["stop"], ["stop"]]
    players = crew.start("script", 2, steps=looks, by_rank={1: {"steps": late}})
    players[0].end()
    crew.folder.joinpath("late").touch()
    players[1].end()
    assert [[each["error"] for each in looks] for looks in told(players, "stop")] == [["ContributorMissing"] * 2] * 2


def test_a_look_tells_all_that_the_session_is_over(crew: Crew) -> None:
    """The coordinator knows that it is fenced, and contributor 1 has not heard the outcome of the save yet."""
    steps = [["update"], ["await", "taken-over"], ["async"], ["settle"], ["stop"], ["await", "looked"]]
    unaware = [*steps[:3], ["stop"], ["touch", "heard"], ["await", "looked"]]
    players = crew.start("script", 2, steps=steps, by_rank={1: {"steps": unaware, "hold": ["written"]}})
    crew.there("runs/r1/log/1.json")
    crew.play("script", 1, steps=[])
    crew.folder.joinpath("taken-over").touch()
    crew.held("written", 1)
    assert wait_for(crew.folder / "heard", longest_seconds=PATIENCE_SECONDS)
    crew.let_go("written", 1)
    crew.folder.joinpath("looked").touch()
    for player in players:
        player.end()
    assert [[each["error"] for each in looks] for looks in told(players, "stop")] == [["FencedWriter"]] * 2


def test_looks_leave_no_files_behind_them(crew: Crew) -> None:
    """A million iterations are not a million files."""
    crew.play("script", 2, steps=[["stop"]] * 5)
    left = [path.name for path in crew.root.glob("runs/r1/meet/*/*")]
    assert sorted(left) == ["go-on.5", "here.0", "here.1", "joined.0", "joined.1", "open"]


def test_a_signal_alone_is_a_wish_and_kills_nobody(crew: Crew) -> None:
    """SIGTERM to one contributor: all hear of it at the next look."""
    players = crew.play(
        "script", 2, steps=[["stop"], ["stop"]], by_rank={1: {"steps": [["stop"], ["signal"], ["stop"]]}}
    )
    assert [[each["stop"] for each in looks] for looks in told(players, "stop")] == [[False, True]] * 2
    assert [player.returncode for player in players] == [0, 0]


def test_a_signal_while_the_last_save_is_waited_for_ends_no_writer(crew: Crew) -> None:
    """Only after it the signal has its old meaning again."""
    players = crew.play("signalled-in-close", 2)
    assert [(player.returncode, player.last) for player in players] == [(0, {"saved": 2, "handler": True})] * 2


def test_a_coordinator_that_was_taken_over_is_told_so_and_its_session_is_over(crew: Crew) -> None:
    """Another start opens the run; the first one's next save is nobody's checkpoint, at all of its contributors."""
    steps = [["update"], ["save"], ["await", "taken-over"], ["update"], ["save"], ["save"], ["stop"]]
    players = crew.start("script", 2, steps=steps)
    assert wait_for(crew.root / "runs/r1/log/2.json", longest_seconds=PATIENCE_SECONDS)
    second = crew.play("script", 2, steps=[["resume"], ["update", 4], ["save"]])
    crew.folder.joinpath("taken-over").touch()
    for player in players:
        player.end()
    for saves, looks in zip(told(players, "save"), told(players, "stop"), strict=True):
        assert [each.get("error") for each in [*saves, *looks]] == [None, *["FencedWriter"] * 3]
    assert [each["sequence"] for (each,) in told(second, "resume")] == [2, 2]
    (player,) = crew.play("script", 1, steps=[["latest"]])
    assert player.last["latest"] == told(second, "save")[0][0]["saved"]


def test_the_coordinator_prunes_what_is_neither_kept_nor_pinned_and_training_goes_on(crew: Crew) -> None:
    """Any contributor pins; the others' prune does nothing; the next save and the next start are as ever."""
    saves = [["update"], ["save"]] * 4
    after = [["prune"], ["update"], ["save"], ["resume"]]
    players = crew.play(
        "script", 2, steps=[*saves, ["stop"], *after], by_rank={1: {"steps": [*saves, ["pin", 2], ["stop"], *after]}}
    )
    assert [each["pruned"] for (each,) in told(players, "prune")] == [{"kept": [2, 4, 5], "marked": [3]}, None]
    assert [saved[-1]["saved"] for saved in told(players, "save")] == [6, 6]
    assert [each["sequence"] for (each,) in told(players, "resume")] == [6, 6]


def test_a_program_that_is_wrong_is_told_so_and_nothing_begins(tmp_path: Path) -> None:
    """A closed session touches no file, a misspelt word is no damage, and no watermark is kept that none could read."""
    document = {
        "format": "counterfoil-contract-1", "name": "small", "boundary": "after an update",
        "versions": {"updates": "shared"},
        "roles": {"param": {"required": True, "placement": "sharded", "versions": ["updates"]}},
        "relations": [], "profiles": {"resume": ["param"], "weights": ["param"]},
    }  # fmt: skip
    meet: dict[str, Any] = {"run": "r1", "rank": 0, "world": 1, "contract": Contract.load(document)}
    with pytest.raises(TypeError, match=r"Contract\.load"):
        Session.open(tmp_path, **(meet | {"contract": document}), launch="0" * 32)
    with pytest.raises(ValueError, match="in_flight is 'never'"):
        Session.open(tmp_path, **meet, launch="1" * 32, in_flight="never")  # type: ignore[arg-type]
    session = Session.open(tmp_path, **meet, launch="2" * 32)
    state = State(items={"w": Item(role="param", array=np.ones(3))}, versions=Versioned({"updates": 0}))
    with pytest.raises(ManifestInvalid, match="journal_id"):
        session.save(state, watermark={"a": 1})
    misspelt: Any = "wheights"
    for wrong in (
        lambda: session.save(state, kind=misspelt),
        lambda: session.restore(state, profile=misspelt),
        lambda: session.resume(state, layout_policy="new"),
    ):
        with pytest.raises(ValueError, match="is one of"):
            wrong()
    assert session.save(state).sequence == 2
    for sequence in (1, 77):
        with pytest.raises(ManifestInvalid, match="checkpoint"):
            session.restore(state, sequence=sequence)
    session.close()
    session.close()
    for late in (
        lambda: session.save(state),
        lambda: session.resume(state),
        lambda: session.agree_stop(0),
        session.latest,
        session.prune,
        lambda: session.pin(2),
    ):
        with pytest.raises(ValueError, match="closed"):
            late()
