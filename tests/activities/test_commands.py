"""`effects.command`: what a workflow's Updates ask for goes to the same desk as the command line's words."""

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.commands import CommandActivities
from activities.contracts import CommandRequest
from services.effect_desk import EffectDesk
from services.effects.commands import CommandName, Ruling, What
from services.effects.states import EffectState
from tests.activities.bench import Bench, intent_now

INTENT = intent_now()


async def command(bench: Bench, name: CommandName, **arguments: str) -> Ruling:
    """Ada's word about the effect, inside an activity."""
    activities = CommandActivities(EffectDesk(bench.journal, bench.between, origin="demo"))
    request = CommandRequest(name=name, key=INTENT.key, by="ada", reason="the incident is over", arguments=arguments)
    ruling: Ruling = await ActivityEnvironment().run(activities.command, request)
    return ruling


async def test_each_word_that_a_workflow_takes_comes_to_the_desk(bench: Bench) -> None:
    """Given up, resolved and redone, as on the command line: the same words are the same command there."""
    bench.pending(INTENT)
    assert (await command(bench, CommandName.GIVE_UP)).state is EffectState.VOIDED
    resolved = await command(bench, CommandName.RESOLVE, wanted="voided", evidence="ticket 7")
    assert (resolved.what, resolved.state) == (What.DONE, EffectState.VOIDED)
    redone = await command(bench, CommandName.REDO)
    desk = EffectDesk(bench.journal, bench.between, origin="demo")
    again = await desk.redo(INTENT.key, by="ada", reason="the incident is over")
    assert (redone.repeated, again.repeated, again.new_key) == (False, True, redone.new_key)


@pytest.mark.parametrize("name", [CommandName.RELEASE, CommandName.ACCEPT, CommandName.ADOPT])
async def test_what_a_workflow_does_not_take_is_refused_for_good(bench: Bench, name: CommandName) -> None:
    """Those are for effects whose workflow is gone."""
    with pytest.raises(ApplicationError, match=f"counterfoil effects {name}") as refused:
        await command(bench, name)
    assert (refused.value.type, refused.value.non_retryable) == ("InvalidCommand", True)


async def test_another_deployments_effect_is_refused_for_good(bench: Bench) -> None:
    """A worker of another origin has another tenant."""
    bench.pending(INTENT)
    activities = CommandActivities(EffectDesk(bench.journal, bench.between, origin="elsewhere"))
    request = CommandRequest(name=CommandName.GIVE_UP, key=INTENT.key, by="ada", reason="over")
    with pytest.raises(ApplicationError, match="is of origin demo") as refused:
        await ActivityEnvironment().run(activities.command, request)
    assert refused.value.non_retryable
