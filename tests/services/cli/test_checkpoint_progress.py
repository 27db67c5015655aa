"""What is said of long work on checkpoints: on stderr, and nothing of what is short."""

import json
from pathlib import Path

import pytest

from services.checkpoints.interruption import Interruption, interrupt
from services.checkpoints.learner import LearnerConfig
from services.cli import checkpoint_progress
from services.cli.checkpoint import checkpoint
from services.cli.checkpoint_progress import Progress
from services.cli.output import plain, run


def test_it_is_said_now_and_then_and_never_of_what_is_short(capsys: pytest.CaptureFixture[str]) -> None:
    """By a clock: a short reading is silent however many pieces it has."""
    moments = iter((0.0, 0.0, 1.0, 4.9, 5.0, 5.1, 9.9, 10.0))
    heard = Progress(plain(), lambda: next(moments))
    for _ in range(7):
        heard(256 << 20)
    assert capsys.readouterr() == ("", "1.0 GiB read.\n1.8 GiB read.\n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one contributor, with one checkpoint in slot 2."""
    root = tmp_path_factory.mktemp("store") / "ckpt"
    interrupt(Interruption(root=root, config=LearnerConfig(schedule=4), updates=4, every=4))
    return root


@pytest.mark.parametrize(
    "words",
    [
        ("verify",),
        ("restore",),
        ("restore", "--to", "{}/to"),
        ("export", "--to", "{}/whole.safetensors"),
        ("export", "--to", "{}/each", "--per-contributor"),
    ],
)
def test_who_reads_for_long_says_so_beside_the_answer(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    """With --json stdout is the one document, as it is when nothing is said."""
    for place, seconds in (("long", 0.0), ("short", 1e9)):
        monkeypatch.setattr(checkpoint_progress, "EVERY_SECONDS", seconds)
        (tmp_path / place).mkdir()
        asked = [words[0], "--root", str(made), *(word.format(tmp_path / place) for word in words[1:]), "--json"]
        assert run(checkpoint, asked, name="checkpoint") == 0
        told = capsys.readouterr()
        assert isinstance(json.loads(told.out), dict)
        assert ("MiB read." in told.err, told.err == "") == (place == "long", place == "short")


def test_an_import_says_so_too(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is read twice: to be checked, and to be written."""
    file = str(tmp_path / "whole.safetensors")
    assert run(checkpoint, ["export", "--root", str(made), "--to", file, "--json"], name="checkpoint") == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(checkpoint_progress, "EVERY_SECONDS", 0.0)
    told = {}
    for name, more in (("checked", ["--check"]), ("committed", [])):
        asked = ["import", "--root", str(tmp_path / "new"), "--new", file, "--json", *more]
        assert run(checkpoint, asked, name="checkpoint") == 0
        seen = capsys.readouterr()
        assert json.loads(seen.out)["run"] == "reference"
        told[name] = seen.err.count("MiB read.")
    assert told["committed"] == 2 * told["checked"] > 0
