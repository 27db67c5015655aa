"""Databases that are not what a process takes them for: another store's, or a schema that is gone."""

import asyncio

import pytest

from services.database import migrate
from services.drill.network_faults import WithholdResponse
from services.drill.processes import Child, wait_until
from services.incident_desk import to_input
from services.temporal import task_queue
from tests.faults.books import STOCK, WANTED, committed
from tests.faults.harness import Case, reached
from tests.faults.servers import COUNTERFOIL, LIMIT_SECONDS, Bench, environment
from workflows import policies
from workflows.incident import Incident

pytestmark = pytest.mark.temporal


async def _refusal(child: Child) -> str:
    """What a process says that refuses to start."""
    assert await asyncio.to_thread(child.wait, LIMIT_SECONDS) == 2
    return child.log.read_text()


async def test_a_process_with_the_other_stores_database_refuses_to_start_and_changes_nothing(
    bench: Bench, case: Case
) -> None:
    """A worker on the inventory's, an inventory on the journal's, over an effect that has committed unheard."""
    worker, _ = await case.unheard()
    worker.kill()
    crossed = case.start_worker(journal_url=bench.inventory.database_url)
    inventory = case.processes.start(
        [COUNTERFOIL, "inventory"],
        name="An inventory on the journal",
        log=case.folder / "crossed-inventory.log",
        env=environment(COUNTERFOIL_INVENTORY_TOKENS="acme=token", COUNTERFOIL_INVENTORY_DATABASE_URL=case.journal_url),
    )
    for child, store in ((crossed, "journal"), (inventory, "inventory")):
        said = await _refusal(child)
        assert f"this build's {store} store does not know: another store's database" in said
        assert "Nothing was changed. Check the URL" in said
    await case.worker()
    outcome = (await case.result()).outcomes[0]
    assert outcome.receipt == await case.receipt()
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_journal_migrated_to_base_is_lost_and_its_receipts_are_found_under_the_same_keys(case: Case) -> None:
    """G2, G16: what `base` takes away is the journal's half; a worker refuses until there is a journal again.

    The attempt that had committed unheard is not on record any more: its key is begun anew, and what is sent is
    answered with the first receipt.
    """
    worker, _ = await case.unheard()
    receipt = await case.receipt()
    worker.kill()
    assert await asyncio.to_thread(migrate, "journal", case.journal_url, "base") == "base"
    said = await _refusal(case.start_worker())
    assert "is at nothing, this build needs" in said
    assert "Run: counterfoil migrate journal" in said
    await asyncio.to_thread(migrate, "journal", case.journal_url)
    assert case.journal.effects() == ()
    await case.worker()
    outcome = (await case.result()).outcomes[0]
    assert (outcome.key, outcome.state, outcome.receipt) == (case.key(), "committed", receipt)
    assert await case.books() == committed(posts=2, attempts=1)


async def test_a_worker_whose_journal_is_migrated_away_under_it_sends_nothing_until_it_is_back(case: Case) -> None:
    """G1: no row, no byte. One effect had committed unheard and is found again, one is begun without a journal."""
    withheld = case.proxy.arm(case.key(number=1), WithholdResponse())
    await case.worker()
    await case.start(case.line(1))
    assert await reached(withheld) == 201
    await asyncio.to_thread(migrate, "journal", case.journal_url, "base")
    withheld.release()
    await case.client.start_workflow(  # not as the command line does, which asks the journal first
        Incident.run,
        to_input(case.line(2), case.origin),
        id=case.scope(2),
        task_queue=task_queue(case.origin),
        task_timeout=policies.TASK_TIMEOUT,
    )

    async def refused_twice() -> list[str]:
        pending = [(await case.describe(number)).raw_description.pending_activities for number in (1, 2)]
        said = [one.last_failure.message for activities in pending for one in activities if one.attempt > 2]
        return said if len(said) == 2 else []

    for said in await wait_until(refused_twice, timeout_seconds=LIMIT_SECONDS, what="each has been tried twice"):
        assert "No send goes without its mark" in said
    assert [case.proxy.requests[case.key(number=number), "POST"] for number in (1, 2)] == [1, 0]
    await asyncio.to_thread(migrate, "journal", case.journal_url)
    for number in (1, 2):
        outcome = (await case.result(number)).outcomes[0]
        assert outcome.receipt == await case.receipt(case.key(number=number))
    books = await case.books()
    assert (books.available, books.receipts, books.movements, books.posts) == (
        STOCK - 2 * WANTED,
        ("committed",) * 2,
        ("reserve",) * 2,
        3,
    )
