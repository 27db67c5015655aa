"""The embedded stack: real parts, a journal that is put back, and nothing of a person's own environment."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from services.drill.processes import ProcessError, Processes
from services.drill.stack import running_stack
from services.effects.records import Mark
from services.temporal import schedule_id
from tests.services.drill.intents import intent

pytestmark = pytest.mark.temporal


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Whatever a test starts ends with it."""
    with Processes() as block:
        yield block


async def test_a_stack_runs_with_its_stock_and_its_workers(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delivered once, set up, two workers at work; a person's own settings reach no part."""
    monkeypatch.setenv("COUNTERFOIL_ORIGIN", "somebody-elses")
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    async with running_stack(processes, tmp_path / "new", stock={"FILTER-A": 10}, origin="drill") as stack:
        assert (await stack.get("/v1/stock/FILTER-A"))["available"] == 10
        assert (await stack.get("/v1/stock/ORIGIN-drill"))["available"] == 1
        assert len({worker.pid for worker in stack.workers if worker.alive}) == 2
        assert all(stack.worker(worker.pid) is worker for worker in stack.workers)
        assert stack.worker(os.getpid()) is None
        await stack.client.get_schedule_handle(schedule_id("drill")).describe()
        assert (await stack.audit()).clean

        # A worker that was killed is started again under a new process id.
        killed = stack.workers[0]
        before = killed.pid
        killed.kill()
        assert stack.worker(before) is None
        await stack.start_workers()
        assert killed.alive
        assert killed.pid != before

        # The journal alone is put back, and only while no worker runs.
        copy = stack.copy_journal("copy")
        mark = Mark(attempt_id="a", task_token="", worker={})
        key = stack.journal.begin(intent("drill", "INC-1", "reserve-filter"), mark).row.key
        with pytest.raises(ProcessError, match="while no worker runs"):
            stack.put_journal_back(copy)
        assert stack.journal.effect(key) is not None
        await stack.stop_workers()
        stack.put_journal_back(copy)
        assert stack.journal.effect(key) is None
        with closing(sqlite3.connect(stack.journal_file)) as journal:
            assert journal.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


async def test_a_command_that_fails_ends_the_start_with_what_it_said(processes: Processes, tmp_path: Path) -> None:
    """The end of its log is in the error."""
    with pytest.raises(ProcessError, match="SKU=QUANTITY"):
        async with running_stack(processes, tmp_path, stock={"not a sku": 1}, origin="drill"):
            pytest.fail("it started")
