"""A campaign: one command, struck at each of its seams in turn, each time about an effect of its own.

The plan is what a clean run has reached. A child that is to be struck at its n-th seam must have reached just the first
n of the plan, and must have ended by the signal: whatever was planned and was not hit fails the campaign.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from activities.inventory_client import InventoryClient
from services.effects.records import Answer, Intent, Mark, Seen
from services.reconciliation.audit import audit
from services.reconciliation.recovery import recover
from tests.faults.books import SKU, WANTED
from tests.faults.harness import Case, within
from tests.faults.seams.children import Children, Life
from tests.faults.seams.commands import Place
from tests.faults.seams.watching import Strike

# Two cores; and on SQLite whoever writes keeps the others waiting: more of them wait longer than a write may.
_AT_ONCE = 2
SCOPE = "INC-seams"


@dataclass(kw_only=True)
class Stage:
    """A deployment whose actors are children."""

    case: Case
    children: Children
    provider: InventoryClient
    place: Place
    _dead: dict[str, str | int] = field(default_factory=dict)
    _lives: list[Life] = field(default_factory=list)

    @classmethod
    @asynccontextmanager
    async def of(cls, case: Case, children: Children) -> AsyncIterator["Stage"]:
        """The stage of a case."""
        provider = InventoryClient(case.proxy.url, case.token)
        place = Place(
            origin=case.origin,
            journal_url=case.journal_url,
            inventory_url=case.proxy.url,
            token=case.token,
            decided_at=datetime.now(UTC).isoformat(),
            temporal_address=case.temporal_address,
        )
        stage = cls(case=case, children=children, provider=provider, place=place)
        try:
            yield stage
        finally:
            for life in stage._lives:
                life.send_signal(signal.SIGKILL)
            await asyncio.gather(*(life.end() for life in stage._lives if not life.lost))
            await provider.close()

    def intent(self, name: str) -> Intent:
        """The first generation of an effect."""
        return self.place.intent(SCOPE, name)

    def key(self, name: str) -> str:
        """Its key."""
        return self.intent(name).key

    async def start(self, command: str, strike: Strike | None = None, /, **arguments: Any) -> Life:
        """A child of this stage; it ends with it."""
        life = await self.children.start(command, self.place, strike, **arguments)
        self._lives.append(life)
        return life

    async def worker(self, strike: Strike | None = None) -> Life:
        """A worker, once it works."""
        life = await self.start("worker", strike)
        await life.until_said("works")
        return life

    async def does(self, command: str, /, **arguments: Any) -> Any:
        """What a child has answered that comes to its end."""
        return await (await self.start(command, **arguments)).finished()

    async def nothing(self, _name: str) -> None:
        """An effect of which nobody has heard yet."""

    async def marked(self, name: str) -> None:
        """An attempt has been marked, its worker is dead, and nothing has arrived."""
        if not self._dead:
            life = await (await self.start("attempt", Strike(label="request POST"), scope=SCOPE, name=name)).end()
            assert life.code == -signal.SIGKILL
            self._dead = self.case.journal.attempts(self.key(name))[0].worker
            return
        mark = Mark(attempt_id=f"attempt of {name}", task_token="", worker=self._dead)
        await asyncio.to_thread(self.case.journal.begin, self.intent(name), mark)

    async def given_up(self, name: str) -> None:
        """Marked and never arrived, and nobody wants it any more."""
        await self.marked(name)
        await asyncio.to_thread(self.case.journal.give_up, self.intent(name), why="nobody wants it")

    async def unheard(self, name: str) -> None:
        """An attempt's effect has been committed, and its worker is dead."""
        await self.marked(name)
        answer = await self.late_packet(name)
        assert answer.receipt is not None
        assert answer.receipt.outcome == "committed"

    async def late_packet(self, name: str) -> Answer:
        """The first attempt's own request arrives; what it is answered, which nobody journals."""
        row = self.case.journal.effect(self.key(name))
        assert row is not None
        return await self.provider.send(row, self.case.journal.attempts(row.key)[0])

    async def settled(self, name: str) -> None:
        """An attempt's effect has been committed, and it is known."""
        await self.unheard(name)
        await self._observe(name, await self.provider.look_up(self.key(name)))

    async def voided(self, name: str) -> None:
        """Nothing had arrived, and the key is closed."""
        await self.marked(name)
        await self._observe(name, await self.provider.void(self.key(name)))

    async def overdue(self, name: str) -> None:
        """Decided two days ago and never sent: its window is over, and the sweep has closed the key."""
        decided_at = datetime.now(UTC) - timedelta(days=2)
        row = self.case.journal.own(replace(self.intent(name), decided_at=decided_at))
        observed, _ = await recover(self.case.journal, self.provider, row)
        assert observed.row.state == "voided"

    async def orphan(self, name: str) -> None:
        """The provider has a receipt, and the journal has never heard of the effect."""
        wanted = self.intent(name)
        headers = {"Idempotency-Key": wanted.key, "Effect-Not-After": "2099-01-01T00:00:00Z"}
        answer = await self.case.http.post("/v1/reservations", content=wanted.request, headers=headers)
        answer.raise_for_status()

    async def _observe(self, name: str, answer: Answer) -> None:
        await asyncio.to_thread(self.case.journal.observe, self.key(name), answer)

    async def ends(self, names: Iterable[str], *, states: Counter[str], movements: Counter[str], posts: int) -> None:
        """Both halves are one, each effect has one end, the stock is right, and no late packet changes that.

        Args:
            names: of every effect that there must be.
            states: how many of them ended how.
            movements: of the stock, by their kind.
            posts: how many sends there were.
        """
        before = await self.case.books()
        assert before.effects.keys() == set(names)
        assert Counter(state for state, _ in before.effects.values()) == states
        assert Counter(before.receipts) == states
        assert Counter(before.movements) == movements
        taken = WANTED * (movements["reserve"] - movements["release"])
        assert (before.available, before.posts) == (self.case.stock - taken, posts)
        await self.is_clean()
        for row in await asyncio.to_thread(self.case.journal.effects):
            for attempt in await asyncio.to_thread(self.case.journal.attempts, row.key):
                answer = await self.provider.send(row, attempt)
                assert (answer.seen, answer.receipt) == (Seen.RECEIPT, row.receipt)
        stock = (await self.case.http.get(f"/v1/stock/{SKU}")).json()
        assert stock["available"] == before.available
        await self.is_clean()

    async def sends(self) -> int:
        """How many sends the proxy has seen; each attempt on record is one at most."""
        rows = await asyncio.to_thread(self.case.journal.effects)
        posts = sum(count for (key, method), count in self.case.proxy.requests.items() if method == "POST" and key)
        assert posts <= sum(row.attempts for row in rows)
        return posts

    async def is_clean(self) -> None:
        """The audit finds nothing."""
        report = await audit(self.case.journal, str(self.case.http.base_url), self.case.token, origin=self.case.origin)
        assert report.findings == ()


@dataclass(kw_only=True)
class Struck:
    """One life that was struck."""

    number: int
    name: str
    seam: str
    life: Life


@dataclass(kw_only=True)
class Campaign:
    """One command against each of its seams.

    Attributes:
        begin: makes the effect as the command finds it.
        about_all: the command is not about one effect: one life at a time.
        thorough: the long form.
        turn: which of several campaigns of one test this is; it shifts who comes after which death.
    """

    stage: Stage
    command: str
    begin: Callable[[str], Awaitable[None]]
    arguments: dict[str, Any] = field(default_factory=dict)
    about_all: bool = False
    thorough: bool = False
    turn: int = 0
    plan: list[str] = field(default_factory=list)

    def name(self, number: int) -> str:
        """The effect of one life; 0 is that of the clean run."""
        return f"{self.command}-{self.turn}-{number}"

    async def clean_run(self) -> Any:
        """Let the command come to its end: what it passes is the plan. What it answered."""
        await self.begin(self.name(0))
        life = await self._start(0, None)
        answer = await life.finished()
        self.plan = life.seams
        return answer

    async def again(self, struck: Struck) -> Any:
        """The same command once more, by a child that nothing befalls; what it answered."""
        return await (await self._start(struck.number, None)).finished()

    async def strike(self, number: int, how: signal.Signals = signal.SIGKILL) -> Struck:
        """Strike a life at one seam. A killed one has ended, a stopped one stands there."""
        name = self.name(number)
        await self.begin(name)
        life = await self._start(number, Strike(number=number, signal=how))
        if how is signal.SIGKILL:
            await life.end()
            assert life.code == -how, f"seam {number}, {self.plan[number - 1]}, was planned and not hit"
        else:
            await life.until_asleep()
        assert life.seams == self.plan[:number]
        return Struck(number=number, name=name, seam=self.plan[number - 1], life=life)

    async def at_each(
        self, numbers: Iterable[int], then: Callable[[Struck], Awaitable[None]], how: signal.Signals = signal.SIGKILL
    ) -> list[Struck]:
        """Strike a life at each of these seams, and do what follows."""
        at_once = asyncio.Semaphore(1 if self.about_all else _AT_ONCE)

        async def one(number: int) -> Struck:
            async with at_once:
                struck = await self.strike(number, how)
                await then(struck)
                return struck

        planned = list(numbers)
        assert planned
        struck = await within(asyncio.gather(*(one(number) for number in planned)), 600)
        assert [one.number for one in struck] == planned
        return list(struck)

    @property
    def numbers(self) -> list[int]:
        """Every seam of the plan; in the short form, on PostgreSQL, one for each state that a death can leave.

        What a transaction has done is gone with its connection, wherever in it that was: SQLite's are met one by one.
        """
        if self.thorough or self.stage.place.journal_url.startswith("sqlite"):
            return list(range(1, len(self.plan) + 1))
        outside = set(outside_of_writing(self.plan))
        return [number for number, seam in enumerate(self.plan, 1) if number in outside or seam == "before_commit"]

    async def _start(self, number: int, strike: Strike | None) -> Life:
        about = {} if self.about_all else {"scope": SCOPE, "name": self.name(number)}
        return await self.stage.start(self.command, strike, **about, **self.arguments)


def outside_of_writing(plan: list[str]) -> list[int]:
    """The seams at which no write transaction is open: a process that sleeps there keeps nobody out."""
    inside, found = False, []
    for number, seam in enumerate(plan, start=1):
        if seam == "after_commit":
            inside = False
        if not inside:
            found.append(number)
        if seam in {"exec BEGIN IMMEDIATE", "exec SET LOCAL"}:
            inside = True
    return found
