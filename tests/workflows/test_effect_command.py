"""Commands under the real server: the highest decided generation, the workflow that sends, and the Updates."""

from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError, CancelledError

from activities.contracts import CommandRequest
from services.effect_commands import is_open, start_effect_command, wake
from services.effects.commands import CommandName, Ruling, ToSend, What
from services.effects.keys import derive_key
from services.effects.records import Effect, Intent, OutcomeState
from services.effects.states import EffectState
from tests.workflows.probes import Asked, Probe
from tests.workflows.test_effects import ended, failure
from tests.workflows.world import Stage, redone, waiting
from workflows.effects import GiveUp, Redo, Resolve, command_workflow_id

pytestmark = pytest.mark.temporal

NAME = "reserve-filter"
ONE = Asked(names=[NAME])
WORD: dict[str, Any] = {"effect": NAME, "by": "ada", "reason": "the incident is over"}


async def _later(intent: Intent) -> Any:
    return redone(intent)


def ruling(key: str, **changes: Any) -> Ruling:
    """A desk's answer."""
    said: dict[str, Any] = {
        "key": key,
        "command": CommandName.GIVE_UP,
        "what": What.DONE,
        "state": EffectState.VOIDED,
        "said": "It ended voided.",
    }
    return Ruling(**(said | changes))


async def test_perform_performs_and_answers_for_the_highest_decided_generation(stage: Stage) -> None:
    """G9: a run that asks again gets what a person has decided since; A06: its release has a key of its own."""
    stage.world.attempts.append(_later)
    handle = await stage.start(Probe.run, ONE)
    (outcome,) = await ended(handle)
    first, second = stage.world.of("inventory.reserve")
    assert (first.generation, second.generation) == (1, 2)
    assert second.supersedes == (first.key,)
    assert (second.decided_at - first.decided_at).total_seconds() == 3600
    assert (outcome.key, outcome.generation) == (second.key, 2)


async def test_a_redo_that_settling_meets_is_gone_on_with(stage: Stage) -> None:
    """The former generation was voided meanwhile, by whoever redid it."""

    async def waits(intent: Intent) -> Any:
        return waiting(intent)

    async def later(request: Any) -> Any:
        return redone(request.intent, 3)

    stage.world.attempts.append(waits)
    stage.world.settles.append(later)
    (outcome,) = await ended(await stage.start(Probe.run, ONE))
    assert outcome.generation == 3
    assert len(stage.world.of("inventory.reserve")[1].supersedes) == 2


async def test_a_cancelled_run_gives_up_the_generation_that_stands_and_compensates_it(stage: Stage) -> None:
    """What is held is the redo's: it is given back under the release of that generation."""
    held = stage.world.hold(stage.world.commit)
    stage.world.attempts.append(held)

    async def later(request: Any) -> Any:
        return redone(request.intent)

    async def committed(request: Any) -> Any:
        return stage.world.ends(request.intent, OutcomeState.COMMITTED)

    stage.world.settles.extend([later, committed])
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("inventory.reserve")
    await handle.cancel()
    await stage.world.until("inventory.release")
    held.let_go.set()
    assert isinstance(await failure(handle), CancelledError)
    assert [request.intent.generation for request in stage.world.of("effects.settle")] == [1, 2]
    (released,) = stage.world.of("inventory.release")
    assert released.name == f"{NAME}.g2.release"


async def test_a_command_workflow_performs_an_effect_in_the_scope_of_another(stage: Stage) -> None:
    """A22: of a workflow that is gone. Started twice at once it is one; its decision says who wanted it."""
    effect = Effect(name="reserve-filter", kind="inventory.reserve", request={"lines": []})
    key = derive_key("demo", "INC-GONE", effect.name, 1)
    send = ToSend(origin="demo", scope="INC-GONE", effect=effect, key=key, why={"by": "ada", "command": "replay"})
    held = stage.world.hold(stage.world.commit)
    stage.world.attempts.append(held)
    await stage.client.start_workflow("EffectCommand", send, id=command_workflow_id(key), task_queue=stage.queue)
    await stage.world.until("inventory.reserve")
    assert await is_open(stage.client, command_workflow_id(key))
    handle = await start_effect_command(stage.client, send)
    held.let_go.set()
    outcome = await ended(handle)
    (intent,) = stage.world.of("inventory.reserve")
    assert (intent.key, intent.scope, intent.why) == (key, "INC-GONE", {"by": "ada", "command": "replay"})
    assert (outcome.key, outcome.state) == (key, OutcomeState.COMMITTED)
    assert not await is_open(stage.client, command_workflow_id(key))


async def test_a_workflow_that_has_ended_or_never_was_is_not_woken(stage: Stage) -> None:
    """And that is no error: nobody waits there."""
    handle = await stage.start(Probe.run, ONE)
    await ended(handle)
    assert not await wake(stage.client, handle.id)
    assert not await wake(stage.client, "INC-NEVER")
    assert not await is_open(stage.client, "INC-NEVER")


async def _waiting(stage: Stage) -> WorkflowHandle[Any, Any]:
    """A run whose effect is in doubt: it waits for a person."""
    return await _waiting_in(stage, 1)


async def _waiting_in(stage: Stage, generation: int, *, words: int = 1) -> WorkflowHandle[Any, Any]:
    """The same, in a generation that the attempts before have led to; it is settled after so many words."""

    async def doubted(intent: Intent) -> Any:
        return waiting(intent, state=EffectState.IN_DOUBT, send_again=False)

    async def settled_by_then(request: Any) -> Any:
        return stage.world.ends(request.intent, OutcomeState.VOIDED)

    async def still(request: Any) -> Any:
        return waiting(request.intent, state=EffectState.IN_DOUBT, send_again=False)

    stage.world.attempts.append(doubted)
    stage.world.settles.extend([*[still] * words, settled_by_then])
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("effects.settle")
    assert stage.world.of("inventory.reserve")[-1].generation == generation
    return handle


@pytest.mark.parametrize(
    ("update", "word", "request_"),
    [
        ("give_up", GiveUp(**WORD), {"name": CommandName.GIVE_UP, "arguments": {}}),
        (
            "resolve",
            Resolve(**WORD, wanted=EffectState.VOIDED, evidence="ticket 7"),
            {"name": CommandName.RESOLVE, "arguments": {"wanted": "voided", "evidence": "ticket 7"}},
        ),
        ("redo", Redo(**WORD), {"name": CommandName.REDO, "arguments": {}}),
        ("redo", Redo(**WORD, second="eve"), {"name": CommandName.REDO, "arguments": {"second": "eve"}}),
    ],
    ids=["give_up", "resolve", "redo", "redo with a second person"],
)
async def test_a_word_to_a_waiting_run_goes_to_the_desk_and_wakes_it(
    stage: Stage, update: str, word: GiveUp, request_: dict[str, Any]
) -> None:
    """As on the command line: journal first, then the run looks and ends."""
    handle = await _waiting(stage)
    key = derive_key("demo", handle.id, NAME, 1)
    stage.world.rulings.append(ruling(key))
    answer = await handle.execute_update(update, word, result_type=Ruling)
    assert (answer.what, answer.said) == (What.DONE, "It ended voided.")
    (asked,) = stage.world.of("effects.command")
    assert asked == CommandRequest(key=key, by="ada", reason="the incident is over", **request_)
    (outcome,) = await ended(handle)
    assert outcome.state is OutcomeState.VOIDED
    journal = await handle.query(Probe.journal)
    assert [line["command"] for line in journal if line["kind"] == "command"] == [request_["name"]]


async def test_what_a_redo_has_to_send_is_sent_by_a_workflow_that_outlives_the_run(stage: Stage) -> None:
    """The run has its answer already; whoever redoes does not wait for it."""
    handle = await _waiting(stage)
    effect = Effect(name=NAME, kind="inventory.reserve", request={"lines": []})
    key = derive_key("demo", handle.id, NAME, 2)
    send = ToSend(origin="demo", scope=handle.id, effect=effect, key=key, why={"by": "ada"})
    stage.world.attempts.append(_later)
    stage.world.rulings.append(ruling(key, command=CommandName.REDO, send=send, new_key=key))
    await handle.execute_update("redo", Redo(**WORD), result_type=Ruling)
    outcome = await ended(stage.client.get_workflow_handle(command_workflow_id(key)))
    assert (outcome["key"], outcome["generation"]) == (key, 2)


async def test_a_word_about_a_former_generation_is_repeated_by_its_key(stage: Stage) -> None:
    """The run has gone on to the redo; the same command again is about the same generation, and not the next."""
    stage.world.attempts.append(_later)
    handle = await _waiting_in(stage, 2, words=2)
    first, second = (derive_key("demo", handle.id, NAME, generation) for generation in (1, 2))
    stage.world.rulings.extend([ruling(first, command=CommandName.REDO), ruling(second)])
    await handle.execute_update("redo", Redo(effect=first, by="ada", reason="once more"), result_type=Ruling)
    await handle.execute_update("give_up", GiveUp(**WORD), result_type=Ruling)
    assert [asked.key for asked in stage.world.of("effects.command")] == [first, second]
    await ended(handle)


@pytest.mark.parametrize(
    ("update", "word", "said"),
    [
        ("give_up", GiveUp(effect="another", by="ada", reason="over"), "no effect 'another'"),
        ("give_up", GiveUp(effect=NAME, by="", reason="over"), "who"),
        ("redo", Redo(effect=NAME, by="ada", reason=" "), "why"),
        ("resolve", Resolve(**WORD, wanted=EffectState.VOIDED, evidence=""), "evidence"),
        ("resolve", Resolve(**WORD, wanted=EffectState.PENDING, evidence="ticket 7"), "not to pending"),
    ],
    ids=["another effect", "nobody", "no reason", "no evidence", "no end"],
)
async def test_a_word_that_lacks_something_is_refused_before_it_is_in_the_history(
    stage: Stage, update: str, word: GiveUp, said: str
) -> None:
    """The validator says what, and nothing was asked of anybody."""
    handle = await _waiting(stage)
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await handle.execute_update(update, word)
    assert isinstance(refused.value.cause, ApplicationError)
    assert said in str(refused.value.cause)
    history = await handle.fetch_history()
    assert not [
        event for event in history.events if event.HasField("workflow_execution_update_accepted_event_attributes")
    ]
    await handle.signal(Probe.wake)
    await ended(handle)
    assert stage.world.of("effects.command") == []
