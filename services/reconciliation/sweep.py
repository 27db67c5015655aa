"""The sweep over what is unsettled: from the journal alone, page by page.

It touches only what no live attempt owns, looks receipts up, and voids what has been given up or whose send window has
passed by the provider's clock, whether its workflow is open or not. It sends nothing. A row that fails is left for the
next sweep, and keeps no other from being swept, or its workflow from being told.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from services.effects.provider import Provider
from services.effects.records import Attempt, EffectRow, Seen
from services.effects.states import EffectState
from services.journal.store import Journal
from services.reconciliation.recovery import owned, recover, unheard

# Look-ups at once: enough to hide the network, few enough to leave the provider to those who send.
LOOK_UPS_AT_ONCE = 8

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptRow:
    """What came of one row.

    Attributes:
        what: its count's name (see `activities.contracts.Swept`).
        row: as it stands now.
        dead: the attempt that was under way when its worker died, where that is proven.
    """

    what: str
    row: EffectRow
    dead: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptPage:
    """What came of a page; `next_after` is None after the last one."""

    rows: tuple[SweptRow, ...]
    next_after: str | None = None

    @property
    def counts(self) -> dict[str, int]:
        """By name, as `activities.contracts.Swept` has them."""
        return {"looked_at": len(self.rows)} | Counter(swept.what for swept in self.rows)


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

    async def page(self, *, after_key: str, limit: int) -> SweptPage:
        """Sweep one page."""
        rows = await asyncio.to_thread(self._journal.unsettled, after_key=after_key, limit=limit)
        at_once = asyncio.Semaphore(LOOK_UPS_AT_ONCE)

        async def one(row: EffectRow) -> SweptRow:
            async with at_once:
                try:
                    return await self._one(row)
                except Exception as error:  # noqa: BLE001 - what was settled beside it would never be told
                    _LOG.warning("%s was not swept (%s); the next sweep tries again", row.key, type(error).__name__)
                    return SweptRow(what="unheard", row=row)

        swept = await asyncio.gather(*(one(row) for row in rows))
        return SweptPage(rows=tuple(swept), next_after=rows[-1].key if len(rows) == limit else None)

    async def _one(self, row: EffectRow) -> SweptRow:
        attempts = await asyncio.to_thread(self._journal.attempts, row.key)
        if owned(attempts, now=self._clock(), send_deadline=self._send_deadline, provably_dead=self._provably_dead):
            return SweptRow(what="owned", row=row)
        newest = unheard(attempts)
        dead = newest if newest is not None and self._provably_dead(newest.worker) else None
        observed, answer = await recover(self._journal, self._provider, row)
        if observed.row.state.terminal:
            what = "voided" if observed.row.state is EffectState.VOIDED else "matched"
        else:
            heard = answer.seen in {Seen.ABSENT, Seen.RECEIPT, Seen.KEY_EXPIRED}
            what = "waiting" if heard else "unheard"
        return SweptRow(what=what, row=observed.row, dead=dead)
