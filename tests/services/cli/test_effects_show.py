"""`counterfoil effects show`, of holds and of receipts that retention has taken."""

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from services.effects.records import Answer, Seen, Source
from tests.services.cli.conftest import Run
from tests.services.reconciliation.world import World, intent, running_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An inventory that keeps receipts for an hour."""
    with running_world(tmp_path / "world", retention=timedelta(hours=1)) as started:
        assert started.caller.deliver(20, "FILTER-A").status_code == 201
        yield started


def later(world: World, **time: float) -> None:
    """Turn the inventory's clock; what is due then is done."""
    world.service.clock.now += timedelta(**time)
    world.service.housekeeping()


def show(counterfoil: Run, world: World, key: str) -> tuple[int, str, dict[str, Any]]:
    """The exit code, what people see, and the document."""
    people = counterfoil("effects", "show", key, **world.settings)
    document = json.loads(counterfoil("effects", "show", key, "--json", **world.settings).stdout)
    return people.returncode, people.stdout, document


def test_a_hold_that_ran_out_is_not_taken_for_one_that_stands(counterfoil: Run, world: World) -> None:
    """Committed in both halves, and the units are somebody else's by now: it says so (E55)."""
    one = intent("INC-1", hold_seconds=60)
    asyncio.run(world.perform(one))
    code, people, document = show(counterfoil, world, one.key)
    assert (code, document["provider"]["reservation"]["state"]) == (0, "held")
    assert "reservation-1 holds its units until " in people
    later(world, seconds=61)
    code, people, document = show(counterfoil, world, one.key)
    assert code == 0
    assert "reservation-1 was only a hold and ran out at " in people
    assert document["note"] in people
    assert [(each["half"], each["kind"]) for each in document["timeline"]][-2:] == [
        ("journal", "observation"),
        ("inventory", "expired"),
    ]


def test_attempts_and_the_receipt_stand_in_one_order(counterfoil: Run, world: World) -> None:
    """An answer that was lost: the receipt between the mark and the look-up."""
    one = intent("INC-2")
    asyncio.run(world.send(one))
    asyncio.run(world.recover(one))
    code, people, document = show(counterfoil, world, one.key)
    assert code == 0
    assert sorted(each["kind"] for each in document["timeline"]) == sorted(
        ["decision", "intent", "attempt", "observation", "receipt"]
    )
    (attempt,) = (each for each in document["timeline"] if each["kind"] == "attempt")
    assert (attempt["attempt"], attempt["says"].endswith("no answer was recorded")) == (1, True)
    header = next(line.split() for line in people.splitlines() if line.startswith("id"))
    assert header == ["id", "at", "what", "journal", "inventory"]


def test_what_retention_left_is_compared_and_shown(counterfoil: Run, world: World) -> None:
    """The journal has the whole receipt: both halves agree as far as that goes."""
    one = intent("INC-3")
    asyncio.run(world.perform(one))
    later(world, hours=2)
    code, people, document = show(counterfoil, world, one.key)
    assert (code, document["agree"]) == (0, True)
    assert document["provider"]["remains"]["receipt_id"] == "receipt-2"
    assert "what is left of it is receipt-2 committed, reservation-1. Both halves agree as far as that goes." in people


def test_an_expired_key_that_nobody_heard_of_says_what_a_person_can_do(counterfoil: Run, world: World) -> None:
    """In doubt: what is left of the receipt is shown, and the command that settles it."""
    one = intent("INC-4")
    asyncio.run(world.send(one))
    later(world, hours=2)
    world.journal.observe(one.key, Answer(seen=Seen.KEY_EXPIRED, source=Source.LOOK_UP))
    code, people, document = show(counterfoil, world, one.key)
    assert (code, document["agree"]) == (1, False)
    assert f"counterfoil effects resolve {one.key} --as committed, with what shows it as evidence." in people
