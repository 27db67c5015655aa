"""SIGKILL before and after every file-system call of a save: the old checkpoint or the new one, whole, and no other."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from services.checkpoints.group import until
from tests.services.checkpoints.crew import Crew
from tests.services.checkpoints.session_stories import whole
from tests.services.checkpoints.test_session import told

WORLD = 3
OLD, NEW = 2, 3
FIRST: list[list[Any]] = [["update", OLD], ["save"], ["update"]]
# Of the calls of a save, `make test` takes every so manieth: all kinds of call are met, and every process dies.
STRIDE = 9


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether every call is met: `make faults`."""
    return bool(request.config.getoption("long"))


@pytest.fixture
def crews(tmp_path: Path) -> Iterator[list[Crew]]:
    """A crew for each death, each with a store of its own."""
    made: list[Crew] = []
    yield made
    for crew in made:
        with crew:
            pass
    assert tmp_path.exists()


def a_crew(crews: list[Crew], folder: Path) -> Crew:
    """A fresh one."""
    folder.mkdir()
    crews.append(Crew(folder))
    return crews[-1]


def calls_of_a_save(crew: Crew) -> list[int]:
    """How many mutating calls the second save of each process has."""
    players = crew.play("script", WORLD, steps=[*FIRST, ["record"], ["save"], ["calls"]])
    calls = [each["calls"] for (each,) in told(players, "calls")]
    for made in calls:
        assert {"create", "write", "fsync", "link", "unlink"} <= set(made)
    return [len(each) for each in calls]


def outcome_of_a_death(crew: Crew, rank: int, call: int, moment: str) -> int:
    """Die there, all others with it; the update that a fresh start then resumes, whole on all contributors."""
    by_rank = {rank: {"steps": [*FIRST, ["die", call, moment], ["save"], ["await", "never"]]}}
    players = crew.start("script", WORLD, steps=[*FIRST, ["save"], ["await", "never"]], by_rank=by_rank)
    victim = players[rank].end()
    assert victim.returncode == -9, f"call {call} of contributor {rank} was not reached: {victim.said} {victim.errors}"
    acknowledged = False
    for player in players:
        if player is not victim:
            player.kill()
        acknowledged |= any(said.get("updates") == NEW for said in player.said if "saved" in said)
    after = crew.play("script", WORLD, steps=[["resume"], ["update"], ["save"], ["latest"]])
    resumed = [each for (each,) in told(after, "resume")]
    at: int = resumed[0]["state"]["versions"]["updates"]
    assert at in {OLD, NEW}
    assert at == NEW or not acknowledged
    for number, each in enumerate(resumed):
        assert each["state"] == whole(at, number)
        assert each["skipped"] == []
    saved = [each["saved"] for (each,) in told(after, "save")]
    assert [each["latest"] for (each,) in told(after, "latest")] == saved
    return at


@pytest.mark.parametrize("rank", range(WORLD))
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_death_at_any_call_of_a_save_shows_the_old_or_the_new_checkpoint_whole(
    crews: list[Crew], tmp_path: Path, rank: int, moment: str, *, thorough: bool
) -> None:
    """A fresh start resumes it on all contributors, bit for bit, and saves the next one."""
    counts = calls_of_a_save(a_crew(crews, tmp_path / "counted"))
    first = 1 if thorough else 1 + (rank + (moment == "after")) % 3
    seen = {
        outcome_of_a_death(a_crew(crews, tmp_path / f"call-{call}"), rank, call, moment)
        for call in [*range(first, counts[rank], 1 if thorough else STRIDE), counts[rank]]
    }
    # The coordinator's last calls come after its commit, and its first ones before.
    if rank == 0:
        assert seen == {OLD, NEW}


def sizes(crew: Crew) -> list[int]:
    """Of the coordinator's files, from the first byte of the second save on."""
    found = [path.stat().st_size for path in crew.root.glob("runs/r1/data/*/0.bin")]
    return found if len(found) == 2 and all(found) else []


def test_a_death_inside_a_long_write_shows_the_old_checkpoint(crews: list[Crew], tmp_path: Path) -> None:
    """From outside, while the file of more than 64 MiB is there and not whole: no process can do that to itself."""
    ballast = 96 << 20
    steps = [*FIRST, ["save"], ["await", "never"]]
    while True:  # who is kept waiting here may come when all is written
        crew = a_crew(crews, tmp_path / f"long-{len(crews)}")
        players = crew.start("script", 2, steps=steps, ballast_bytes=ballast)
        assert until(partial(sizes, crew), seconds=60), "the second write has not begun"
        players[0].kill()
        players[1].kill()
        if min(sizes(crew)) < ballast:
            break
    after = crew.play("script", 2, steps=[["resume"]], ballast_bytes=ballast)
    for rank, (resumed,) in enumerate(told(after, "resume")):
        assert (resumed["sequence"], resumed["state"]) == (OLD, whole(OLD, rank))


@pytest.mark.parametrize("rank", range(2))
def test_a_death_while_all_meet_and_resume_changes_no_checkpoint(
    crews: list[Crew], tmp_path: Path, rank: int, *, thorough: bool
) -> None:
    """Killed at its calls between its start and the end of its resume: the next start resumes the same."""
    for call in range(1, 60, 1 if thorough else 6):
        crew = a_crew(crews, tmp_path / f"start-{call}")
        crew.play("script", 2, steps=[["update", OLD], ["save"]])
        players = crew.start("script", 2, steps=[["resume"]], by_rank={rank: {"die_at": [call, "before"]}})
        reached = players[rank].end().returncode == -9
        for player in players:
            if player.returncode is None:
                player.stop() if reached else player.end()
        after = crew.play("script", 2, steps=[["resume"], ["update"], ["save"]])
        for number, (resumed,) in enumerate(told(after, "resume")):
            assert (resumed["sequence"], resumed["state"]) == (OLD, whole(OLD, number))
        if not reached:
            assert call > 6  # beyond the last call of a start
            return
