"""The sweep over what is unsettled: from the journal alone, page by page.

It touches only what no live attempt owns, looks receipts up, and voids what has been given up or whose send window has
passed by the provider's clock, whether its workflow is open or not. It sends nothing.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from services.effects.provider import Provider
from services.effects.records import EffectRow, Seen
from services.effects.states import EffectState
from services.journal.store import Journal
from services.reconciliation.recovery import owned, recover

# Look-ups at once: enough to hide the network, few enough to leave the provider to those who send.
LOOK_UPS_AT_ONCE = 8


class Sweep:
    """One process's sweep.

    Args:
        journal: what is unsettled.
        provider: whom to ask.
        send_deadline: an attempt's total deadline.
        provably_dead: whether the process of a mark is gone for certain.
        clock: the journal's clock; aware UTC.
    """

    def __init__(
        self,
        journal: Journal,
        provider: Provider,
        *,
        send_deadline: timedelta,
        provably_dead: Callable[[dict[str, str | int]], bool],
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._journal = journal
        self._provider = provider
        self._send_deadline = send_deadline
        self._provably_dead = provably_dead
        self._clock = clock

    async def page(self, *, after_key: str, limit: int) -> tuple[dict[str, int], list[EffectRow], str | None]:
        """Sweep one page.

        Returns:
            The counts by name (see `activities.contracts.Swept`), the rows settled, and where the next page starts
            (None after the last one).
        """
        rows = await asyncio.to_thread(self._journal.unsettled, after_key=after_key, limit=limit)
        at_once = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

        async def one(row: EffectRow) -> tuple[str, EffectRow]:
            async with at_once:
                return await self._one(row)

        counts = {"looked_at": len(rows)}
        settled: list[EffectRow] = []
        for what, row in await asyncio.gather(*(one(row) for row in rows)):
            counts[what] = counts.get(what, 0) + 1
            if row.state.terminal:
                settled.append(row)
        return counts, settled, rows[-1].key if len(rows) == limit else None

    async def _one(self, row: EffectRow) -> tuple[str, EffectRow]:
        attempts = await asyncio.to_thread(self._journal.attempts, row.key)
        if owned(attempts, now=self._clock(), send_deadline=self._send_deadline, provably_dead=self._provably_dead):
            return "owned", row
        observed, answer = await recover(self._journal, self._provider, row)
        if observed.row.state.terminal:
            return "voided" if observed.row.state is EffectState.VOIDED else "matched", observed.row
        heard = answer.seen in {Seen.ABSENT, Seen.RECEIPT, Seen.KEY_EXPIRED}
        return "waiting" if heard else "unheard", observed.row
