"""Faults at random moments of a campaign, each of them planned, and none of them left out."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

from tests.faults.inventory.client import Campaign

# A strike comes so much later than the progress that it is planned at: anywhere in what is under way then.
_LATER_SECONDS = 0.03


class Strikes:
    """Strikes so often, spread over the keys of a campaign, each time at a moment that is drawn.

    Attributes:
        done: how often it has struck.
    """

    def __init__(self, campaign: Campaign, strike: Callable[[], Awaitable[None]], *, strikes: int, keys: int) -> None:
        self.done = 0
        self._drawn = campaign.drawn
        campaign.progress = self._progress
        self._strike = strike
        self._strikes = strikes
        bounds = [keys * number // strikes for number in range(strikes + 1)]
        self._planned = [campaign.drawn.randrange(low, high) for low, high in pairwise(bounds)]
        self._due: asyncio.Queue[None] = asyncio.Queue()

    def _progress(self, keys: int) -> None:
        """So many keys are settled."""
        while self._planned and keys >= self._planned[0]:
            self._planned.pop(0)
            later = self._drawn.uniform(0, _LATER_SECONDS)
            asyncio.get_running_loop().call_later(later, self._due.put_nowait, None)

    async def run(self) -> None:
        """Until the last strike is done."""
        while self.done < self._strikes:
            await self._due.get()
            await self._strike()
            self.done += 1
