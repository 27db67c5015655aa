"""A first request that arrives after everything has been reconciled without it."""

import pytest

from services.drill.network_faults import Armed, DelayRequest, Moment
from tests.faults.books import NAME, STOCK, Books, committed
from tests.faults.harness import Case, reached, within

pytestmark = pytest.mark.temporal


async def _delivered_late(case: Case, held: Armed) -> int | None:
    """Let the held request go on; what the inventory answered it."""
    held.release()
    await within(held.done())
    statuses = [
        event.status for event in case.proxy.events if event.fault is held.fault and event.moment is Moment.FORWARDED
    ]
    assert len(statuses) == 1
    return statuses[0]


async def test_a_late_first_request_meets_the_receipt_of_the_second(case: Case) -> None:
    """E29, E35, E38: the attempt's deadline passes, the retry settles, the late packet is answered with a replay."""
    held = case.proxy.arm(case.key(), DelayRequest())
    await case.start()
    await case.worker()
    await reached(held)
    assert (await case.result()).status == "done"
    assert await case.books() == committed(posts=2, attempts=2)
    assert await _delivered_late(case, held) == 201
    assert await case.books() == committed(posts=2, attempts=2)


async def test_a_cancelled_workflow_closes_the_key_before_the_held_request_arrives(case: Case) -> None:
    """A27, A24, E50, E35, E38: cancelled, voided, and the late packet meets 410; ten units are left."""
    held = case.proxy.arm(case.key(), DelayRequest())
    await case.worker()
    await case.start()
    await reached(held)
    await case.handle().cancel()
    await case.ends_cancelled()
    effect = await case.handle().query("effect", NAME)
    assert (effect["state"], effect["given_up"]) == ("voided", "the workflow was cancelled")
    voided = Books(available=STOCK, receipts=("voided",), movements=(), posts=1, effects={NAME: ("voided", 1)})
    assert await case.books() == voided
    assert await _delivered_late(case, held) == 410
    assert await case.books() == voided
