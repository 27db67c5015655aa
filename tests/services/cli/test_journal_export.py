"""`counterfoil journal export`: a file that is whole or not there."""

import hashlib
import json
from pathlib import Path

import pytest

from services.database import migrate, open_engine
from tests.services.cli.conftest import Run
from tests.services.journal.lives import live


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """A journal with three effects, not sealed."""
    url = f"sqlite:///{tmp_path / 'journal.db'}"
    migrate("journal", url)
    engine = open_engine(url)
    live(engine, "INC-1")
    engine.dispose()
    return {"COUNTERFOIL_JOURNAL_DATABASE_URL": url}


def test_a_file_gets_one_object_a_line_and_the_answer_its_digest(
    counterfoil: Run, own: dict[str, str], tmp_path: Path
) -> None:
    """The document counts; the file ends with the same counts."""
    file = tmp_path / "journal.jsonl"
    done = counterfoil("journal", "export", str(file), "--json", **own)
    assert (done.returncode, done.stderr) == (0, "")
    answer = json.loads(done.stdout)
    raw = file.read_bytes()
    assert answer["sha256"] == hashlib.sha256(raw).hexdigest()
    records = [json.loads(line) for line in raw.splitlines()]
    assert records[-1].items() <= answer.items()
    assert (answer["decision"], answer["effect"], answer["seal"], answer["go_on_after"]) == (3, 3, 0, 0)
    assert [path.name for path in tmp_path.glob("*.part")] == []


def test_what_is_sealed_is_not_exported_twice(counterfoil: Run, own: dict[str, str], tmp_path: Path) -> None:
    """The answer says what to give to --after."""
    counterfoil("journal", "seal", **own)
    first = counterfoil("journal", "export", str(tmp_path / "one"), **own)
    after = first.stdout.split(" --after ")[1].split(".")[0]
    assert first.stdout.startswith(f"{tmp_path / 'one'}: 3 decisions, 3 effects, ")
    second = counterfoil("journal", "export", str(tmp_path / "two"), "--after", after, **own)
    assert (
        f": 0 decisions, 0 effects, 0 entries, 0 seals. The next export goes on with --after {after}." in second.stdout
    )


def test_an_export_beyond_the_end_is_refused(counterfoil: Run, own: dict[str, str], tmp_path: Path) -> None:
    """2, and no file: it would look as if nothing had happened since."""
    done = counterfoil("journal", "export", str(tmp_path / "file"), "--after", "1000000", **own)
    assert (done.returncode, done.stdout, list(tmp_path.glob("file*"))) == (2, "", [])
    assert "export it whole, without --after" in done.stderr


def test_stdout_takes_the_lines_and_nothing_else(counterfoil: Run, own: dict[str, str]) -> None:
    """What is said of them goes to stderr; with --json it would have no place."""
    done = counterfoil("journal", "export", "-", **own)
    assert done.returncode == 0
    assert [json.loads(line)["record"] for line in done.stdout.splitlines()][-1] == "end"
    assert "3 effects" in done.stderr
    refused = counterfoil("journal", "export", "-", "--json", **own)
    assert refused.returncode == 2
    assert "name a FILE" in json.loads(refused.stdout)["error"]["message"]


def test_a_file_that_cannot_be_written_is_2(counterfoil: Run, own: dict[str, str], tmp_path: Path) -> None:
    """And said."""
    done = counterfoil("journal", "export", str(tmp_path / "nowhere" / "file"), **own)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written (No such file or directory). Nothing was exported." in done.stderr


def test_an_export_that_fails_leaves_the_last_file_as_it_was(counterfoil: Run, tmp_path: Path) -> None:
    """The journal cannot be reached."""
    file = tmp_path / "journal.jsonl"
    file.write_text("the last one")
    done = counterfoil(
        "journal", "export", str(file), COUNTERFOIL_JOURNAL_DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing"
    )
    assert done.returncode == 3
    assert file.read_text() == "the last one"
