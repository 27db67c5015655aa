"""An author's own workflows: names, scopes, retried runs and changed builds."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import wait_until
from services.effects.states import EffectState
from tests.faults.books import NAME, STOCK, WANTED, Books, committed
from tests.faults.harness import Case, reached, within
from tests.faults.orders import Handle, key_of, order
from tests.faults.servers import LIMIT_SECONDS
from tests.faults.workflows import FailingOrder, Order, OrderOfTheNextBuild

pytestmark = pytest.mark.temporal

# A request that a test holds stays one attempt for so long: only an activity's start-to-close (12 s) is longer.
HELD_SECONDS = 11.0


async def _failure(handle: Handle) -> ApplicationError:
    """Why a workflow failed."""
    with pytest.raises(WorkflowFailureError) as caught:
        await within(handle.result())
    assert isinstance(caught.value.cause, ApplicationError)
    return caught.value.cause


async def _wake(handle: Handle) -> None:
    """End the pause that a workflow may be in; it may have ended by itself."""
    with suppress(RPCError):
        await handle.signal("wake")


async def _watching(handle: Handle, *, given_up: str | None) -> None:
    """Wait until a workflow knows that its key is another payload's, and waits for that one to be settled."""

    async def refused() -> bool:
        pending = await handle.query("pending")
        return [("another payload" in one["waiting"], one["given_up"]) for one in pending] == [(True, given_up)]

    await wait_until(refused, timeout_seconds=LIMIT_SECONDS, what="the second workflow has been refused")


async def test_a_name_used_twice_in_one_run_is_refused_and_its_first_effect_stands(case: Case) -> None:
    """A16: the same payload in a loop is no exception; nothing is swallowed in silence."""
    async with case.own_worker(Order):
        failure = await _failure(await order(case, "loop", (NAME, WANTED), (NAME, WANTED)))
    assert failure.type == "NameUsedTwice"
    assert NAME in failure.message
    assert await case.books() == committed(posts=1, attempts=1)


async def test_another_payload_in_the_same_scope_never_closes_a_live_key(case: Case) -> None:
    """A18: the second workflow waits until the first one's effect is settled, and then fails with both payloads."""
    held = case.proxy.arm(key_of(case, "first"), DelayRequest())
    async with case.own_worker(Order, send_deadline_seconds=HELD_SECONDS):
        first = await order(case, "first", (NAME, WANTED))
        await reached(held)
        second = await order(case, "second", (NAME, 3), scope=f"first-{case.origin}")
        await _watching(second, given_up=None)
        held.release()
        assert (await within(first.result()))[0].state == "committed"
        await _wake(second)
        failure = await _failure(second)
    assert failure.type == "FingerprintMismatch"
    assert ('"quantity":2' in failure.message, '"quantity":3' in failure.message) == (True, True)
    assert case.proxy.requests[None, "PUT"] == 0
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_cancel_of_another_payload_in_the_same_scope_never_gives_up_a_live_key(case: Case) -> None:
    """A18, G7: the second workflow is cancelled while the first one's request is under way."""
    key = key_of(case, "first")
    held = case.proxy.arm(key, DelayRequest())
    async with case.own_worker(Order, send_deadline_seconds=HELD_SECONDS):
        first = await order(case, "first", (NAME, WANTED))
        await reached(held)
        second = await order(case, "second", (NAME, 3), scope=f"first-{case.origin}")
        await second.cancel()
        await _watching(second, given_up="the workflow was cancelled")
        row = case.journal.effect(key)
        assert row is not None
        assert (row.state, row.given_up) == (EffectState.PENDING, False)
        held.release()
        assert (await within(first.result()))[0].state == "committed"
        await _wake(second)
        failure = await _failure(second)
    assert failure.type == "FingerprintMismatch"
    assert case.proxy.requests[None, "PUT"] == 0
    assert await case.books() == committed(posts=1, attempts=1)


async def test_an_unknown_effect_holds_up_its_own_scope_and_nothing_else(case: Case) -> None:
    """E22: another order for the same SKU goes through while the second effect of the first one is under way."""
    unknown = key_of(case, "waiting", "reserve-second")
    held = case.proxy.arm(unknown, DelayRequest())
    async with case.own_worker(Order, send_deadline_seconds=HELD_SECONDS):
        waiting = await order(case, "waiting", ("reserve-first", WANTED), ("reserve-second", WANTED))
        await reached(held)
        free = await order(case, "free", ("reserve-third", WANTED), ("reserve-fourth", WANTED))
        assert [outcome.state for outcome in await within(free.result())] == ["committed"] * 2
        row = case.journal.effect(unknown)
        assert row is not None
        assert (row.state, row.attempts) == (EffectState.PENDING, 1)
        assert (await waiting.describe()).status is WorkflowExecutionStatus.RUNNING
        held.release()
        assert [outcome.state for outcome in await within(waiting.result())] == ["committed"] * 2
    assert await case.books() == Books(
        available=STOCK - 4 * WANTED,
        receipts=("committed",) * 4,
        movements=("reserve",) * 4,
        posts=4,
        effects={f"reserve-{name}": ("committed", 1) for name in ("first", "second", "third", "fourth")},
    )


async def test_a_retried_workflow_gets_what_its_first_run_reserved(case: Case) -> None:
    """E02: the step after the effect fails, Temporal starts a new run, and the journal answers."""
    async with case.own_worker(FailingOrder):
        handle = await order(case, "failing", (NAME, WANTED), kind=FailingOrder, tries=2)
        outcomes = await within(handle.result())
    assert [(outcome.key, outcome.state, outcome.replayed) for outcome in outcomes] == [
        (key_of(case, "failing"), "committed", True)
    ]
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_changed_build_asks_for_the_same_effect_under_the_same_key(case: Case) -> None:
    """E13, E58, E59, I35: terminated, and run again by code in which another effect stands before it."""
    key = key_of(case, "order")
    withheld = case.proxy.arm(key, WithholdResponse())
    async with case.own_worker(Order):
        handle = await order(case, "order", (NAME, WANTED))
        assert await reached(withheld) == 201
        await handle.terminate("a fault test")
        withheld.release()
    async with case.own_worker(OrderOfTheNextBuild):
        handle = await order(case, "order", (NAME, WANTED), kind=OrderOfTheNextBuild)
        outcomes = await within(handle.result())
    spare = key_of(case, "order", "reserve-inspection-spare")
    assert [outcome.key for outcome in outcomes] == [spare, key]
    assert [case.proxy.requests[each, "POST"] for each in (spare, key)] == [1, 1]
    books = await case.books()
    assert (books.available, books.movements) == (STOCK - WANTED - 1, ("reserve", "reserve"))


class _HeldActivity(Interceptor):
    """Holds every try of a reservation before its first line."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.released = asyncio.Event()
        self.answered = asyncio.Event()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        """Stand before every activity."""
        gate = self

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
                if input.fn.__name__ != "reserve":
                    return await super().execute_activity(input)
                gate.reached.set()
                while not gate.released.is_set():  # a cancellation of the activity does not let it go
                    try:
                        await gate.released.wait()
                    except asyncio.CancelledError:
                        continue
                try:
                    return await super().execute_activity(input)
                finally:
                    gate.answered.set()

        return Inbound(next)


async def test_an_attempt_that_begins_after_its_workflow_gave_up_sends_nothing(case: Case) -> None:
    """A24, A23: the row that `effects.settle` inserted answers the attempt that comes too late."""
    gate = _HeldActivity()
    async with case.own_worker(interceptors=[gate]):
        await case.start()
        await within(gate.reached.wait())
        assert case.journal.effect(case.key()) is None
        await case.handle().cancel()
        assert await case.settled() == "voided"
        gate.released.set()
        await within(gate.answered.wait())
        await case.ends_cancelled()
    row = case.journal.effect(case.key())
    assert row is not None
    assert (row.born_by, row.given_up) == ("recovery", True)
    assert await case.books() == Books(
        available=STOCK, receipts=("voided",), movements=(), posts=0, effects={NAME: ("voided", 0)}
    )
