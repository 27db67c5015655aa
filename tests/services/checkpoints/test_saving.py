"""A save is waited for or refused by name, for all contributors, and never mixed: real processes, real failures."""

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.checkpoints.delays import SAVE
from tests.services.checkpoints.crew import Crew
from tests.services.checkpoints.session_stories import whole
from tests.services.checkpoints.test_session import HOURS, told


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes of this test alone."""
    with Crew(tmp_path) as playing:
        yield playing


def test_whoever_is_late_at_whatever_point_the_captured_bytes_are_committed(crew: Crew) -> None:
    """Every point of a save, each contributor late at it, and an update as soon as the trainers may."""
    players = crew.play("delays", 2)
    for player in players:
        assert len(player.said) == 2 * len(SAVE), player.errors
        assert [said for said in player.said if not (said["whole"] and said["versions"])] == []


def test_whatever_one_contributor_mutates_at_whatever_point_is_refused_by_name_or_not_in_it(crew: Crew) -> None:
    """The delay matrix: every point, every contributor, and a mutation there."""
    players = crew.play("mutations", 2)
    expected = {
        **dict.fromkeys(("entered", "declared", "ready"), "CutVersionMismatch"),
        **dict.fromkeys(("marks-read", "item-copied", "copied"), "SourceChanged"),
    }
    for player in players:
        assert len(player.said) == 2 * len(SAVE), player.errors
        for said in player.said:
            assert said["ended"] == expected.get(said["point"], "committed"), said
            assert said["whole"], said


def test_a_writer_that_is_held_after_the_release_commits_what_was_captured(crew: Crew) -> None:
    """D07: three updates run on all contributors while contributor 1 has written nothing."""
    steps = [["update", 4], ["async"], ["update", 3], ["tell"], ["wait"], ["read-back"]]
    players = crew.start("script", 2, steps=steps, by_rank={1: {"hold": ["staged"]}})
    crew.held("staged", 1)
    assert not list(crew.root.glob("runs/r1/data/*/1.bin"))
    crew.let_go("staged", 1)
    for player in players:
        player.end()
    for (back,) in told(players, "read-back"):
        assert back["arrays"] == {"w": [4], "m": [40], "b": [400]}
        assert (back["live"], back["versions"]["updates"]) == (7, 4)


def test_the_delay_kit_fails_a_writer_that_reads_the_live_array(crew: Crew) -> None:
    """D08: its digests are those of what it wrote, every check of the store passes, and the bytes are mixed."""
    (right,) = crew.play("live-writer", 1, late=False)
    assert right.last == {"mixed": None}
    (wrong,) = crew.play("live-writer", 1, late=True)
    assert wrong.last["mixed"].startswith("The checkpoint is of no one moment: ")


def test_a_source_that_is_being_mutated_on_one_contributor_refuses_the_save_for_all(crew: Crew) -> None:
    """D13: the same error everywhere, nothing published, and the next save commits."""
    steps = [["update"], ["save"], ["save"], ["latest"]]
    torn = [["update"], ["tear"], ["save"], ["whole"], ["save"], ["latest"]]
    players = crew.play("script", 2, steps=steps, by_rank={1: {"steps": torn}})
    for refused, saved in told(players, "save"):
        assert refused["error"] == "SourceChanged"
        assert refused["message"].startswith("contributor 1: source model is being mutated")
        assert saved["saved"] == 2
    assert [each["latest"] for (each,) in told(players, "latest")] == [2, 2]


def test_two_positions_are_never_one_cut(crew: Crew) -> None:
    """C04: both numbers are named, nothing was released, and the checkpoint before stays the newest."""
    steps = [["update", 2], ["save"], ["update"], ["save"], ["latest"]]
    behind = [["update", 2], ["save"], ["save"], ["latest"]]
    players = crew.play("script", 3, steps=steps, by_rank={2: {"steps": behind}})
    for _, refused in told(players, "save"):
        assert refused["error"] == "CutVersionMismatch"
        assert "rank 2: attempts 2 != 3" in refused["message"]
    assert [each["latest"] for (each,) in told(players, "latest")] == [2, 2, 2]


def test_a_position_that_contradicts_the_contract_is_refused_before_anybody_is_released(crew: Crew) -> None:
    """C14 C26: the relation and both numbers are named."""
    players = crew.play("script", 2, steps=[["update", 4], ["advance", {"attempts": 1}], ["save"]])
    for (refused,) in told(players, "save"):
        assert refused["error"] == "InvariantViolation"
        assert refused["message"].startswith("attempts 5 != updates 4")


def test_a_full_disk_fails_the_save_for_all_and_shows_nothing(crew: Crew) -> None:
    """C31 C37: contributor 1 cannot write its bytes; the checkpoint before stays, and a save with room commits."""
    steps = [["update"], ["save"], ["update"], ["save"], ["latest"], ["save"], ["latest"]]
    full = [
        ["update"], ["save"], ["update"], ["fail", "write*1.bin", errno.ENOSPC], ["save"], ["latest"], ["mend"],
        ["save"], ["latest"],
    ]  # fmt: skip
    players = crew.play("script", 3, steps=steps, by_rank={1: {"steps": full}})
    for saves, latest in zip(told(players, "save"), told(players, "latest"), strict=True):
        assert [each.get("saved") for each in saves] == [2, None, 3]
        assert saves[1]["error"] == "CommitFailed"
        assert "No space left on device" in saves[1]["message"]
        assert [each["latest"] for each in latest] == [2, 3]
    assert len({each["save_id"] for each in told(players, "save")[0] if "save_id" in each}) == 2


def test_a_failed_save_gives_its_room_back_where_nothing_names_its_bytes(crew: Crew) -> None:
    """Contributor 1 cannot write: what 0 and 2 wrote goes, and the words stay; what is committed is whole."""
    steps = [["update"], ["save"], ["save"]]
    full = [["update"], ["fail", "write*1.bin", errno.ENOSPC], ["save"], ["mend"], ["save"]]
    players = crew.play("script", 3, steps=steps, by_rank={1: {"steps": full}})
    assert [[each.get("saved") for each in saves] for saves in told(players, "save")] == [[None, 2]] * 3
    left = {folder.joinpath("manifest.json").exists(): _names(folder) for folder in crew.root.glob("runs/*/data/*")}
    assert left[True] >= {"0.bin", "1.bin", "2.bin"}
    assert left[False] >= {"0.json", "2.json", "outcome"}
    assert not [name for name in left[False] if name.endswith(".bin")]


@pytest.mark.parametrize("call", ["fsync*/log", "link*log/2.json", "link*manifest.json"])
def test_where_a_record_may_name_the_bytes_of_a_failed_save_they_stay(crew: Crew, call: str) -> None:
    """Whether the commit failed or its outcome is not known: nobody removes what it may need."""
    steps = [["update"], ["save"]]
    failing = [["update"], ["fail", call, errno.EIO], ["save"]]
    players = crew.play("script", 2, steps=steps, by_rank={0: {"steps": failing}})
    assert {each.get("saved") for (each,) in told(players, "save")} == {None}
    (folder,) = crew.root.glob("runs/*/data/*")
    assert _names(folder) >= {"0.bin", "1.bin"}


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_kernels_own_refusal_to_write_fails_the_save_for_all(crew: Crew) -> None:
    """C31: no file of contributor 0 may have more than 4096 bytes, which its record fits and its arrays do not."""
    steps = [["update"], ["save"], ["save"], ["latest"]]
    limited = [["update"], ["limit", 4096], ["save"], ["mend"], *steps[2:]]
    players = crew.play("script", 2, steps=steps, by_rank={0: {"steps": limited}})
    for refused, saved in told(players, "save"):
        assert refused["error"] == "CommitFailed"
        assert "File too large" in refused["message"]
        assert saved["saved"] == 2


def test_an_unseen_failure_is_raised_by_the_next_save_and_the_one_after_it_has_an_id_of_its_own(crew: Crew) -> None:
    """C32: nobody waited for the save that failed."""
    steps = [["update"], ["async"], ["settle"], ["async"], ["async"], ["wait"]]
    failing = [["fail", "write*0.bin", errno.EIO], ["update"], ["async"], ["settle"], ["mend"], *steps[3:]]
    players = crew.play("script", 2, steps=steps, by_rank={0: {"steps": failing}})
    for first, second, third in told(players, "async"):
        assert first["released"]
        assert second["error"] == "CommitFailed"
        assert third["save_id"] != first["save_id"]
    assert [each["saved"] for (each,) in told(players, "wait")] == [2, 2]


def test_an_unseen_failure_is_raised_on_close(crew: Crew) -> None:
    """A run does not end well because nobody asked."""
    steps = [["update"], ["async"]]
    players = crew.play("script", 2, steps=steps, by_rank={0: {"steps": [["fail", "fsync*0.bin", errno.EIO], *steps]}})
    assert [player.last["error"] for player in players] == ["CommitFailed", "CommitFailed"]
    assert [player.last["step"] for player in players] == ["session", "session"]


def test_a_contributor_that_never_reports_is_named_and_the_others_are_released(crew: Crew) -> None:
    """C49: it is held before it captures; the others go on after the deadline, and so does it with the next save."""
    steps = [
        ["update"], ["patience", {"capture_seconds": 0.1, "margin_seconds": 30.0}], ["save"], ["await", "late"],
        ["patience", {"capture_seconds": 30.0}], ["save"], ["latest"],
    ]  # fmt: skip
    players = crew.start("script", 3, steps=steps, by_rank={0: {"hold": ["captured"]}, 1: {"hold": ["declared"]}})
    crew.held("captured", 0)
    crew.held("declared", 1)
    crew.there("runs/r1/data/*/captured.2")
    crew.let_go("captured", 0)
    crew.there("runs/r1/data/*/abort")
    crew.let_go("declared", 1)
    crew.folder.joinpath("late").touch()
    for player in players:
        player.end()
    for refused, saved in told(players, "save"):
        assert refused["error"] == "ContributorMissing"
        assert refused["message"].startswith("Contributor 1 did not say 'captured'")
        assert saved["saved"] == 2


def test_a_contributor_that_enters_late_is_named_and_nobody_calls_the_coordinator_lost(crew: Crew) -> None:
    """D14: it comes when the save is given up, and the coordinator after the others' entry deadline of 0.1 s."""
    steps = [["update"], ["patience", {"capture_seconds": 0.5, "margin_seconds": 30.0}], ["save"]]
    players = crew.start("script", 3, steps=steps, by_rank={1: {"hold": ["entered"]}})
    crew.held("entered", 1)
    crew.there("runs/r1/data/*/abort")
    crew.let_go("entered", 1)
    for player in players:
        player.end()
    assert [each["error"] for (each,) in told(players, "save")] == ["ContributorMissing"] * 3
    steps = [["update"], ["patience", {"entry_seconds": 0.1, "margin_seconds": 30.0}], ["save"], ["save"]]
    players = crew.play("script", 3, steps=steps, by_rank={0: {"late": {"entered": 0.4}}})
    assert [[each.get("saved") for each in saves] for saves in told(players, "save")] == [[3, 4]] * 3


def test_a_coordinator_that_dies_before_the_release_is_lost_and_nothing_is_published(crew: Crew) -> None:
    """The others do not wait for ever, and know that nothing was."""
    steps = [["update"], ["save"], ["latest"]]
    players = crew.start("script", 3, steps=steps, deadlines=HOURS, by_rank={0: {"hold": ["captured"]}})
    crew.held("captured", 0)
    players[0].kill()
    for player in players[1:]:
        player.end()
    assert [each["error"] for (each,) in told(players[1:], "save")] == ["CoordinatorLost"] * 2
    assert [each["latest"] for (each,) in told(players[1:], "latest")] == [None, None]


@pytest.mark.parametrize(("point", "ends"), [("recorded", "CommitUnknown"), ("committed", 2)])
def test_who_loses_the_coordinator_after_the_release_reads_what_happened(
    crew: Crew, point: str, ends: str | int
) -> None:
    """A free slot is unknown and not "not committed"; a slot with this save is a checkpoint."""
    steps = [["update"], ["save"], ["save"]]
    players = crew.start("script", 3, steps=steps, deadlines=HOURS, by_rank={0: {"hold": [point]}})
    crew.held(point, 0)
    players[0].kill()
    for player in players[1:]:
        player.end()
    for first, second in told(players[1:], "save"):
        assert first.get("saved", first.get("error")) == ends
        assert second["error"] == ("CommitUnknown" if ends == "CommitUnknown" else "CoordinatorLost")
    players = crew.play("script", 3, steps=[["resume"]])
    there = [each.get("state") for (each,) in told(players, "resume")]
    assert there == ([None] * 3 if point == "recorded" else [whole(1, rank) for rank in range(3)])


@pytest.mark.parametrize(
    ("point", "ends"), [("declared", "CoordinatorLost"), ("recorded", "CommitUnknown"), ("committed", 2)]
)
def test_a_coordinator_that_has_died_on_this_host_is_waited_for_by_nobody(
    crew: Crew, point: str, ends: str | int
) -> None:
    """However long the deadlines are: its lock is free."""
    players = crew.start("script", 2, steps=[["update"], ["save"]], deadlines=HOURS, by_rank={0: {"hold": [point]}})
    crew.held(point, 0)
    players[0].kill()
    (ended,) = told([players[1].end()], "save")[0]
    assert ended.get("saved", ended.get("error")) == ends


@pytest.mark.parametrize("point", ["declared", "staged"])
def test_a_contributor_that_has_died_on_this_host_is_named_at_once(crew: Crew, point: str) -> None:
    """Before its capture, or after the release with nothing written: the others hear of it from the coordinator."""
    players = crew.start("script", 2, steps=[["update"], ["save"]], deadlines=HOURS, by_rank={1: {"hold": [point]}})
    crew.held(point, 1)
    players[1].kill()
    (refused,) = told([players[0].end()], "save")[0]
    assert refused["error"] == "ContributorMissing"
    assert refused["message"].startswith("Contributor 1 ended and had ")


def test_a_stopped_coordinator_is_not_a_dead_one(crew: Crew) -> None:
    """SIGSTOP before the release and after the link: the others wait, and all have the checkpoint when it goes on."""
    for point in ("captured", "committed"):
        players = crew.start("script", 2, steps=[["update"], ["save"]], deadlines=HOURS, by_rank={0: {"hold": [point]}})
        crew.held(point, 0)
        os.kill(players[0].pid, signal.SIGSTOP)
        crew.let_go(point, 0)
        crew.there("runs/r1/data/*/captured.1")
        os.kill(players[0].pid, signal.SIGCONT)
        for player in players:
            player.end()
        saved = [each["saved"] for (each,) in told(players, "save")]
        assert saved[0] == saved[1]


def test_an_outcome_that_cannot_be_told_is_read_from_the_slot(crew: Crew) -> None:
    """The disk is full after the commit: it is a checkpoint for all, and no failure at the coordinator."""
    steps = [["update"], ["save"]]
    players = crew.play(
        "script", 2, steps=steps, deadlines={**HOURS, "margin_seconds": 0.5},
        by_rank={0: {"steps": [["fail", "link*outcome", errno.ENOSPC], *steps]}},
    )  # fmt: skip
    assert [each.get("saved") for (each,) in told(players, "save")] == [2, 2]


def test_a_disk_on_which_no_word_can_be_said_is_a_failure_by_name(crew: Crew) -> None:
    """Not even the declaration: the coordinator's trainer gets the store's error, and the next save commits."""
    short, long = ({"entry_seconds": seconds, "margin_seconds": seconds} for seconds in (0.5, 30.0))
    steps = [["update"], ["patience", short], ["save"], ["patience", long], ["touch", "lost"], ["save"]]
    full = [["update"], ["fail", "create*", errno.ENOSPC], ["save"], ["mend"], ["await", "lost"], ["save"]]
    players = crew.play("script", 2, steps=steps, by_rank={0: {"steps": full}})
    (failed, saved), (lost, heard) = told(players, "save")
    assert (failed["error"], lost["error"]) == ("CommitFailed", "CoordinatorLost")
    assert "No space left on device" in failed["message"]
    assert (saved["saved"], heard["saved"]) == (2, 2)


def test_who_reads_the_slot_of_a_lost_coordinator_makes_it_durable_first(crew: Crew) -> None:
    """It may have died between the link and the fsync: where that fails here, the outcome is not known."""
    steps = [["fail", "fsync*/log", errno.EIO], ["update"], ["save"]]
    players = crew.start("script", 2, steps=steps[1:], by_rank={0: {"hold": ["committed"]}, 1: {"steps": steps}})
    crew.held("committed", 0)
    players[0].kill()
    assert told([players[1].end()], "save")[0][0]["error"] == "CommitUnknown"


def test_the_deadlines_are_those_that_the_coordinator_declared(crew: Crew) -> None:
    """A contributor with shorter ones of its own calls no coordinator lost that has longer ones."""
    players = crew.play(
        "script", 2, steps=[["update"], ["save"]],
        by_rank={
            0: {"late": {"captured": 1.0, "recorded": 1.0}},
            1: {"deadlines": {"capture_seconds": 0.1, "persist_seconds": 0.1, "margin_seconds": 0.1}},
        },
    )  # fmt: skip
    assert [each.get("saved") for (each,) in told(players, "save")] == [2, 2]


def test_a_second_save_waits_or_is_refused_as_was_chosen(crew: Crew) -> None:
    """One save is in flight; refused is the same at all contributors, and loses nothing."""
    steps = [["update"], ["async"], ["update"], ["async"], ["wait"]]
    players = crew.start("script", 2, steps=steps, in_flight="refuse", by_rank={0: {"hold": ["staged"]}})
    crew.held("staged", 0)
    crew.there("runs/r1/meet/*/save.2")
    crew.let_go("staged", 0)
    for player in players:
        player.end()
    for first, second in told(players, "async"):
        assert first["released"]
        assert second["error"] == "CommitFailed"
        assert "in_flight='refuse'" in second["message"]
    assert [each["updates"] for (each,) in told(players, "wait")] == [1, 1]
    players = crew.play("script", 2, steps=steps)
    assert [each["updates"] for (each,) in told(players, "wait")] == [2, 2]


def test_what_is_not_finite_is_found_in_what_was_captured(crew: Crew) -> None:
    """One contributor's NaN: no checkpoint, at anybody, and the next one commits."""
    steps = [["update"], ["save"], ["save"]]
    bad = [["update"], ["nan"], ["save"], ["nan", 1.0], ["save"]]
    players = crew.play("script", 2, steps=steps, by_rank={1: {"steps": bad}})
    for refused, saved in told(players, "save"):
        assert refused["error"] == "NonFinite"
        assert saved["saved"] == 2
