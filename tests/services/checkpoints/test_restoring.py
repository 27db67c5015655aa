"""A restore is one agreement of real processes: verified by all, or swapped in by nobody."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.checkpoints.delays import wait_for
from tests.services.checkpoints.crew import PATIENCE_SECONDS, Crew
from tests.services.checkpoints.session_stories import CONTRACT, whole
from tests.services.checkpoints.test_session import told

SHARED_ONLY: dict[str, Any] = {
    "roles": {**CONTRACT["roles"], "rng": {"placement": "replicated"}, "cursor": {"placement": "replicated"}},
}


@pytest.fixture
def crew(tmp_path: Path) -> Iterator[Crew]:
    """Processes of this test alone."""
    with Crew(tmp_path) as playing:
        yield playing


def flip(path: Path, at: int = 0) -> None:
    """One bit of a file is another."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def newest_folder(crew: Crew) -> Path:
    """The data of the save that came last."""
    return max(crew.root.glob("runs/r1/data/*"), key=lambda path: path.stat().st_mtime_ns)


def test_damage_that_one_contributor_alone_sees_moves_all_to_the_older_checkpoint(crew: Crew) -> None:
    """D05: a bit of contributor 1's own bytes; all resume update 2 and say why, and nobody update 3."""
    crew.play("script", 3, steps=[["update", 2], ["save"], ["update"], ["save"]])
    flip(newest_folder(crew) / "1.bin")
    players = crew.play("script", 3, steps=[["resume"], ["update"], ["save"]])
    for rank, (resumed,) in enumerate(told(players, "resume")):
        assert (resumed["sequence"], resumed["state"]) == (2, whole(2, rank))
        ((sequence, reason),) = resumed["skipped"]
        assert sequence == 3
        assert reason.startswith("DigestMismatch: contributor 1: item ")
    assert [each["saved"] for (each,) in told(players, "save")] == [5, 5, 5]


def test_damage_is_raised_by_all_where_one_is_strict_about_it(crew: Crew) -> None:
    """Nothing is swapped in, and the error has the contributor's number."""
    crew.play("script", 2, steps=[["update", 2], ["save"], ["update"], ["save"]])
    flip(newest_folder(crew) / "1.bin")
    players = crew.play("script", 2, steps=[["resume", {"strict": True}]])
    for (refused,) in told(players, "resume"):
        assert (refused["error"], refused["untouched"]) == ("DigestMismatch", True)
        assert refused["message"].startswith("contributor 1: ")


def test_where_every_checkpoint_is_damaged_nobody_begins_anew_by_itself(crew: Crew) -> None:
    """A run that silently starts from 0 beside its checkpoints is the worst answer."""
    crew.play("script", 2, steps=[["update", 2], ["save"]])
    flip(newest_folder(crew) / "0.bin")
    players = crew.play("script", 2, steps=[["resume"]])
    for (refused,) in told(players, "resume"):
        assert (refused["error"], refused["untouched"]) == ("Damaged", True)


def test_a_setting_that_changed_is_refused_by_all_by_name_unless_it_is_allowed(crew: Crew) -> None:
    """C25: no falling back to an older checkpoint, which was made with the same setting."""
    crew.play("script", 2, steps=[["update", 2], ["save"]], config={"schedule": 100, "batch": 2})
    steps = [["resume"], ["resume", {"allow": ["config.schedule"]}]]
    players = crew.play("script", 2, steps=steps, config={"schedule": 50, "batch": 2})
    for refused, resumed in told(players, "resume"):
        assert (refused["error"], refused["untouched"]) == ("Incompatible", True)
        assert "config.schedule 100 != 50" in refused["message"]
        assert "batch" not in refused["message"]
        assert resumed["there"]


def test_a_contributors_own_generator_and_cursor_have_no_place_among_fewer(crew: Crew) -> None:
    """C23: 2 contributors become 1; with a policy by name, weights and moments come and what is its own begins anew."""
    crew.play("script", 2, steps=[["update", 4], ["save"]])
    steps = [["resume"], ["resume", {"layout_policy": "fresh"}]]
    (player,) = crew.play("script", 1, steps=steps)
    refused, resumed = told([player], "resume")[0]
    assert (refused["error"], refused["untouched"]) == ("LayoutChanged", True)
    state = resumed["state"]
    assert (state["w"], state["m"], state["b"], state["rng"]) == ([4], [40], [400], [0, 0])
    assert state["versions"]["cursor"] == state["values"]["cursor"] == 8


@pytest.mark.parametrize(("saved", "resumed"), [(3, 2), (2, 3), (3, 1)])
def test_shards_move_to_another_number_of_contributors(crew: Crew, saved: int, resumed: int) -> None:
    """C23 C50: uneven rows, parameters and moments, and the one cursor of the run."""
    steps = [["update", 4], ["even"], ["save"]]
    crew.play("script", saved, steps=steps, contract=SHARED_ONLY)
    players = crew.play("script", resumed, steps=[["resume"], ["read-back"]], contract=SHARED_ONLY)
    for rank, (each,) in enumerate(told(players, "resume")):
        expected = whole(4, rank)
        assert {key: each["state"][key] for key in ("w", "m", "b", "versions")} == {
            key: expected[key] for key in ("w", "m", "b", "versions")
        }
        assert each["state"]["values"]["cursor"] == 8


def test_weights_are_no_state_that_training_goes_on_from(crew: Crew) -> None:
    """They come alone, and the trainer's resume does not take them."""
    crew.play("script", 2, steps=[["update", 2], ["save"]])
    players = crew.play("script", 2, steps=[["weights"]])
    for player in players:
        assert player.said[1] == {"names": ["w"], "sequence": 2}
        assert player.last["error"] == "TypeError"


def test_a_budget_is_kept_before_a_byte_is_read(crew: Crew) -> None:
    """The size is one of the differences that are named."""
    crew.play("script", 2, steps=[["update", 2], ["save"]])
    players = crew.play("script", 2, steps=[["resume", {"budget_bytes": 100}]])
    for (refused,) in told(players, "resume"):
        assert (refused["error"], refused["untouched"]) == ("Incompatible", True)
        assert "the budget is 100" in refused["message"]


def test_nobody_swaps_in_before_all_have_verified(crew: Crew) -> None:
    """Contributor 1 dies while it verifies: contributor 0 has changed nothing."""
    crew.play("script", 2, steps=[["update", 2], ["save"]])
    short = {"persist_seconds": 1.0, "margin_seconds": 1.0}
    players = crew.start("script", 2, steps=[["resume"]], deadlines=short, by_rank={1: {"hold": ["verified"]}})
    crew.held("verified", 1)
    players[1].kill()
    (refused,) = told([players[0].end()], "resume")[0]
    assert (refused["error"], refused["untouched"]) == ("ContributorMissing", True)


def test_items_that_nobody_takes_are_verified_all_the_same(crew: Crew) -> None:
    """A bit of the generators', which a fresh layout does not read: the checkpoint is passed over."""
    crew.play("script", 2, steps=[["update", 2], ["save"], ["update"], ["save"]])
    # Items lie in the order of their names, each at a multiple of 4096: m, rng, w in contributor 1's file.
    flip(newest_folder(crew) / "1.bin", 4096)
    (player,) = crew.play("script", 1, steps=[["resume", {"layout_policy": "fresh"}]])
    assert (player.last["sequence"], player.last["skipped"][0][0]) == (2, 3)


def test_samples_read_ahead_are_not_samples_consumed(crew: Crew) -> None:
    """C20: 12 fetched and 8 consumed: the cursor is 8, and what was fetched is told beside it."""
    contract = {"versions": {**CONTRACT["versions"], "fetched": "per_contributor"}}
    steps = [["update", 4], ["fetched", 12], ["save"]]
    crew.play("script", 2, steps=steps, contract=contract)
    players = crew.play("script", 2, steps=[["resume"]], contract=contract)
    for (resumed,) in told(players, "resume"):
        assert resumed["state"]["versions"] == {"attempts": 4, "updates": 4, "cursor": 8, "fetched": 12}


def test_each_generator_goes_on_where_its_own_contributor_left_it(crew: Crew) -> None:
    """C13: 1 and 5 numbers drawn from generators of their own; the next ones are those of an uninterrupted run."""
    steps = [["draw", 1], ["save"], ["draw", 3]]
    five = [["draw", 5], ["save"], ["draw", 3]]
    contract = {"roles": {**CONTRACT["roles"], "config": {"placement": "per_contributor"}}}
    contract["profiles"] = {**CONTRACT["profiles"], "resume": [*CONTRACT["profiles"]["resume"], "config"]}
    before = crew.play("script", 2, steps=steps, by_rank={1: {"steps": five}}, contract=contract)
    after = crew.play("script", 2, steps=[["resume"], ["draw", 3]], contract=contract)
    drawn = [each[0]["numbers"] for each in told(after, "draw")]
    assert drawn == [each[1]["numbers"] for each in told(before, "draw")]
    assert drawn[0] != drawn[1]


def test_a_restore_beside_a_journal_needs_its_watermark_and_says_what_it_does_not_undo(crew: Crew) -> None:
    """No watermark, an older journal and another one are refused by all; effects after the cut stand, and are named."""
    seal = {"number": 3, "digest": "ab" * 32}
    kept = {"journal_id": "1f", "seal": seal, "pending": []}
    crew.play("script", 2, steps=[["update", 2], ["save-beside", kept]])
    after = {"key": "k", "scope": "train/r1", "name": "reserve@3", "reservation_id": "reservation-2"}
    now = {"journal_id": "1f", "seal": {"number": 5, "digest": "cd" * 32}, "at": seal, "committed_since": [after]}
    older = {"journal_id": "1f", "seal": {"number": 2, "digest": "cd" * 32}}
    another = {**now, "journal_id": "2f"}
    steps = [["resume", {"watermark": given} if given else {}] for given in (None, older, another, now)]
    players = crew.play("script", 2, steps=steps)
    for none, behind, forked, resumed in told(players, "resume"):
        assert [each["error"] for each in (none, behind, forked)] == ["JournalBehind", "JournalBehind", "JournalForked"]
        assert all(each["untouched"] for each in (none, behind, forked))
        assert resumed["sequence"] == 2
    for (said,) in told(players, "not-undone"):
        assert (said["undone"], said["not_undone"][0]["reservation_id"]) == (0, "reservation-2")


def test_a_coordinator_that_comes_late_with_its_verdict_swaps_nothing_in_alone(crew: Crew) -> None:
    """Contributor 1 has given up by then: neither has resumed, and neither state was touched."""
    crew.play("script", 2, steps=[["update"], ["save"]])
    late = {"persist_seconds": 1.0, "margin_seconds": 0.5}
    steps = [["resume"], ["touch", "gave-up"], ["await", "over"]]
    players = crew.start(
        "script", 2, steps=steps[:1], deadlines=late, by_rank={0: {"hold": ["voted"]}, 1: {"steps": steps}}
    )
    crew.held("voted", 0)
    assert wait_for(crew.folder / "gave-up", longest_seconds=PATIENCE_SECONDS)
    crew.let_go("voted", 0)
    players[0].end()
    crew.folder.joinpath("over").touch()
    players[1].end()
    (missed,), (lost,) = told(players, "resume")
    assert (missed["error"], missed["untouched"]) == ("ContributorMissing", True)
    assert (lost["error"], lost["untouched"]) == ("CoordinatorLost", True)


def test_what_is_no_watermark_is_refused_by_all_and_makes_no_checkpoint_a_damaged_one(crew: Crew) -> None:
    """Neither kept at a save nor believed at a restore: the checkpoint before, without one, is not taken instead."""
    kept: dict[str, Any] = {"journal_id": "1f", "seal": None, "pending": []}
    steps = [["update"], ["save"], ["update"], ["save-beside", {**kept, "seal": 3}], ["save-beside", kept]]
    for refused, saved in told(crew.play("script", 2, steps=steps), "save-beside"):
        assert refused["error"] == "ManifestInvalid"
        assert saved["saved"] == 3
    players = crew.play("script", 2, steps=[["resume", {"watermark": {**kept, "seal": 3}}]])
    for (refused,) in told(players, "resume"):
        assert (refused["error"], refused["untouched"]) == ("Incompatible", True)


def test_a_live_array_that_no_checkpoint_can_have_is_no_damage(crew: Crew) -> None:
    """Big-endian weights at contributor 1: all are told, and no checkpoint is passed over for it."""
    crew.play("script", 2, steps=[["update"], ["save"], ["update"], ["save"]])
    players = crew.play("script", 2, steps=[["resume"]], by_rank={1: {"steps": [["big-endian"], ["resume"]]}})
    for (refused,) in told(players, "resume"):
        assert (refused["error"], refused["untouched"]) == ("Incompatible", True)
        assert "is big-endian" in refused["message"]
