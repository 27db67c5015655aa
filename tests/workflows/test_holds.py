"""Holds under the real server: held, then confirmed under a key of its own, or given back where that is refused."""

import asyncio
from typing import Any

import pytest

from services.effects.keys import derive_key, fingerprint
from services.effects.records import Intent, OutcomeState
from tests.workflows.probes import Holding
from tests.workflows.world import Stage

pytestmark = pytest.mark.temporal


async def _ended(stage: Stage, hold_seconds: int = 900) -> tuple[str, Any]:
    handle = await stage.start(Holding.run, hold_seconds)
    async with asyncio.timeout(60):
        return handle.id, await handle.result()


async def test_a_hold_is_confirmed_under_a_name_and_key_of_its_own(stage: Stage) -> None:
    """The hold's seconds are in the payload, the reservation in the confirmation's path; each is one activity."""
    scope, outcomes = await _ended(stage)
    assert [outcome.state for outcome in outcomes] == [OutcomeState.COMMITTED] * 2
    (held,) = stage.world.of("inventory.reserve")
    assert '"hold_seconds":900' in held.request
    assert held.summary == "reserve 2 FILTER-A for 900 s"
    (confirmed,) = stage.world.of("inventory.confirm")
    assert (confirmed.name, confirmed.path) == ("hold-filter.g1.confirm", {"id": "reservation-1"})
    assert confirmed.key == derive_key("demo", scope, "hold-filter.g1.confirm", 1)
    assert confirmed.request == "{}"
    assert confirmed.fingerprint == fingerprint("inventory.confirm", {"id": "reservation-1"}, {})
    assert stage.world.of("inventory.release") == []


async def test_a_confirmation_or_a_release_after_the_expiry_is_a_kept_rejection(stage: Stage) -> None:
    """I23: refused with hold-expired, it is an outcome like any other; the run goes on, and nothing is asked twice."""

    async def too_late(intent: Intent) -> Any:
        standing = stage.world.ends(intent, OutcomeState.REJECTED)
        assert standing.outcome is not None
        standing.outcome.receipt.update(reason="hold-expired")
        return standing

    stage.world.attempts.extend([stage.world.commit, too_late, too_late])
    _, (held, confirmed, released) = await _ended(stage, 1)
    assert held.committed
    for refused in (confirmed, released):
        assert (refused.state, refused.receipt["reason"]) == (OutcomeState.REJECTED, "hold-expired")
    for name in ("inventory.reserve", "inventory.confirm", "inventory.release"):
        assert len(stage.world.of(name)) == 1
    assert stage.world.of("effects.settle") == []
