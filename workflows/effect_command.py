"""The workflow that sends for a person's command: only workflows' activities send, and an effect's own may be gone."""

from dataclasses import dataclass, field

from temporalio import workflow

from services.effects.records import Effect, Outcome
from workflows.effects import EffectWorkflow


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectCommandInput:
    """What is to be performed, in the scope that it belongs to; the highest generation that was decided."""

    origin: str
    scope: str
    effect: Effect
    why: dict[str, str] = field(default_factory=dict)


def command_workflow_id(key: str) -> str:
    """The workflow that performs this key for a command: one at a time."""
    return f"effect-command-{key}"


@workflow.defn(name="EffectCommand")
class EffectCommand(EffectWorkflow):
    """Performs one effect of a scope whose own workflow is closed, or has gone on."""

    @workflow.run
    async def run(self, command: EffectCommandInput) -> Outcome:
        """Perform it, and answer how it ended."""
        self.act_for(origin=command.origin, scope=command.scope, why=command.why)
        return await self.perform(command.effect)
