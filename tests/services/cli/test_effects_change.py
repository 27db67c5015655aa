"""`counterfoil effects give-up` and its like: what is asked, what is said, and how it ends."""

import asyncio
import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import pytest

from services.cli.effects_change import COMMANDS
from services.cli.main import counterfoil as main
from services.cli.output import Command, Output, pass_output, run
from services.cli.rulings import Ask as Wanted
from services.cli.rulings import Counsel, rule_on_all
from services.effects.commands import CommandName, Ruling
from services.effects.states import EffectState
from tests.services.cli.conftest import NOBODY, Run
from tests.services.reconciliation.world import World, intent, running_world
from tests.services.standing import standing_in

WHO = ("--by", "ada", "--reason", "nobody needs it")
EVIDENCE = ("--as", "voided", "--evidence", "ticket 12")
NEEDED = {"resolve": EVIDENCE, "adopt": ("--scope", "INC-1", "--name", "reserve-filter")}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An inventory and a journal, with ten FILTER-A."""
    with running_world(tmp_path / "world") as started:
        assert started.caller.deliver(10).status_code == 201
        yield started


@pytest.fixture
def settings(world: World) -> dict[str, str]:
    """The environment of a command, with a Temporal that is not there."""
    return world.settings | {"TEMPORAL_ADDRESS": NOBODY, "TEMPORAL_CONFIG_FILE": "/dev/null"}


def only(document: str) -> dict[str, Any]:
    """The one result of a command for one key."""
    (result,) = json.loads(document)["results"]
    return dict(result)


def test_giving_up_closes_the_key_though_temporal_is_away(
    counterfoil: Run, world: World, settings: dict[str, str]
) -> None:
    """Nothing has to be sent: that the workflow could not be told is a note, and it looks by itself."""
    key = world.begin(intent("INC-1")).row.key
    done = counterfoil("effects", "give-up", key, *WHO, **settings)
    assert (done.returncode, done.stdout) == (0, "It ended voided (receipt-2).\n")
    assert "A workflow could not be told (INC-1: Temporal at 127" in done.stderr
    row = world.journal.effect(key)
    assert row is not None
    assert (row.state, row.given_up) == (EffectState.VOIDED, True)


def test_the_same_command_again_is_the_same_command(counterfoil: Run, world: World, settings: dict[str, str]) -> None:
    """It appends nothing, and says how the effect stands."""
    key = world.begin(intent("INC-1")).row.key
    counterfoil("effects", "give-up", key, *WHO, **settings)
    before = world.journal.entries(key)
    again = counterfoil("effects", "give-up", key, *WHO, "--json", **settings)
    assert again.returncode == 0
    assert (only(again.stdout)["state"], only(again.stdout)["repeated"]) == ("voided", True)
    assert world.journal.entries(key) == before


async def test_many_keys_are_ruled_on_one_by_one_and_the_worst_is_the_exit_code(
    counterfoil: Run, world: World, settings: dict[str, str]
) -> None:
    """One that is refused keeps no other from being ruled on; a key that is named twice is ruled on once."""
    pending = world.begin(intent("INC-1")).row.key
    committed = (await world.perform(intent("INC-2"))).row.key
    unknown = intent("INC-3").key
    done = counterfoil(
        "effects", "give-up", committed, "-", pending, *WHO, "--json", stdin=f"{pending}\n\n{unknown}\n", **settings
    )
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert [(each["key"], each["what"], each["state"]) for each in said["results"]] == [
        (committed, "refused", "committed"),
        (pending, "done", "voided"),
        (unknown, "refused", None),
    ]
    assert (said["done"], said["refused"], said["unconfirmed"]) == (1, 2, 0)
    people = counterfoil("effects", "give-up", committed, pending, unknown, *WHO, **settings)
    assert people.stdout.splitlines()[0].split() == ["key", "what", "state", "give-up"]
    assert people.stdout.splitlines()[-1] == "Done: 1; refused: 2; not confirmed: 0."


async def test_what_the_list_prints_is_what_a_command_takes(
    counterfoil: Run, world: World, settings: dict[str, str]
) -> None:
    """In bulk: the keys alone, one a line; what did not fit is said beside them."""
    keys = [world.begin(intent(f"INC-{number}")).row.key for number in (1, 2, 3)]
    await world.perform(intent("INC-4"))
    listed = counterfoil("effects", "list", "--keys", **settings)
    assert (listed.returncode, sorted(listed.stdout.split()), listed.stderr) == (0, sorted(keys), "")
    short = counterfoil("effects", "list", "--keys", "--limit", "2", **settings)
    assert (len(short.stdout.split()), short.stderr) == (2, "There are more: --limit 2 was reached.\n")
    done = counterfoil("effects", "give-up", "-", *WHO, "--json", stdin=listed.stdout, **settings)
    assert (done.returncode, json.loads(done.stdout)["done"]) == (0, 3)
    nothing = counterfoil("effects", "give-up", "-", *WHO, **settings)
    assert (nothing.returncode, nothing.stdout) == (0, "No key was given: there is nothing to do.\n")


async def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    counterfoil: Run, world: World, settings: dict[str, str]
) -> None:
    """Neither half, whatever the command; and what would be refused is refused, with the same exit code."""
    pending = world.begin(intent("INC-1")).row.key
    committed = (await world.perform(intent("INC-2"))).row.key
    voided = world.begin(intent("INC-3")).row.key
    counterfoil("effects", "give-up", voided, *WHO, **settings)
    before = world.journal.snapshot()
    for command, key, code in (
        (("give-up",), pending, 0),
        (("resolve", *EVIDENCE), pending, 0),
        (("redo",), voided, 0),
        (("redo",), committed, 1),
        (("release",), committed, 0),
        (("accept",), committed, 1),
        (("write-off",), committed, 1),
    ):
        done = counterfoil("effects", command[0], key, *command[1:], *WHO, "--dry-run", **settings)
        assert (done.returncode, done.stderr) == (code, "")
        assert done.stdout.startswith("Nothing is changed and nothing sent: this is what would be done.\n")
    assert world.journal.snapshot() == before
    assert world.caller.receipt(pending).status_code == 404


async def test_what_has_to_be_sent_is_not_confirmed_while_temporal_is_away(
    counterfoil: Run, world: World, settings: dict[str, str]
) -> None:
    """It is decided and journaled: the same command again, once Temporal is back, hands it over."""
    key = world.begin(intent("INC-1")).row.key
    counterfoil("effects", "give-up", key, *WHO, **settings)
    for repeated in (False, True):
        done = counterfoil("effects", "redo", key, *WHO, "--json", **settings)
        assert done.returncode == 3
        said = only(done.stdout)
        assert (said["what"], said["new_key"], said["sent_by"]) == (
            "unconfirmed",
            intent("INC-1", generation=2).key,
            None,
        )
        assert said["repeated"] is repeated
        assert "It is recorded, and nothing is sent yet. Temporal at 127.0.0.1:" in said["said"]
        assert said["said"].endswith("repeat the same command.")
    assert len(world.journal.decisions(origin="demo", scope="INC-1")) == 2


def test_whether_a_workflow_runs_is_not_guessed(counterfoil: Run, world: World, settings: dict[str, str]) -> None:
    """A replay asks Temporal first; unanswered, nothing is recorded."""
    keys = [world.begin(intent(f"INC-{number}")).row.key for number in (1, 2)]
    before = world.journal.snapshot()
    done = counterfoil("effects", "replay", *keys, *WHO, "--json", **settings)
    assert (done.returncode, json.loads(done.stdout)["unconfirmed"]) == (3, 2)
    assert world.journal.snapshot() == before


def test_an_inventory_that_is_away_settles_nothing(counterfoil: Run, world: World, settings: dict[str, str]) -> None:
    """A08: the request is journaled, the effect stays, and the exit code asks for the same command again."""
    key = world.begin(intent("INC-1")).row.key
    away = settings | {"COUNTERFOIL_INVENTORY_URL": f"http://{NOBODY}"}
    for command in (("give-up",), ("resolve", *EVIDENCE)):
        done = counterfoil("effects", command[0], key, *command[1:], *WHO, "--json", **away)
        assert (done.returncode, only(done.stdout)["what"], only(done.stdout)["state"]) == (3, "unconfirmed", "pending")
    again = counterfoil("effects", "resolve", key, *EVIDENCE, *WHO, "--json", **settings)
    assert (again.returncode, only(again.stdout)["state"], only(again.stdout)["repeated"]) == (0, "voided", True)


# A command, the state in which it finds an effect (as docs/operations.md calls it), and what it says of that one while
# Temporal is away.
BESIDE_A_DEFECT = {
    "give-up": ("pending", "done", "It ended voided"),
    "resolve": ("pending", "done", "It ended voided"),
    "redo": ("voided", "unconfirmed", "Generation 2 is decided"),
    "replay": ("pending", "unconfirmed", "Temporal at 127.0.0.1:"),
    "release": ("committed", "unconfirmed", "is released by an effect of its own"),
    "accept": ("left", "done", "It stands"),
    "write-off": ("orphan", "done", "The orphan is written off."),
}


def spoilt(journal_url: str, key: str) -> str:
    """A row that no build of ours has written: whoever reads it meets a defect."""
    with closing(sqlite3.connect(journal_url.removeprefix("sqlite:///"))) as journal, journal:
        journal.execute("UPDATE effects SET path = '{' WHERE key = ?", (key,))
    return key


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
async def test_a_defect_over_one_key_keeps_no_other_from_being_ruled_on(
    counterfoil: Run, tmp_path: Path, command: str
) -> None:
    """Its answer says what happened and that nothing is known, and is followed by the others' answers: 3, not 70."""
    async with standing_in(tmp_path) as standing:
        settings = standing.world.settings | {"TEMPORAL_ADDRESS": NOBODY, "TEMPORAL_CONFIG_FILE": "/dev/null"}
        bad = [standing.world.begin(intent(f"INC-{number}")).row.key for number in (1, 2)]
        state, what, says = BESIDE_A_DEFECT.get(command, ("", "", ""))
        good = [(await standing.reach(state, "INC-3")).key] if state else []
        wanted = [spoilt(standing.world.journal_url, key) for key in bad[: 2 if good else 1]] + good
        done = counterfoil("effects", command, *wanted, *NEEDED.get(command, ()), *WHO, "--json", **settings)
    assert done.returncode == 3
    results = json.loads(done.stdout)["results"]
    assert [each["key"] for each in results] == wanted
    for each in results[: len(wanted) - len(good)]:
        assert (each["what"], each["state"]) == ("unconfirmed", None)
        assert "This is a defect of counterfoil (JSONDecodeError: " in each["said"]
        assert each["said"].endswith("Repeat the same command.")
    assert [(each["what"], says in each["said"]) for each in results[len(wanted) - len(good) :]] == [
        (what, True)
    ] * len(good)
    assert done.stderr.count("Traceback (most recent call last)") == 1


def test_an_interruption_says_what_has_been_ruled(
    capsys: pytest.CaptureFixture[str], world: World, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while one is ruled on: the answers before it are said, and of the rest that nothing is known."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    keys = tuple(world.begin(intent(f"INC-{number}")).row.key for number in range(1, 12))

    async def rule(at: Counsel, key: str) -> Ruling:
        if key == keys[0]:
            return await at.desk.give_up(key, by="ada", reason="nobody needs it")
        if key == keys[8]:  # eight at once: it has the place of the one that is ruled on
            os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
        raise AssertionError

    @click.command(cls=Command)
    @pass_output
    def give_up(output: Output) -> None:
        rule_on_all(output, Wanted(command=CommandName.GIVE_UP, keys=keys, dry_run=False), rule)

    assert run(give_up, ["--json"], name="counterfoil") == 130
    said = capsys.readouterr()
    results = json.loads(said.out)["results"]
    assert [each["key"] for each in results] == list(keys)
    assert [(each["what"], each["state"]) for each in results] == [("done", "voided")] + [("unconfirmed", None)] * 10
    assert {each["said"] for each in results[1:]} == {
        "Interrupted before there was an answer. Repeat the same command."
    }


async def test_an_orphan_is_adopted_by_the_name_that_makes_its_key(
    counterfoil: Run, world: World, settings: dict[str, str]
) -> None:
    """Another name makes another key: nothing is adopted."""
    wanted = intent("INC-1")
    sent = world.caller.post("/v1/reservations", json.loads(wanted.request), wanted.key)
    assert sent.status_code == 201
    wrong = counterfoil(
        "effects", "adopt", wanted.key, "--scope", "INC-2", "--name", "reserve-filter", *WHO, **settings
    )
    assert wrong.returncode == 1
    assert world.journal.effect(wanted.key) is None
    done = counterfoil(
        "effects", "adopt", wanted.key, "--scope", "INC-1", "--name", "reserve-filter", *WHO, "--json", **settings
    )
    assert (done.returncode, only(done.stdout)["receipt_id"]) == (0, sent.json()["receipt_id"])
    shown = counterfoil("effects", "show", wanted.key, **settings)
    assert (shown.returncode, shown.stdout.splitlines()[-1]) == (0, "Both halves agree.")
    assert "adopt by ada: nobody needs it" in shown.stdout


def test_another_deployments_effect_is_wrong_use(counterfoil: Run, world: World, settings: dict[str, str]) -> None:
    """It says whose it is; what else was named is ruled on all the same."""
    key = world.begin(intent("INC-1")).row.key
    done = counterfoil("effects", "give-up", key, *WHO, "--json", **settings | {"COUNTERFOIL_ORIGIN": "other"})
    assert (done.returncode, only(done.stdout)["what"]) == (2, "refused")
    assert "is of origin demo, and this is other" in only(done.stdout)["said"]
    assert len(world.journal.entries(key)) == 3


@pytest.mark.parametrize("command", [command.name for command in COMMANDS])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("INC-1/reserve-filter", *WHO), "is not a key"),
        ((intent("INC-1").key, "--by", "ada"), "Missing option '--reason'"),
        ((intent("INC-1").key, "--reason", "x"), "Missing option '--by'"),
        ((intent("INC-1").key, "--by", " ", "--reason", "x"), "it says nothing"),
        ((intent("INC-1").key, "--by", "ada", "--reason", ""), "it says nothing"),
        (WHO, "Missing argument 'KEY"),
    ],
)
def test_a_command_without_key_name_or_reason_is_wrong_use(
    capsys: pytest.CaptureFixture[str], command: str, arguments: tuple[str, ...], says: str
) -> None:
    """Whoever reads the journal later has nobody to ask; and a name would mean another effect after a redo."""
    code = run(main, ["effects", command, *NEEDED.get(command, ()), *arguments], name="counterfoil")
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert says in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("--as", "voided"),
        ("--evidence", "x"),
        ("--as", "pending", "--evidence", "x"),
        ("--as", "voided", "--evidence", " "),
    ],
)
def test_a_resolution_needs_what_it_stands_on(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    """A state, one that is an end, and evidence."""
    code = run(main, ["effects", "resolve", intent("INC-1").key, *arguments, *WHO], name="counterfoil")
    assert (code, capsys.readouterr().out) == (2, "")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_each_says_its_exit_codes_and_what_it_shares_with_the_others(command: Any) -> None:
    """What one learns of one is true of all."""
    assert "Exit codes: 0" in command.help
    assert {"by", "reason", "dry_run"} <= {param.name for param in command.params}
    assert {"keys", "key"} & {param.name for param in command.params}
