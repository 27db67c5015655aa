"""Workflows of the tests: an author's, on the one module that authors use."""

import asyncio
from dataclasses import dataclass, field

from temporalio import workflow

from services.effects.records import Effect, Outcome, OutcomeState
from workflows.effects import EffectCancelled, EffectWorkflow, confirm, release, reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an author's workflow is to perform, in order or together."""

    names: list[str]
    quantities: dict[str, int] = field(default_factory=lambda: {"FILTER-A": 2})
    together: bool = False
    scope: str = ""


@workflow.defn(name="Probe")
class Probe(EffectWorkflow):
    """Performs what it is asked; cancelled, it gives back what stands."""

    @workflow.run
    async def run(self, asked: Asked) -> list[Outcome]:
        """Perform."""
        self.act_for(origin="demo", scope=asked.scope or None, why={"by": "ada"})
        self.act_for(origin="demo", why={"and": "grace"})
        effects = [reserve(name, asked.quantities) for name in asked.names]
        if asked.together:
            return list(await asyncio.gather(*(self.perform(effect) for effect in effects)))
        try:
            return [await self.perform(effect) for effect in effects]
        except EffectCancelled as cancelled:
            if cancelled.outcome.committed:
                await self.perform(release(cancelled.outcome, reason="cancelled"))
            raise


@workflow.defn(name="Holding")
class Holding(EffectWorkflow):
    """Holds units, confirms them, and gives them back where the confirmation is refused."""

    @workflow.run
    async def run(self, hold_seconds: int) -> list[Outcome]:
        """Hold, then confirm."""
        self.act_for(origin="demo", why={"by": "ada"})
        held = await self.perform(reserve("hold-filter", {"FILTER-A": 2}, hold_seconds=hold_seconds))
        confirmed = await self.perform(confirm(held))
        if confirmed.committed:
            return [held, confirmed]
        return [held, confirmed, await self.perform(release(held, reason="not confirmed"))]


@workflow.defn(name="Misuse")
class Misuse(EffectWorkflow):
    """What an author may get wrong."""

    @workflow.run
    async def run(self, how: str) -> None:
        """Get it wrong."""
        if how != "no act_for":
            self.act_for(origin="demo")
        if how == "an unknown kind":
            await self.perform(Effect(name="a", kind="inventory.paint", request={}))
        elif how == "a name without end":
            await self.perform(reserve("x" * 200, {"FILTER-A": 2}))
        elif how == "a number beyond JSON":
            await self.perform(reserve("a", {"FILTER-A": 2**60}))
        elif how in {"nothing to release", "nothing to confirm"}:
            outcome = Outcome(
                name="a", key="k", state=OutcomeState.REJECTED, receipt={}, replayed=False, settled_at=workflow.now()
            )
            await self.perform(release(outcome) if how == "nothing to release" else confirm(outcome))
        elif how == "a hold of no time":
            await self.perform(reserve("a", {"FILTER-A": 2}, hold_seconds=0))
        elif how == "a hold of over a year":
            await self.perform(reserve("a", {"FILTER-A": 2}, hold_seconds=31_536_001))
        elif how == "a hold of true":
            await self.perform(reserve("a", {"FILTER-A": 2}, hold_seconds=True))
        else:
            await self.perform(reserve("a", {"FILTER-A": 2}))
