"""`counterfoil journal`: the entries in order, for people and for programs."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.database import migrate
from tests.services.cli.conftest import Run
from tests.services.reconciliation.world import World, intent, running_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A history with every way to end."""
    with running_world(tmp_path_factory.mktemp("world")) as started:
        asyncio.run(started.fill())
        yield started


def test_one_effects_entries_are_told_in_order(counterfoil: Run, world: World) -> None:
    """Decision, intent, giving up, what was learned: in words."""
    done = counterfoil("journal", "show", "INC-4/reserve-filter", **world.settings)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    for line, words in zip(
        lines[1:],
        (
            "INC-4/reserve-filter is wanted (approved by: ada)",
            'inventory.reserve {"lines":[{"quantity":2,"sku":"FILTER-A"}]}',
            "nothing more is sent: the incident was cancelled",
            "look up: absent (404 receipt-not-found); the effect is pending",
            "void: receipt-8 voided (status 200); the effect is voided",
        ),
        strict=True,
    ):
        assert words in line


def test_the_journal_is_read_page_by_page(counterfoil: Run, world: World) -> None:
    """--after goes on where the last page ended, to the end, and nothing is told twice."""
    seen: list[int] = []
    after = 0
    while True:
        done = counterfoil("journal", "show", "--after", str(after), "--limit", "12", "--json", **world.settings)
        page = json.loads(done.stdout)
        seen += [entry["id"] for entry in page["entries"]]
        if page["next_after"] is None:
            break
        after = page["next_after"]
    assert seen == [entry.id for entry in world.journal.all_entries()]
    assert len(seen) > 24


def test_people_are_told_that_there_is_more(counterfoil: Run, world: World) -> None:
    """With the option that shows it."""
    done = counterfoil("journal", "show", "--limit", "2", **world.settings)
    assert "There are more: --after 2 goes on." in done.stdout


def test_a_page_of_one_key_goes_on_too(counterfoil: Run, world: World) -> None:
    """--after and --limit mean the same with a key."""
    key = intent("INC-2").key
    first = json.loads(counterfoil("journal", "show", key, "--limit", "3", "--json", **world.settings).stdout)
    after = str(first["next_after"])
    rest = json.loads(counterfoil("journal", "show", key, "--after", after, "--json", **world.settings).stdout)
    assert [entry["kind"] for entry in first["entries"] + rest["entries"]] == [
        "decision",
        "intent",
        "attempt",
        "observation",
    ]
    assert rest["next_after"] is None


def test_the_document_has_every_member(counterfoil: Run, world: World) -> None:
    """Nothing that was recorded is left out."""
    done = counterfoil("journal", "show", intent("INC-2").key, "--json", **world.settings)
    attempt = json.loads(done.stdout)["entries"][2]
    assert set(attempt) == {"id", "key", "kind", "body", "recorded_at", "recorded_by", "digest"}
    assert attempt["body"]["worker"] == {"host": "worker-1", "pid": 7}
    assert attempt["recorded_by"] == "worker 7@worker-1"


def test_a_key_that_the_journal_does_not_know_ends_with_1(counterfoil: Run, world: World) -> None:
    """An empty list and a sentence."""
    done = counterfoil("journal", "show", "another-programs-key", **world.settings)
    assert (done.returncode, done.stdout) == (1, "The journal has no entry of another-programs-key.\n")


def test_an_empty_journal_is_a_sentence_and_0(counterfoil: Run, tmp_path: Path) -> None:
    """Only the journal's URL is needed."""
    url = f"sqlite:///{tmp_path}/journal.db"
    migrate("journal", url)
    done = counterfoil("journal", "show", COUNTERFOIL_JOURNAL_DATABASE_URL=url)
    assert (done.returncode, done.stdout) == (0, "There are no entries.\n")


def test_another_stores_database_is_refused(counterfoil: Run, tmp_path: Path) -> None:
    """A URL wired to the inventory is said, and nothing of it is shown."""
    url = f"sqlite:///{tmp_path}/inventory.db"
    migrate("inventory", url)
    done = counterfoil("journal", "show", COUNTERFOIL_JOURNAL_DATABASE_URL=url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "does not know" in done.stderr
