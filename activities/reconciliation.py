"""The sweep's activities, each for one page.

`reconciliation.sweep_page` matches unsettled effects to their receipts; `reconciliation.follow_page` looks at how the
workflows of committed ones ended.
"""

import base64
from datetime import timedelta

from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities import contracts
from activities.beat import beating, crossing
from activities.contracts import Page, PageRequest
from services.effect_commands import wake
from services.effects.records import Attempt, EffectRow
from services.reconciliation.closures import Closures
from services.reconciliation.sweep import Sweep, SweptRow

# The type of the failure by which a dead worker's attempt ends.
WORKER_DIED = "WorkerDied"
AT_ONCE = timedelta(milliseconds=1)


class ReconciliationActivities(contracts.ReconciliationActivities):
    """Runs the sweep and wakes the workflows whose effects it settled; ends the attempts of dead workers."""

    def __init__(self, sweep: Sweep, closures: Closures, client: Client) -> None:
        self._sweep = sweep
        self._closures = closures
        self._client = client

    @activity.defn(name="reconciliation.sweep_page")
    async def sweep_page(self, request: PageRequest) -> Page:
        """Match one page of unsettled effects to their receipts."""
        with crossing():
            return await beating(self._page(request))

    @activity.defn(name="reconciliation.follow_page")
    async def follow_page(self, request: PageRequest) -> Page:
        """Look at how the workflows of one page of committed effects ended."""
        with crossing():
            followed = await beating(self._closures.page(after_key=request.after_key, limit=request.limit))
        swept = contracts.Swept(followed=followed.looked_at, left=followed.left)
        return Page(swept=swept, next_after=followed.next_after)

    async def _page(self, request: PageRequest) -> Page:
        page = await self._sweep.page(after_key=request.after_key, limit=request.limit, told=self._tell)
        return Page(swept=contracts.Swept(**page.counts), next_after=page.next_after)

    async def _tell(self, swept: SweptRow) -> None:
        if swept.dead is not None:
            await self._end(swept.row, swept.dead)
        if swept.row.state.terminal:
            await self._wake(swept.row)

    async def _end(self, row: EffectRow, dead: Attempt) -> None:
        """Fail a dead attempt's activity, so that Temporal hands it to a living worker without waiting for heartbeats.

        By its task token, which no later attempt shares: by the activity's id a living successor would be failed.
        """
        try:
            task_token = base64.b64decode(dead.task_token, validate=True)
        except ValueError:
            return  # a mark that Temporal has no part in
        if task_token:
            await fail_attempt(self._client, task_token, row.key)

    async def _wake(self, row: EffectRow) -> None:
        """Tell the workflow at once; where it is closed or gone, the journal is what remembers."""
        try:
            await wake(self._client, row.workflow_id)
        except RPCError as error:
            activity.logger.warning("%s was settled but its workflow was not woken: %s", row.key, error.message)


async def fail_attempt(client: Client, task_token: bytes, key: str) -> None:
    """Fail the one activity attempt that this token is of, to be tried again at once; one that is over stays so."""
    died = ApplicationError(
        f"{key}: the worker of this attempt has died. Nothing is lost: the receipt is looked up next.",
        type=WORKER_DIED,
        next_retry_delay=AT_ONCE,
        category=ApplicationErrorCategory.BENIGN,
    )
    try:
        await client.get_async_activity_handle(task_token=task_token).fail(died)
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            activity.logger.warning("%s: the dead attempt was not ended: %s", key, error.message)
