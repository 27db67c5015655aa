"""`reconciliation.sweep_page`: one page of unsettled effects, each matched to its receipt."""

from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities import contracts
from activities.beat import beating, crossing
from activities.contracts import Page, PageRequest
from services.effects.records import EffectRow
from services.reconciliation.sweep import Sweep


class ReconciliationActivities(contracts.ReconciliationActivities):
    """Runs the sweep and wakes the workflows whose effects it settled."""

    def __init__(self, sweep: Sweep, client: Client) -> None:
        self._sweep = sweep
        self._client = client

    @activity.defn(name="reconciliation.sweep_page")
    async def sweep_page(self, request: PageRequest) -> Page:
        """Match one page of unsettled effects to their receipts."""
        with crossing():
            return await beating(self._page(request))

    async def _page(self, request: PageRequest) -> Page:
        swept, settled, next_after = await self._sweep.page(after_key=request.after_key, limit=request.limit)
        for row in settled:
            await self._wake(row)
        return Page(swept=contracts.Swept(**swept), next_after=next_after)

    async def _wake(self, row: EffectRow) -> None:
        """Tell the workflow at once; where it is closed or gone, the journal is what remembers."""
        try:
            await self._client.get_workflow_handle(row.workflow_id).signal("wake")
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                activity.logger.warning("%s was settled but its workflow was not woken: %s", row.key, error.message)
