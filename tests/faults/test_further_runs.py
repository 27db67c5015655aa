"""A workflow's next run: continued as new, retried by Temporal, reset while its worker is dead."""

import pytest

from services.drill.network_faults import DelayRequest, WithholdResponse
from tests.faults.author_worker import THIS_BUILD
from tests.faults.books import NAME, STOCK, WANTED, Books, committed
from tests.faults.harness import Case, reached, within
from tests.faults.orders import continued_order, key_of, order
from tests.faults.workflows import AbandonedOrder, ContinuedOrder

pytestmark = pytest.mark.temporal


async def test_an_order_continued_as_new_between_two_effects_does_each_of_them_once(case: Case) -> None:
    """E13, E58, G2: the worker dies in the second run, whose effect had committed unheard; the first one stands."""
    first, second = (key_of(case, "order", name) for name in ("reserve-first", "reserve-second"))
    withheld = case.proxy.arm(second, WithholdResponse())
    worker = await case.worker(*THIS_BUILD)
    handle = await continued_order(case, "order", [("reserve-first", WANTED)], [("reserve-second", WANTED)])
    assert await reached(withheld) == 201
    worker.kill()
    await case.worker(*THIS_BUILD)
    outcomes = await within(handle.result())
    assert [(outcome.key, outcome.state, outcome.receipt) for outcome in outcomes] == [
        (key, "committed", await case.receipt(key)) for key in (first, second)
    ]
    last = case.client.get_workflow_handle(handle.id)
    assert (await last.describe()).run_id != handle.first_execution_run_id
    for key in (first, second):
        row = case.journal.effect(key)
        assert row is not None
        assert row.first_run_id == handle.first_execution_run_id  # one matter, however many runs
    assert await case.books() == Books(
        available=STOCK - 2 * WANTED,
        receipts=("committed",) * 2,
        movements=("reserve",) * 2,
        posts=2,
        effects={"reserve-first": ("committed", 1), "reserve-second": ("committed", 1)},
    )


async def test_an_effect_asked_for_again_by_the_run_continued_as_new_is_a_replay(case: Case) -> None:
    """E13, E47, E58, G2: the run id is another, the key is not; nothing is sent for the second asking."""
    async with case.own_worker(ContinuedOrder):
        handle = await continued_order(case, "order", [(NAME, WANTED)], [(NAME, WANTED)])
        first, again = await within(handle.result())
    assert [(outcome.key, outcome.state) for outcome in (first, again)] == [(key_of(case, "order"), "committed")] * 2
    assert (first.replayed, again.replayed) == (False, True)
    assert first.receipt == again.receipt == await case.receipt(key_of(case, "order"))
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_run_retried_over_unknown_effects_finds_the_one_and_sends_the_other_again(case: Case) -> None:
    """E02, A01, E28, E58: the first run failed beside them; one had committed unheard, one was on its way."""
    unheard, coming = (key_of(case, "order", name) for name in ("reserve-unheard", "reserve-coming"))
    withheld, held = case.proxy.arm(unheard, WithholdResponse()), case.proxy.arm(coming, DelayRequest())
    worker = await case.worker(*THIS_BUILD)
    wanted = [("reserve-unheard", WANTED), ("reserve-coming", WANTED)]
    handle = await order(case, "order", *wanted, kind=AbandonedOrder, tries=2)
    assert await reached(withheld) == 201
    await reached(held)
    worker.kill()
    await handle.signal(AbandonedOrder.fail)
    await case.worker(*THIS_BUILD)
    outcomes = await within(handle.result())
    held.release()
    await within(held.done())
    assert [(outcome.key, outcome.state, outcome.receipt) for outcome in outcomes] == [
        (key, "committed", await case.receipt(key)) for key in (unheard, coming)
    ]
    books = await case.books()
    assert (books.available, books.receipts, books.movements) == (
        STOCK - 2 * WANTED,
        ("committed",) * 2,
        ("reserve",) * 2,
    )
    # The activity of the failed run may have been tried once more beside the new run's: same key, same receipt.
    assert case.proxy.requests[unheard, "POST"] == len(case.journal.attempts(unheard)) == 1
    assert case.proxy.requests[coming, "POST"] == len(case.journal.attempts(coming)) in (2, 3)


async def test_workflows_reset_over_requests_that_have_not_arrived_send_the_same_keys_again(case: Case) -> None:
    """E01, A01, E29: one to its first task, one to its last, their worker dead; both late packets meet a replay."""
    held = [case.proxy.arm(case.key(number=number), DelayRequest()) for number in (1, 2)]
    worker = await case.worker()
    for number in (1, 2):
        await case.start(case.line(number))
    for armed in held:
        await reached(armed)
    worker.kill()
    await case.reset(number=1)
    await case.reset(number=2, to_last=True)
    await case.worker()
    receipts = [(await case.result(number)).outcomes[0].receipt for number in (1, 2)]
    for armed in held:
        armed.release()
        await within(armed.done())
    keys = [case.key(number=number) for number in (1, 2)]
    assert receipts == [await case.receipt(key) for key in keys]
    books = await case.books()
    assert (books.available, books.receipts, books.movements, books.posts) == (
        STOCK - 2 * WANTED,
        ("committed",) * 2,
        ("reserve",) * 2,
        4,
    )
    assert [len(case.journal.attempts(key)) for key in keys] == [2, 2]
