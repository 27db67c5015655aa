"""A sweep that is asked for is the one whose result is given."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.contracts import Swept
from services.drill.processes import Processes
from services.drill.stack import running_stack
from services.effects.records import Mark
from services.sweep_desk import sweep_now
from services.temporal import NotSetUp
from tests.services.drill.intents import intent

pytestmark = pytest.mark.temporal


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Whatever a test starts ends with it."""
    with Processes() as block:
        yield block


async def test_a_sweep_gives_the_result_of_the_run_it_asked_for(processes: Processes, tmp_path: Path) -> None:
    """What became pending before the call is in it, though an earlier sweep has run; two calls get one each."""
    async with running_stack(processes, tmp_path, stock={}, origin="drill", workers=1) as stack:
        assert await sweep_now(stack.client, "drill") == Swept()
        given_up = intent("drill", "INC-1", "reserve-filter")
        stack.journal.give_up(given_up, why="the test says so")
        assert await sweep_now(stack.client, "drill") == Swept(looked_at=1, voided=1)
        stack.journal.begin(intent("drill", "INC-2", "reserve-filter"), Mark(attempt_id="a", task_token="", worker={}))
        swept = await asyncio.gather(sweep_now(stack.client, "drill"), sweep_now(stack.client, "drill"))
        assert list(swept) == [Swept(looked_at=1, owned=1)] * 2
        with pytest.raises(NotSetUp, match="counterfoil setup"):
            await sweep_now(stack.client, "nobody")
        await stack.run("reconcile", "reconcile", "--json")
