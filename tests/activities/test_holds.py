"""Holds at the real inventory: both sides agree on payload, receipt and rejection."""

from dataclasses import replace
from datetime import timedelta

import pytest

from services.effects.records import Intent, OutcomeState
from services.effects.states import EffectState
from tests.activities.bench import Bench, intent_now, response_lost
from tests.services.effects.halves import LINES

HOLD = intent_now(request={"lines": LINES, "hold_seconds": 900})


async def _about(bench: Bench, verb: str) -> Intent:
    """A confirmation or a release of the hold."""
    held = await bench.attempt(HOLD)
    assert held.outcome is not None
    assert held.outcome.reservation_id is not None
    return intent_now(
        name=f"reserve-filter.g1.{verb}", kind=f"inventory.{verb}", request={},
        path={"id": held.outcome.reservation_id},
    )  # fmt: skip


async def test_a_hold_is_held_until_it_is_confirmed(bench: Bench) -> None:
    """Held, then consumed: two effects, two receipts, each with a fingerprint that both sides computed."""
    confirm = await _about(bench, "confirm")
    assert (bench.caller.stock()["held"], bench.caller.available()) == (2, 8)
    standing = await bench.attempt(confirm)
    assert standing.state is EffectState.COMMITTED
    stock = bench.caller.stock()
    assert (stock["held"], stock["consumed"], stock["available"]) == (0, 2, 8)


async def test_a_confirmation_that_went_unheard_is_looked_up_and_not_done_twice(bench: Bench) -> None:
    """The answer is lost; the receipt says that it is done."""
    confirm = await _about(bench, "confirm")
    bench.between.sends.append(response_lost)
    with pytest.raises(Exception, match="looked up next"):
        await bench.attempt(confirm)
    assert (await bench.attempt(confirm)).state is EffectState.COMMITTED
    assert bench.wire.requests[-2:] == ["POST", "GET"]
    assert bench.caller.stock()["consumed"] == 2


@pytest.mark.parametrize("verb", ["confirm", "release"])
async def test_after_the_expiry_a_hold_can_be_neither_confirmed_nor_released_and_who_came_next_keeps_it(
    bench: Bench, verb: str
) -> None:
    """I23, E55: workers were down over the expiry, and another took all ten units: a kept rejection, nothing moves."""
    about = await _about(bench, verb)
    bench.later(timedelta(seconds=901))
    other = replace(intent_now(request={"lines": [{"sku": "FILTER-A", "quantity": 10}]}), scope="INC-2042")
    assert (await bench.attempt(other)).state is EffectState.COMMITTED
    before = bench.caller.stock()
    assert (before["available"], before["held"], before["consumed"]) == (0, 0, 10)
    for _ in range(2):
        standing = await bench.attempt(about)
        assert standing.outcome is not None
        assert (standing.outcome.state, standing.outcome.receipt["reason"]) == (OutcomeState.REJECTED, "hold-expired")
    assert bench.caller.stock() == before


async def test_a_payment_that_comes_after_the_cancellation_is_not_taken(bench: Bench) -> None:
    """E53: the compensation released the hold; the confirmation is rejected for good, and the units stay back."""
    confirm = await _about(bench, "confirm")
    release = intent_now(
        name="reserve-filter.g1.release", kind="inventory.release", request={}, path=dict(confirm.path)
    )
    assert (await bench.attempt(release)).state is EffectState.COMMITTED
    for _ in range(2):
        standing = await bench.attempt(confirm)
        assert standing.outcome is not None
        assert standing.outcome.state is OutcomeState.REJECTED
        assert standing.outcome.receipt["reason"] == "invalid-transition"
    stock = bench.caller.stock()
    assert (stock["available"], stock["held"], stock["consumed"]) == (10, 0, 0)
