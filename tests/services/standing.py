"""An effect in each state that a command may find it in, made by real sends to a real inventory."""

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from activities.inventory_client import InventoryClient
from services.database import migrate, open_engine
from services.effect_desk import EffectDesk
from services.effects.commands import Ruling
from services.effects.records import Answer, Intent, Receipt, Seen, Source, decide
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal
from services.journal.seals import watermark
from services.journal.store import Observed
from tests.postgres import Databases
from tests.services.inventory.conftest import Caller, connect, running
from tests.services.reconciliation.world import ORIGIN, TOKEN, World, intent, reservation

OTHER_TOKEN = "token-b"  # noqa: S105 - of the test's own inventory
ASSERTED_BY = "cyd"


@dataclass
class Standing:
    """A deployment's two halves and its desk, and a second tenant, whose receipts contradict the first one's."""

    world: World
    journal: OperatorJournal
    desk: EffectDesk
    provider: InventoryClient
    other: Caller
    engine: sa.Engine

    @property
    def written(self) -> int:
        """The last entry of the whole journal."""
        return watermark(self.engine).last_entry_id

    async def reach(self, state: str, scope: str) -> Intent:
        """Bring the one effect of a scope into a state, by the column's name in docs/operations.md."""
        wanted = intent(scope)
        await STATES[state](self, wanted)
        return wanted

    async def perform(self, ruling: Ruling) -> Observed:
        """Do what a ruling has a workflow do."""
        send = ruling.send
        assert send is not None
        wanted = decide(
            send.effect,
            origin=ORIGIN,
            scope=send.scope,
            decided_at=self.world.service.clock(),
            why=send.why,
            workflow_id=f"effect-command-{send.key}",
            workflow_type="EffectCommand",
            first_run_id="run-2",
            generation=int(send.key.rpartition("-g")[2]),
        )
        assert wanted.key == send.key
        return await self.world.perform(wanted)

    @asynccontextmanager
    async def unreachable(self) -> AsyncIterator[EffectDesk]:
        """The same desk, while nobody answers where the inventory is."""
        provider = InventoryClient("http://127.0.0.1:1", TOKEN, clock=self.world.service.clock)
        try:
            yield EffectDesk(self.journal, provider, origin=ORIGIN)
        finally:
            await provider.close()

    async def no_effect(self, wanted: Intent) -> None:
        """Nobody knows the key."""

    async def pending(self, wanted: Intent) -> None:
        """Journaled and marked; nothing arrived."""
        self.world.begin(wanted)

    async def unheard(self, wanted: Intent) -> None:
        """Committed by the inventory; the answer is lost."""
        await self.world.send(wanted)

    async def in_doubt(self, wanted: Intent) -> None:
        """Another program has used the key for something else."""
        assert self.world.caller.reserve(1, key=wanted.key).status_code == 201
        observed = await self.world.perform(wanted)
        assert observed.row.state is EffectState.IN_DOUBT

    async def committed(self, wanted: Intent) -> None:
        """Done, and heard of."""
        assert (await self.world.perform(wanted)).row.state is EffectState.COMMITTED

    async def released(self, wanted: Intent) -> None:
        """Done, and given back."""
        taken = await self.world.perform(wanted)
        given_back = await self.world.perform(intent(wanted.scope, release_of=reservation(taken)))
        assert given_back.row.state is EffectState.COMMITTED

    async def left(self, wanted: Intent) -> None:
        """Done, and its workflow was terminated."""
        await self.committed(wanted)
        self.journal.closed([wanted.key], "terminated", run_id="run-1")

    async def rejected(self, wanted: Intent) -> None:
        """Refused by the inventory for want of stock."""
        observed = await self.world.perform(intent(wanted.scope, {"FILTER-A": 1000}))
        assert observed.row.state is EffectState.REJECTED

    async def voided(self, wanted: Intent) -> None:
        """Given up, and its key closed."""
        self.world.journal.give_up(wanted, why="the incident was cancelled")
        assert (await self.world.recover(wanted)).row.state is EffectState.VOIDED

    async def asserted(self, wanted: Intent) -> None:
        """Ended by a person's word."""
        await self.in_doubt(wanted)
        said = await self.desk.resolve(
            wanted.key, to=EffectState.VOIDED, evidence="ticket 7", by=ASSERTED_BY, reason="another program's"
        )
        assert (said.what, said.state) == ("done", EffectState.VOIDED)

    async def late(self, wanted: Intent) -> None:
        """Voided, and then reported committed after all."""
        await self.voided(wanted)
        done = self.other.post("/v1/reservations", json.loads(wanted.request), wanted.key)
        assert done.status_code == 201
        report = Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=Receipt(done.json()))
        assert self.journal.observe(wanted.key, report).row.alarmed

    async def orphan(self, wanted: Intent) -> None:
        """A receipt without an intent."""
        sent = self.world.caller.post("/v1/reservations", json.loads(wanted.request), wanted.key)
        assert sent.status_code == 201


STATES: Mapping[str, Callable[[Standing, Intent], Awaitable[None]]] = {
    "no effect": Standing.no_effect,
    "pending": Standing.pending,
    "unheard": Standing.unheard,
    "in doubt": Standing.in_doubt,
    "committed": Standing.committed,
    "left": Standing.left,
    "released": Standing.released,
    "rejected": Standing.rejected,
    "voided": Standing.voided,
    "asserted": Standing.asserted,
    "late report": Standing.late,
    "orphan": Standing.orphan,
}


@asynccontextmanager
async def standing_on(inventory_url: str, journal_url: str) -> AsyncIterator[Standing]:
    """Two halves on two migrated databases, with 500 FILTER-A in each tenant's stock."""
    engine, ticks = open_engine(journal_url), itertools.count(1)
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        service = stack.enter_context(running(inventory_url, {TOKEN: "acme", OTHER_TOKEN: "other"}))
        callers = [Caller(stack.enter_context(connect(service.url, token))) for token in (TOKEN, OTHER_TOKEN)]
        for caller in callers:
            assert caller.deliver(500).status_code == 201

        def clock() -> datetime:
            return service.clock.now + timedelta(milliseconds=next(ticks))

        journal = OperatorJournal(engine, recorded_by="desk 7@host-1", clock=clock)
        provider = InventoryClient(service.url, TOKEN, clock=service.clock)
        world = World(service, callers[0], journal, journal_url)
        try:
            desk = EffectDesk(journal, provider, origin=ORIGIN)
            yield Standing(world, journal, desk, provider, callers[1], engine)
        finally:
            await provider.close()


@asynccontextmanager
async def standing_in(folder: Path) -> AsyncIterator[Standing]:
    """The same on SQLite, in a folder."""
    urls = {section: f"sqlite:///{folder}/{section}.db" for section in ("inventory", "journal")}
    migrate("inventory", urls["inventory"])
    migrate("journal", urls["journal"])
    async with standing_on(urls["inventory"], urls["journal"]) as standing:
        yield standing


@asynccontextmanager
async def standings_in(folder: Path, postgres: Databases) -> AsyncIterator[dict[str, Standing]]:
    """One on each kind of database."""
    async with (
        standing_in(folder) as sqlite,
        standing_on(postgres.migrated("inventory"), postgres.migrated("journal")) as postgresql,
    ):
        yield {"sqlite": sqlite, "postgresql": postgresql}


@pytest.fixture(scope="module")
async def standings(
    tmp_path_factory: pytest.TempPathFactory, postgres: Databases
) -> AsyncIterator[dict[str, Standing]]:
    """One deployment on each kind of database."""
    async with standings_in(tmp_path_factory.mktemp("standing"), postgres) as made:
        yield made


@pytest.fixture
def standing(standings: dict[str, Standing], dialect: str) -> Standing:
    """The deployment on this test's database."""
    return standings[dialect]
