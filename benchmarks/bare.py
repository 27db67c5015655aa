"""The bare activity: Counterfoil's inventory client without Counterfoil's journal."""

from datetime import UTC, datetime

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.beat import beating
from activities.inventory_client import InventoryClient
from benchmarks import workflows
from benchmarks.workflows import BareCall
from services.effects.keys import FINGERPRINT_VERSION
from services.effects.records import Attempt, EffectRow
from services.effects.settle import SEND_WINDOW
from services.effects.states import EffectState


class BareActivities(workflows.BareActivities):
    """Sends, and trusts the provider's key alone."""

    def __init__(self, provider: InventoryClient) -> None:
        self._provider = provider

    @activity.defn(name="bare.reserve")
    async def reserve(self, call: BareCall) -> str:
        """Reserve units; how it ended."""
        return await self._send(call)

    @activity.defn(name="bare.reserve_beating")
    async def reserve_beating(self, call: BareCall) -> str:
        """The same, with the heartbeats that an effect's activity has."""
        return await beating(self._send(call))

    async def _send(self, call: BareCall) -> str:
        now = datetime.now(UTC)
        attempt = Attempt(attempt_id="", number=1, not_after=now + SEND_WINDOW, marked_at=now, worker={})
        answer = await self._provider.send(_unrecorded(call, now), attempt)
        if answer.receipt is None:
            raise ApplicationError(f"{call.key}: {answer.reason}")
        return answer.receipt.outcome


def _unrecorded(call: BareCall, now: datetime) -> EffectRow:
    """What the client needs to know of an effect, though no journal has a row of it."""
    return EffectRow(
        key=call.key,
        origin="",
        scope="",
        name="",
        generation=1,
        kind="inventory.reserve",
        provider="inventory",
        path={},
        request=call.request,
        fingerprint="",
        fingerprint_version=FINGERPRINT_VERSION,
        supersedes=(),
        decided_at=now,
        deadline=now + SEND_WINDOW,
        born_by="attempt",
        given_up=False,
        alarmed=False,
        state=EffectState.PENDING,
        version=1,
        attempts=1,
        workflow_id="",
        workflow_type="",
        first_run_id="",
        created_at=now,
    )
