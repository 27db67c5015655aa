"""`counterfoil audit`: both halves as a process reads them, its table, its JSON and its exit codes."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.services.cli.conftest import NOBODY, Run
from tests.services.reconciliation.world import World, intent, running_world

COUNTS = {"effects", "receipts", "expired", "doubled", "lost", "unresolved", "orphans"}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world in which nothing is wrong."""
    with running_world(tmp_path_factory.mktemp("clean")) as world:
        asyncio.run(world.fill())
        yield world


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A world with a lost answer and another program's reservation."""
    with running_world(tmp_path_factory.mktemp("faulty")) as world:
        asyncio.run(world.fill())
        asyncio.run(world.send(intent("INC-7")))
        world.caller.reserve(1, key="another-programs-key")
        yield world


def test_two_halves_that_agree_end_with_0(counterfoil: Run, clean: World) -> None:
    """The document says so with numbers, a boolean and an empty list."""
    done = counterfoil("audit", "--json", **clean.settings)
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said == {
        "effects": 8,
        "receipts": 11,
        "expired": 0,
        "doubled": 0,
        "lost": 0,
        "unresolved": 0,
        "orphans": 0,
        "resolved": 0,
        "stock_conserved": True,
        "findings": [],
    }
    assert all(type(said[name]) is int for name in COUNTS)


def test_people_are_told_that_nothing_is_doubled_or_lost(counterfoil: Run, clean: World) -> None:
    """A table and one sentence."""
    done = counterfoil("audit", **clean.settings)
    assert done.returncode == 0
    assert "nothing is doubled, nothing is lost" in done.stdout
    assert done.stdout.splitlines()[1].split() == ["8", "11", "0", "0", "0", "0", "yes"]
    assert "retention" not in done.stdout


def test_how_many_receipts_retention_has_taken_is_said(counterfoil: Run, tmp_path: Path) -> None:
    """Their effects are neither lost nor unmatched."""
    with running_world(tmp_path / "old", retention=timedelta(0)) as world:
        asyncio.run(world.fill())
        world.drop_bodies()
        people, program = counterfoil("audit", **world.settings), counterfoil("audit", "--json", **world.settings)
    assert (people.returncode, program.returncode) == (0, 0)
    assert "Receipts that retention has taken: 10.\n" in people.stdout
    said = json.loads(program.stdout)
    assert (said["effects"], said["receipts"], said["expired"], said["findings"]) == (8, 0, 10, [])


def test_what_is_unmatched_ends_with_1_and_names_both_halves(counterfoil: Run, faulty: World) -> None:
    """Each finding says the rule, the key, what each half says and what to do."""
    done = counterfoil("audit", "--json", **faulty.settings)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["unresolved"], said["orphans"], said["lost"], said["stock_conserved"]) == (1, 1, 0, True)
    unresolved, orphan = said["findings"]
    assert (unresolved["rule"], unresolved["key"]) == ("unresolved", intent("INC-7").key)
    assert unresolved["what"] == "INC-7/reserve-filter"
    assert unresolved["journal"].startswith("pending")
    assert "committed" in unresolved["provider"]
    assert (orphan["rule"], orphan["key"], orphan["journal"]) == ("orphan", "another-programs-key", "no such effect")
    assert all(finding["what_to_do"] for finding in said["findings"])


def test_people_get_findings_by_rule_with_the_next_step(counterfoil: Run, faulty: World) -> None:
    """The step is said once for each rule, and every line fits a terminal."""
    done = counterfoil("audit", **faulty.settings)
    assert done.returncode == 1
    assert "unresolved (1). The sweep settles" in done.stdout
    assert "orphan (1). Find out who sent it" in done.stdout
    assert f"  {intent('INC-7').key}  INC-7/reserve-filter" in done.stdout
    assert "2 findings. Nothing was changed." in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_an_audit_changes_nothing(counterfoil: Run, faulty: World) -> None:
    """The second says what the first said."""
    first, second = (counterfoil("audit", "--json", **faulty.settings) for _ in range(2))
    assert first.stdout == second.stdout


def test_an_inventory_that_is_away_ends_with_3(counterfoil: Run, clean: World) -> None:
    """It is no clean report."""
    done = counterfoil("audit", "--json", **clean.settings | {"COUNTERFOIL_INVENTORY_URL": f"http://{NOBODY}"})
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["dependency"] == "inventory"


def test_a_refused_token_ends_with_2(counterfoil: Run, clean: World) -> None:
    """Waiting does not mend it."""
    done = counterfoil("audit", **clean.settings | {"COUNTERFOIL_INVENTORY_TOKEN": "wrong"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "COUNTERFOIL_INVENTORY_TOKEN" in done.stderr
    assert "wrong" not in done.stderr


def test_what_is_no_inventory_ends_with_3(counterfoil: Run, clean: World, inventory: object) -> None:
    """A service without a feed is not taken for an empty one."""
    url = str(getattr(inventory, "url", ""))
    done = counterfoil("audit", **clean.settings | {"COUNTERFOIL_INVENTORY_URL": url})
    assert done.returncode == 3
    assert "status 404 for /v1/receipts" in done.stderr


def test_a_journal_that_was_not_migrated_ends_with_2(counterfoil: Run, clean: World, tmp_path: object) -> None:
    """The command to run is said."""
    url = f"sqlite:///{tmp_path}/empty.db"
    done = counterfoil("audit", **clean.settings | {"COUNTERFOIL_JOURNAL_DATABASE_URL": url})
    assert done.returncode == 2
    assert "counterfoil migrate journal" in done.stderr


def test_settings_that_are_missing_are_all_named(counterfoil: Run) -> None:
    """Both halves and the origin."""
    done = counterfoil("audit")
    assert done.returncode == 2
    for name in ("JOURNAL_DATABASE_URL", "INVENTORY_URL", "INVENTORY_TOKEN", "ORIGIN"):
        assert f"COUNTERFOIL_{name} is not set" in done.stderr


def test_help_says_the_exit_codes(counterfoil: Run) -> None:
    """No settings are needed for it."""
    done = counterfoil("audit", "--help")
    assert done.returncode == 0
    assert "Exit codes: 0 nothing found, 1 something is unmatched" in done.stdout
