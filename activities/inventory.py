"""`inventory.reserve`, `inventory.confirm` and `inventory.release`: one activity per effect."""

import base64

from temporalio import activity

from activities import contracts
from activities.attempt import Attempts
from activities.beat import beating, check_origin, crossing
from activities.contracts import Standing
from services.effects.records import Intent


class InventoryActivities(contracts.InventoryActivities):
    """Attempts the inventory's effects."""

    def __init__(self, attempts: Attempts, origin: str) -> None:
        self._attempts = attempts
        self._origin = origin

    @activity.defn(name="inventory.reserve")
    async def reserve(self, intent: Intent) -> Standing:
        """Reserve units."""
        return await self._attempt(intent)

    @activity.defn(name="inventory.confirm")
    async def confirm(self, intent: Intent) -> Standing:
        """Consume what a hold keeps."""
        return await self._attempt(intent)

    @activity.defn(name="inventory.release")
    async def release(self, intent: Intent) -> Standing:
        """Give a reservation back."""
        return await self._attempt(intent)

    async def _attempt(self, intent: Intent) -> Standing:
        with crossing():
            check_origin(intent.origin, self._origin)
            task_token = base64.b64encode(activity.info().task_token).decode()
            return await beating(self._attempts.run(intent, task_token=task_token))
