"""`journal.record_decision`: decisions that stand alone."""

import asyncio

from temporalio import activity

from activities import contracts
from activities.beat import check_origin, crossing
from activities.contracts import DecisionRequest, StandingDecision
from services.journal.store import Journal


class JournalActivities(contracts.JournalActivities):
    """Records what a person decided; the first decision stands."""

    def __init__(self, journal: Journal, origin: str) -> None:
        self._journal = journal
        self._origin = origin

    @activity.defn(name="journal.record_decision")
    async def record_decision(self, request: DecisionRequest) -> StandingDecision | None:
        """Record a decision unless one stands, and give back the one that stands."""
        with crossing():
            check_origin(request.origin, self._origin)
            if request.ask_only:
                standing = await asyncio.to_thread(
                    self._journal.decision, origin=request.origin, scope=request.scope, name=request.name
                )
                if standing is None:
                    return None
                return StandingDecision(body=standing.body, decided_at=standing.decided_at, mine=False)
            decision, mine = await asyncio.to_thread(
                self._journal.record_decision,
                origin=request.origin,
                scope=request.scope,
                name=request.name,
                decided_at=request.decided_at,
                body=request.body,
            )
            return StandingDecision(body=decision.body, decided_at=decision.decided_at, mine=mine)
