"""`counterfoil checkpoint export`, `import` and `diff`: a run moves as files, and what differs is named."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from services.checkpoints.dtypes import Array
from services.checkpoints.interruption import Interruption, interrupt
from services.checkpoints.layout import Run as Folders
from services.checkpoints.learner import LearnerConfig
from services.checkpoints.reading import load
from tests.services.cli.conftest import Run

CONFIG = LearnerConfig(schedule=9)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three contributors that was killed after update 7: slots 2, 3 and 4 are checkpoints of 2, 4 and 6."""
    root = tmp_path_factory.mktemp("store") / "ckpt"
    interrupt(Interruption(root=root, config=CONFIG, ranks=3, resume_ranks=2, updates=9, every=2, kill_at=6))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "ckpt"))


def asked(counterfoil: Run, command: str, root: Path, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """A command's exit code and its document."""
    done = counterfoil("checkpoint", command, "--root", str(root), *map(str, arguments), "--json")
    document: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, document


def test_a_run_goes_on_from_what_was_imported_bit_for_bit(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """C31, C50: exported by 3, imported into another store, taken up there by 2: equal to the uninterrupted run."""
    assert asked(counterfoil, "export", root, "--sequence", "4", "--to", tmp_path / "m.safetensors")[0] == 0
    elsewhere = tmp_path / "elsewhere"
    code, done = asked(counterfoil, "import", elsewhere, "--new", tmp_path / "m.safetensors")
    assert (code, done["sequence"], done["versions"]["updates"]) == (0, 2, 6)
    assert asked(counterfoil, "verify", elsewhere)[1]["whole"] is True
    code, document = asked(counterfoil, "diff", root, "4", "2", "--other-root", elsewhere)
    assert (code, document["equal"], document["equal_items"]) == (0, True, 11)
    after = interrupt(Interruption(root=elsewhere, config=CONFIG, ranks=3, resume_ranks=2, updates=9))
    assert (after.resumed_from, after.updates, after.equal_to_uninterrupted) == (6, 9, True)


def test_the_weights_are_a_file_like_any_other(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """The library loads it; with --per-contributor there is one for each, and an import takes all of them."""
    code, done = asked(counterfoil, "export", root, "--profile", "weights", "--to", tmp_path / "w.safetensors")
    assert (code, done["tensors"]) == (0, 2)
    assert load_file(tmp_path / "w.safetensors")["weights"].shape == (7, 5)
    assert asked(counterfoil, "export", root, "--to", tmp_path / "w.safetensors")[0] == 2
    _, done = asked(counterfoil, "export", root, "--sequence", "4", "--per-contributor", "--to", tmp_path / "each")
    assert [Path(file).name for file in done["files"]] == ["0.safetensors", "1.safetensors", "2.safetensors"]
    code, refused = asked(counterfoil, "import", tmp_path / "new", "--new", *done["files"][1:])
    assert (code, refused["error"]["error"]) == (1, "ContributorMissing")
    assert asked(counterfoil, "import", tmp_path / "new", "--new", *done["files"])[0] == 0
    people = counterfoil("checkpoint", "export", "--root", str(root), "--to", str(tmp_path / "people.safetensors"))
    assert "people.safetensors" in people.stdout


def test_a_place_that_cannot_be_is_wrong_use(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """A taken target, a file on the way, an id that is none, a description that is none: nothing is made or changed."""
    (file := tmp_path / "m.safetensors").write_bytes(b"taken")
    (full := tmp_path / "full").mkdir()
    (full / "0.safetensors").touch()
    own = ("--per-contributor",)
    for target, each in ((file, ()), (file / "below", ()), (full, own), (file, own)):
        code, refused = asked(counterfoil, "export", root, "--to", target, *each)
        assert (code, "Nothing was written" in refused["error"]["message"]) == (2, True), (target, each)
    assert file.read_bytes() == b"taken"
    for place, rest in (
        (file / "below", ()), (tmp_path / "new", ("--run", "no/run")), (tmp_path / "new", ("--as", file)),
    ):  # fmt: skip
        code, refused = asked(counterfoil, "import", place, "--new", *rest, file)
        assert (code, refused["error"]["kind"]) == (2, "wrong-use"), (place, rest)
    assert not (tmp_path / "new").exists()


def test_a_run_that_a_trainer_holds_is_not_imported_into(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """D16: unless it is taken over; --check says that everything fits, and commits nothing."""
    file = tmp_path / "m.safetensors"
    asked(counterfoil, "export", root, "--sequence", "3", "--to", file)
    code, checked = asked(counterfoil, "import", root, "--check", file)
    assert (code, checked["sequence"], checked["profiles"]) == (0, None, ["resume", "weights"])
    code, refused = asked(counterfoil, "import", root, file)
    assert (code, refused["error"]["error"]) == (1, "FencedWriter")
    assert "--take-over" in refused["error"]["message"]
    _, newest = asked(counterfoil, "list", root)
    code, done = asked(counterfoil, "import", root, "--take-over", file)
    assert (code, done["sequence"]) == (0, newest["checkpoints"][0]["sequence"] + 2)
    assert asked(counterfoil, "show", root)[1]["versions"]["updates"] == 4


def test_foreign_weights_need_a_document_that_says_what_they_are(counterfoil: Run, root: Path, tmp_path: Path) -> None:
    """Contract, versions and roles; what does not fit is named, all of it."""
    with Folders.open(root, "reference") as run:
        contract = json.loads(load(run, 2).contract.document())
    weights: dict[str, Array] = {"weights": np.zeros((7, 5)), "mixing": np.zeros(6, np.float32)}
    save_file(weights, tmp_path / "f.safetensors", {"format": "np"})
    described = tmp_path / "as.json"
    described.write_text(
        json.dumps(
            {
                "format": "counterfoil-import-1",
                "contract": contract,
                "versions": dict.fromkeys(contract["versions"], 0),
            }
        )
    )
    code, refused = asked(counterfoil, "import", root, tmp_path / "f.safetensors")
    assert (code, refused["error"]["error"]) == (1, "ManifestInvalid")
    code, refused = asked(counterfoil, "import", root, tmp_path / "f.safetensors", "--as", described)
    assert (code, len(refused["error"]["differences"])) == (1, 2)
    code, done = asked(counterfoil, "import", tmp_path / "new", "--new", tmp_path / "f.safetensors", "--as", described)
    assert (code, done["kind"], done["profiles"]) == (0, "weights_only", ["weights"])
    assert asked(counterfoil, "import", tmp_path / "new", "--run", "none", tmp_path / "f.safetensors")[0] == 2


@pytest.mark.parametrize(
    "text",
    [
        '{"record": "journal", "format": 1, "journal_id": "0"}\n',
        '{"format": "kv-cache", "layers": 32}',
        '{"format":"counterfoil-log-1"}',
    ],
)
def test_a_file_of_another_store_is_refused_by_its_format(
    text: str, counterfoil: Run, root: Path, tmp_path: Path
) -> None:
    """D11: a journal export, a KV cache's index, or a record of this store: none of them is a checkpoint."""
    (tmp_path / "f").write_text(text)
    code, refused = asked(counterfoil, "import", root, "--take-over", tmp_path / "f")
    assert (code, refused["error"]["error"]) == (1, "ManifestInvalid")
    assert f"format {json.loads(text)['format']!r}" in refused["error"]["message"]


def test_a_difference_is_named_and_is_an_exit_code(counterfoil: Run, root: Path) -> None:
    """Versions, values and items, for programs and for people."""
    code, document = asked(counterfoil, "diff", root, "2", "3")
    assert (code, document["equal"]) == (1, False)
    assert document["versions"]["updates"] == [2, 4]
    weights = next(each for each in document["items"] if each["name"] == "weights")
    assert (weights["count"], weights["of"]) == (35, 35)
    assert weights["max_abs"] > 0
    people = counterfoil("checkpoint", "diff", "--root", str(root), "2", "3")
    assert people.returncode == 1
    assert "weights" in people.stdout
    assert "items differ" in people.stdout
    assert counterfoil("checkpoint", "diff", "--root", str(root), "3", "3").stdout.startswith("Equal: ")
    assert asked(counterfoil, "diff", root, "2", "99")[0] == 1
