"""`counterfoil journal`: the entries in order, for people and for programs."""

import asyncio
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.database import migrate, open_engine
from services.drill.stack import Stack
from tests.services.cli.conftest import Ask, Run
from tests.services.journal.lives import live
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


@pytest.fixture
def own(tmp_path: Path) -> dict[str, str]:
    """The environment of a journal of the test's own, with 14 entries."""
    url = f"sqlite:///{tmp_path}/journal.db"
    migrate("journal", url)
    engine = open_engine(url)
    live(engine, "INC-1")
    engine.dispose()
    return {"COUNTERFOIL_JOURNAL_DATABASE_URL": url}


def _tamper(own: dict[str, str], statement: str) -> None:
    with sqlite3.connect(own["COUNTERFOIL_JOURNAL_DATABASE_URL"].removeprefix("sqlite:///")) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    connection.close()


def test_a_seal_is_made_and_said(counterfoil: Run, own: dict[str, str]) -> None:
    """How many entries, which seal; and nothing when there is nothing to seal."""
    first = counterfoil("journal", "seal", **own)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.startswith("Sealed 14 entries.\n")
    assert "1, up to entry 14, " in first.stdout
    again = json.loads(counterfoil("journal", "seal", "--json", **own).stdout)
    assert (again["sealed"], again["held_up"], again["unsealed"], again["last_entry_id"]) == (0, False, 0, 14)
    assert set(again["seal"]) == {"number", "upto_id", "digest"}


def test_a_watermark_says_how_far_the_journal_has_come(counterfoil: Run, own: dict[str, str]) -> None:
    """Before the first seal, and after it."""
    people = counterfoil("journal", "watermark", **own)
    assert people.returncode == 0
    assert [line.split()[-1] for line in people.stdout.splitlines()][1:] == ["14", "none", "14", "1"]
    before = json.loads(counterfoil("journal", "watermark", "--json", **own).stdout)
    assert (before["seal"], before["unsealed"]) == (None, 14)
    sealed = json.loads(counterfoil("journal", "seal", "--json", **own).stdout)
    after = json.loads(counterfoil("journal", "watermark", "--json", **own).stdout)
    kept = ("journal_id", "last_entry_id", "seal", "unsealed")
    assert {name: after[name] for name in kept} == {name: sealed[name] for name in kept}
    assert (after["at"], after["committed_since"]) == (sealed["seal"], [])
    assert len(after["pending"]) == 1


def test_a_watermark_at_a_seal_says_what_was_committed_since(counterfoil: Run, own: dict[str, str]) -> None:
    """For who put something else back: what is named is not undone by that."""
    counterfoil("journal", "seal", **own)
    done = counterfoil("journal", "watermark", "--at", "0", "--json", **own)
    ever = json.loads(done.stdout)["committed_since"]
    assert done.returncode == 0
    assert {each["name"] for each in ever} == {"done", "late"}
    assert all(each["key"].startswith("cf1-") and each["receipt_id"] for each in ever)
    people = counterfoil("journal", "watermark", "--at", "0", **own)
    assert ever[0]["key"] in people.stdout
    assert json.loads(counterfoil("journal", "watermark", "--at", "1", "--json", **own).stdout)["committed_since"] == []


def test_a_seal_that_the_journal_does_not_have_is_1(counterfoil: Run, own: dict[str, str]) -> None:
    """A journal that is behind is not taken for one in which nothing was done."""
    done = counterfoil("journal", "watermark", "--at", "9", **own)
    assert (done.returncode, "The journal has no seal 9" in done.stdout) == (1, True)
    document = json.loads(counterfoil("journal", "watermark", "--at", "9", "--json", **own).stdout)
    assert document["at"] is None


def test_a_journal_that_is_whole_is_0(counterfoil: Run, own: dict[str, str]) -> None:
    """People are told what a watermark would add."""
    counterfoil("journal", "seal", **own)
    done = counterfoil("journal", "verify", **own)
    assert (done.returncode, done.stderr) == (0, "")
    assert "14 entries, 14 of them sealed." in done.stdout
    assert "--against FILE" in done.stdout
    document = json.loads(counterfoil("journal", "verify", "--json", **own).stdout)
    assert (document["intact"], document["first"], document["found"]) == (True, None, {})


def test_a_journal_that_was_tampered_with_is_1_and_the_first_bad_place_is_named(
    counterfoil: Run, own: dict[str, str]
) -> None:
    """For people and for programs; the rest is counted."""
    counterfoil("journal", "seal", **own)
    _tamper(own, "DELETE FROM entries WHERE id IN (3, 9)")
    done = counterfoil("journal", "verify", **own)
    assert done.returncode == 1
    assert "The first bad place is entry 3: seal 1 was made with it, and it is gone.\n" in done.stdout
    as_json = counterfoil("journal", "verify", "--json", **own)
    document = json.loads(as_json.stdout)
    assert (as_json.returncode, document["intact"]) == (1, False)
    assert (document["first"]["damage"], document["first"]["where"]) == ("entry-missing", "entry 3")
    assert document["found"] == {"entry-missing": 2, "row-changed": 2}


def test_what_was_kept_elsewhere_finds_what_was_cut_off(counterfoil: Run, own: dict[str, str], tmp_path: Path) -> None:
    """What `seal` and `watermark` printed are both files for --against."""
    kept = {command: tmp_path / f"{command}.json" for command in ("seal", "watermark")}
    for command, file in kept.items():
        file.write_text(counterfoil("journal", command, "--json", **own).stdout)
    whole = counterfoil("journal", "verify", "--against", str(kept["seal"]), **own)
    assert (whole.returncode, "It goes on from the watermark" in whole.stdout) == (0, True)
    _tamper(own, "DELETE FROM seals")
    assert counterfoil("journal", "verify", **own).returncode == 0
    for file in kept.values():
        cut = counterfoil("journal", "verify", "--against", str(file), **own)
        assert (cut.returncode, "The first bad place is seal 1: " in cut.stdout) == (1, True)


def test_what_was_kept_of_another_journal_is_said(counterfoil: Run, own: dict[str, str], tmp_path: Path) -> None:
    """Nobody takes it for a cut."""
    kept = tmp_path / "kept.json"
    told = json.loads(counterfoil("journal", "watermark", "--json", **own).stdout)
    kept.write_text(json.dumps(told | {"journal_id": "0" * 32}))
    done = counterfoil("journal", "verify", "--against", str(kept), **own)
    assert (done.returncode, f"what was kept is of the journal {'0' * 32}." in done.stdout) == (1, True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"journal_id": "x", "last_entry_id": 1, "unsealed": 0, "seal": 3}',
        '{"journal_id": "x", "last_entry_id": "1", "unsealed": 0, "seal": null}',
        '{"journal_id": "x", "last_entry_id": 18446744073709551616, "unsealed": 0, "seal": null}',
        None,
    ],
)
def test_a_file_that_is_no_watermark_is_2(
    counterfoil: Run, own: dict[str, str], tmp_path: Path, text: str | None
) -> None:
    """Nor one that is not there."""
    kept = tmp_path / "kept.json"
    if text is not None:
        kept.write_text(text)
    done = counterfoil("journal", "verify", "--against", str(kept), "--json", **own)
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (2, "wrong-use")
    assert ("is not what `journal watermark --json` prints" in done.stdout) == (text is not None)


@pytest.mark.parametrize("command", ["seal", "verify", "watermark"])
def test_a_journal_that_cannot_be_reached_is_3(counterfoil: Run, tmp_path: Path, command: str) -> None:
    """And nothing is made in its place."""
    url = f"sqlite:///{tmp_path}/missing/journal.db"
    done = counterfoil("journal", command, "--json", COUNTERFOIL_JOURNAL_DATABASE_URL=url)
    assert (done.returncode, json.loads(done.stdout)["error"]["kind"]) == (3, "unreachable")


@pytest.mark.anyio
@pytest.mark.temporal
async def test_a_worker_seals_what_is_committed(deployment: Stack, ask: Ask) -> None:
    """Beside its work, without being asked."""
    engine = open_engine(deployment.environment()["COUNTERFOIL_JOURNAL_DATABASE_URL"])
    await asyncio.to_thread(live, engine, "INC-sealed")
    engine.dispose()
    while (told := json.loads((await ask("journal", "watermark", "--json")).stdout))["unsealed"]:
        pass
    assert told["seal"]["upto_id"] == told["last_entry_id"] >= 14
