"""`counterfoil reconcile`: how it ends says what the sweep could not do."""

import json

import pytest

from services.drill.network_faults import DelayRequest
from services.drill.stack import Stack
from services.effects.states import EffectState
from tests.services.cli.conftest import Ask
from tests.services.drill.intents import intent

pytestmark = pytest.mark.temporal


async def test_what_the_inventory_said_nothing_of_is_no_success(deployment: Stack, ask: Ask) -> None:
    """The table is shown all the same; when the inventory answers again, the key is closed."""
    given_up = intent("workshop", "INC-1", "reserve-filter")
    await deployment.proxy.down()  # before there is anything that a worker's own sweep could settle
    deployment.journal.give_up(given_up, why="the test says so")
    unheard = await ask("reconcile")
    await deployment.proxy.up()
    assert unheard.returncode == 3
    assert "settled by a receipt" in unheard.stdout
    assert "stays pending; nothing is lost" in unheard.stderr
    heard = await ask("reconcile", "--json")
    assert heard.returncode == 0
    swept = json.loads(heard.stdout)
    assert swept["unheard"] == 0
    row = deployment.journal.effect(given_up.key)
    assert row is not None
    assert row.state is EffectState.VOIDED  # by this sweep, or by the worker's own a moment before
    assert set(swept) == {"looked_at", "owned", "matched", "voided", "waiting", "unheard", "followed", "left"}


async def test_a_sweep_that_takes_its_time_says_how_far_it_is(deployment: Stack, ask: Ask) -> None:
    """On stderr, while the inventory holds its answers back; stdout is the result and nothing else."""
    given_up = intent("workshop", "INC-slow", "reserve-filter")
    # Workers sweep of themselves too, so more is held than they can ask for before the sweep that is asked for here.
    held = [deployment.proxy.arm_next(lambda call: given_up.key in call.path, DelayRequest()) for _ in range(20)]
    deployment.journal.give_up(given_up, why="the test says so")
    try:
        asked = await ask("reconcile", "--json")
        row = deployment.journal.effect(given_up.key)
    finally:
        for each in held:
            each.release()
    assert asked.returncode == 3
    assert "unsettled effects looked at" in asked.stderr
    swept = json.loads(asked.stdout)
    # Whatever else this deployment has under way is looked at too, and heard of.
    assert swept["looked_at"] >= 1
    assert swept["unheard"] == 1
    assert row is not None
    assert not row.state.terminal
