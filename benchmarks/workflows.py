"""Workflows with one effect each: from the bare activity to `perform`, one step of durability after the other.

`Bare` and `BareAgain` are the same under two names: what differs between them is the machine's noise.
The bare activity's contract stands here too: the sandbox lets no module through that a deployment does not have.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from temporalio import activity, workflow

from activities.contracts import InventoryActivities, Standing
from services.effects import keys
from services.effects.records import decide
from workflows.effects import EffectWorkflow, reserve
from workflows.policies import HEARTBEAT, RETRY, START_TO_CLOSE

SKU = "FILTER-A"
NAME = "reserve-filter"


@dataclass(frozen=True, slots=True, kw_only=True)
class BareCall:
    """One keyed call as an author would make it who keeps no journal."""

    key: str
    request: str


class BareActivities(ABC):
    """The same request to the same inventory by the same client, with nothing journaled."""

    @activity.defn(name="bare.reserve")
    @abstractmethod
    async def reserve(self, call: BareCall) -> str:
        """Reserve units; how it ended."""

    @activity.defn(name="bare.reserve_beating")
    @abstractmethod
    async def reserve_beating(self, call: BareCall) -> str:
        """The same, with the heartbeats that an effect's activity has."""


def _call(origin: str) -> BareCall:
    scope = workflow.info().workflow_id
    request = {"lines": [{"sku": SKU, "quantity": 1}], "reference": keys.reference(scope, NAME, 1)}
    return BareCall(key=keys.derive_key(origin, scope, NAME, 1), request=keys.canonical(request).decode())


async def _bare(origin: str) -> str:
    outcome: str = await workflow.execute_activity_method(
        BareActivities.reserve,
        _call(origin),
        start_to_close_timeout=START_TO_CLOSE,
        retry_policy=RETRY,
    )
    return outcome


@workflow.defn
class Bare:
    """The baseline."""

    @workflow.run
    async def run(self, origin: str) -> str:
        """How the call ended."""
        return await _bare(origin)


@workflow.defn
class BareAgain:
    """The baseline once more."""

    @workflow.run
    async def run(self, origin: str) -> str:
        """How the call ended."""
        return await _bare(origin)


@workflow.defn
class BareBeating:
    """The baseline with heartbeats."""

    @workflow.run
    async def run(self, origin: str) -> str:
        """How the call ended."""
        outcome: str = await workflow.execute_activity_method(
            BareActivities.reserve_beating,
            _call(origin),
            start_to_close_timeout=START_TO_CLOSE,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=RETRY,
        )
        return outcome


@workflow.defn
class Journaled:
    """The effect's own activity, with its journal and its heartbeats, and nothing of it shown in Temporal."""

    @workflow.run
    async def run(self, origin: str) -> str:
        """How the effect ended."""
        info = workflow.info()
        intent = decide(
            reserve(NAME, {SKU: 1}),
            origin=origin,
            scope=info.workflow_id,
            decided_at=workflow.now(),
            why={},
            workflow_id=info.workflow_id,
            workflow_type=info.workflow_type,
            first_run_id=info.first_execution_run_id,
        )
        standing: Standing = await workflow.execute_activity_method(
            InventoryActivities.reserve,
            intent,
            start_to_close_timeout=START_TO_CLOSE,
            heartbeat_timeout=HEARTBEAT,
            retry_policy=RETRY,
        )
        return standing.state


@workflow.defn
class Performed(EffectWorkflow):
    """What an author writes."""

    @workflow.run
    async def run(self, origin: str) -> str:
        """How the effect ended."""
        self.act_for(origin=origin)
        return (await self.perform(reserve(NAME, {SKU: 1}))).state


ALL: tuple[type[Any], ...] = (Bare, BareAgain, BareBeating, Journaled, Performed)
