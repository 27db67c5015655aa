"""`counterfoil effects`: what is unsettled first, and both halves of one effect side by side."""

import asyncio
import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from services.cli.main import counterfoil as main
from services.cli.output import run
from services.effects.commands import Command, CommandName
from tests.services.cli.conftest import NOBODY, Run
from tests.services.reconciliation.world import World, intent, running_world
from tests.services.standing import standing_in

LOST_ANSWER = intent("INC-7")
NEVER_SENT = intent("INC-8")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Every end, a lost answer, an intent that was never sent, and another program's reservation."""
    with running_world(tmp_path_factory.mktemp("world")) as started:
        asyncio.run(started.fill())
        asyncio.run(started.send(LOST_ANSWER))
        started.begin(NEVER_SENT)
        started.caller.reserve(1, key="another-programs-key")
        yield started


def test_the_list_shows_what_is_unsettled_the_oldest_first(counterfoil: Run, world: World) -> None:
    """Settled ones are counted, and how to see them is said."""
    done = counterfoil("effects", "list", **world.settings)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[0] == ["effect", "state", "age", "attempts", "provider", "key"]
    assert [row[0] for row in rows[1:3]] == ["INC-7/reserve-filter", "INC-8/reserve-filter"]
    assert rows[1][-1] == LOST_ANSWER.key
    assert "2 pending, 5 committed, 2 rejected, 1 voided. --all shows the settled ones too." in done.stdout
    assert "INC-1/" not in done.stdout


def test_the_whole_list_shows_unsettled_before_settled_the_newest_first(counterfoil: Run, world: World) -> None:
    """With --json each effect has every member."""
    done = counterfoil("effects", "list", "--all", "--json", **world.settings)
    said = json.loads(done.stdout)
    assert [effect["scope"] for effect in said["effects"][:4]] == ["INC-7", "INC-8", "INC-6", "INC-5"]
    assert len(said["effects"]) == 10
    assert said["more"] is False
    assert said["totals"] == {"pending": 2, "in_doubt": 0, "committed": 5, "rejected": 2, "voided": 1}
    newest = said["effects"][2]
    assert newest["receipt"]["key"] == newest["key"]
    assert newest["settled_at"].endswith("Z")
    assert type(newest["age_seconds"]) is int


@pytest.mark.parametrize(
    ("arguments", "scopes"),
    [
        (("--state", "rejected"), ["INC-5", "INC-3"]),
        (("--state", "voided", "--state", "pending"), ["INC-7", "INC-8", "INC-4"]),
        (("--scope", "INC-7"), ["INC-7"]),
        (("--scope", "INC-1"), []),
        (("--scope", "INC-1", "--all"), ["INC-1", "INC-1"]),
        (("--limit", "1"), ["INC-7"]),
    ],
)
def test_the_list_is_narrowed(counterfoil: Run, world: World, arguments: tuple[str, ...], scopes: list[str]) -> None:
    """By state, scope and number."""
    done = counterfoil("effects", "list", *arguments, "--json", **world.settings)
    said = json.loads(done.stdout)
    assert [effect["scope"] for effect in said["effects"]] == scopes
    assert said["more"] is ("--limit" in arguments)


def test_the_list_is_narrowed_by_when_the_intent_was_recorded(counterfoil: Run, world: World) -> None:
    """From a time on, up to before another, or both; each effect is in one of the two halves of time."""

    def listed(*arguments: str) -> dict[str, str]:
        done = counterfoil("effects", "list", *arguments, "--json", **world.settings)
        assert done.returncode == 0
        return {effect["key"]: effect["created_at"] for effect in json.loads(done.stdout)["effects"]}

    every = listed("--all")
    times = sorted(set(every.values()))
    third, sixth = times[2], times[5]
    elsewhere = datetime.fromisoformat(sixth).astimezone(timezone(timedelta(hours=-3, minutes=-30))).isoformat()
    assert listed("--all", "--since", third) == {key: at for key, at in every.items() if at >= third}
    assert listed("--all", "--until", third) == {key: at for key, at in every.items() if at < third}
    between = {key: at for key, at in every.items() if third <= at < sixth}
    assert between
    assert listed("--all", "--since", third, "--until", elsewhere) == between
    pending = listed()
    assert listed("--since", max(pending.values())).items() <= pending.items()
    assert len(listed("--until", min(pending.values()))) == 0


def test_an_empty_list_of_a_time_says_that_it_is_of_a_time(counterfoil: Run, world: World) -> None:
    """Whatever list it is of."""
    for option, says in (
        ("--all", "There are no effects"),
        ("--state=pending", "No effect is pending"),
        ("--closed", "No workflow has left anything standing"),
        ("--alarmed", "No effect is under an alarm"),
    ):
        done = counterfoil("effects", "list", option, "--until", "2001-01-01T00:00:00z", **world.settings)
        assert (done.returncode, done.stdout.splitlines()[0]) == (0, f"{says}, of those recorded in that time.")


@pytest.mark.parametrize(
    "when",
    [
        "yesterday",
        "2026-01-31",
        "2026-01-31T12:00:00",
        "2026-02-31T12:00:00Z",
        "20260131T120000Z",
        "0001-01-01T00:00:00+01:00",
        "",
    ],
)
@pytest.mark.parametrize("option", ["--since", "--until"])
def test_what_is_no_time_with_its_offset_is_wrong_use(
    capsys: pytest.CaptureFixture[str], option: str, when: str
) -> None:
    """Another zone's reader would list other effects; and the error shows what a time looks like."""
    code = run(main, ["effects", "list", option, when], name="counterfoil")
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert "write 2026-01-31T12:00:00Z" in " ".join(said.err.split())


def test_a_time_that_ends_before_it_begins_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list would look like a good one."""
    when = "2026-01-31T12:00:00Z"
    assert run(main, ["effects", "list", "--since", when, "--until", when], name="counterfoil") == 2
    assert "--since is not before --until" in capsys.readouterr().err


def test_an_empty_list_is_a_sentence_and_0(counterfoil: Run, world: World) -> None:
    """Nothing unsettled is what one hopes for."""
    done = counterfoil("effects", "list", "--scope", "INC-1", **world.settings)
    assert done.returncode == 0
    assert done.stdout.startswith("No effect of INC-1 is pending or in doubt.\n")


def test_what_a_workflow_left_standing_is_listed_until_somebody_has_judged_it(counterfoil: Run, tmp_path: Path) -> None:
    """G11: how its workflow ended, with each; what is open, completed, given back or accepted is not there."""
    ended = {"INC-1": "terminated", "INC-2": "timed_out", "INC-6": "completed"}
    with running_world(tmp_path) as world:
        asyncio.run(world.fill())
        none = counterfoil("effects", "list", "--closed", **world.settings)
        for scope, closed_as in ended.items():
            world.journal.closed([intent(scope).key], closed_as, run_id="run-1")
        listed = counterfoil("effects", "list", "--closed", "--json", **world.settings)
        shown = counterfoil("effects", "list", "--closed", "--scope", "INC-2", **world.settings)
        command = Command(name=CommandName.ACCEPT, key=intent("INC-2").key, by="ada", reason="it is used")
        world.journal.accept(command)
        accepted = counterfoil("effects", "list", "--closed", **world.settings)
    effects = json.loads(listed.stdout)["effects"]
    assert [(effect["scope"], effect["closed_as"]) for effect in effects] == [("INC-2", "timed_out")]
    assert "timed out" in shown.stdout
    for done in (none, accepted):
        assert (done.returncode, "No workflow has left anything standing." in done.stdout) == (0, True)


def test_state_and_all_together_are_wrong_use(counterfoil: Run, world: World) -> None:
    """They contradict each other."""
    done = counterfoil("effects", "list", "--state", "pending", "--all", **world.settings)
    assert (done.returncode, done.stdout) == (2, "")


async def test_what_waits_for_a_person_though_it_is_settled_is_listed_apart(counterfoil: Run, tmp_path: Path) -> None:
    """What its workflow left standing, and what was reported late; each leaves its list by a person's word."""
    async with standing_in(tmp_path) as standing:
        left = (await standing.reach("left", "INC-1")).key
        late = (await standing.reach("late report", "INC-2")).key
        await standing.reach("committed", "INC-3")
        for option, key, says in (
            ("--closed", left, "terminated"),
            ("--alarmed", late, "voided ALARM"),
        ):
            people = counterfoil("effects", "list", option, **standing.world.settings)
            (line,) = [line for line in people.stdout.splitlines() if "cf1-" in line]
            assert (people.returncode, line.split()[-1]) == (0, key)
            assert says in line
            listed = counterfoil("effects", "list", option, "--keys", **standing.world.settings)
            assert listed.stdout == f"{key}\n"
            await standing.desk.accept(key, by="ada", reason="it is known")
            empty = counterfoil("effects", "list", option, **standing.world.settings)
            assert empty.stdout.startswith(("No workflow has left anything standing.", "No effect is under an alarm."))


@pytest.mark.parametrize("other", ["--closed", "--alarmed", "--state=pending"])
def test_two_lists_at_once_are_wrong_use(counterfoil: Run, world: World, other: str) -> None:
    """Each has an order and a meaning of its own."""
    done = counterfoil("effects", "list", "--all", other, **world.settings)
    assert (done.returncode, done.stdout) == (2, "")


def test_two_halves_that_agree_are_shown_side_by_side_and_end_with_0(counterfoil: Run, world: World) -> None:
    """The row, the receipt looked up now, the entries, and the verdict."""
    done = counterfoil("effects", "show", intent("INC-2").key, **world.settings)
    assert done.returncode == 0
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["outcome", "committed", "committed"] in rows
    assert ["receipt", "receipt-6", "receipt-6"] in rows
    assert [row[3] for row in rows if row and row[0].isdigit()] == ["decision", "intent", "attempt", "observation"]
    assert done.stdout.endswith("Both halves agree.\n")


def test_scope_and_name_mean_the_highest_generation(counterfoil: Run, world: World) -> None:
    """Generation 1 was rejected, generation 2 committed."""
    done = counterfoil("effects", "show", "INC-5/reserve-filter", "--json", **world.settings)
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert said["key"] == intent("INC-5", generation=2).key
    assert (said["agree"], said["journal"]["generation"]) == (True, 2)
    assert said["provider"]["receipt"]["key"] == said["key"]
    assert [entry["kind"] for entry in said["entries"]] == ["decision", "intent", "attempt", "observation"]
    assert said["entries"][2]["body"]["worker"] == {"host": "worker-1", "pid": 7}


def test_a_rejection_and_a_tombstone_agree_too(counterfoil: Run, world: World) -> None:
    """Both halves say that nothing was done."""
    for scope in ("INC-3", "INC-4"):
        done = counterfoil("effects", "show", f"{scope}/reserve-filter", **world.settings)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "Both halves agree.")


def test_a_lost_answer_ends_with_1_and_shows_the_receipt(counterfoil: Run, world: World) -> None:
    """Pending here, committed there."""
    done = counterfoil("effects", "show", LOST_ANSWER.key, **world.settings)
    assert done.returncode == 1
    assert ["outcome", "pending", "committed"] in [line.split() for line in done.stdout.splitlines()]
    assert "unresolved: the journal says pending since" in done.stdout


def test_an_intent_without_a_receipt_ends_with_1(counterfoil: Run, world: World) -> None:
    """Unsettled in both halves is no agreement that anybody can stand on."""
    done = counterfoil("effects", "show", NEVER_SENT.key, "--json", **world.settings)
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["agree"], said["provider"]["seen"], said["provider"]["receipt"]) == (False, "absent", None)


def test_a_receipt_without_an_intent_ends_with_1(counterfoil: Run, world: World) -> None:
    """The inventory's half is shown alone."""
    done = counterfoil("effects", "show", "another-programs-key", **world.settings)
    assert done.returncode == 1
    assert "The inventory has a receipt, and the journal no effect" in done.stdout


def test_a_key_that_nobody_knows_ends_with_1(counterfoil: Run, world: World) -> None:
    """One clear sentence."""
    done = counterfoil("effects", "show", "INC-1/nothing", **world.settings)
    assert done.returncode == 1
    assert done.stdout.startswith("Nobody knows cf1-")
    assert len(done.stdout.splitlines()) == 1


def test_without_the_inventory_the_journals_half_is_shown_and_the_code_is_3(counterfoil: Run, world: World) -> None:
    """What was not asked is not concluded."""
    settings = world.settings | {"COUNTERFOIL_INVENTORY_URL": f"http://{NOBODY}"}
    people = counterfoil("effects", "show", "INC-2/reserve-filter", **settings)
    assert people.returncode == 3
    assert ["outcome", "committed", "not", "known:", "ConnectError"] in [x.split() for x in people.stdout.splitlines()]
    assert "only the journal's half is shown" in people.stdout
    said = json.loads(counterfoil("effects", "show", "INC-2/reserve-filter", "--json", **settings).stdout)
    assert (said["agree"], said["journal"]["state"], said["provider"]["receipt"]) == (None, "committed", None)


def test_a_refused_token_is_not_taken_for_an_absence(counterfoil: Run, world: World) -> None:
    """The inventory was not asked: 3."""
    settings = world.settings | {"COUNTERFOIL_INVENTORY_TOKEN": "wrong"}
    done = counterfoil("effects", "show", "INC-2/reserve-filter", **settings)
    assert done.returncode == 3
    assert "refused the token" in done.stdout


@pytest.mark.parametrize("effect", ["INC-1", "a b", "/name", "INC-1/"])
def test_what_names_no_effect_is_wrong_use(counterfoil: Run, world: World, effect: str) -> None:
    """Neither a key nor SCOPE/NAME."""
    done = counterfoil("effects", "show", effect, **world.settings)
    assert (done.returncode, done.stdout) == (2, "")


def test_scope_and_name_need_the_origin(counterfoil: Run, world: World) -> None:
    """A key needs none."""
    settings = {name: value for name, value in world.settings.items() if name != "COUNTERFOIL_ORIGIN"}
    assert counterfoil("effects", "show", intent("INC-2").key, **settings).returncode == 0
    done = counterfoil("effects", "show", "INC-2/reserve-filter", **settings)
    assert done.returncode == 2
    assert "COUNTERFOIL_ORIGIN is not set" in done.stderr
