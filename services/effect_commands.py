"""What a command needs of Temporal: a workflow that sends for it, and a word to the one that waits."""

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.service import RPCError, RPCStatusCode

from services.effects.commands import ToSend
from services.effects.records import Outcome
from services.temporal import task_queue
from workflows import policies
from workflows.effect_command import EffectCommand
from workflows.effects import command_workflow_id


async def start_effect_command(client: Client, send: ToSend) -> WorkflowHandle[EffectCommand, Outcome]:
    """Start the workflow that performs a command's effect, or attach to the one that does.

    One that has ended is started again: it asks the journal first, and sends nothing that is settled.

    Raises:
        RPCError: Temporal cannot be reached. The command is in the journal: repeat it.
    """
    return await client.start_workflow(
        EffectCommand.run,
        send,
        id=command_workflow_id(send.key),
        task_queue=task_queue(send.origin),
        task_timeout=policies.TASK_TIMEOUT,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
        static_summary=f"{send.why.get('command', 'command')}: {send.effect.summary}",
    )


async def wake(client: Client, workflow_id: str) -> bool:
    """Tell a workflow to look at the journal; False where it has ended or is gone, and nobody waits.

    Raises:
        RPCError: Temporal cannot be reached; the workflow looks by itself, later.
    """
    try:
        await client.get_workflow_handle(workflow_id).signal("wake")
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return True


async def is_open(client: Client, workflow_id: str) -> bool:
    """Whether a workflow runs.

    Raises:
        RPCError: Temporal cannot be reached.
    """
    try:
        described = await client.get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status is RPCStatusCode.NOT_FOUND:
            return False
        raise
    return described.status is WorkflowExecutionStatus.RUNNING
