"""Temporal put back to an older copy of its database, with every worker stopped and with one left alive."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import Processes, TemporalServer, wait_until
from tests.faults.books import STOCK, WANTED
from tests.faults.harness import Case, open_case, reached, within
from tests.faults.servers import LIMIT_SECONDS, Bench

pytestmark = pytest.mark.temporal


class _Temporal:
    """A server of the test's own, whose database may be copied and put back."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        folder.mkdir()
        self._database, self._copy = folder / "temporal.db", folder / "copy.db"
        self.server = TemporalServer(processes, database=self._database, log=folder / "temporal.log")

    async def copied(self) -> None:
        """Kill it, copy what it has on disk, and start it again."""
        self.server.kill()
        _replace(self._database, self._copy)
        await self.server.start()

    async def put_back(self) -> None:
        """Kill it, put the copy back, and start it again."""
        self.server.kill()
        _replace(self._copy, self._database)
        await self.server.start()


def _replace(source: Path, target: Path) -> None:
    """Copy a database with its write-ahead log; nobody has it open."""
    for suffix in ("", "-wal", "-shm"):
        old, new = source.with_name(source.name + suffix), target.with_name(target.name + suffix)
        new.unlink(missing_ok=True)
        if old.exists() and suffix != "-shm":
            shutil.copyfile(old, new)


@asynccontextmanager
async def _case_of_its_own(bench: Bench, name: str) -> AsyncIterator[tuple[Case, _Temporal]]:
    with Processes(grace_seconds=0) as processes:
        temporal = _Temporal(processes, bench.folder / name)
        await temporal.server.start()
        async with open_case(bench, temporal=temporal.server) as case:
            yield case, temporal


async def _each_was_done_once(case: Case, numbers: range) -> None:
    """Both halves of these incidents, and what their newest runs answered."""
    for number in numbers:
        result = await case.result(number)
        assert (result.status, result.outcomes[0].key) == ("done", case.key(number=number))
        assert result.outcomes[0].receipt == await case.receipt(case.key(number=number))
    books = await case.books()
    done = len(numbers)
    assert (books.available, books.receipts, books.movements) == (
        STOCK - done * WANTED,
        ("committed",) * done,
        ("reserve",) * done,
    )


async def test_a_temporal_put_back_while_no_worker_runs_is_told_every_outcome_by_the_journal(bench: Bench) -> None:
    """A03, A07, E04, G2, G17: it knows one effect as under way and the other not at all; both are done."""
    async with _case_of_its_own(bench, "temporal-put-back") as (case, temporal):
        withheld = case.proxy.arm(case.key(number=1), WithholdResponse())
        worker = await case.worker()
        await case.start(case.line(1))
        assert await reached(withheld) == 201
        await temporal.copied()
        await case.start(case.line(2))
        before = [(await case.result(number)).outcomes[0] for number in (1, 2)]
        worker.kill()
        await temporal.put_back()
        assert (await case.start(case.line(2))).what == "replay"
        await case.worker()
        await _each_was_done_once(case, range(1, 3))
        after = [(await case.result(number)).outcomes[0] for number in (1, 2)]
        assert [one.receipt for one in after] == [one.receipt for one in before]
        assert [case.proxy.requests[case.key(number=number), "POST"] for number in (1, 2)] == [1, 1]
