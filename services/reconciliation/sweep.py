"""The sweep over what is unsettled: from the journal alone, page by page.

It touches only what no live attempt owns, looks receipts up, and voids what has been given up or whose send window has
passed by the provider's clock, whether its workflow is open or not. It sends nothing. A row that fails is left for the
next sweep, and keeps no other from being swept, or its workflow from being told.

A page is looked up in one exchange, and what it says is journaled side by side, in few commits. What has to be asked
for by itself is asked for scope by scope, so that no scope waits for a slow one.
"""

import asyncio
import itertools
import logging
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from services.effects.provider import Provider
from services.effects.records import Answer, Attempt, EffectRow, Seen
from services.effects.settle import Next
from services.effects.states import EffectState
from services.journal.store import Journal
from services.reconciliation.recovery import owned, recover, unheard

# Calls at once: enough to hide the network, few enough to leave the provider to those who send.
CALLS_AT_ONCE = 8
# Of one scope: whatever it waits for, three quarters of the calls are for the others.
AT_ONCE_PER_SCOPE = 2
# What the calls of one scope may take in a page, in sum: what is left of it then is the next sweep's.
SCOPE_SECONDS = 10.0

_HEARD = frozenset({Seen.ABSENT, Seen.RECEIPT, Seen.KEY_EXPIRED})
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


async def _nobody(_swept: SweptRow) -> None:
    """Who is told where nobody asked to be."""


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

    async def page(
        self, *, after_key: str, limit: int, told: Callable[[SweptRow], Awaitable[None]] = _nobody
    ) -> SweptPage:
        """Sweep one page.

        Args:
            after_key: the last key of the page before.
            limit: how many rows.
            told: of each row as soon as it is done, whatever others still wait for.
        """
        rows = await asyncio.to_thread(self._journal.unsettled, after_key=after_key, limit=limit)
        found = await asyncio.gather(*(self._attempts(row) for row in rows))
        mine = [row.key for row, attempts in zip(rows, found, strict=True) if not self._left(attempts)]
        # One key has a look-up of its own: what one exchange says of many is for more than one.
        answers = await self._provider.look_up_many(mine) if len(mine) > 1 else {}
        scopes: defaultdict[str, list[_Work]] = defaultdict(list)
        for row, attempts in zip(rows, found, strict=True):
            scopes[row.scope].append(_Work(row=row, attempts=attempts, heard=_usable(answers.get(row.key))))
        calls = asyncio.Semaphore(CALLS_AT_ONCE)
        swept = await asyncio.gather(*(self._scope(works, calls, told) for works in scopes.values()))
        done = sorted(itertools.chain.from_iterable(swept), key=lambda one: one.row.key)
        return SweptPage(rows=tuple(done), next_after=rows[-1].key if len(rows) == limit else None)

    async def _attempts(self, row: EffectRow) -> tuple[Attempt, ...] | None:
        """Its marks; None where they cannot be read."""
        try:
            return await asyncio.to_thread(self._journal.attempts, row.key)
        except Exception as error:  # noqa: BLE001 - as in `_one`
            _not_swept(row, error)
            return None

    def _left(self, attempts: tuple[Attempt, ...] | None) -> bool:
        return attempts is None or owned(
            attempts, now=self._clock(), send_deadline=self._send_deadline, provably_dead=self._provably_dead
        )

    async def _scope(
        self, works: "list[_Work]", calls: asyncio.Semaphore, told: Callable[[SweptRow], Awaitable[None]]
    ) -> list[SweptRow]:
        """Sweep what a page has of one scope, beside the others."""
        random.shuffle(works)  # so that what is left this time may be the first one the next time
        turns = _Turns(calls)
        left = iter(works)

        async def in_turn() -> list[SweptRow]:
            swept = []
            for work in left:
                swept.append(await self._one(work, turns))
                await told(swept[-1])
            return swept

        both = await asyncio.gather(*(in_turn() for _ in range(AT_ONCE_PER_SCOPE)))
        return list(itertools.chain.from_iterable(both))

    async def _one(self, work: "_Work", turns: "_Turns") -> SweptRow:
        row = work.row
        if work.attempts is None:
            return SweptRow(what="unheard", row=row)
        if self._left(work.attempts):
            return SweptRow(what="owned", row=row)
        newest = unheard(work.attempts)
        dead = newest if newest is not None and self._provably_dead(newest.worker) else None
        try:
            what, row = await self._matched(row, work.heard, turns)
        except Exception as error:  # noqa: BLE001 - what was settled beside it would never be told
            _not_swept(row, error)
            what = "unheard"
        return SweptRow(what=what, row=row, dead=dead)

    async def _matched(self, row: EffectRow, heard: Answer | None, turns: "_Turns") -> tuple[str, EffectRow]:
        """What became of a row that nobody owns, and how it stands."""
        if heard is not None:
            observed, answer = await recover(self._journal, self._provider, row, heard=heard, may_void=False)
            if observed.settlement.next is not Next.VOID:
                return _what(observed.row, answer), observed.row
        async with turns.one() as granted:
            if not granted:
                return "unheard", row
            # What was heard is held against the row again: while this waited, it may have been marked or settled.
            observed, answer = await recover(self._journal, self._provider, row, heard=heard)
        return _what(observed.row, answer), observed.row


def _what(row: EffectRow, answer: Answer) -> str:
    if row.state.terminal:
        return "voided" if row.state is EffectState.VOIDED else "matched"
    return "waiting" if answer.seen in _HEARD else "unheard"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """A row of a page, with its marks and what the look-up of many has said of it."""

    row: EffectRow
    attempts: tuple[Attempt, ...] | None
    heard: Answer | None


class _Turns:
    """The calls of one scope in a page: they wait with the other scopes' for their turns, and have their time."""

    def __init__(self, calls: asyncio.Semaphore) -> None:
        self._calls = calls
        self._spent_seconds = 0.0

    @asynccontextmanager
    async def one(self) -> AsyncIterator[bool]:
        """Take a turn; False where the scope has had its time."""
        async with self._calls:
            if self._spent_seconds >= SCOPE_SECONDS:
                yield False
                return
            began = time.monotonic()
            try:
                yield True
            finally:
                self._spent_seconds += time.monotonic() - began


def _usable(answer: Answer | None) -> Answer | None:
    """Nothing heard of a key among many: it is asked for by itself."""
    return None if answer is None or answer.seen is Seen.UNKNOWN else answer


def _not_swept(row: EffectRow, error: Exception) -> None:
    _LOG.warning("%s was not swept (%s); the next sweep tries again", row.key, type(error).__name__)
