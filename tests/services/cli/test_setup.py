"""What `setup` makes, in which order, and what it says when the inventory is not there."""

import asyncio
import json
from pathlib import Path

import pytest
from temporalio.service import RPCError, RPCStatusCode

from services.drill.processes import Processes, TemporalServer
from services.drill.stack import Stack
from services.temporal import schedule_id
from tests.services.cli.conftest import COUNTERFOIL, NOBODY, Ask

pytestmark = pytest.mark.temporal


async def test_repeated_it_leaves_what_is_there(deployment: Stack, ask: Ask) -> None:
    """The marker has one key, attributes and Schedule are compared."""
    done = await ask("setup", "--json")
    assert done.returncode == 0
    said = json.loads(done.stdout)
    assert [set(saved) for saved in said.pop("saved_queries")] == [{"title", "query", "url"}] * 6
    assert said == {
        "origin": "workshop",
        "search_attributes_added": [],
        "schedule": "reconciliation-workshop",
        "schedule_created": False,
        "tenant_marked": False,
    }
    assert (await deployment.get("/v1/stock/ORIGIN-workshop"))["received"] == 1


async def test_it_ends_with_the_saved_queries_as_links_into_the_ui_that_is_named(ask: Ask) -> None:
    """By option, else by setting, else where a dev server has it."""
    named, configured, default = [
        (await ask("setup", *words, **settings)).stdout
        for words, settings in (
            (["--ui-url", "https://ui.example/"], {"COUNTERFOIL_TEMPORAL_UI_URL": "http://other"}),
            ([], {"COUNTERFOIL_TEMPORAL_UI_URL": "http://other/"}),
            ([], {}),
        )
    ]
    path = "/namespaces/default/workflows?query=PendingEffects%20%3E%200%20AND%20ExecutionStatus%20%3D%20%27Running%27"
    assert f"    https://ui.example{path}\n" in named
    assert f"    http://other{path}\n" in configured
    assert f"    http://localhost:8233{path}\n" in default
    assert "    PendingEffects > 0 AND ExecutionStatus = 'Running'\n" in default


async def test_another_origins_tenant_is_refused_and_nothing_is_made(deployment: Stack, ask: Ask) -> None:
    """No Schedule, so no worker of the second origin starts either."""
    done = await ask("setup", COUNTERFOIL_ORIGIN="second")
    assert done.returncode == 2
    assert "belongs to another origin than second" in done.stderr
    with pytest.raises(RPCError) as caught:
        await deployment.client.get_schedule_handle(schedule_id("second")).describe()
    assert caught.value.status is RPCStatusCode.NOT_FOUND


async def test_an_inventory_that_stays_away_is_named_with_the_command_to_repeat(ask: Ask) -> None:
    """Not the delivery behind the marker: nobody asked for one."""
    nobody = f"http://{NOBODY}"
    done = await ask("setup", "--json", "--wait-seconds", "0", COUNTERFOIL_INVENTORY_URL=nobody)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["dependency"], error["where"]) == (3, "inventory", nobody)
    assert error["message"].endswith("repeat: counterfoil setup")
    assert "deliver" not in error["message"]


async def test_an_inventory_that_just_starts_is_waited_for(deployment: Stack) -> None:
    """A script starts the service and sets up in the next line."""
    await deployment.proxy.down()
    environment = deployment.environment(inventory_url=deployment.proxy.url)
    process = await asyncio.create_subprocess_exec(
        COUNTERFOIL, "setup", "--wait-seconds", "60",
        env=environment, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        said = await process.stderr.readline()
    finally:
        await deployment.proxy.up()
    assert said.decode() == f"Waiting up to 60 s for the inventory at {deployment.proxy.url}.\n"
    assert await process.wait() == 0


async def test_a_temporal_that_just_starts_is_waited_for(deployment: Stack, tmp_path: Path) -> None:
    """A deployment starts everything at once; what it cannot name as a dependency, setup waits for."""
    with Processes() as processes:
        temporal = TemporalServer(processes, database=tmp_path / "temporal.db", log=tmp_path / "temporal.log")
        process = await asyncio.create_subprocess_exec(
            COUNTERFOIL, "setup", "--wait-seconds", "60",
            env=deployment.environment() | {"TEMPORAL_ADDRESS": temporal.address},
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        assert (await process.stderr.readline()).decode() == f"Waiting up to 60 s for Temporal at {temporal.address}.\n"
        await temporal.start()
        assert await process.wait() == 0


async def test_a_temporal_that_stays_away_is_named(ask: Ask) -> None:
    """After the wait; the same command works later."""
    done = await ask("setup", "--json", "--wait-seconds", "0", TEMPORAL_ADDRESS=NOBODY)
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["kind"], error["where"]) == (3, "unreachable", NOBODY)
