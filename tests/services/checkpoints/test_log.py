"""The log, by real processes: one slot, one writer; who opened later has the run."""

import json
from pathlib import Path

import pytest

from services.checkpoints.layout import Run
from services.checkpoints.log import LogRecord, last_slot, read_log
from services.checkpoints.records import canonical, sealed
from tests.services.checkpoints.bench import LAUNCH, Answered, Writer, one, save_id, versions, writer

LATER = "b" * 32


def log_of(root: Path) -> list[LogRecord]:
    """All records, each believed."""
    with Run.open(root, "r1") as run:
        found = read_log(run)
    assert all(isinstance(each, LogRecord) for each in found)
    return [each for each in found if isinstance(each, LogRecord)]


def test_a_coordinator_that_slept_before_its_link_is_fenced(tmp_path: Path) -> None:
    """D01: A stops right before it links 3, B opens and commits, A goes on: the slot is B's."""
    with writer(tmp_path) as a, writer(tmp_path) as b:
        assert a.ask("open", writer="a", launch=LAUNCH) == 1
        assert a.save(save_id(1), one(1), versions(1)) == 2
        a.contribute(save_id(2), one(2), versions(2))
        a.ask("hold", call="link .*log/3.json")
        a.tell("commit", save_id=save_id(2), world=["0"])
        assert a.answer()["held"].endswith("log/3.json")
        assert b.ask("open", writer="b", launch=LATER) == 3
        assert b.ask("latest")["sequence"] == 2
        assert b.save(save_id(3), one(2, 7.0), versions(2)) == 4
        a.tell("go")
        with pytest.raises(Answered, match=r"FencedWriter.*slot 3") as caught:
            a.answer()
        assert caught.value.kind == "FencedWriter"
        assert b.save(save_id(4), one(3), versions(3)) == 5
        assert b.ask("latest")["sequence"] == 5
    assert [(each.kind, each.writer) for each in log_of(tmp_path)] == [
        ("open", "a"), ("commit", "a"), ("open", "b"), ("commit", "b"), ("commit", "b"),
    ]  # fmt: skip


def test_two_jobs_save_the_same_slot_and_one_has_it(tmp_path: Path) -> None:
    """C40: the other is fenced, and its files are in a folder of their own."""
    with writer(tmp_path) as a, writer(tmp_path) as b:
        a.ask("open", writer="a", launch=LAUNCH)
        b.ask("open", writer="b", launch=LATER)
        assert b.save(save_id(2), one(1, 2.0), versions(1)) == 3
        with pytest.raises(Answered) as caught:
            a.save(save_id(1), one(1, 1.0), versions(1))
        assert caught.value.kind == "FencedWriter"
        found = b.ask("latest")
        assert (found["sequence"], found["w"][0], found["skipped"]) == (3, [2.0, 2.0], [])


def race(root: Path, *, processes: int, rounds: int) -> None:
    """Processes open and commit as fast as they can; then everything is compared."""
    writers = [Writer(root) for _ in range(processes)]
    try:
        for number, each in enumerate(writers):
            each.tell("race", writer=f"w{number}", launch=f"{number:032x}", rounds=rounds, first=number * 10_000)
        outcomes = [each.answer() for each in writers]
    finally:
        for each in writers:
            each.kill()
    log = log_of(root)
    assert [record.sequence for record in log] == list(range(1, len(log) + 1))
    said = {}
    for number, outcome in enumerate(outcomes):
        for kind, *rest in outcome:
            if kind in {"open", "commit"}:
                assert rest[0] not in said
                said[rest[0]] = (kind, f"w{number}", rest[1] if kind == "commit" else None)
    assert said == {record.sequence: (record.kind, record.writer, record.save_id) for record in log}
    # Within an epoch, nobody else wrote: a commit's epoch is always the newest `open` before it.
    epoch = 0
    for record in log:
        epoch = record.sequence if record.kind == "open" else epoch
        assert record.epoch == epoch


def test_opens_and_commits_race_and_the_log_has_no_gap(tmp_path: Path) -> None:
    """D02: what each process was told is what the log holds, and nothing else is in it."""
    race(tmp_path, processes=3, rounds=60)


def test_after_a_failed_fsync_of_the_log_nothing_is_acknowledged(tmp_path: Path) -> None:
    """D09: the record is linked and may be lost: CommitUnknown, and a successor's read settles it."""
    with writer(tmp_path) as a, writer(tmp_path) as b:
        a.ask("open", writer="a", launch=LAUNCH)
        a.contribute(save_id(1), one(1), versions(1))
        a.ask("fail", call="fsync .*/log$", code=5)
        with pytest.raises(Answered, match="may be lost") as caught:
            a.ask("commit", save_id=save_id(1), world=["0"])
        assert caught.value.kind == "CommitUnknown"
        assert b.ask("open", writer="b", launch=LATER) == 3
        assert any(call.endswith("/log") and call.startswith("fsync") for call in b.ask("calls"))
        assert b.ask("latest")["sequence"] == 2


def test_a_link_that_failed_before_it_did_anything_published_nothing(tmp_path: Path) -> None:
    """The slot is read back: free, so the next save may have it."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.contribute(save_id(1), one(1), versions(1))
        a.ask("fail", call="link .*log/2.json", code=5)
        with pytest.raises(Answered) as caught:
            a.ask("commit", save_id=save_id(1), world=["0"])
        assert caught.value.kind == "CommitFailed"
        assert a.ask("latest")["sequence"] is None


def test_a_link_that_reports_failure_and_was_done_is_read_back(tmp_path: Path) -> None:
    """Whatever link returned, the slot says whose it is."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.contribute(save_id(1), one(1), versions(1))
        a.ask("fail", call=r"unlink .*log/\.tmp", code=5)
        assert a.ask("commit", save_id=save_id(1), world=["0"])["sequence"] == 2


@pytest.mark.parametrize("slots", [0, 1, 2, 3, 4, 7, 8, 9, 100])
def test_the_last_slot_is_found_in_few_looks(tmp_path: Path, slots: int) -> None:
    """However many there are."""
    with Run.open(tmp_path, "r1", create=True) as run:
        for slot in range(1, slots + 1):
            (tmp_path / "runs/r1/log" / f"{slot}.json").write_text("")
        assert last_slot(run) == slots
        assert last_slot(run, known=slots // 2) == slots


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": 4},
        {"run": "r2"},
        {"kind": "close"},
        {"epoch": 2},
        {"epoch": 0},
        {"writer": "../a"},
        {"save_id": "7"},
    ],
)
def test_a_record_in_the_wrong_place_is_not_believed(tmp_path: Path, change: dict[str, object]) -> None:
    """D06: another slot, another run, a number for a save id: each refused with a true digest, too."""
    with writer(tmp_path) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        a.save(save_id(1), one(1), versions(1))
        a.save(save_id(2), one(2), versions(2))
        path = tmp_path / "runs/r1/log/3.json"
        record = json.loads(path.read_bytes())
        path.write_bytes(canonical(sealed({**record, **change})))
        found = a.ask("latest")
        assert found["sequence"] == 2
        assert found["skipped"][0][0] == 3
        assert found["skipped"][0][1].startswith(("ManifestInvalid", "SizeMismatch"))
