"""`counterfoil checkpoint`: what is there, whether it is still that, and what it refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.checkpoints.interruption import Interruption, interrupt
from services.checkpoints.learner import LearnerConfig
from tests.services.cli.conftest import Run

JOURNAL = "0" * 32
SEAL = {"number": 3, "digest": "a" * 64}
CUT: dict[str, Any] = {"journal_id": JOURNAL, "seal": SEAL, "pending": ["cf1-pending-g1"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two contributors: slots 1 and 5 open its two starts, 2, 3, 4 and 6 are checkpoints."""
    root = tmp_path_factory.mktemp("store") / "ckpt"
    config = LearnerConfig(schedule=9)
    interrupt(Interruption(root=root, config=config, ranks=2, resume_ranks=2, updates=9, every=2, kill_at=6))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "ckpt"))


def asked(counterfoil: Run, root: Path, *arguments: str, stdin: str = "") -> tuple[int, dict[str, Any]]:
    """A command's exit code and its document."""
    command, *rest = arguments
    done = counterfoil("checkpoint", command, "--root", str(root), *rest, "--json", stdin=stdin)
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def test_the_list_has_sequence_attempts_and_updates_in_columns_of_their_own(counterfoil: Run, root: Path) -> None:
    """C28: no folder's name stands for two numbers; the boundary is told, and pages follow each other."""
    code, document = asked(counterfoil, root, "list")
    rows = document["checkpoints"]
    assert code == 0
    assert [(row["sequence"], row["attempts"], row["updates"]) for row in rows] == [
        (6, 8, 8), (4, 6, 6), (3, 4, 4), (2, 2, 2),
    ]  # fmt: skip
    assert {row["boundary"] for row in rows} == {"after an attempt, gradients cleared, nothing in flight"}
    _, page = asked(counterfoil, root, "list", "--limit", "2")
    _, rest = asked(counterfoil, root, "list", "--before", str(page["next_before"]))
    assert [row["sequence"] for row in page["checkpoints"] + rest["checkpoints"]] == [6, 4, 3, 2]
    people = counterfoil("checkpoint", "list", "--root", str(root)).stdout.splitlines()
    assert people[0].split()[:4] == ["sequence", "attempts", "updates", "cursor"]


def test_a_checkpoint_is_shown_with_its_cut_and_items(counterfoil: Run, root: Path) -> None:
    """The newest, or the one that was asked for."""
    _, document = asked(counterfoil, root, "show", "--sequence", "3")
    assert (document["versions"]["updates"], document["versions"]["cursor"]) == (4, 8)
    assert {item["placement"] for item in document["items"]} == {"sharded", "replicated"}
    assert document["config"]["schedule"] == 9
    assert "moment_m" in counterfoil("checkpoint", "show", "--root", str(root)).stdout
    assert asked(counterfoil, root, "show", "--sequence", "1")[0] == 1
    assert asked(counterfoil, root, "show", "--run", "other")[0] == 2


def test_what_is_whole_is_0_and_a_flipped_byte_is_1_and_named(counterfoil: Run, root: Path) -> None:
    """Verify reads every byte; a restore takes the one before, and says so."""
    assert asked(counterfoil, root, "verify")[1]["whole"] is True
    _, newest = asked(counterfoil, root, "show")
    (data,) = root.glob(f"runs/reference/data/*-{newest['save_id']}/1.bin")
    flipped = bytearray(data.read_bytes())
    flipped[0] ^= 1
    data.write_bytes(flipped)
    code, document = asked(counterfoil, root, "verify")
    assert (code, document["whole"]) == (1, False)
    ((found,),) = [[each for each in document["found"] if not each["usable"]]]
    assert found["sequence"] == 6
    assert found["reason"].startswith("DigestMismatch: item ")
    assert asked(counterfoil, root, "restore", "--sequence", "6")[1]["error"]["error"] == "DigestMismatch"


def test_a_truncated_newest_one_is_passed_over_and_said(counterfoil: Run, root: Path) -> None:
    """C35: it is listed as damaged, and the one before is restored by name."""
    _, newest = asked(counterfoil, root, "show")
    (data,) = root.glob(f"runs/reference/data/*-{newest['save_id']}/0.bin")
    data.write_bytes(data.read_bytes()[:-1])
    assert asked(counterfoil, root, "list")[1]["checkpoints"][0]["state"] == "damaged"
    code, document = asked(counterfoil, root, "restore")
    assert (code, document["sequence"]) == (0, 4)
    assert document["skipped"][0]["sequence"] == 6
    assert document["skipped"][0]["reason"].startswith("SizeMismatch: ")


def test_a_restore_takes_the_one_before_a_flipped_byte_as_a_trainer_does(counterfoil: Run, root: Path) -> None:
    """C35: also where only the digest tells; what was passed over is named, and by its number it is refused."""
    _, newest = asked(counterfoil, root, "show")
    (data,) = root.glob(f"runs/reference/data/*-{newest['save_id']}/1.bin")
    data.write_bytes(bytes([data.read_bytes()[0] ^ 1]) + data.read_bytes()[1:])
    code, document = asked(counterfoil, root, "restore")
    assert (code, document["sequence"], document["skipped"][0]["sequence"]) == (0, 4, 6)
    assert document["skipped"][0]["reason"].startswith("DigestMismatch: ")
    assert asked(counterfoil, root, "restore", "--sequence", "6")[0] == 1


def test_a_missing_record_hides_nothing(counterfoil: Run, root: Path) -> None:
    """What lies behind the gap is listed, and nobody takes an older one for the newest."""
    (root / "runs/reference/log/3.json").unlink()
    rows = asked(counterfoil, root, "list")[1]["checkpoints"]
    assert [(row["sequence"], row["state"]) for row in rows] == [
        (6, "whole"), (4, "whole"), (3, "damaged"), (2, "whole"),
    ]  # fmt: skip
    for command in ("show", "restore", "timeline"):
        code, document = asked(counterfoil, root, command)
        assert (code, document["error"]["error"]) == (1, "ManifestInvalid")
        assert "slot 3" in document["error"]["message"]
    assert asked(counterfoil, root, "restore", "--sequence", "4")[0] == 0
    code, document = asked(counterfoil, root, "verify")
    assert (code, document["slots"]) == (1, 6)


def test_what_is_shown_instead_of_the_newest_says_so(counterfoil: Run, root: Path) -> None:
    """A damaged newest one is named on stderr; a missing file by its name alone."""
    _, newest = asked(counterfoil, root, "show")
    next(root.glob(f"runs/reference/data/*-{newest['save_id']}/manifest.json")).unlink()
    done = counterfoil("checkpoint", "show", "--root", str(root), "--json")
    assert json.loads(done.stdout)["sequence"] == 4
    assert "passed over 6: SizeMismatch: checkpoint 6 lacks the file manifest.json" in done.stderr


def test_what_was_asked_for_and_is_not_there_is_said(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """Nothing that was not read is called whole, and no folder of the caller is taken for the store's."""
    code, document = asked(counterfoil, root, "verify", "--sequence", "99")
    assert (code, document["whole"], document["found"][0]["sequence"]) == (1, False, 99)
    code, document = asked(counterfoil, root, "list", "--run", "other")
    assert (code, "give one of reference as --run" in document["error"]["message"]) == (2, True)
    assert asked(counterfoil, root, "list", "--run", "../x")[0] == 2
    assert "is not there" in asked(counterfoil, tmp_path / "none", "list")[1]["error"]["message"]
    (tmp_path / "file").touch()
    code, document = asked(counterfoil, root, "restore", "--to", str(tmp_path / "file/to"))
    assert (code, "name another folder" in document["error"]["message"]) == (2, True)
    (tmp_path / "to.part").mkdir()
    code, document = asked(counterfoil, root, "restore", "--to", str(tmp_path / "to"))
    assert (code, "remove it" in document["error"]["message"]) == (2, True)
    people = counterfoil("checkpoint", "pin", "4", "--remove", "--root", str(root)).stdout
    assert people == "Checkpoint 4 was not pinned: nothing was changed.\n"
    (root / "runs/reference/RUN.json").unlink()
    assert "lacks RUN.json" in asked(counterfoil, root, "list")[1]["error"]["message"]


def test_what_the_system_refuses_is_damage_by_name_and_no_defect(counterfoil: Run, root: Path) -> None:
    """A folder where a file belongs, or a link in a circle: the others are listed, and nothing has a traceback."""
    record = root / "runs/reference/log/3.json"
    record.unlink()
    record.symlink_to(record)
    assert asked(counterfoil, root, "list")[1]["checkpoints"][2]["state"] == "damaged"
    code, document = asked(counterfoil, root, "verify")
    assert (code, [each["sequence"] for each in document["found"] if not each["usable"]]) == (1, [3])


def test_a_restore_writes_the_arrays_that_were_saved(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """Joined from the shards, into a new folder only; the weights alone where they are asked for."""
    code, document = asked(counterfoil, root, "restore", "--to", str(tmp_path / "to"))
    assert code == 0
    assert {path.stem for path in (tmp_path / "to").iterdir()} == set(document["items"])
    assert np.load(tmp_path / "to/weights.npy").shape == (7, 5)
    assert np.load(tmp_path / "to/optimizer_step.npy").tolist() == [8]
    assert asked(counterfoil, root, "restore", "--to", str(tmp_path / "to"))[0] == 2
    _, weights = asked(counterfoil, root, "restore", "--profile", "weights")
    assert set(weights["items"]) == {"weights", "mixing"}


@pytest.mark.parametrize(
    ("place", "command"),
    [("RUN.json", "list"), ("log/3.json", "verify"), ("contract", "verify"), ("manifest", "verify")],
)
def test_a_file_of_another_store_is_refused_by_its_format(
    place: str, command: str, counterfoil: Run, root: Path
) -> None:
    """D11: a journal export, or the index of a KV cache, is no record of ours, wherever it stands."""
    run = root / "runs/reference"
    _, third = asked(counterfoil, root, "show", "--sequence", "3")
    folder = next(run.glob(f"data/*-{third['save_id']}"))
    file = {"contract": next(run.glob("contracts/*")), "manifest": folder / "manifest.json"}.get(place, run / place)
    for foreign in (
        {"record": "journal", "format": 1, "journal_id": JOURNAL, "after": 0, "last_entry_id": 0},
        {"format": "kv-cache", "layers": 32, "digest": "a" * 64},
    ):
        file.unlink()
        file.write_text(json.dumps(foreign))
        code, document = asked(counterfoil, root, command)
        assert code == 1
        assert f"format {foreign['format']!r}" in json.dumps(document).replace('\\"', '"')


def test_a_pin_needs_no_epoch_and_prune_needs_to_take_over(counterfoil: Run, root: Path) -> None:
    """D16: a run that a trainer holds is refused; what is pinned stays."""
    assert asked(counterfoil, root, "pin", "2")[0] == 0
    code, refused = asked(counterfoil, root, "prune")
    assert (code, refused["error"]["error"]) == (1, "FencedWriter")
    assert "--take-over" in refused["error"]["message"]
    _, done = asked(counterfoil, root, "prune", "--take-over", "--grace", "0")
    assert (done["kept"], done["marked"], done["removed"]) == ([2, 4, 6], [3], [3])
    assert asked(counterfoil, root, "verify")[0] == 0
    assert asked(counterfoil, root, "list")[1]["checkpoints"][2]["state"] == "retired"
    assert asked(counterfoil, root, "pin", "3")[1]["error"]["error"] == "Retired"
    assert asked(counterfoil, root, "pin", "2", "--remove")[0] == 0


def test_the_timeline_is_drawn(counterfoil: Run, root: Path) -> None:
    """For people and for programs."""
    assert "first later mutation" in counterfoil("checkpoint", "timeline", "--root", str(root)).stdout
    _, document = asked(counterfoil, root, "timeline", "--sequence", "2")
    assert {"what": "updates", "version": 2}.items() <= next(
        step for step in document["steps"] if step["what"] == "updates"
    ).items()


def test_the_timeline_is_drawn_into_a_file(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """As a picture, and what cannot be written is said."""
    code, document = asked(counterfoil, root, "timeline", "--svg", str(tmp_path / "cut.svg"))
    assert (code, document["svg"]) == (0, str(tmp_path / "cut.svg"))
    assert "Checkpoint 6 of reference" in (tmp_path / "cut.svg").read_text()
    assert asked(counterfoil, root, "timeline", "--svg", str(tmp_path / "no" / "cut.svg"))[0] == 2


def test_a_plan_says_the_floor_the_interval_and_the_loss(counterfoil: Run, root: Path) -> None:
    """Alone with numbers, or with what a run has measured; played, its seconds are told apart."""
    numbers = ("--bandwidth", "20e9", "--mtbf", "21600")
    done = counterfoil("checkpoint", "plan", "--bytes", "2000000000000", *numbers, "--blocked", "5", "--json")
    made = json.loads(done.stdout)
    assert made["plan"]["floor_seconds"] == 100
    assert made["plan"]["interval_seconds"] == pytest.approx(464.758)
    assert "hides time, not bytes" in counterfoil("checkpoint", "plan", "--bytes", "1", *numbers).stdout
    assert counterfoil("checkpoint", "plan", *numbers).returncode == 2
    hopeless = ("--mtbf", "1", "--blocked", "100", "--simulate", "100")
    refused = counterfoil("checkpoint", "plan", "--bytes", "1", "--bandwidth", "1", *hopeless)
    assert refused.returncode == 1
    _, measured = asked(counterfoil, root, "plan", *numbers, "--simulate", "100000")
    assert measured["measured"]["sequence"] == 6
    assert measured["costs"]["blocked_seconds"] == measured["measured"]["blocked_seconds"] > 0
    assert measured["simulated"]["useful_seconds"] == 100000


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        *(("plan", ("--bytes", "1", "--mtbf", "1", "--bandwidth", number)) for number in ("0", "-1", "nan", "inf")),
        *(("plan", ("--bytes", "1", "--bandwidth", "1", "--mtbf", number)) for number in ("0", "nan")),
        *(
            ("plan", ("--bytes", "1", "--bandwidth", "1", "--mtbf", "9", *pair))
            for pair in (("--blocked", "-1"), ("--persist", "nan"), ("--restart", "inf"), ("--simulate", "0"))
        ),
        ("prune", ("--grace", "nan")),
        ("prune", ("--grace", "inf")),
        ("list", ("--root", "")),
        ("list", ("--run", "")),
        ("verify", ("--run", "..")),
    ],
)
def test_a_value_that_cannot_be_is_wrong_use(
    counterfoil: Run, tmp_path: Path, command: str, wrong: tuple[str, ...]
) -> None:
    """It is said by its name before anything is opened, and is no finding about a run."""
    where = () if command == "plan" or "--root" in wrong else ("--root", str(tmp_path))
    done = counterfoil("checkpoint", command, *where, *wrong, "--json")
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (2, "wrong-use")


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose checkpoints keep a journal's watermark."""
    root = tmp_path_factory.mktemp("beside")
    now = CUT | {"at": SEAL, "pending": []}
    interrupt(
        Interruption(
            root=root, config=LearnerConfig(schedule=8), updates=8, kill_at=3, effects=CUT, watermark=lambda: now
        )
    )
    return root


def test_a_checkpoint_that_carries_a_watermark_is_restored_beside_its_journal(counterfoil: Run, beside: Path) -> None:
    """What was committed after the cut is not undone; behind, forked or still pending is refused by name."""
    effect = {"key": "cf1-a-g1", "scope": "train/r1", "name": "n@9", "reservation_id": "reservation-2"}
    now = {"journal_id": JOURNAL, "seal": {"number": 5, "digest": "b" * 64}, "at": SEAL, "pending": [],
           "committed_since": [effect]}  # fmt: skip
    restore = ("restore", "--watermark", "-")
    code, document = asked(counterfoil, beside, *restore, stdin=json.dumps(now))
    assert code == 0
    assert (document["effects"]["undone"], document["effects"]["statement"]) == (0, "restore does not undo effects")
    assert [each["reservation_id"] for each in document["effects"]["not_undone"]] == ["reservation-2"]
    people = counterfoil("checkpoint", *restore, "--root", str(beside), stdin=json.dumps(now))
    assert "not undone: reservation-2" in people.stdout
    assert asked(counterfoil, beside, "restore")[0] == 2
    for change, error in (
        ({"seal": {"number": 2, "digest": "b" * 64}}, "JournalBehind"),
        ({"at": {"number": 3, "digest": "c" * 64}}, "JournalForked"),
        ({"journal_id": "1" * 32}, "JournalForked"),
        ({"pending": CUT["pending"]}, "Incompatible"),
    ):
        code, document = asked(counterfoil, beside, *restore, stdin=json.dumps(now | change))
        assert (code, document["error"]["error"]) == (1, error)
    pending = json.dumps(now | {"pending": CUT["pending"]})
    assert asked(counterfoil, beside, *restore, "--allow-pending", stdin=pending)[0] == 0
    assert asked(counterfoil, beside, *restore, stdin="{}")[0] == 2
