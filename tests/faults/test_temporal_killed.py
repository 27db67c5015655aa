"""The Temporal server dies in mid-flight and comes back on the same file, or on an empty one."""

import pytest

from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import Processes, TemporalServer
from tests.faults.books import STOCK, WANTED, committed
from tests.faults.harness import Case, open_case, reached, within
from tests.faults.servers import Bench

pytestmark = pytest.mark.temporal


@pytest.mark.parametrize("workers", ["alive", "killed too"])
async def test_incidents_go_on_after_the_server_was_killed_and_nothing_is_done_twice(
    bench: Bench, workers: str
) -> None:
    """E05, E10, E64: one effect had committed unheard, one was on its way."""
    folder = bench.folder / f"temporal-killed-workers-{workers[:5]}"
    folder.mkdir()
    with Processes(grace_seconds=0) as processes:
        server = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await server.start()
        async with open_case(bench, temporal=server) as case:
            unheard, coming = keys = [case.key(number=number) for number in (1, 2)]
            withheld = case.proxy.arm(unheard, WithholdResponse())
            held = case.proxy.arm(coming, DelayRequest())
            worker = await case.worker()
            for number in (1, 2):
                await case.start(case.line(number))
            assert await reached(withheld) == 201
            await reached(held)
            server.kill()
            if workers == "alive":
                withheld.release()
                assert await case.settled(unheard) == "committed"  # the journal needs no server
            else:
                worker.kill()
            await server.start()
            if workers != "alive":
                await case.worker()
            for number, key in zip((1, 2), keys, strict=True):
                result = await case.result(number)
                assert (result.status, result.outcomes[0].receipt) == ("done", await case.receipt(key))
            held.release()
            await within(held.done())
            books = await case.books()
            assert (books.available, books.receipts, books.movements) == (
                STOCK - 2 * WANTED,
                ("committed",) * 2,
                ("reserve",) * 2,
            )
            assert [case.proxy.requests[key, "POST"] for key in keys] == [1, 2]
            assert [len(case.journal.attempts(key)) for key in keys] == [1, 2]


async def test_a_temporal_that_has_lost_everything_is_told_the_old_outcome_by_the_journal(
    bench: Bench, case: Case
) -> None:
    """A12, E04, G2: another matter under the old id is refused; the same matter is a replay and moves nothing."""
    worker = await case.worker()
    await case.start()
    await case.result()
    worker.kill()
    receipt = await case.receipt()
    folder = bench.folder / "temporal-empty"
    folder.mkdir()
    with Processes(grace_seconds=0) as processes:
        empty = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await empty.start()
        await case.move_to(empty)
        assert (await case.start(case.line(quantity=3))).what == "refused"
        again = await case.start()
        assert (again.what, again.detail[:9]) == ("replay", "replay of")
        await case.worker()
        outcome = (await case.result()).outcomes[0]
        assert (outcome.key, outcome.state, outcome.replayed) == (case.key(), "committed", True)
        assert outcome.receipt == receipt
        assert await case.books() == committed(posts=1, attempts=1)


async def test_a_temporal_that_has_lost_a_workflow_over_an_unknown_effect_leaves_it_to_the_sweep(
    bench: Bench, case: Case
) -> None:
    """E04, A01: nobody knows the workflow any more; the journal's row is matched all the same."""
    worker, _ = await case.unheard()
    worker.kill()
    folder = bench.folder / "temporal-forgetful"
    folder.mkdir()
    with Processes(grace_seconds=0) as processes:
        empty = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await empty.start()
        await case.move_to(empty)
        await case.worker()
        assert await case.settled() == "committed"
        assert await case.books() == committed(posts=1, attempts=1)
