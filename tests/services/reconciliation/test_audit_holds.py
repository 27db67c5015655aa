"""A real history with holds under audit: held, confirmed, given back, expired, and redone after the expiry."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from services.effects.records import Intent
from services.effects.states import EffectState
from services.reconciliation import provider_half
from services.reconciliation.audit import audit
from services.reconciliation.findings import Rule
from tests.services.effects.halves import make_intent
from tests.services.inventory.conftest import NOW
from tests.services.reconciliation.world import ORIGIN, TOKEN, World, reservation, running_world

HOLD = {"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 900}


def hold(scope: str, generation: int = 1) -> Intent:
    """Two units for a quarter of an hour."""
    return make_intent(scope=scope, name="hold", request=HOLD, decided_at=NOW, generation=generation)


def about(scope: str, verb: str, reservation_id: str) -> Intent:
    """The confirmation or the release of a hold."""
    return make_intent(
        scope=scope, name=f"hold.g1.{verb}", kind=f"inventory.{verb}", request={}, path={"id": reservation_id},
        decided_at=NOW,
    )  # fmt: skip


async def expired_and_redone(world: World) -> None:
    """A hold that runs out, and a second generation that holds again."""
    await world.perform(hold("INC-4"))
    world.service.clock.now += timedelta(seconds=901)
    world.journal.record_decision(
        origin=ORIGIN, scope="INC-4", name="hold", decided_at=NOW, body={"why": "it ran out"}, generation=2
    )
    redone = await world.perform(hold("INC-4", 2))
    assert redone.row.state is EffectState.COMMITTED


async def test_an_audit_takes_an_expiry_for_its_holds_and_finds_nothing(tmp_path: Path) -> None:
    """Every end of a hold, and a redo over one that ran out: no orphan, nothing doubled, the books add up."""
    with running_world(tmp_path / "world") as world:
        assert world.caller.deliver(10).status_code == 201
        await world.perform(hold("INC-1"))
        for scope, verb in (("INC-2", "confirm"), ("INC-3", "release")):
            taken = reservation(await world.perform(hold(scope)))
            done = await world.perform(about(scope, verb, taken))
            assert done.row.state is EffectState.COMMITTED
        await expired_and_redone(world)
        half = await provider_half.read(world.service.url, TOKEN)
        assert f"{hold('INC-4').key}@expiry" in {receipt.key for receipt in half.receipts}
        report = await audit(world.journal, world.service.url, TOKEN, origin=ORIGIN)
        assert report.findings == ()
        assert report.stock_conserved


async def test_a_journal_that_has_lost_a_hold_that_expired_is_told_of_the_hold_alone(tmp_path: Path) -> None:
    """One finding for the key that is missing; none for the expiry, which nobody asked for."""
    with running_world(tmp_path / "world") as world, running_world(tmp_path / "other") as other:
        assert world.caller.deliver(10).status_code == 201
        await expired_and_redone(world)
        report = await audit(other.journal, world.service.url, TOKEN, origin=ORIGIN)
        assert {(finding.rule, finding.key) for finding in report.findings} == {
            (Rule.LOST, hold("INC-4").key),
            (Rule.LOST, hold("INC-4", 2).key),
        }
        assert replace(report, findings=()).clean
