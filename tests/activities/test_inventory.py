"""`inventory.reserve` and `inventory.release` as activities: typed errors, the origin, cancellation over a send."""

import asyncio
from dataclasses import replace

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import Standing
from activities.inventory import InventoryActivities
from services.effects.records import Answer, OutcomeState, Seen
from services.effects.states import EffectState
from tests.activities.bench import Bench, Exchange, instead, intent_now, response_lost
from tests.services.effects.halves import make_release
from tests.services.inventory.conftest import NOW

INTENT = intent_now()


async def test_a_reserve_and_its_release_are_two_effects(bench: Bench) -> None:
    """Two keys, two receipts; ten units again."""
    activities = InventoryActivities(bench.attempts(), "demo")
    taken: Standing = await ActivityEnvironment().run(activities.reserve, INTENT)
    assert taken.outcome is not None
    assert bench.caller.available() == 8
    back: Standing = await ActivityEnvironment().run(activities.release, replace(make_release(), decided_at=NOW))
    assert back.outcome is not None
    assert (back.outcome.state, bench.caller.available()) == (OutcomeState.COMMITTED, 10)
    assert taken.outcome.receipt["receipt_id"] != back.outcome.receipt["receipt_id"]


async def test_every_attempt_of_every_run_has_the_one_key(bench: Bench) -> None:
    """G2: neither run, nor activity id, nor attempt is in it: the next one finds what the first one did."""
    bench.between.sends.append(response_lost)
    activities = InventoryActivities(bench.attempts(), "demo")
    environments = [ActivityEnvironment(), ActivityEnvironment()]
    for number, environment in enumerate(environments, start=1):
        environment.info = replace(
            environment.info,
            activity_id=f"reserve-filter#{number}",
            attempt=number,
            workflow_run_id=f"run-{number}",
            task_token=f"task-{number}".encode(),
        )
    with pytest.raises(ApplicationError, match=INTENT.key):
        await environments[0].run(activities.reserve, INTENT)
    standing: Standing = await environments[1].run(activities.reserve, INTENT)
    assert (standing.key, bench.wire.requests) == (INTENT.key, ["POST", "GET"])
    assert bench.caller.available() == 8


async def test_the_mark_carries_temporals_task_token(bench: Bench) -> None:
    """Base64, so that a provably dead attempt can be failed by it."""
    environment = ActivityEnvironment()
    environment.info = replace(environment.info, task_token=b"\x00token")
    await environment.run(InventoryActivities(bench.attempts(), "demo").reserve, INTENT)
    body = next(entry.body for entry in bench.journal.entries(INTENT.key) if entry.kind == "attempt")
    assert body["task_token"] == "AHRva2Vu"  # noqa: S105


async def test_a_cancellation_does_not_cut_a_send(bench: Bench) -> None:
    """TRY_CANCEL would report "cancelled" over a committed effect: the send ends, and its outcome is the answer."""
    environment = ActivityEnvironment()
    going, let_go = asyncio.Event(), asyncio.Event()

    async def hold(exchange: Exchange) -> Answer:
        going.set()
        await let_go.wait()
        return await exchange()

    bench.between.sends.append(hold)
    running = asyncio.create_task(environment.run(InventoryActivities(bench.attempts(), "demo").reserve, INTENT))
    await going.wait()
    environment.cancel()
    let_go.set()
    standing: Standing = await running
    assert standing.outcome is not None
    assert bench.state(INTENT) is EffectState.COMMITTED


async def test_what_is_unknown_crosses_as_such(bench: Bench) -> None:
    """E32: typed, retryable, with the key in its words."""
    bench.between.sends.append(instead(Seen.UNKNOWN))
    with pytest.raises(ApplicationError, match=INTENT.key) as raised:
        await ActivityEnvironment().run(InventoryActivities(bench.attempts(), "demo").reserve, INTENT)
    assert (raised.value.type, raised.value.non_retryable) == ("OutcomeUnknown", False)


async def test_another_payload_crosses_as_a_mismatch_for_good(bench: Bench) -> None:
    """Not tried again: `effects.settle` watches the key."""
    bench.pending(INTENT)
    other = intent_now(request={"lines": [{"sku": "FILTER-A", "quantity": 3}]})
    with pytest.raises(ApplicationError) as raised:
        await ActivityEnvironment().run(InventoryActivities(bench.attempts(), "demo").reserve, other)
    assert (raised.value.type, raised.value.non_retryable) == ("FingerprintMismatch", True)


async def test_another_deployments_intent_is_refused_and_nothing_recorded_or_sent(bench: Bench) -> None:
    """Staging's worker on the demo's queue."""
    with pytest.raises(ApplicationError) as raised:
        await ActivityEnvironment().run(InventoryActivities(bench.attempts(), "staging").reserve, INTENT)
    assert (raised.value.type, raised.value.non_retryable) == ("OriginMismatch", True)
    assert (bench.journal.all_entries(), bench.wire.requests) == ((), [])
