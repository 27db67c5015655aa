"""`counterfoil reconcile`: how it ends says what the sweep could not do."""

import json

import pytest

from services.drill.stack import Stack
from tests.services.cli.conftest import Ask
from tests.services.drill.intents import intent

pytestmark = pytest.mark.temporal


async def test_what_the_inventory_said_nothing_of_is_no_success(deployment: Stack, ask: Ask) -> None:
    """The table is shown all the same; when the inventory answers again, the key is closed."""
    deployment.journal.give_up(intent("workshop", "INC-1", "reserve-filter"), why="the test says so")
    await deployment.proxy.down()
    unheard = await ask("reconcile")
    await deployment.proxy.up()
    assert unheard.returncode == 3
    assert "settled by a receipt" in unheard.stdout
    assert "stays pending; nothing is lost" in unheard.stderr
    heard = await ask("reconcile", "--json")
    assert heard.returncode == 0
    swept = json.loads(heard.stdout)
    assert (swept["voided"], swept["unheard"]) == (1, 0)
    assert set(swept) == {"looked_at", "owned", "matched", "voided", "waiting", "unheard"}
