"""The other side of the contracts, scripted: activities that answer what a test says, and tell what they were asked."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from activities import contracts
from activities.beat import beating
from activities.contracts import CommandRequest, DecisionRequest, Later, SettleRequest, Standing, StandingDecision
from services.effects.commands import Ruling
from services.effects.records import Intent, Outcome, OutcomeState
from services.effects.states import EffectState
from services.worker import sandbox
from tests.workflows.patience import Patience
from tests.workflows.probes import Holding, Misuse, Probe
from workflows import policies
from workflows.effect_command import EffectCommand
from workflows.incident import Incident


class World:
    """What the activities answer: the next script of its queue, or else as if all went well."""

    def __init__(self) -> None:
        self.attempts: deque[Callable[[Intent], Awaitable[Standing]]] = deque()
        self.settles: deque[Callable[[SettleRequest], Awaitable[Standing]]] = deque()
        self.outcomes: dict[str, Outcome] = {}
        self.rulings: deque[Ruling] = deque()
        self.decisions: dict[tuple[str, str], StandingDecision] = {}  # by scope and name
        self.landing: dict[tuple[str, str], StandingDecision] = {}  # recorded by somebody just after it was asked for
        self.asked: list[tuple[str, Any]] = []
        self.came: asyncio.Queue[str] = asyncio.Queue()
        self._held: list[Held] = []

    def hold(self, then: Callable[[Any], Awaitable[Standing]]) -> "Held":
        """An answer that is held until the test lets it go, at the latest when the stage is left."""
        held = Held(then)
        self._held.append(held)
        return held

    def let_all_go(self) -> None:
        """So that a worker can stop, whatever became of the test."""
        for held in self._held:
            held.let_go.set()

    async def attempt(self, intent: Intent) -> Standing:
        """Of `inventory.reserve`, `inventory.confirm` and `inventory.release`."""
        self.tell(intent)
        return await (self.attempts.popleft() if self.attempts else self.commit)(intent)

    async def settle(self, request: SettleRequest) -> Standing:
        """Of `effects.settle`."""
        self.tell(request)
        return await (self.settles.popleft() if self.settles else self.look_up)(request)

    async def commit(self, intent: Intent) -> Standing:
        """It is done."""
        return self.ends(intent, OutcomeState.COMMITTED)

    async def look_up(self, request: SettleRequest) -> Standing:
        """What is settled is answered, what is given up is voided, the rest may be sent again."""
        if request.intent.key in self.outcomes:
            return self._standing(request.intent)
        if request.given_up:
            return self.ends(request.intent, OutcomeState.VOIDED)
        return waiting(request.intent)

    def ends(self, intent: Intent, state: OutcomeState) -> Standing:
        """Settle an effect, first settlement wins."""
        receipt = {"receipt_id": f"receipt of {intent.name}", "reservation_id": "reservation-1"}
        outcome = Outcome(
            name=intent.name, key=intent.key, state=state, receipt=receipt, replayed=False,
            settled_at=intent.decided_at, generation=intent.generation,
        )  # fmt: skip
        self.outcomes.setdefault(intent.key, outcome)
        return self._standing(intent)

    def of(self, name: str) -> list[Any]:
        """What an activity was asked, in order."""
        return [asked for activity_name, asked in self.asked if activity_name == name]

    async def until(self, name: str) -> None:
        """Wait until an activity is called."""
        async with asyncio.timeout(60):
            while await self.came.get() != name:
                pass

    def _standing(self, intent: Intent) -> Standing:
        outcome = self.outcomes[intent.key]
        return Standing(key=intent.key, state=EffectState(outcome.state), outcome=outcome)

    def tell(self, asked: Any) -> None:
        """Remember that an activity was asked, and tell whoever waits for it."""
        name = activity.info().activity_type
        self.asked.append((name, asked))
        self.came.put_nowait(name)

    def decide(self, request: DecisionRequest) -> StandingDecision | None:
        """Of `journal.record_decision`: the first one stands."""
        self.tell(request)
        standing = self.decisions.get((request.scope, request.name))
        self.decisions |= self.landing
        if request.ask_only or standing is not None:
            return standing and StandingDecision(body=standing.body, decided_at=standing.decided_at, mine=False)
        standing = StandingDecision(body=request.body, decided_at=request.decided_at, mine=True)
        self.decisions[request.scope, request.name] = standing
        return standing


def redone(intent: Intent, generation: int = 2) -> Standing:
    """It has ended, and another generation was decided an hour after it."""
    later = Later(generation=generation, decided_at=intent.decided_at + timedelta(hours=1))
    return Standing(key=intent.key, state=EffectState.VOIDED, later=later)


def waiting(intent: Intent, **changes: Any) -> Standing:
    """Not settled yet."""
    standing = Standing(key=intent.key, state=EffectState.PENDING, waiting="the test says so", send_again=True)
    return replace(standing, **changes)


async def fails_for_good(_asked: Any) -> Standing:
    """As if somebody had failed it by its task token."""
    raise ApplicationError("failed by the test", type="WindowPassed", non_retryable=True)


class Held:
    """An answer that comes when the test lets it; made by `World.hold`."""

    def __init__(self, then: Callable[[Any], Awaitable[Standing]]) -> None:
        self._then = then
        self.let_go = asyncio.Event()

    async def __call__(self, asked: Any) -> Standing:
        """Wait, heartbeating, then answer."""
        await self.let_go.wait()
        return await self._then(asked)


class Inventory(contracts.InventoryActivities):
    """Scripted."""

    def __init__(self, world: World) -> None:
        self._world = world

    @activity.defn(name="inventory.reserve")
    async def reserve(self, intent: Intent) -> Standing:
        """As the script says."""
        return await beating(self._world.attempt(intent))

    @activity.defn(name="inventory.confirm")
    async def confirm(self, intent: Intent) -> Standing:
        """As the script says."""
        return await beating(self._world.attempt(intent))

    @activity.defn(name="inventory.release")
    async def release(self, intent: Intent) -> Standing:
        """As the script says."""
        return await beating(self._world.attempt(intent))


class Effects(contracts.EffectActivities):
    """Scripted."""

    def __init__(self, world: World) -> None:
        self._world = world

    @activity.defn(name="effects.settle")
    async def settle(self, request: SettleRequest) -> Standing:
        """As the script says."""
        return await beating(self._world.settle(request))


class Commands(contracts.CommandActivities):
    """Scripted."""

    def __init__(self, world: World) -> None:
        self._world = world

    @activity.defn(name="effects.command")
    async def command(self, request: CommandRequest) -> Ruling:
        """The next ruling of the script."""
        self._world.tell(request)
        return self._world.rulings.popleft()


class Journal(contracts.JournalActivities):
    """Scripted."""

    def __init__(self, world: World) -> None:
        self._world = world

    @activity.defn(name="journal.record_decision")
    async def record_decision(self, request: DecisionRequest) -> StandingDecision | None:
        """The first one stands."""
        return self._world.decide(request)


class Stage:
    """A worker with the scripted activities, on a task queue of its own."""

    def __init__(self, client: Client, world: World, queue: str) -> None:
        self.client = client
        self.world = world
        self.queue = queue

    async def start(self, run: Any, asked: Any, **options: Any) -> WorkflowHandle[Any, Any]:
        """Start a workflow under a fresh id."""
        return await self.client.start_workflow(
            run,
            asked,
            id=options.pop("id", f"INC-{uuid4().hex[:12]}"),
            task_queue=self.queue,
            task_timeout=policies.TASK_TIMEOUT,
            **options,
        )

    def worker(self, **options: Any) -> Worker:
        """A worker; it is not started. Unless told otherwise it waits for its activities as long as a test may."""
        inventory = Inventory(self.world)
        options = {"interceptors": [Patience()]} | options
        return Worker(
            self.client,
            task_queue=self.queue,
            workflows=[Probe, Holding, Misuse, Incident, EffectCommand],
            activities=[
                inventory.reserve,
                inventory.confirm,
                inventory.release,
                Effects(self.world).settle,
                Commands(self.world).command,
                Journal(self.world).record_decision,
            ],
            workflow_runner=sandbox(),
            sticky_queue_schedule_to_start_timeout=policies.STICKY_SCHEDULE_TO_START,
            max_heartbeat_throttle_interval=timedelta(seconds=contracts.HEARTBEAT_EVERY_SECONDS),
            default_heartbeat_throttle_interval=timedelta(seconds=contracts.HEARTBEAT_EVERY_SECONDS),
            **options,
        )


@asynccontextmanager
async def stage_of(client: Client, **options: Any) -> AsyncIterator[Stage]:
    """A stage with its worker running."""
    stage = Stage(client, World(), f"queue-{uuid4().hex}")
    async with stage.worker(**options):
        try:
            yield stage
        finally:
            stage.world.let_all_go()
