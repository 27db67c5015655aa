"""An author's workflows, for the properties that one incident does not show."""

import asyncio
from dataclasses import dataclass, field, replace

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from services.effects.records import Outcome
from workflows.effects import EffectWorkflow, reserve

SKU = "FILTER-A"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderInput:
    """What an order wants: `{effect's name, units}` in order; a name may stand there twice."""

    origin: str
    scope: str
    wanted: list[tuple[str, int]]


@workflow.defn(name="Order")
class Order(EffectWorkflow):
    """Reserves one thing after the other."""

    @workflow.run
    async def run(self, order: OrderInput) -> list[Outcome]:
        """Every outcome, in order."""
        self.act_for(origin=order.origin, scope=order.scope)
        return [await self.perform(reserve(name, {SKU: quantity})) for name, quantity in order.wanted]


@workflow.defn(name="Order")
class OrderOfTheNextBuild(EffectWorkflow):
    """The same order after a change of code: another effect stands before the others."""

    @workflow.run
    async def run(self, order: OrderInput) -> list[Outcome]:
        """Every outcome, in order."""
        self.act_for(origin=order.origin, scope=order.scope)
        before = [await self.perform(reserve("reserve-inspection-spare", {SKU: 1}))]
        return before + [await self.perform(reserve(name, {SKU: quantity})) for name, quantity in order.wanted]


@workflow.defn(name="OrderAtOnce")
class OrderAtOnce(EffectWorkflow):
    """Reserves everything at the same time."""

    @workflow.run
    async def run(self, order: OrderInput) -> list[Outcome]:
        """Every outcome, in order."""
        self.act_for(origin=order.origin, scope=order.scope)
        wanted = (self.perform(reserve(name, {SKU: quantity})) for name, quantity in order.wanted)
        return list(await asyncio.gather(*wanted))


@workflow.defn(name="FailingOrder")
class FailingOrder(EffectWorkflow):
    """An order whose first run fails after its effects, so that Temporal starts another run."""

    @workflow.run
    async def run(self, order: OrderInput) -> list[Outcome]:
        """Every outcome, in order, by the second run."""
        self.act_for(origin=order.origin, scope=order.scope)
        outcomes = [await self.perform(reserve(name, {SKU: quantity})) for name, quantity in order.wanted]
        if workflow.info().attempt == 1:
            raise ApplicationError("the step after the effects failed")
        return outcomes


@workflow.defn(name="StuckOrder")
class StuckOrder(EffectWorkflow):
    """An order with a bug: once it is cancelled, its workflow task fails, again and again."""

    @workflow.run
    async def run(self, order: OrderInput) -> list[Outcome]:
        """Every outcome, in order, unless it is cancelled."""
        self.act_for(origin=order.origin, scope=order.scope)
        performing = [
            asyncio.create_task(self.perform(reserve(name, {SKU: quantity}))) for name, quantity in order.wanted
        ]
        try:
            return [await asyncio.shield(task) for task in performing]
        except asyncio.CancelledError:
            raise RuntimeError("a bug in the code after a cancellation") from None


@workflow.defn(name="AbandonedOrder")
class AbandonedOrder(EffectWorkflow):
    """An order whose first run is told to fail while its effects are under way, so that Temporal starts another run."""

    def __init__(self) -> None:
        super().__init__()
        self._fails = False

    @workflow.run
    async def run(self, order: OrderInput) -> list[Outcome]:
        """Every outcome, in order, by the second run."""
        self.act_for(origin=order.origin, scope=order.scope)
        effects = [asyncio.create_task(self.perform(reserve(name, {SKU: units}))) for name, units in order.wanted]
        if workflow.info().attempt == 1:
            await workflow.wait_condition(lambda: self._fails)
            raise ApplicationError("the step beside the effects failed")
        return [await effect for effect in effects]

    @workflow.signal
    def fail(self) -> None:
        """Let the first run fail."""
        self._fails = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedInput:
    """What each run of a continued order wants, and the outcomes of the runs before."""

    origin: str
    scope: str
    runs: list[list[tuple[str, int]]]
    before: list[Outcome] = field(default_factory=list)


@workflow.defn(name="ContinuedOrder")
class ContinuedOrder(EffectWorkflow):
    """An order that continues as new after each of its parts."""

    @workflow.run
    async def run(self, order: ContinuedInput) -> list[Outcome]:
        """Every outcome of every run, in order, by the last run."""
        self.act_for(origin=order.origin, scope=order.scope)
        wanted, *later = order.runs
        outcomes = order.before + [await self.perform(reserve(name, {SKU: units})) for name, units in wanted]
        if later:
            workflow.continue_as_new(replace(order, runs=later, before=outcomes))
        return outcomes


@workflow.defn(name="WaitingOrder")
class WaitingOrder(Order):
    """An order that begins when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self._begins = False

    @workflow.run
    async def run(self, order: OrderInput) -> list[Outcome]:
        """Every outcome, in order."""
        await workflow.wait_condition(lambda: self._begins)
        return await super().run(order)

    @workflow.signal
    def begin(self) -> None:
        """Let it begin."""
        self._begins = True
