"""Both halves on one bench: a real SQLite journal, the real inventory over HTTP, its client, and faults between."""

import itertools
import shutil
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from activities.attempt import Attempts
from activities.inventory_client import InventoryClient
from services.database import migrate, open_engine
from services.effects.provider import Provider
from services.effects.records import Answer, Attempt, EffectRow, Intent, Mark, Seen, Source
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal
from tests.services.effects.halves import make_intent
from tests.services.inventory.conftest import NOW, Caller, Clock, Service, connect, running

TENANTS = 400
ME: dict[str, str | int] = {"host": "bench", "boot_id": "boot", "pid": 7, "started_at_ticks": 1}
_tokens = itertools.count(1)

Exchange = Callable[[], Awaitable[Answer]]
Fault = Callable[[Exchange], Awaitable[Answer]]
Many = Callable[[], Awaitable[Mapping[str, Answer]]]
FaultOfMany = Callable[[Sequence[str], Many], Awaitable[Mapping[str, Answer]]]


class Wire(httpx.AsyncHTTPTransport):
    """The client's own transport, which counts what passes."""

    def __init__(self) -> None:
        super().__init__(retries=0, trust_env=False)
        self.requests: list[str] = []
        self.bodies: list[bytes] = []
        self.deadlines: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Count it and let it pass."""
        keyed = "idempotency-key" in request.headers
        self.requests.append("LOOKUP" if request.method == "POST" and not keyed else request.method)
        if keyed:
            self.bodies.append(await request.aread())
            self.deadlines.append(request.headers.get("effect-not-after", ""))
        return await super().handle_async_request(request)

    def count(self) -> Counter[str]:
        """Requests by method."""
        return Counter(self.requests)


class Between(Provider):
    """Stands between the engine and the real client; a test puts faults into its queues, and each acts once."""

    def __init__(self, real: Provider) -> None:
        self._real = real
        self.sends: deque[Fault] = deque()
        self.look_ups: deque[Fault] = deque()
        self.batches: deque[FaultOfMany] = deque()
        self.voids: deque[Fault] = deque()

    async def send(self, row: EffectRow, attempt: Attempt) -> Answer:
        """Send, or what the test wants instead."""
        return await _through(self.sends, lambda: self._real.send(row, attempt))

    async def look_up(self, key: str) -> Answer:
        """Look up, or what the test wants instead."""
        return await _through(self.look_ups, lambda: self._real.look_up(key))

    async def look_up_many(self, keys: Sequence[str]) -> Mapping[str, Answer]:
        """Look many up, or what the test wants instead."""

        async def real() -> Mapping[str, Answer]:
            return await self._real.look_up_many(keys)

        return await (self.batches.popleft()(keys, real) if self.batches else real())

    async def void(self, key: str) -> Answer:
        """Void, or what the test wants instead."""
        return await _through(self.voids, lambda: self._real.void(key))


async def _through(faults: deque[Fault], exchange: Exchange) -> Answer:
    return await (faults.popleft()(exchange) if faults else exchange())


async def response_lost(exchange: Exchange) -> Answer:
    """It is done, and nobody hears so."""
    answer = await exchange()
    return Answer(seen=Seen.UNKNOWN, source=answer.source, reason="ReadTimeout")


def instead(seen: Seen, source: Source = Source.SEND, **changes: Any) -> Fault:
    """It never arrives, and this is seen."""

    async def fault(_exchange: Exchange) -> Answer:
        return Answer(seen=seen, source=source, reason=f"the test's {seen}", **changes)

    return fault


async def none_heard(keys: Sequence[str], _exchange: Many) -> Mapping[str, Answer]:
    """A look-up of many that never arrives."""
    return dict.fromkeys(keys, Answer(seen=Seen.UNKNOWN, source=Source.LOOK_UP, reason="the test's unknown"))


@dataclass
class Bench:
    """One journal, one tenant with 10 FILTER-A, one clock for all of them."""

    journal: OperatorJournal
    engine: sa.Engine
    clock: Clock
    caller: Caller
    wire: Wire
    between: Between
    worker: Mapping[str, str | int] = field(default_factory=lambda: ME)

    def attempts(self) -> Attempts:
        """A worker's way to attempt effects."""
        return Attempts(self.journal, self.between, dict(self.worker))

    async def attempt(self, intent: Intent, token: str = "task-1") -> Any:  # noqa: S107 - Temporal's task token
        """Attempt an effect once."""
        return await self.attempts().run(intent, task_token=token)

    def pending(self, intent: Intent, *, marks: int = 1) -> EffectRow:
        """What a worker leaves that died between its mark and its first byte."""
        for number in range(marks):
            mark = Mark(
                attempt_id=f"dead-{intent.key}-{number}", task_token=f"token-{number}", worker=dict(self.worker)
            )
            begun = self.journal.begin(intent, mark) if number == 0 else self.journal.mark(intent, mark)
            assert begun.attempt is not None
        return self.row(intent)

    def row(self, intent: Intent) -> EffectRow:
        """The effect as the journal has it."""
        row = self.journal.effect(intent.key)
        assert row is not None
        return row

    def state(self, intent: Intent) -> EffectState:
        """Its state."""
        return self.row(intent).state

    def kinds(self, intent: Intent) -> list[str]:
        """The kinds of its entries, in order."""
        return [entry.kind for entry in self.journal.entries(intent.key)]

    def later(self, time: timedelta) -> None:
        """Turn the clock of journal, client and inventory."""
        self.clock.now += time

    def posts(self) -> int:
        """Keyed requests that went out."""
        return self.wire.count()["POST"]


def intent_now(**changes: Any) -> Intent:
    """An intent decided at the bench's first moment."""
    return make_intent(decided_at=NOW, **changes)


@contextmanager
def inventory(folder: Path, **options: Any) -> Iterator[Service]:
    """The inventory's service, with many tenants; the options are its own."""
    url = f"sqlite:///{folder / 'inventory.db'}"
    migrate("inventory", url)
    tokens = {f"token-{number}": f"tenant-{number}" for number in range(1, TENANTS + 1)}
    with running(url, tokens, **options) as service:
        yield service


def journal_template(folder: Path) -> Path:
    """A migrated, empty journal."""
    path = folder / "journal.db"
    migrate("journal", f"sqlite:///{path}")
    return path


@asynccontextmanager
async def bench_of(service: Service, template: Path, folder: Path) -> AsyncIterator[Bench]:
    """A bench with a tenant and a journal that nobody has used."""
    token = f"token-{next(_tokens)}"
    service.clock.now = NOW
    path = folder / "journal.db"
    shutil.copyfile(template, path)
    engine = open_engine(f"sqlite:///{path}")
    wire = Wire()
    client = InventoryClient(service.url, token, clock=service.clock, transport=wire)
    with connect(service.url, token) as http:
        caller = Caller(http)
        assert caller.deliver().status_code == 201
        try:
            yield Bench(
                journal=OperatorJournal(engine, recorded_by="bench", clock=service.clock),
                engine=engine,
                clock=service.clock,
                caller=caller,
                wire=wire,
                between=Between(client),
            )
        finally:
            await client.close()
            engine.dispose()


@pytest.fixture(scope="session")
def inventory_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The real inventory."""
    with inventory(tmp_path_factory.mktemp("inventory")) as service:
        yield service


@pytest.fixture(scope="session")
def journal_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty journal."""
    return journal_template(tmp_path_factory.mktemp("journal"))


@pytest.fixture
async def bench(inventory_service: Service, journal_path: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """A journal and a tenant that nobody has used."""
    async with bench_of(inventory_service, journal_path, tmp_path) as bench:
        yield bench
