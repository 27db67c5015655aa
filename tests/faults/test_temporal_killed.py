"""The Temporal server dies in mid-flight and comes back on the same file."""

from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import Processes, TemporalServer
from tests.faults.harness import STOCK, WANTED, Bench, open_case, reached, within


async def test_incidents_go_on_after_the_server_was_killed_and_nothing_is_done_twice(bench: Bench) -> None:
    """E05, E10, E64: one effect had committed unheard, one was on its way; the workers are never touched."""
    folder = bench.folder / "temporal-killed"
    folder.mkdir()
    with Processes() as processes:
        server = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await server.start()
        async with open_case(bench, temporal=server) as case:
            unheard, coming = case.key(number=1), case.key(number=2)
            withheld = case.proxy.arm(unheard, WithholdResponse())
            held = case.proxy.arm(coming, DelayRequest())
            await case.worker()
            for number in (1, 2):
                await case.start(case.line(number))
            assert await reached(withheld) == 201
            await reached(held)
            server.kill()
            withheld.release()
            assert await case.settled(unheard) == "committed"  # the journal needs no server
            await server.start()
            for number in (1, 2):
                assert (await case.result(number)).status == "done"
            held.release()
            await within(held.done())
            books = await case.books()
            assert (books.available, books.receipts, books.movements) == (
                STOCK - 2 * WANTED,
                ("committed",) * 2,
                ("reserve",) * 2,
            )
            assert [case.proxy.requests[key, "POST"] for key in (unheard, coming)] == [1, 2]
            assert [len(case.journal.attempts(key)) for key in (unheard, coming)] == [1, 2]
