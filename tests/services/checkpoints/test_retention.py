"""Retention, by real processes: only the newest epoch, only after a mark and a grace, never the last good ones."""

import errno
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.checkpoints import fs
from services.checkpoints.layout import Run
from services.checkpoints.retention import clear_temporaries
from tests.services.checkpoints import forging
from tests.services.checkpoints.bench import LAUNCH, Answered, Writer, item, one, save_id, versions, writer

LATER = "b" * 32
FAR = 4e9  # a time after every grace


@pytest.fixture
def trained(tmp_path: Path) -> Iterator[Writer]:
    """A process with checkpoints 2 to 5, of updates 1 to 4."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        for updates in range(1, 5):
            assert a.save(save_id(updates), one(updates), versions(updates)) == updates + 1
        yield a


def test_the_newest_are_kept_and_the_others_go_after_a_mark_and_a_grace(trained: Writer, tmp_path: Path) -> None:
    """The record of one that went stays in the log."""
    marked = trained.ask("prune", grace_seconds=3600)
    assert (marked["kept"], marked["marked"], marked["removed"]) == ([4, 5], [2, 3], [])
    assert forging.paths(tmp_path, 2)[1].is_dir()
    with pytest.raises(Answered) as caught:
        trained.ask("load", sequence=2)
    assert caught.value.kind == "Retired"
    assert trained.ask("prune", grace_seconds=3600)["removed"] == []
    assert trained.ask("prune", now=FAR)["removed"] == [2, 3]
    assert not forging.paths(tmp_path, 2)[1].exists()
    assert trained.ask("prune", now=FAR) == {
        "kept": [4, 5],
        "marked": [],
        "removed": [],
        "abandoned": [],
        "damaged": [],
    }
    assert trained.ask("latest")["sequence"] == 5
    assert trained.ask("verify") == []


def test_while_the_new_one_fails_the_old_ones_stay(trained: Writer) -> None:
    """C41: keep 2; the save after them is incomplete and never counts."""
    trained.ask("prune", now=FAR)
    trained.contribute(save_id(9), one(9), versions(9))
    for _ in range(2):
        assert trained.ask("prune", now=FAR)["kept"] == [4, 5]


def test_a_damaged_checkpoint_does_not_count(trained: Writer, tmp_path: Path) -> None:
    """C41: it was read back, and two others are kept."""
    forging.flip(forging.paths(tmp_path, 5)[1] / "0.bin")
    found = trained.ask("prune")
    assert (found["kept"], found["marked"], found["damaged"]) == ([3, 4], [2], [5])


def test_fewer_than_two_good_ones_and_nothing_is_marked(trained: Writer, tmp_path: Path) -> None:
    """However many there are."""
    for sequence in (3, 4, 5):
        forging.flip(forging.paths(tmp_path, sequence)[1] / "0.bin")
    found = trained.ask("prune")
    assert (found["kept"], found["marked"], found["damaged"]) == ([2], [], [3, 4, 5])
    with pytest.raises(Answered, match="at least 2"):
        trained.ask("prune", keep=1)


def test_pins_and_every_nth_and_the_last_finite_are_kept(tmp_path: Path) -> None:
    """A pin needs no epoch."""
    with writer(tmp_path) as a, writer(tmp_path) as b:
        a.ask("open", writer="a", launch=LAUNCH)
        for updates in range(1, 8):
            number = 0 if updates < 5 else float("nan")
            bad = item("b", [number], role="buffer", placement="replicated", finite=updates < 5)
            a.save(save_id(updates), {"0": [*one(updates)["0"], bad]}, versions(updates))
        b.ask("pin", sequence=2)
        found = a.ask("prune", every=3)
        # Updates 6 and 7 are the newest, 4 is the last finite, 3 and 6 are every third, 1 is pinned.
        assert (found["kept"], found["marked"]) == ([2, 4, 5, 7, 8], [3, 6])
        b.ask("unpin", sequence=2)
        assert a.ask("prune", every=3)["marked"] == [2]
        with pytest.raises(Answered) as caught:
            b.ask("pin", sequence=2)
        assert caught.value.kind == "Retired"


def test_weights_alone_neither_count_nor_go_before_what_counts(trained: Writer) -> None:
    """C46: the newest may be weights only; it is not what a run resumes from."""
    trained.save(save_id(9), {"0": [item("w", [[1.0]])]}, versions(9), kind="weights_only")
    found = trained.ask("prune")
    assert (found["kept"], found["marked"]) == ([4, 5], [2, 3])


def test_a_pin_that_meets_a_mark_is_no_pin(trained: Writer, tmp_path: Path) -> None:
    """Whichever comes first: never both, and never bytes that go under a pin."""
    with writer(tmp_path) as b:
        b.ask("hold", call="link .*pins/2")
        b.tell("pin", sequence=2)
        assert "pins/2" in b.answer()["held"]
        assert trained.ask("prune")["marked"] == [2, 3]
        b.tell("go")
        with pytest.raises(Answered) as caught:
            b.answer()
        assert caught.value.kind == "Retired"
        trained.ask("hold", call="link .*retired/4")
        trained.save(save_id(8), one(8), versions(8))
        trained.tell("prune")
        assert trained.answer()["held"].endswith("retired/4")
        b.ask("pin", sequence=4)
        trained.tell("go")
        assert trained.answer()["marked"] == []
        assert trained.ask("prune", now=FAR)["removed"] == [2, 3]
        b.tell("load", sequence=4)
        assert b.answer() == "loaded"


def test_an_older_coordinator_removes_nothing(trained: Writer, tmp_path: Path) -> None:
    """D10: a new one has the run; the old one's retention is refused, before and between."""
    trained.ask("prune")
    trained.ask("hold", call="unlink .*retired|unlink .*manifest")
    with writer(tmp_path) as b:
        b.ask("open", writer="b", launch=LATER)
        with pytest.raises(Answered) as caught:
            trained.ask("prune", now=FAR)
        assert caught.value.kind == "FencedWriter"
        assert forging.paths(tmp_path, 2)[1].is_dir()


def test_a_reader_that_has_it_open_is_told_to_look_again(trained: Writer, tmp_path: Path) -> None:
    """D10: removed between its look and its reading: Retired, and not damaged."""
    with writer(tmp_path) as reader:
        reader.tell("load", sequence=2)
        assert reader.answer() == "loaded"
        trained.ask("prune")
        assert trained.ask("prune", now=FAR)["removed"] == [2, 3]
        reader.tell("go")
        with pytest.raises(Answered) as caught:
            reader.answer()
        assert caught.value.kind == "Retired"
        assert reader.ask("latest")["sequence"] == 5


def test_a_save_that_begins_while_retention_looks_is_not_touched(trained: Writer, tmp_path: Path) -> None:
    """D15: it lists, another opens and declares, it would remove: only epochs below its own, and not any more."""
    with writer(tmp_path) as b, writer(tmp_path) as c:
        trained.contribute(save_id(7), one(7), versions(7))  # given up: its epoch ends now
        b.ask("open", writer="b", launch=LATER)
        b.ask("hold", call="unlink .*manifest|unlink .*0.json|unlink .*0.bin")
        b.tell("prune", now=FAR)
        assert "1-" + save_id(7) in b.answer()["held"]
        c.ask("open", writer="c", launch="c" * 32)
        c.contribute(save_id(8), one(8), versions(8))
        b.tell("go")
        assert b.answer()["abandoned"] == ["1-" + save_id(7)]
        assert c.ask("commit", save_id=save_id(8), world=["0"])["sequence"] == 8
        assert c.ask("latest")["sequence"] == 8
        with pytest.raises(Answered) as caught:
            b.ask("prune", now=FAR)
        assert caught.value.kind == "FencedWriter"


def test_a_live_save_of_ones_own_epoch_is_not_abandoned(trained: Writer, tmp_path: Path) -> None:
    """D15: only lower epochs are over."""
    trained.contribute(save_id(7), one(7), versions(7))
    # As between the folder and its declaration, where nothing but the epoch speaks for it.
    (tmp_path / f"runs/r1/data/1-{save_id(7)}/declare").unlink()
    assert trained.ask("prune", now=FAR)["abandoned"] == []
    assert trained.ask("commit", save_id=save_id(7), world=["0"])["sequence"] == 6
    with writer(tmp_path) as b:
        b.ask("open", writer="b", launch=LATER)
        assert b.ask("prune", now=FAR)["abandoned"] == []


def test_a_declaration_of_a_slot_that_is_not_there_yet_is_left_alone(trained: Writer, tmp_path: Path) -> None:
    """D15: its epoch says that it is over, its slot says that it is not: that is for a person."""
    trained.contribute(save_id(7), one(7), versions(7))
    path = tmp_path / f"runs/r1/data/1-{save_id(7)}/declare"
    path.write_bytes(path.read_bytes().replace(b'"sequence":6', b'"sequence":60'))
    with writer(tmp_path) as b:
        b.ask("open", writer="b", launch=LATER)
        assert b.ask("prune", now=FAR)["abandoned"] == []
        path.unlink()
        assert b.ask("prune", now=FAR)["abandoned"] == [f"1-{save_id(7)}"]


def test_what_would_fence_a_trainer_is_said_first(trained: Writer, tmp_path: Path) -> None:
    """D16: refused without --take-over; pin works."""
    with writer(tmp_path) as command:
        command.ask("pin", sequence=2)
        with pytest.raises(Answered, match="--take-over") as caught:
            command.ask("idle", take_it_over=False, writer="cli")
        assert caught.value.kind == "FencedWriter"
        assert trained.save(save_id(8), one(8), versions(8)) == 6
        assert command.ask("idle", take_it_over=True, writer="cli") == 7
        assert command.ask("prune")["kept"] == [2, 5, 6]
        with pytest.raises(Answered) as caught:
            trained.save(save_id(9), one(9), versions(9))
        assert caught.value.kind == "FencedWriter"


def test_what_dead_writers_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    """Readers never saw it."""
    Run.open(tmp_path, "r1", create=True).close()
    left = tmp_path / "runs/r1/log" / f"{fs.TEMPORARY}{'0' * 32}"
    left.write_text("")
    with Run.open(tmp_path, "r1") as run:
        assert clear_temporaries(run.log, older_than_seconds=3600, now=time.time()) == 0
        assert clear_temporaries(run.log, older_than_seconds=3600, now=FAR) == 1
    assert not left.exists()


def test_what_waits_for_its_end_comes_back_when_too_few_count(trained: Writer, tmp_path: Path) -> None:
    """Marked while two newer ones were whole; those are damaged since, and the marked ones are the last."""
    trained.ask("prune")
    for sequence in (4, 5):
        forging.flip(forging.paths(tmp_path, sequence)[1] / "0.bin")
    found = trained.ask("prune", now=FAR)
    assert (found["kept"], found["removed"], found["damaged"]) == ([2, 3], [], [4, 5])
    trained.tell("load", sequence=3)
    assert trained.answer() == "loaded"
    assert trained.ask("go")


def test_one_more_is_brought_back_and_only_the_rest_goes(trained: Writer, tmp_path: Path) -> None:
    """As many as are kept, newest first."""
    trained.ask("prune")
    forging.flip(forging.paths(tmp_path, 5)[1] / "0.bin")
    found = trained.ask("prune", now=FAR)
    assert (found["kept"], found["removed"], found["damaged"]) == ([3, 4], [2], [5])


def test_nothing_that_is_marked_goes_while_too_few_count(tmp_path: Path) -> None:
    """C46: weights alone do not count, and may be all that is left."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(save_id(1), {"0": [item("w", [[1.0]])]}, versions(1), kind="weights_only")
        for updates in (2, 3):
            a.save(save_id(updates), one(updates), versions(updates))
        assert a.ask("prune")["marked"] == [2]
        forging.flip(forging.paths(tmp_path, 4)[1] / "0.bin")
        assert a.ask("prune", now=FAR)["removed"] == []


@pytest.mark.parametrize("damage", [forging.flip, Path.unlink])
def test_what_a_record_names_that_cannot_be_read_is_not_abandoned(
    trained: Writer, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Its data is whole: the log's record may be brought back, the bytes could not."""
    log, folder = forging.paths(tmp_path, 2)
    before = log.read_bytes()
    trained.contribute(save_id(7), one(7), versions(7))
    with writer(tmp_path) as b:
        b.ask("open", writer="b", launch=LATER)
        damage(log)
        found = b.ask("prune", now=FAR)
        assert (found["abandoned"], found["damaged"]) == ([f"1-{save_id(7)}"], [2])
        assert folder.is_dir()
        log.write_bytes(before)
        assert b.ask("verify") == []


def test_a_mark_is_not_made_for_a_later_coordinators_run(trained: Writer, tmp_path: Path) -> None:
    """D10: it read back for an hour; meanwhile another resumed from what it would mark."""
    trained.ask("hold", call="link .*retired/3")
    trained.tell("prune")
    assert trained.answer()["held"].endswith("retired/3")
    with writer(tmp_path) as b:
        b.ask("open", writer="b", launch=LATER)
        trained.tell("go")
        with pytest.raises(Answered) as caught:
            trained.answer()
        assert caught.value.kind == "FencedWriter"
    assert not (tmp_path / "runs/r1/retired/2").exists()


def test_a_trainer_that_comes_while_a_command_looks_is_not_fenced(tmp_path: Path) -> None:
    """D16: without --take-over, the slot behind what was looked at or none."""
    with writer(tmp_path) as a, writer(tmp_path) as command:
        command.ask("hold", call="link .*log/1.json")
        command.tell("idle", take_it_over=False, writer="cli")
        assert command.answer()["held"].endswith("log/1.json")
        a.ask("open", writer="a", launch=LAUNCH)
        command.tell("go")
        with pytest.raises(Answered) as caught:
            command.answer()
        assert caught.value.kind == "FencedWriter"
        assert a.save(save_id(1), one(1), versions(1)) == 2


def test_on_a_full_disk_what_was_marked_goes(trained: Writer, tmp_path: Path) -> None:
    """A mark needs room, which only a removal makes; then it is said that no more was marked."""
    trained.ask("prune")
    for updates in (8, 9):
        trained.save(save_id(updates), one(updates), versions(updates))
    trained.ask("fail", call="write .*retired", code=errno.ENOSPC)
    with pytest.raises(Answered, match="No space left") as caught:
        trained.ask("prune", now=FAR)
    assert caught.value.kind == "CommitFailed"
    assert [forging.paths(tmp_path, sequence)[1].exists() for sequence in (2, 3, 4, 5)] == [False, False, True, True]


def test_a_pin_takes_no_other_pin_away(trained: Writer, tmp_path: Path) -> None:
    """Another's is older than the mark, which therefore goes: the checkpoint stays pinned."""
    trained.save(save_id(8), one(8), versions(8))
    with writer(tmp_path) as b, writer(tmp_path) as c:
        c.ask("hold", call="link .*pins/4")
        c.tell("pin", sequence=4)
        c.answer()
        trained.ask("hold", call="link .*retired/4")
        trained.ask("hold", call="fsync .*retired$")
        trained.tell("prune")
        assert trained.answer()["held"].endswith("retired/4")
        b.ask("pin", sequence=4)
        trained.tell("go")
        assert trained.answer()["held"].endswith("retired")
        c.tell("go")
        with pytest.raises(Answered):
            c.answer()
        trained.tell("go")
        assert 4 not in trained.answer()["marked"]
        assert 4 not in trained.ask("prune", now=FAR)["marked"]


def test_what_stands_in_the_way_stops_nothing(trained: Writer, tmp_path: Path) -> None:
    """A file for a folder, a folder among the files, a mark that is not one: the rest goes all the same."""
    data = tmp_path / "runs/r1/data"
    trained.ask("prune")
    (data / f"1-{save_id(20)}").write_text("")
    (data / f"1-{save_id(21)}" / "somebodys").mkdir(parents=True)
    (forging.paths(tmp_path, 2)[1] / "somebodys").mkdir()
    (tmp_path / "runs/r1/retired/3").write_bytes(b"{")
    with writer(tmp_path) as b:
        b.ask("open", writer="b", launch=LATER)
        found = b.ask("prune", now=FAR)
        assert (found["removed"], found["abandoned"]) == ([2, 3], [f"1-{save_id(21)}"])
    assert [each.name for each in forging.paths(tmp_path, 2)[1].iterdir()] == ["somebodys"]
    assert (data / f"1-{save_id(20)}").is_file()


@pytest.mark.usefixtures("trained")
def test_the_words_of_dead_launches_and_unlinked_files_go_when_nobody_touches_them(tmp_path: Path) -> None:
    """D12: only of launches that a later one fenced; one that has not opened yet, and the newest, are left."""
    folder = tmp_path / "runs/r1"
    unknown = "d" * 32
    for launch in (LAUNCH, LATER, unknown):
        (folder / "meet" / launch).mkdir()
        (folder / "meet" / launch / "joined.1").write_text("{}")
    left = [folder / inner / f"{fs.TEMPORARY}{'0' * 32}" for inner in ("log", "pins", f"data/1-{save_id(4)}", ".")]
    for each in left:
        each.write_text("")
    with writer(tmp_path) as b:
        b.ask("open", writer="b", launch=LATER)
        b.ask("prune", grace_seconds=0)
        assert len(list((folder / "meet").iterdir())) == 3
        assert all(each.exists() for each in left)
        b.ask("prune", now=FAR)
    assert sorted(each.name for each in (folder / "meet").iterdir()) == [LATER, unknown]
    assert not any(each.exists() for each in left)
