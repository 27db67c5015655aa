"""An author's workflows, for the properties that one incident does not show."""

import asyncio
from dataclasses import dataclass

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
