"""What `setup` makes, in which order, and what it says when the inventory is not there."""

import asyncio
from typing import Any

import click
import pytest

from services.cli import setup as module
from services.cli.inventory_client import deliver
from services.cli.output import CommandError, ExitCode
from services.cli.setup import setup
from tests.services.cli.conftest import TOKEN, TinyInventory

NOBODY = "http://127.0.0.1:1"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made in Temporal, by a client that only notes it."""
    made: list[str] = []

    async def connect() -> None:
        made.append("connected")

    async def add_search_attributes(_client: Any) -> list[str]:
        made.append("search attributes")
        return ["PendingEffects"]

    async def ensure_schedule(_client: Any, origin: str) -> bool:
        made.append(f"schedule of {origin}")
        return True

    for stand_in in (connect, add_search_attributes, ensure_schedule):
        monkeypatch.setattr(module, stand_in.__name__, stand_in)
    return made


def _set_up(monkeypatch: pytest.MonkeyPatch, url: str, origin: str = "workshop") -> None:
    monkeypatch.setenv("COUNTERFOIL_ORIGIN", origin)
    monkeypatch.setenv("COUNTERFOIL_INVENTORY_URL", url)
    monkeypatch.setenv("COUNTERFOIL_INVENTORY_TOKEN", TOKEN)
    with click.Context(setup):
        setup.main([], standalone_mode=False)


def test_the_tenant_is_marked_before_anything_is_made_in_temporal(
    inventory: TinyInventory, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated, it is the same: the marker has one key."""
    _set_up(monkeypatch, inventory.url)
    assert made == ["connected", "search attributes", "schedule of workshop"]
    assert inventory.stock == {"ORIGIN-workshop": 1}
    _set_up(monkeypatch, inventory.url)
    assert inventory.stock == {"ORIGIN-workshop": 1}


def test_another_origins_tenant_is_refused_and_nothing_is_made(
    inventory: TinyInventory, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Schedule, so no worker of the second origin starts either."""
    _set_up(monkeypatch, inventory.url)
    del made[:]
    with pytest.raises(CommandError, match="belongs to another origin than second") as caught:
        _set_up(monkeypatch, inventory.url, origin="second")
    assert caught.value.exit_code is ExitCode.WRONG_USE
    assert made == ["connected"]


def test_an_inventory_that_stays_away_is_named_with_the_command_to_repeat(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the delivery behind the marker: nobody asked for one."""
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(CommandError) as caught:
        _set_up(monkeypatch, NOBODY)
    assert caught.value.exit_code is ExitCode.UNREACHABLE
    assert NOBODY in caught.value.message
    assert caught.value.message.endswith("repeat: counterfoil setup")
    assert "deliver" not in caught.value.message
    assert made == ["connected"]


def test_an_inventory_that_just_starts_is_waited_for(
    inventory: TinyInventory, made: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A script starts the service and sets up in the next line."""
    tries = iter([NOBODY, NOBODY])
    monkeypatch.setattr(module, "deliver", lambda url, token, marker: deliver(next(tries, url), token, marker))
    monkeypatch.setattr(asyncio, "sleep", lambda _seconds: asyncio.to_thread(lambda: None))
    _set_up(monkeypatch, inventory.url)
    assert made[-1] == "schedule of workshop"
    assert capsys.readouterr().err.count("Waiting up to 10 s for the inventory") == 1
