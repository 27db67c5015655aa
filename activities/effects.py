"""`effects.settle`: what is done about an effect whose activity did not answer, or whose workflow gives up."""

import asyncio
from dataclasses import replace

from temporalio import activity

from activities import contracts
from activities.attempt import later_of, raise_if_retryable, standing_of
from activities.beat import beating, check_origin, crossing
from activities.contracts import SettleRequest, Standing
from services.effects.errors import FingerprintMismatch
from services.effects.provider import Provider
from services.effects.records import EffectRow
from services.effects.settle import Next
from services.journal.store import Journal
from services.reconciliation.recovery import recover


class EffectActivities(contracts.EffectActivities):
    """Settles by look-up, or by closing the key; sends nothing."""

    def __init__(self, journal: Journal, provider: Provider, origin: str) -> None:
        self._journal = journal
        self._provider = provider
        self._origin = origin

    @activity.defn(name="effects.settle")
    async def settle(self, request: SettleRequest) -> Standing:
        """Own the row, look the receipt up, void where the rules say so."""
        with crossing():
            return await beating(self._settle(request))

    async def _settle(self, request: SettleRequest) -> Standing:
        intent = request.intent
        check_origin(intent.origin, self._origin)
        mismatch = ""
        row: EffectRow | None
        try:
            if request.given_up:
                row = await asyncio.to_thread(self._journal.give_up, intent, why=request.given_up)
            else:
                row = await asyncio.to_thread(self._journal.own, intent)
        except FingerprintMismatch as error:
            # The key is another payload's: it is never closed from here, only watched until it is settled.
            mismatch = str(error)
            row = await asyncio.to_thread(self._journal.effect, intent.key)
            if row is None:
                raise
        send_again, reason = False, "settled"
        if not row.state.terminal:
            observed, answer = await recover(self._journal, self._provider, row, may_void=not mismatch)
            raise_if_retryable(observed, answer)
            row, reason = observed.row, answer.reason
            send_again = observed.settlement.next is Next.SEND and not mismatch
        waiting = f"the inventory has no receipt ({reason}): the same key is sent again" if send_again else reason
        if row.state.terminal and not mismatch:
            later = await asyncio.to_thread(self._journal.later, row)
            if later is not None:
                return Standing(key=row.key, state=row.state, later=later_of(later))
        standing = await standing_of(self._journal, row, waiting=waiting)
        if mismatch:
            return replace(standing, outcome=None, mismatch=mismatch)
        return replace(standing, send_again=send_again)
