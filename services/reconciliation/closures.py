"""How the workflows of committed effects ended: what one leaves standing that did not complete is a person's to judge.

- What counts is the newest run under the workflow's id: one that was started again meets the effect in the journal and
  answers for it.
- An effect that a command had sent is its scope's: the workflow that sent it ends with it, so what counts is how the
  workflow ended that the first generation was of, and only where that completed, how the sender did.
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

from services.effects.commands import SENDER
from services.effects.keys import derive_key
from services.effects.records import EffectRow
from services.journal.operator import OperatorJournal

# Questions at once: Temporal has others to answer.
QUESTIONS_AT_ONCE: Final = 8

COMPLETED: Final = "completed"
DELETED: Final = "deleted"
# Running, and paused, which goes on, are in no row.
_CLOSED: Final[Mapping[WorkflowExecutionStatus, str]] = {
    WorkflowExecutionStatus.COMPLETED: COMPLETED,
    WorkflowExecutionStatus.FAILED: "failed",
    WorkflowExecutionStatus.CANCELED: "canceled",
    WorkflowExecutionStatus.TERMINATED: "terminated",
    WorkflowExecutionStatus.TIMED_OUT: "timed_out",
    WorkflowExecutionStatus.CONTINUED_AS_NEW: "continued",
}

# How a workflow ended, None while it has not, and which run that is.
_End = tuple[str | None, str]

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
        answering = await asyncio.to_thread(self._answering, after_key, limit)
        at_once = asyncio.Semaphore(QUESTIONS_AT_ONCE)
        asked: dict[str, asyncio.Task[_End]] = {}

        async def ended(workflow_id: str) -> _End:
            if workflow_id not in asked:
                asked[workflow_id] = asyncio.create_task(self._ended(workflow_id))
            return await asked[workflow_id]

        async def follow(workflow_ids: tuple[str, ...], rows: list[EffectRow]) -> int:
            async with at_once:
                try:
                    end = await ended(workflow_ids[0])
                    for workflow_id in workflow_ids[1:]:
                        end = await ended(workflow_id) if end[0] == COMPLETED else end
                    return await self._record(rows, *end)
                except Exception as error:  # noqa: BLE001 - as the module says
                    _LOG.warning(
                        "how %s ended is not known (%s); the next sweep asks again",
                        " or ".join(workflow_ids),
                        type(error).__name__,
                    )
                    return 0

        left = await asyncio.gather(*(follow(*each) for each in answering.items()))
        rows = [row for of_one in answering.values() for row in of_one]
        next_after = max(row.key for row in rows) if len(rows) == limit else None
        return Followed(looked_at=len(rows), left=sum(left), next_after=next_after)

    def _answering(self, after_key: str, limit: int) -> dict[tuple[str, ...], list[EffectRow]]:
        """The effects of a page by the workflows that answer for them, in the order in which these are asked about."""
        answering: defaultdict[tuple[str, ...], list[EffectRow]] = defaultdict(list)
        for row in self._journal.watched(after_key=after_key, limit=limit):
            answering[self._answer_for(row)].append(row)
        return answering

    def _answer_for(self, row: EffectRow) -> tuple[str, ...]:
        if row.workflow_type != SENDER:
            return (row.workflow_id,)
        first = self._journal.effect(derive_key(row.origin, row.scope, row.name, 1))
        own = row.scope if first is None or first.workflow_type == SENDER else first.workflow_id
        return (own, row.workflow_id)

    async def _record(self, rows: list[EffectRow], closed_as: str | None, run_id: str) -> int:
        changed = [row for row in rows if row.closed_as != closed_as]
        if not changed:
            return 0
        await asyncio.to_thread(self._journal.closed, [row.key for row in changed], closed_as, run_id=run_id)
        return len(changed) if closed_as not in {None, COMPLETED} else 0

    async def _ended(self, workflow_id: str) -> _End:
        """How its newest run ended, None while it has not; and which run that is."""
        try:
            found = await self._client.get_workflow_handle(workflow_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return DELETED, ""
            raise
        return None if found.status is None else _CLOSED.get(found.status), found.run_id
