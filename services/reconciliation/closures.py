"""How the workflows of committed effects ended: what one leaves standing that did not complete is a person's to judge.

- What counts is the newest run under the workflow's id: one that was started again meets the effect in the journal and
  answers for it.
- What is recorded is only what has changed since the last look: an open workflow costs one question and no entry.
- A workflow that Temporal does not have is "deleted": nobody will ever answer for its effect but a person.
- A workflow that cannot be asked about keeps no other from being looked at.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from services.effects.records import EffectRow
from services.journal.operator import OperatorJournal

# Questions at once: Temporal has others to answer.
QUESTIONS_AT_ONCE: Final = 8

# Running, and paused, which goes on, are in no row.
_CLOSED: Final[Mapping[WorkflowExecutionStatus, str]] = {
    WorkflowExecutionStatus.COMPLETED: "completed",
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "canceled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "continued",
}
DELETED: Final = "deleted"

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What came of a page.

    Attributes:
        looked_at: committed effects whose workflows were asked about.
        left: of these, the ones whose workflow was found to have ended otherwise than completed, and had not been.
        next_after: None after the last page.
    """

    looked_at: int
    left: int
    next_after: str | None = None


class Closures:
    """One process's look at the workflows of committed effects.

    Args:
        journal: whose effects.
        client: connected to Temporal.
    """

    def __init__(self, journal: OperatorJournal, client: Client) -> None:
        self._journal = journal
        self._client = client

    async def page(self, *, after_key: str, limit: int) -> Followed:
        """Look at the workflows of one page of effects, and record what has changed."""
        rows = await asyncio.to_thread(self._journal.watched, after_key=after_key, limit=limit)
        workflows: defaultdict[str, list[EffectRow]] = defaultdict(list)
        for row in rows:
            workflows[row.workflow_id].append(row)
        at_once = asyncio.Semaphore(QUESTIONS_AT_ONCE)

        async def follow(workflow_id: str) -> int:
            async with at_once:
                try:
                    return await self._follow(workflow_id, workflows[workflow_id])
                except Exception as error:  # noqa: BLE001 - as the module says
                    _LOG.warning(
                        "how %s ended is not known (%s); the next sweep asks again", workflow_id, type(error).__name__
                    )
                    return 0

        left = await asyncio.gather(*(follow(workflow_id) for workflow_id in workflows))
        next_after = rows[-1].key if len(rows) == limit else None
        return Followed(looked_at=len(rows), left=sum(left), next_after=next_after)

    async def _follow(self, workflow_id: str, rows: list[EffectRow]) -> int:
        closed_as, run_id = await self._ended(workflow_id)
        changed = [row for row in rows if row.closed_as != closed_as]
        if not changed:
            return 0
        await asyncio.to_thread(self._journal.closed, [row.key for row in changed], closed_as, run_id=run_id)
        return len(changed) if closed_as not in {None, "completed"} else 0

    async def _ended(self, workflow_id: str) -> tuple[str | None, str]:
        """How its newest run ended, None while it has not; and which run that is."""
        try:
            found = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return DELETED, ""
            raise
        return None if found.status is None else _CLOSED.get(found.status), found.run_id
