"""What a look finds wrong: by the journal's clock alone, as long as its reason is there, and no longer."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from services.effect_desk import EffectDesk
from services.effects.records import Answer, Intent, Seen, Source
from services.effects.states import EffectState
from services.reconciliation.alarms import WAKE_AFTER, AlarmKind, Lookout
from tests.activities.bench import Bench, instead, intent_now
from tests.services.effects.halves import make_receipt
from workflows.search_attributes import EFFECT_KEY

HOUR = timedelta(hours=1)
BY, WHY = "ada", "somebody has to"


@dataclass
class Waiting(Client):
    """Temporal, as far as a look needs it: what running workflows wait for, and who was woken."""

    keys: list[str] = field(default_factory=list)
    ids: dict[str, str] = field(default_factory=dict)
    woken: list[str] = field(default_factory=list)
    gone: bool = False
    away: bool = False

    async def list_workflows(self, *_query: Any, **_options: Any) -> AsyncIterator[Any]:  # type: ignore[override]
        """A workflow that waits for each of them, and one that says nothing."""
        if self.away:
            raise RPCError("away", RPCStatusCode.UNAVAILABLE, b"")
        for key in self.keys:
            pairs = [SearchAttributePair(EFFECT_KEY, [key])]
            yield SimpleNamespace(id=self.ids.get(key, ""), typed_search_attributes=TypedSearchAttributes(pairs))
        yield SimpleNamespace(id="INC-silent", typed_search_attributes=TypedSearchAttributes([]))

    def get_workflow_handle(self, workflow_id: str, **_options: Any) -> Any:
        """A handle that can be told."""

        async def signal(name: str) -> None:
            self.woken.append(f"{name} {workflow_id}")
            if self.gone:
                raise RPCError("gone", RPCStatusCode.NOT_FOUND, b"")

        return SimpleNamespace(signal=signal)


@pytest.fixture
def waiting() -> Waiting:
    """Nobody waits for anything."""
    return Waiting()


@pytest.fixture
def lookout(bench: Bench, waiting: Waiting) -> Lookout:
    """A worker's, on the bench's clock."""
    return Lookout(bench.journal, waiting, unknown_after=HOUR, clock=bench.clock)


async def found(lookout: Lookout) -> dict[AlarmKind, list[str]]:
    """Scopes by what is wrong with them."""
    by_kind: dict[AlarmKind, list[str]] = {}
    for alarm in (await lookout.look()).alarms:
        by_kind.setdefault(alarm.kind, []).append(alarm.scope)
    return {kind: sorted(scopes) for kind, scopes in by_kind.items()}


async def in_doubt(bench: Bench, intent: Intent) -> None:
    """The provider has dropped its receipt."""
    bench.pending(intent)
    bench.journal.observe(intent.key, Answer(seen=Seen.KEY_EXPIRED, source=Source.LOOK_UP))


def late(bench: Bench, intent: Intent) -> None:
    """Voided, and now reported as committed."""
    bench.pending(intent)
    for state in (EffectState.VOIDED, EffectState.COMMITTED):
        answer = Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=make_receipt(intent, state))
        bench.journal.observe(intent.key, answer)


async def test_a_journal_in_which_nothing_is_wrong_says_so(bench: Bench, lookout: Lookout) -> None:
    """Every state is counted, and no age is made up."""
    await bench.attempt(intent_now())
    readings = await lookout.look()
    assert readings.counts == {state: int(state is EffectState.COMMITTED) for state in EffectState}
    assert (readings.oldest_unknown_seconds, readings.alarms) == (0.0, ())


async def test_an_unknown_effect_is_an_alarm_after_its_time_and_is_not_settled_by_it(
    bench: Bench, lookout: Lookout
) -> None:
    """E20: by the journal's own clock, whatever became of its timers; the age of the oldest one is a figure before."""
    old, young = intent_now(scope="INC-old"), intent_now(scope="INC-young")
    bench.pending(old)
    bench.later(HOUR - timedelta(seconds=1))
    bench.pending(young)
    readings = await lookout.look()
    assert (readings.oldest_unknown_seconds, readings.alarms) == (3599.0, ())
    bench.later(timedelta(seconds=1))
    assert await found(lookout) == {AlarmKind.UNKNOWN_TOO_LONG: ["INC-old"]}
    bench.later(timedelta(days=400))
    assert await found(lookout) == {AlarmKind.UNKNOWN_TOO_LONG: ["INC-old", "INC-young"]}
    assert [bench.state(intent) for intent in (old, young)] == [EffectState.PENDING] * 2


async def test_a_provider_that_answers_processing_for_ever_is_an_alarm_and_ends_by_a_person_closing_the_key(
    bench: Bench, lookout: Lookout
) -> None:
    """E40: polls do not settle, and are one entry; the void does, where the provider can."""
    intent = intent_now()
    bench.between.sends.append(instead(Seen.UNKNOWN))
    await asyncio.gather(bench.attempt(intent), return_exceptions=True)
    for _ in range(3):
        bench.between.look_ups.append(instead(Seen.BUSY, Source.LOOK_UP))
        bench.journal.observe(intent.key, await bench.between.look_up(intent.key))
    bench.later(HOUR)
    assert await found(lookout) == {AlarmKind.UNKNOWN_TOO_LONG: [intent.scope]}
    assert bench.kinds(intent).count("observation") == 2  # of the send, and of all the look-ups
    desk = EffectDesk(bench.journal, bench.between, origin=intent.origin)
    await desk.resolve(intent.key, to=EffectState.VOIDED, evidence="the provider's log", by=BY, reason=WHY)
    assert bench.state(intent) is EffectState.VOIDED
    assert await found(lookout) == {}


async def test_what_only_a_person_can_settle_is_an_alarm_until_somebody_has(bench: Bench, lookout: Lookout) -> None:
    """In doubt, late, and left standing: each with its kind, and none of them twice."""
    doubtful, reported, left = (intent_now(scope=f"INC-{name}") for name in ("doubtful", "reported", "left"))
    await in_doubt(bench, doubtful)
    late(bench, reported)
    await bench.attempt(left)
    bench.journal.closed([left.key], "terminated", run_id="run-1")
    bench.later(2 * HOUR)
    assert await found(lookout) == {
        AlarmKind.IN_DOUBT: ["INC-doubtful"],
        AlarmKind.LATE_OBSERVATION: ["INC-reported"],
        AlarmKind.CLOSED_OTHERWISE: ["INC-left"],
    }
    said = {alarm.scope: alarm.said for alarm in (await lookout.look()).alarms}
    assert "terminated" in said["INC-left"]
    desk = EffectDesk(bench.journal, bench.between, origin=left.origin)
    await desk.accept(left.key, by=BY, reason=WHY)
    await desk.accept(reported.key, by=BY, reason=WHY)
    assert await found(lookout) == {AlarmKind.IN_DOUBT: ["INC-doubtful"]}


async def test_a_workflow_that_does_not_take_what_is_settled_is_woken_once_and_then_named(
    bench: Bench, lookout: Lookout, waiting: Waiting
) -> None:
    """E07: whatever its workflow task fails by; what is pending, or another journal's, is not held against it."""
    taken, pending = intent_now(scope="INC-taken"), intent_now(scope="INC-pending")
    await bench.attempt(taken)
    bench.pending(pending)
    waiting.ids = {taken.key: "INC-taken", pending.key: "INC-pending"}
    waiting.keys = [taken.key, pending.key, intent_now(scope="INC-elsewhere").key]
    bench.later(WAKE_AFTER - timedelta(seconds=1))
    assert (await found(lookout), waiting.woken) == ({}, [])
    bench.later(timedelta(seconds=1))
    for _ in range(3):
        assert (await found(lookout), waiting.woken) == ({}, ["wake INC-taken"])
    bench.later(HOUR - WAKE_AFTER)
    assert await found(lookout) == {
        AlarmKind.STUCK_WORKFLOW: ["INC-taken"],
        AlarmKind.UNKNOWN_TOO_LONG: ["INC-pending"],
    }
    stuck = next(alarm for alarm in (await lookout.look()).alarms if alarm.kind is AlarmKind.STUCK_WORKFLOW)
    assert (stuck.workflow_id, stuck.key, stuck.workflow_id in stuck.said) == ("INC-taken", taken.key, True)
    waiting.keys = []
    assert AlarmKind.STUCK_WORKFLOW not in await found(lookout)
    assert waiting.woken == ["wake INC-taken"]


async def test_it_is_the_waiting_workflow_that_is_told_and_named_whoever_sent_the_effect(
    bench: Bench, lookout: Lookout, waiting: Waiting
) -> None:
    """A redo is sent by a workflow of its own, which has ended; the one that waits for it has not."""
    redone = intent_now(generation=2)
    await bench.attempt(replace(redone, workflow_id=f"effect-command-{redone.key}"))
    waiting.keys, waiting.ids = [redone.key], {redone.key: redone.scope}
    bench.later(HOUR)
    (stuck,) = (await lookout.look()).alarms
    assert (stuck.kind, stuck.workflow_id) == (AlarmKind.STUCK_WORKFLOW, redone.scope)
    assert stuck.workflow_id in stuck.said
    assert waiting.woken == [f"wake {redone.scope}"]


async def test_a_workflow_that_has_just_ended_is_no_failure_of_the_look(
    bench: Bench, lookout: Lookout, waiting: Waiting
) -> None:
    """Visibility says so a moment later."""
    intent = intent_now()
    await bench.attempt(intent)
    waiting.keys, waiting.ids, waiting.gone = [intent.key], {intent.key: intent.scope}, True
    bench.later(WAKE_AFTER)
    assert await found(lookout) == {}
    assert waiting.woken == [f"wake {intent.scope}"]


async def test_while_temporal_is_away_the_journal_is_read_all_the_same(
    bench: Bench, lookout: Lookout, waiting: Waiting
) -> None:
    """What was stuck before stays named; that nobody answers is no news of it."""
    stuck, pending = intent_now(scope="INC-stuck"), intent_now(scope="INC-pending")
    await bench.attempt(stuck)
    waiting.keys = [stuck.key]
    bench.later(HOUR)
    assert await found(lookout) == {AlarmKind.STUCK_WORKFLOW: ["INC-stuck"]}
    waiting.away = True
    bench.pending(pending)
    bench.later(HOUR)
    assert await found(lookout) == {
        AlarmKind.STUCK_WORKFLOW: ["INC-stuck"],
        AlarmKind.UNKNOWN_TOO_LONG: ["INC-pending"],
    }


async def test_a_workflow_that_waits_for_a_person_is_not_stuck(
    bench: Bench, lookout: Lookout, waiting: Waiting
) -> None:
    """A late observation on its name: it has nothing to take before somebody has dealt with it."""
    intent = intent_now()
    late(bench, intent)
    waiting.keys = [intent.key]
    bench.later(2 * HOUR)
    assert await found(lookout) == {AlarmKind.LATE_OBSERVATION: [intent.scope]}
    assert waiting.woken == []


async def test_more_than_a_page_of_alarms_is_all_of_them(
    bench: Bench, lookout: Lookout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every page is read, of each kind."""
    monkeypatch.setattr("services.reconciliation.alarms._PAGE", 2)
    for number in range(5):
        bench.pending(intent_now(scope=f"INC-{number}"))
    bench.later(HOUR)
    assert len((await found(lookout))[AlarmKind.UNKNOWN_TOO_LONG]) == 5
