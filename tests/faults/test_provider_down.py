"""The inventory cannot be reached, dies, or has not answered yet."""

import base64
from contextlib import suppress

import pytest
from temporalio.client import WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import Processes, wait_until
from services.effects.states import EffectState
from tests.faults.books import NAME, STOCK, WANTED, Books, committed
from tests.faults.harness import Case, freeze, open_case, reached, within
from tests.faults.servers import LIMIT_SECONDS, Bench, Inventory

pytestmark = pytest.mark.temporal

PENDING = "PendingEffects > 0 AND ExecutionStatus = 'Running'"


async def _unheard_look_up(case: Case) -> None:
    """Wait until the journal has noted that the provider gave no answer to a look-up."""

    def noted() -> bool:
        entries = case.journal.entries(case.key())
        return any((e.body.get("source"), e.body.get("seen")) == ("look_up", "unknown") for e in entries)

    await wait_until(noted, timeout_seconds=LIMIT_SECONDS, what="a look-up has gone unanswered")


async def test_an_activity_failed_for_good_while_the_provider_is_down_voids_nothing(case: Case) -> None:
    """A17: hours of the send window are left; the same key is sent when the provider is back: one receipt."""
    held = case.proxy.arm(case.key(), DelayRequest())
    await case.worker()
    await case.start()
    await reached(held)
    token = next(e.body["task_token"] for e in case.journal.entries(case.key()) if e.kind == "attempt")
    attempt = case.client.get_async_activity_handle(task_token=base64.b64decode(token))
    await attempt.fail(ApplicationError("failed for good by a fault test", non_retryable=True))
    await case.proxy.down()

    async def paused() -> bool:
        pending = await case.handle().query("pending")
        return "the same key is sent again" in pending[0]["waiting"] or "receipt is looked up" in pending[0]["waiting"]

    await wait_until(paused, timeout_seconds=LIMIT_SECONDS, what="the workflow knows of the failure")
    await _unheard_look_up(case)
    row = case.journal.effect(case.key())
    assert row is not None
    assert (row.state, row.given_up) == (EffectState.PENDING, False)
    await case.proxy.up()

    async def done() -> bool:
        with suppress(RPCError):  # it has just ended
            await case.handle().signal("wake")  # ends the pause before the next round
        row = case.journal.effect(case.key())
        return row is not None and row.state.terminal

    await wait_until(done, timeout_seconds=LIMIT_SECONDS, what="the effect is settled")
    assert (await case.result()).status == "done"
    assert case.proxy.requests[None, "PUT"] == 0  # nobody tried to close the key
    held.release()
    await within(held.done())
    assert await case.books() == committed(posts=2, attempts=2)
    assert {key for key, method in case.proxy.requests if method == "POST"} == {case.key()}


async def test_an_outage_before_the_first_send_is_waited_out(case: Case) -> None:
    """E32, E35: refused connections prove that nothing was sent; no look-up answers; one effect when it is back."""
    await case.proxy.down()
    await case.start()
    await case.worker()
    await _unheard_look_up(case)
    assert (await case.describe()).status is WorkflowExecutionStatus.RUNNING
    await case.proxy.up()
    assert (await case.result()).status == "done"
    assert await case.books() == committed(posts=1, attempts=2)  # the first mark never became a request


async def test_an_inventory_killed_over_requests_under_way_does_nothing_twice(bench: Bench) -> None:
    """E61, E64: of four incidents one has committed unheard, three have sent into a process that dies."""
    folder = bench.folder / "inventory-killed"
    folder.mkdir()
    with Processes(grace_seconds=0) as processes:
        inventory = Inventory(processes, folder, bench.stores.inventory())
        await inventory.start()
        async with open_case(bench, inventory=inventory) as case:
            withheld = case.proxy.arm(case.key(number=1), WithholdResponse())
            await case.worker()
            await case.start(case.line(1))
            assert await reached(withheld) == 201
            freeze(inventory.child)
            for number in (2, 3, 4):
                await case.start(case.line(number))
            keys = [case.key(number=number) for number in (2, 3, 4)]

            def sent() -> bool:
                return all(case.proxy.requests[key, "POST"] for key in keys)

            await wait_until(sent, timeout_seconds=LIMIT_SECONDS, what="three more requests are under way")
            inventory.child.kill()
            await inventory.start()
            results = [await case.result(number) for number in (1, 2, 3, 4)]
            assert [result.status for result in results] == ["done"] * 4
            assert len({result.outcomes[0].receipt["receipt_id"] for result in results}) == 4
            books = await case.books()
            assert (books.available, books.receipts, books.movements) == (
                STOCK - 4 * WANTED,
                ("committed",) * 4,
                ("reserve",) * 4,
            )
            assert case.journal.unsettled() == ()
            assert case.proxy.requests[case.key(number=1), "POST"] == 1


async def test_a_pending_effect_is_found_by_visibility_and_explained_by_queries(case: Case) -> None:
    """E07, E20, E23, E32: by count, by key and in words while it is unknown; not afterwards."""
    held = case.proxy.arm(case.key(), DelayRequest())
    await case.worker()
    await case.start()
    await reached(held)
    await case.proxy.down()
    by_key = f"{PENDING} AND EffectKey = '{case.key()}'"

    async def found() -> list[str]:
        return [run.id async for run in case.client.list_workflows(by_key)]

    assert await wait_until(found, timeout_seconds=LIMIT_SECONDS, what="the effect is visible") == [case.scope()]
    assert case.scope() in [run.id async for run in case.client.list_workflows(PENDING)]
    handle = case.handle()
    assert [effect["key"] for effect in await handle.query("pending")] == [case.key()]
    for called in (NAME, case.key()):
        effect = await handle.query("effect", called)
        assert (effect["state"], effect["receipt_id"]) == ("pending", None)
    assert await handle.query("effect", "no-such-name") is None
    assert [line["kind"] for line in await handle.query("journal")] == ["decision", "intent"]
    await case.proxy.up()
    assert (await case.result()).status == "done"

    async def gone() -> bool:
        return not await found()

    await wait_until(gone, timeout_seconds=LIMIT_SECONDS, what="nothing is visible any more")
    assert await handle.query("pending") == []
    assert [line["kind"] for line in await handle.query("journal")] == ["decision", "intent", "observation"]
    held.release()
    await within(held.done())
    assert await case.books() == Books(
        available=STOCK - WANTED,
        receipts=("committed",),
        movements=("reserve",),
        posts=2,
        effects={NAME: ("committed", 2)},
    )
