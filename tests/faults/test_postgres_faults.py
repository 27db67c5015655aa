"""What PostgreSQL alone may do to a deployment: it is stopped at once, or a COMMIT of it gets no answer."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from temporalio.client import Client

from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes, TemporalServer, wait_until
from services.effects.records import Seen
from tests.faults.books import STOCK, WANTED, committed
from tests.faults.harness import Case, open_case, reached, within
from tests.faults.programs import Programs
from tests.faults.servers import LIMIT_SECONDS, Bench, Inventory
from tests.faults.stores import PostgresStores
from tests.postgres import Databases
from tests.postgres_cut import Cut, Side, cutting

pytestmark = pytest.mark.temporal


@dataclass(frozen=True, kw_only=True)
class _Stoppable:
    """A bench whose two stores are on servers of their own."""

    bench: Bench
    journals: PostgresServer
    inventories: PostgresServer


@pytest.fixture(scope="module")
async def stoppable(tmp_path_factory: pytest.TempPathFactory, programs: Programs) -> AsyncIterator[_Stoppable]:
    """Not the session's PostgreSQL: these tests stop it."""
    folder = tmp_path_factory.mktemp("postgres-faults")
    with Processes(grace_seconds=0) as processes:
        journals, inventories = (PostgresServer(processes, folder / name) for name in ("journals", "inventories"))
        stores: list[PostgresStores] = []
        for server in (journals, inventories):
            server.start()
            stores.append(PostgresStores(Databases(server.url("postgres"))))
        inventory = Inventory(processes, folder, stores[1].inventory())
        temporal = TemporalServer(processes, database=folder / "temporal.db", log=folder / "temporal.log")
        await temporal.start()
        await inventory.start()
        bench = Bench(
            folder=folder,
            processes=processes,
            programs=programs,
            temporal=temporal,
            client=await Client.connect(temporal.address),
            inventory=inventory,
            stores=stores[0],
        )
        yield _Stoppable(bench=bench, journals=journals, inventories=inventories)
        for server in (journals, inventories):
            server.remove()


@pytest.fixture
async def case(stoppable: _Stoppable) -> AsyncIterator[Case]:
    """A deployment of the test's own."""
    async with open_case(stoppable.bench) as opened:
        yield opened


async def _one_unheard_and_one_coming(case: Case) -> None:
    """Two effects in flight: the first has committed unheard, the request of the second is on its way."""
    withheld = case.proxy.arm(case.key(number=1), WithholdResponse())
    held = case.proxy.arm(case.key(number=2), DelayRequest())
    await case.worker()
    for number in (1, 2):
        await case.start(case.line(number))
    assert await reached(withheld) == 201
    await reached(held)


async def _each_was_done_once(case: Case) -> None:
    for number in (1, 2):
        result = await case.result(number)
        assert (result.status, result.outcomes[0].key) == ("done", case.key(number=number))
        assert result.outcomes[0].receipt == await case.receipt(case.key(number=number))
    for armed in case.proxy.armed:
        armed.release()
        await within(armed.done())
    books = await case.books()
    assert (books.available, books.receipts, books.movements) == (
        STOCK - 2 * WANTED,
        ("committed",) * 2,
        ("reserve",) * 2,
    )
    sent = [case.proxy.requests[case.key(number=number), "POST"] for number in (1, 2)]
    assert sent == [len(case.journal.attempts(case.key(number=number))) for number in (1, 2)] == [1, 2]


async def test_a_journal_whose_server_is_stopped_at_once_comes_back_with_every_mark(
    stoppable: _Stoppable, case: Case
) -> None:
    """G1, E28, E64: recovered from its log; what the answer of a send was, nobody could record."""
    await _one_unheard_and_one_coming(case)
    stoppable.journals.stop_immediately()
    case.proxy.armed[0].release()  # the worker hears of its receipt, and has nowhere to write it

    async def nowhere_to_write() -> bool:
        pending = [one for number in (1, 2) for one in (await case.describe(number)).raw_description.pending_activities]
        return "JournalUnreachable" in [one.last_failure.application_failure_info.type for one in pending]

    await wait_until(nowhere_to_write, timeout_seconds=LIMIT_SECONDS, what="an attempt has met the missing journal")
    stoppable.journals.start()
    await _each_was_done_once(case)


async def test_an_inventory_whose_server_is_stopped_at_once_keeps_what_it_has_answered(
    stoppable: _Stoppable, case: Case
) -> None:
    """E61, E64, G5: it answers that it can do nothing now; no look-up is taken for "not done"."""
    await _one_unheard_and_one_coming(case)
    stoppable.inventories.stop_immediately()

    def unanswered() -> bool:
        told = [[entry.body.get("source") for entry in case.journal.entries(case.key(number=n))] for n in (1, 2)]
        return all("look_up" in sources for sources in told)

    await wait_until(unanswered, timeout_seconds=LIMIT_SECONDS, what="both look-ups have gone unanswered")
    stoppable.inventories.start()
    await _each_was_done_once(case)
    for number in (1, 2):
        entries = case.journal.entries(case.key(number=number))
        assert not any(entry.kind == "late_observation" for entry in entries)


async def _meet_the_cut(case: Case, cut: Cut, side: Side) -> None:
    """Run until the COMMIT of the first attempt's mark has been cut."""
    cut.arm(side, holding=b'"task_token"')  # of all entries only a mark has one
    await case.worker(journal_url=cut.url)
    await case.start()
    assert await asyncio.to_thread(cut.reached.wait, LIMIT_SECONDS)


async def test_a_mark_whose_commit_was_not_answered_is_read_back_and_sent_once(case: Case) -> None:
    """A14, G1: the server had committed it; the same attempt goes on, on a new connection."""
    with cutting(case.journal_url) as cut:
        await _meet_the_cut(case, cut, Side.AFTER)
        outcome = (await case.result()).outcomes[0]
    assert outcome.receipt == await case.receipt()
    assert [attempt.seen for attempt in case.journal.attempts(case.key())] == [Seen.RECEIPT]
    assert await case.books() == committed(posts=1, attempts=1)
    assert case.proxy.requests[None, "GET"] == 0


async def test_nothing_is_sent_for_a_mark_whose_commit_never_arrived(case: Case) -> None:
    """A14, G1: the transaction is rolled back; the retry marks, and sends, once."""
    with cutting(case.journal_url) as cut:
        await _meet_the_cut(case, cut, Side.BEFORE)
        outcome = (await case.result()).outcomes[0]
    assert outcome.receipt == await case.receipt()
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_mark_whose_commit_arrives_late_is_one_that_nobody_has_sent_for(case: Case) -> None:
    """A14, G4: read back and not found, so nothing was sent; found later, so the receipt is asked for first."""
    with cutting(case.journal_url) as cut:
        await _meet_the_cut(case, cut, Side.LATE)

        async def tried_again() -> bool:
            return any(one.attempt > 1 for one in (await case.describe()).raw_description.pending_activities)

        await wait_until(tried_again, timeout_seconds=LIMIT_SECONDS, what="the first try has failed")
        assert case.proxy.requests.total() == 0
        await asyncio.to_thread(cut.release)
        outcome = (await case.result()).outcomes[0]
    assert outcome.receipt == await case.receipt()
    assert [attempt.seen for attempt in case.journal.attempts(case.key())] == [None, Seen.RECEIPT]
    assert await case.books() == committed(posts=1, attempts=2)
