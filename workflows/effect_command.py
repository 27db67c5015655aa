"""The workflow that sends for a person's command: only workflows' activities send, and an effect's own may be gone."""

from temporalio import workflow

from services.effects.commands import SENDER, ToSend
from services.effects.records import Outcome
from workflows.effects import EffectWorkflow


@workflow.defn(name=SENDER)
class EffectCommand(EffectWorkflow):
    """Performs one effect of a scope whose own workflow is closed, or has gone on."""

    @workflow.run
    async def run(self, send: ToSend) -> Outcome:
        """Perform it, in its highest generation, and answer how it ended."""
        self.act_for(origin=send.origin, scope=send.scope, why=send.why)
        return await self.perform(send.effect)
