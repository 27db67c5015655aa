"""A real inventory and a real journal, filled by real sends."""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from activities.inventory_client import InventoryClient
from services.database import migrate, open_engine
from services.effects import keys
from services.effects.records import Effect, Intent, Mark, decide
from services.effects.settle import Next
from services.journal.operator import OperatorJournal
from services.journal.store import Begun, Observed
from services.reconciliation.recovery import recover
from tests.services.inventory.conftest import NOW, Caller, Service, connect, running

ORIGIN = "demo"
TOKEN = "token-a"  # noqa: S105 - of the test's own inventory
MARKER = "counterfoil-tenant-origin"


def intent(
    scope: str,
    lines: Mapping[str, int] | None = None,
    *,
    generation: int = 1,
    release_of: str | None = None,
    hold_seconds: int | None = None,
) -> Intent:
    """A reserve of these lines, for some time or for good, or the release of a reservation."""
    if release_of is None:
        asked = [{"sku": sku, "quantity": quantity} for sku, quantity in (lines or {"FILTER-A": 2}).items()]
        request: dict[str, Any] = {"lines": asked} | ({"hold_seconds": hold_seconds} if hold_seconds else {})
        effect = Effect(name="reserve-filter", kind="inventory.reserve", request=request)
    else:
        name = keys.release_name("reserve-filter", 1)
        effect = Effect(name=name, kind="inventory.release", request={}, path={"id": release_of})
    return decide(
        effect,
        origin=ORIGIN,
        scope=scope,
        decided_at=NOW,
        why={"approved_by": "ada"},
        workflow_id=scope,
        workflow_type="Incident",
        first_run_id="run-1",
        generation=generation,
    )


@dataclass
class World:
    """One tenant's inventory and the journal of its origin."""

    service: Service
    caller: Caller
    journal: OperatorJournal
    journal_url: str
    _ticks: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def drop_bodies(self) -> None:
        """Let retention take the body of every receipt that there is."""
        self.service.clock.now += timedelta(seconds=1)
        self.service.housekeeping()

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a command that reads both halves."""
        return {
            "COUNTERFOIL_INVENTORY_URL": self.service.url,
            "COUNTERFOIL_INVENTORY_TOKEN": TOKEN,
            "COUNTERFOIL_JOURNAL_DATABASE_URL": self.journal_url,
            "COUNTERFOIL_ORIGIN": ORIGIN,
        }

    def client(self) -> InventoryClient:
        """A client whose gate goes by the service's clock."""
        return InventoryClient(self.service.url, TOKEN, clock=self.service.clock)

    def mark(self) -> Mark:
        """A fresh mark of a worker."""
        number = next(self._ticks)
        return Mark(attempt_id=f"attempt-{number}", task_token=f"{number}", worker={"host": "worker-1", "pid": 7})

    def begin(self, wanted: Intent) -> Begun:
        """Journal an effect and its first mark; nothing is sent."""
        return self.journal.begin(wanted, self.mark())

    async def send(self, wanted: Intent) -> Begun:
        """Begin and send; the answer is lost."""
        begun = self.begin(wanted)
        assert begun.attempt is not None
        client = self.client()
        await client.send(begun.row, begun.attempt)
        await client.close()
        return begun

    async def perform(self, wanted: Intent) -> Observed:
        """Begin, send and observe."""
        begun = self.begin(wanted)
        assert begun.attempt is not None
        client = self.client()
        answer = await client.send(begun.row, begun.attempt)
        await client.close()
        return self.journal.observe(wanted.key, answer, attempt_id=begun.attempt.attempt_id)

    async def recover(self, wanted: Intent) -> Observed:
        """Look the receipt up, as after a crash; void where the rules say so."""
        row = self.journal.own(wanted)
        client = self.client()
        observed, _ = await recover(self.journal, client, row)
        await client.close()
        return observed

    async def fill(self) -> None:
        """A history with every way an effect can end, and nothing wrong in it."""
        assert self.caller.deliver(1, f"ORIGIN-{ORIGIN}", MARKER).status_code == 201
        assert self.caller.deliver(20, "FILTER-A").status_code == 201
        assert self.caller.deliver(5, "FAN:B").status_code == 201
        taken = await self.perform(intent("INC-1", {"FILTER-A": 2, "FAN:B": 1}))
        await self.perform(intent("INC-1", release_of=reservation(taken)))
        await self.perform(intent("INC-2"))
        await self.perform(intent("INC-3", {"FILTER-A": 1000}))
        self.journal.give_up(intent("INC-4"), why="the incident was cancelled")
        assert (await self.recover(intent("INC-4"))).settlement.next is Next.DONE
        await self.perform(intent("INC-5", {"FILTER-A": 1000}))
        self.journal.record_decision(
            origin=ORIGIN, scope="INC-5", name="reserve-filter", decided_at=NOW, body={"why": "less"}, generation=2
        )
        await self.perform(intent("INC-5", generation=2))
        await self.send(intent("INC-6"))
        await self.recover(intent("INC-6"))


def reservation(observed: Observed) -> str:
    """The reservation that an effect made."""
    assert observed.row.receipt is not None
    made: Any = observed.row.receipt.reservation_id
    assert isinstance(made, str)
    return made


@contextmanager
def running_world(folder: Path, **options: Any) -> Iterator[World]:
    """A world of its own, in a folder; the options are the inventory's."""
    folder.mkdir(exist_ok=True)
    inventory_url, journal_url = f"sqlite:///{folder}/inventory.db", f"sqlite:///{folder}/journal.db"
    migrate("inventory", inventory_url)
    migrate("journal", journal_url)
    with world_on(inventory_url, journal_url, **options) as world:
        yield world


@contextmanager
def world_on(inventory_url: str, journal_url: str, **options: Any) -> Iterator[World]:
    """A world on two migrated databases."""
    engine = open_engine(journal_url)
    ticks = itertools.count(1)
    try:
        with running(inventory_url, {TOKEN: "acme"}, **options) as service, connect(service.url, TOKEN) as http:

            def clock() -> Any:
                return service.clock.now + timedelta(milliseconds=next(ticks))

            journal = OperatorJournal(engine, recorded_by="worker 7@worker-1", clock=clock)
            yield World(service, Caller(http), journal, journal_url)
    finally:
        engine.dispose()
