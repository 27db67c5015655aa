"""Clients that keep the contract: whatever is unknown is looked up, sent again with the same key, or closed.

Each errand is one thing that somebody wants done, with all its keys. What came of it is counted, so that a campaign can
tell that everything it is about has happened.
"""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from tests.faults.inventory.caller import (
    Caller,
    Request,
    Told,
    confirm,
    deliver,
    hold,
    look_up,
    release,
    reserve,
    void,
)
from tests.faults.inventory.reading import definitive
from tests.faults.inventory.story import Receipt

SKUS = tuple(f"FILTER-{letter}" for letter in "ABCD")
NEVER_IN = "NEVER-IN"
# Which part of all requests is sent and not listened to.
_HANG_UPS = 0.1
# Which part of what is unknown and not found is closed instead of sent again.
_GIVE_UPS = 0.3
_TOO_MUCH = 1_000_000
_LONG_SECONDS, _SHORT_SECONDS = 3600, 1
# What a refusal may say that leaves the key as unknown as it was.
_TRY_AGAIN = {"internal", "overloaded", "request-in-progress"}


def _is_set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True, kw_only=True)
class Campaign:
    """What all clients of one campaign share.

    Attributes:
        drawn: where everything is drawn from.
        up: cleared while the service is known to be down.
        progress: called with the number of keys that are settled, after each.
        settled: every key's request, when it is settled.
        too_late: holds that nobody came for in time.
        happened: what has happened, and how often.
    """

    drawn: random.Random
    up: asyncio.Event = field(default_factory=_is_set)
    progress: Callable[[int], None] = field(default=lambda _keys: None)
    settled: dict[str, Request] = field(default_factory=dict)
    too_late: list[str] = field(default_factory=list)
    happened: Counter[str] = field(default_factory=Counter)
    numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    def new_key(self, what: str, generation: int = 1) -> str:
        """A key that nobody has used."""
        return f"campaign-{what}-{next(self.numbers):06d}-g{generation}"

    async def stock_up(self, caller: Caller, quantity: int) -> None:
        """Deliver so much of each SKU."""
        for sku in SKUS:
            await Client(self, caller).settle(deliver(self.new_key("first"), sku, quantity))

    async def end(self, caller: Caller) -> None:
        """What comes too late; and then no key is stuck: however it is asked for, each tells one receipt."""
        await Client(self, caller).come_too_late()
        stuck = [key for key, request in self.settled.items() if not await definitive(caller, request)]
        assert stuck == []

    def start(self, tasks: asyncio.TaskGroup, crowd: Sequence[Caller], until: Callable[[], bool]) -> None:
        """Let each caller run errands until it is enough."""
        for caller in crowd:
            tasks.create_task(Client(self, caller).run(until))


class Client:
    """Runs errands, one after the other, with one connection."""

    def __init__(self, campaign: Campaign, caller: Caller) -> None:
        self._campaign = campaign
        self._drawn = campaign.drawn
        self._caller = caller

    async def run(self, until: Callable[[], bool]) -> None:
        """Run errands of every kind until it is enough."""
        errands: list[Callable[[], Awaitable[None]]] = [
            self._reserves, self._delivers, self._releases, self._voids, self._redoes, self._gives_up,
            self._comes_back_later, self._holds, self._holds_for_too_short,
        ]  # fmt: skip
        while not until():
            await self._drawn.choice(errands)()

    async def settle(self, request: Request, told: Told | None = None) -> Receipt:
        """Send until it is known what came of it, unless it has been told already; the key's receipt."""
        key = request.key or ""
        told = told or await self._send(request)
        receipt: Receipt | None
        while (receipt := told.receipt) is None:
            self._require_unknown(told)
            found = await self._found(key)
            if found is not None:
                self._campaign.happened["unheard, and there"] += 1
                receipt = found
                break
            self._campaign.happened["unheard, and not there"] += 1
            if self._drawn.random() < _GIVE_UPS:
                return await self.close(request)
            told = await self._send(request)
        return self._settled(request, receipt)

    async def close(self, request: Request) -> Receipt:
        """Void the key of a request until it is known what owns it."""
        while True:
            told = await self._send(void(request.key or ""))
            if told.receipt is not None:
                self._campaign.happened[f"closed: {told.receipt['outcome']}"] += 1
                return self._settled(request, told.receipt)
            self._require_unknown(told)

    def _settled(self, request: Request, receipt: Receipt) -> Receipt:
        verb = request.path.split("/")[-1]
        self._campaign.happened[f"{verb}: {receipt['reason'] or receipt['outcome']}"] += 1
        self._campaign.settled[request.key or ""] = request
        self._campaign.progress(len(self._campaign.settled))
        return receipt

    async def _send(self, request: Request) -> Told:
        await self._campaign.up.wait()
        if self._drawn.random() < _HANG_UPS:
            self._campaign.happened["hang-up"] += 1
            return await self._caller.ask_and_hang_up(request)
        return await self._caller.ask(request)

    async def _found(self, key: str) -> Receipt | None:
        while True:
            await self._campaign.up.wait()
            told = await self._caller.ask(look_up(key))
            if told.status == 404:
                return None
            if told.receipt is not None:
                return told.receipt
            self._require_unknown(told)

    def _require_unknown(self, told: Told) -> None:
        """Everything else that carries no receipt would be a lie here."""
        assert told.status is None or told.problem in _TRY_AGAIN, told
        self._campaign.happened[told.problem or "no answer"] += 1

    def _lines(self) -> dict[str, int]:
        chosen = self._drawn.sample(SKUS, self._drawn.randint(1, 3))
        lines = {sku: self._drawn.randint(1, 3) for sku in chosen}
        match self._drawn.randrange(20):
            case 0:
                return lines | {NEVER_IN: 1}
            case 1:
                return lines | {SKUS[0]: _TOO_MUCH}
            case _:
                return lines

    async def _reserves(self) -> None:
        await self.settle(reserve(self._campaign.new_key("reserve"), self._lines()))

    async def _delivers(self) -> None:
        sku, quantity = self._drawn.choice(SKUS), self._drawn.randint(1, 6)
        await self.settle(deliver(self._campaign.new_key("deliver"), sku, quantity))

    async def _releases(self) -> None:
        """Twice with two keys: the second is refused."""
        receipt = await self.settle(reserve(self._campaign.new_key("released"), self._lines()))
        if receipt["outcome"] == "committed":
            for _ in range(2):
                await self.settle(release(self._campaign.new_key("release"), receipt["reservation_id"]))

    async def _holds(self) -> None:
        """A hold that is left alone, confirmed or released; then the other, and it may be too late for that."""
        receipt = await self.settle(hold(self._campaign.new_key("hold"), self._lines(), seconds=_LONG_SECONDS))
        if receipt["outcome"] == "committed":
            for verb in self._drawn.choice(((), (confirm,), (release,), (confirm, release), (release, confirm))):
                await self.settle(verb(self._campaign.new_key("moved"), receipt["reservation_id"]))

    async def _holds_for_too_short(self) -> None:
        """A hold that is thought of when the campaign is over."""
        receipt = await self.settle(hold(self._campaign.new_key("short"), self._lines(), seconds=_SHORT_SECONDS))
        if receipt["outcome"] == "committed":
            self._campaign.too_late.append(receipt["reservation_id"])

    async def come_too_late(self) -> None:
        """Confirm what was held for too short."""
        for reservation_id in self._campaign.too_late:
            await self.settle(confirm(self._campaign.new_key("too-late"), reservation_id))

    async def _voids(self) -> None:
        """A key that nothing was ever sent with."""
        await self.close(reserve(self._campaign.new_key("void"), self._lines()))

    async def _gives_up(self) -> None:
        """A void right behind a request that nobody listens to."""
        request = reserve(self._campaign.new_key("given-up"), self._lines())
        await self._campaign.up.wait()
        await self._caller.ask_and_hang_up(request)
        await self.close(request)

    async def _comes_back_later(self) -> None:
        """A request that nobody listens to, and something else before it is asked for."""
        request = reserve(self._campaign.new_key("later"), self._lines())
        await self._campaign.up.wait()
        told = await self._caller.ask_and_hang_up(request)
        await self._delivers()
        await self.settle(request, told)

    async def _redoes(self) -> None:
        """A second generation over a first one that is known, that is under way, or that never came."""
        first = reserve(self._campaign.new_key("redone"), self._lines())
        kind = self._drawn.choice(("known", "under way", "never came"))
        if kind == "known":
            await self.settle(first)
        elif kind == "under way":
            await self._campaign.up.wait()
            await self._caller.ask_and_hang_up(first)
        lines = {line["sku"]: line["quantity"] for line in (first.body or {})["lines"]}
        redo = reserve(self._campaign.new_key("redo", 2), lines, supersedes=(first.key or "",))
        receipt = await self.settle(redo)
        self._campaign.happened[f"redo, {kind}: {receipt['reason'] or receipt['outcome']}"] += 1
        if receipt["kind"] == "void":  # the redo was given up, so it has closed nothing
            await self.close(first)
        self._campaign.settled[first.key or ""] = first
