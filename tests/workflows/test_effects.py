"""`perform` under the real server: one key, never over a pending effect, and what a person sees of it."""

import asyncio
import gc
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.sdk.v1 import WorkflowMetadata
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError

from services.drill.processes import wait_until
from services.effects.keys import derive_key
from services.effects.records import OutcomeState
from services.effects.states import EffectState
from tests.workflows.probes import Asked, Misuse, Probe
from tests.workflows.world import Stage, World, fails_for_good, stage_of, waiting

pytestmark = pytest.mark.temporal

ONE = Asked(names=["reserve-filter"])


async def ended(handle: WorkflowHandle[Any, Any]) -> Any:
    """The result, soon."""
    async with asyncio.timeout(60):
        return await handle.result()


async def failure(handle: WorkflowHandle[Any, Any]) -> BaseException | None:
    """Why it failed, soon."""
    with pytest.raises(WorkflowFailureError) as raised:
        await ended(handle)
    return raised.value.cause


async def scheduled(handle: WorkflowHandle[Any, Any]) -> list[tuple[str, str]]:
    """The activities of a history: id and type."""
    history = await handle.fetch_history()
    found = [event.activity_task_scheduled_event_attributes for event in history.events]
    return [(one.activity_id, one.activity_type.name) for one in found if one.activity_id]


async def test_an_effect_is_one_activity_with_its_key_in_the_history(stage_as_it_is: Stage) -> None:
    """Its scheduled event is the intent; id, summary, time-outs and policy are named."""
    stage = stage_as_it_is
    handle = await stage.start(Probe.run, ONE)
    (outcome,) = await ended(handle)
    key = derive_key("demo", handle.id, "reserve-filter", 1)
    assert (outcome.state, outcome.key, outcome.replayed) == (OutcomeState.COMMITTED, key, False)
    assert await scheduled(handle) == [("reserve-filter#1", "inventory.reserve")]
    history = await handle.fetch_history()
    event = next(event for event in history.events if event.HasField("activity_task_scheduled_event_attributes"))
    assert f"reserve 2 FILTER-A - {key}" in event.user_metadata.summary.data.decode()
    attributes = event.activity_task_scheduled_event_attributes
    assert attributes.retry_policy.maximum_attempts == 0
    assert attributes.start_to_close_timeout.seconds == 12
    assert attributes.heartbeat_timeout.seconds == 1
    assert attributes.schedule_to_close_timeout.seconds == (24 * 60 + 5) * 60
    (intent,) = stage.world.of("inventory.reserve")
    assert (intent.why, intent.scope, intent.workflow_type) == ({"by": "ada", "and": "grace"}, handle.id, "Probe")


async def test_a_scope_once_said_stays(stage: Stage) -> None:
    """A later `act_for` adds to the why and never moves the key."""
    handle = await stage.start(Probe.run, Asked(names=["a"], scope="ORDER-7"))
    (outcome,) = await ended(handle)
    assert outcome.key == derive_key("demo", "ORDER-7", "a", 1)


@pytest.mark.parametrize(
    ("how", "type_name", "says"),
    [
        ("no act_for", "InvalidEffect", "before act_for"),
        ("an unknown kind", "InvalidEffect", "inventory.paint"),
        ("a name without end", "InvalidEffect", "not usable"),
        ("a number beyond JSON", "InvalidEffect", "canonical JSON"),
        ("nothing to release", "InvalidEffect", "nothing to release"),
        ("nothing to confirm", "InvalidEffect", "nothing to confirm"),
        ("a hold of no time", "InvalidEffect", "hold for 0 seconds"),
        ("a hold of over a year", "InvalidEffect", "hold for 31536001 seconds"),
        ("a hold of true", "InvalidEffect", "hold for True seconds"),
    ],
)
async def test_what_cannot_be_keyed_fails_the_workflow_with_the_reason(
    stage: Stage, how: str, type_name: str, says: str
) -> None:
    """Nothing is scheduled, and the workflow fails instead of failing its task for ever."""
    handle = await stage.start(Misuse.run, how)
    cause = await failure(handle)
    assert isinstance(cause, ApplicationError)
    assert (cause.type, cause.non_retryable) == (type_name, True)
    assert says in str(cause)
    assert stage.world.asked == []


async def test_a_name_used_twice_is_refused_by_its_name(stage: Stage) -> None:
    """A16: the second one is not swallowed in silence; the first stands."""
    handle = await stage.start(Probe.run, Asked(names=["reserve-filter", "reserve-filter"]))
    cause = await failure(handle)
    assert isinstance(cause, ApplicationError)
    assert cause.type == "NameUsedTwice"
    assert "'reserve-filter'" in str(cause)
    assert len(stage.world.asked) == 1


async def test_an_activity_that_fails_for_good_is_followed_by_settle_and_the_same_key(stage: Stage) -> None:
    """A17: no void, no end: after the pause, which `wake` ends, the same intent is scheduled again."""
    stage.world.attempts.append(fails_for_good)
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("effects.settle")
    await until_shown(handle, "the test says so")
    await handle.signal(Probe.wake)
    (outcome,) = await ended(handle)
    assert outcome.committed
    first, second = stage.world.of("inventory.reserve")
    assert first == second
    assert [request.given_up for request in stage.world.of("effects.settle")] == [""]
    assert await scheduled(handle) == [
        ("reserve-filter#1", "inventory.reserve"),
        ("reserve-filter#2.settle", "effects.settle"),
        ("reserve-filter#3", "inventory.reserve"),
    ]


async def test_perform_goes_on_when_settling_itself_fails_for_good(stage: Stage) -> None:
    """G7: never over a pending effect, whatever fails, cancelled or not."""
    stage.world.attempts.extend([fails_for_good, fails_for_good])
    stage.world.settles.extend([fails_for_good, fails_for_good])
    handle = await stage.start(Probe.run, ONE)
    await until_shown(handle, "settling failed (WindowPassed")
    await handle.signal(Probe.wake)
    await stage.world.until("effects.settle")
    await stage.world.until("effects.settle")
    await handle.cancel()
    await handle.signal(Probe.wake)
    assert isinstance(await failure(handle), CancelledError)
    assert [outcome.state for outcome in stage.world.outcomes.values()] == [OutcomeState.VOIDED]


async def test_a_wake_that_comes_while_settle_is_under_way_is_not_lost(stage: Stage) -> None:
    """A11: settled by somebody after our look: the pause that would follow is ended before it begins."""
    held = stage.world.hold(lambda request: _as(waiting(request.intent)))
    stage.world.attempts.append(fails_for_good)
    stage.world.settles.append(held)
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("effects.settle")
    await handle.signal(Probe.wake)
    await handle.query(Probe.pending)
    held.let_go.set()
    (outcome,) = await ended(handle)
    assert outcome.committed
    history = await handle.fetch_history()
    assert not [event for event in history.events if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED]


async def test_cancelled_it_gives_up_at_once_beside_the_attempt_and_waits_for_the_outcome(stage: Stage) -> None:
    """A04, E08: settle runs while the attempt still does; the workflow does not end before it has answered."""
    attempt, settling = stage.world.hold(stage.world.commit), stage.world.hold(stage.world.look_up)
    stage.world.attempts.append(attempt)
    stage.world.settles.append(settling)
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("inventory.reserve")
    await handle.cancel()
    await stage.world.until("effects.settle")
    (request,) = stage.world.of("effects.settle")
    assert request.given_up == "the workflow was cancelled"
    (shown,) = await handle.query(Probe.pending)
    assert shown["given_up"] == "the workflow was cancelled"
    assert (await handle.describe()).close_time is None
    settling.let_go.set()
    assert isinstance(await failure(handle), CancelledError)
    attempt.let_go.set()
    assert [outcome.state for outcome in stage.world.outcomes.values()] == [OutcomeState.VOIDED]
    assert await scheduled(handle) == [
        ("reserve-filter#1", "inventory.reserve"),
        ("reserve-filter#2.settle", "effects.settle"),
    ]


async def test_cancelled_over_what_is_committed_it_compensates_under_a_key_of_its_own(stage: Stage) -> None:
    """E16, A27: cancel too late: the cancellation carries the outcome, and the author gives it back."""
    held = stage.world.hold(stage.world.commit)
    stage.world.attempts.append(held)

    async def in_flight_commits(request: Any) -> Any:
        held.let_go.set()
        return stage.world.ends(request.intent, OutcomeState.COMMITTED)

    stage.world.settles.append(in_flight_commits)
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("inventory.reserve")
    await handle.cancel()
    assert isinstance(await failure(handle), CancelledError)
    (released,) = stage.world.of("inventory.release")
    assert (released.name, released.path) == ("reserve-filter.g1.release", {"id": "reservation-1"})
    assert released.key == derive_key("demo", handle.id, "reserve-filter.g1.release", 1)
    journal = await handle.query(Probe.journal)
    assert [line["state"] for line in journal if line["kind"] == "observation"] == ["committed", "committed"]


async def test_a_second_cancel_changes_nothing(stage: Stage) -> None:
    """While it settles, and while it compensates: the release is not given up."""
    settling = stage.world.hold(lambda request: _as(stage.world.ends(request.intent, OutcomeState.COMMITTED)))
    attempt, releasing = stage.world.hold(stage.world.commit), stage.world.hold(stage.world.commit)
    stage.world.attempts.extend([attempt, releasing])
    stage.world.settles.append(settling)
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("inventory.reserve")
    await handle.cancel()
    await stage.world.until("effects.settle")
    await handle.cancel()
    settling.let_go.set()
    await stage.world.until("inventory.release")
    await handle.cancel()
    releasing.let_go.set()
    attempt.let_go.set()
    assert isinstance(await failure(handle), CancelledError)
    assert {outcome.state for outcome in stage.world.outcomes.values()} == {OutcomeState.COMMITTED}
    assert len(stage.world.of("effects.settle")) == 1


async def test_what_may_not_be_sent_again_is_only_asked_about(stage: Stage) -> None:
    """In doubt, it waits for a person: each round is one look at the row, and the history stays small."""
    stage.world.attempts.append(fails_for_good)
    in_doubt = {"state": EffectState.IN_DOUBT, "send_again": False}
    for number in range(3):
        stage.world.settles.append(
            lambda request, number=number: _as(waiting(request.intent, waiting=f"look {number}", **in_doubt))  # type: ignore[misc]
        )
    stage.world.settles.append(lambda request: stage.world.commit(request.intent))
    handle = await stage.start(Probe.run, ONE)
    for number in range(3):
        await until_shown(handle, f"look {number}")
        await handle.signal(Probe.wake)
    (outcome,) = await ended(handle)
    assert outcome.committed
    assert len(stage.world.of("inventory.reserve")) == 1
    assert len(stage.world.of("effects.settle")) == 4


async def test_a_mismatch_ends_with_both_payloads_and_not_before_the_row_is_terminal(stage: Stage) -> None:
    """A18, G3: the other payload's effect is pending: this run waits, then fails; it gives nothing up."""
    stage.world.attempts.extend([fails_for_good, fails_for_good])
    stage.world.settles.append(lambda request: _as(waiting(request.intent, mismatch="A and B", send_again=False)))
    stage.world.settles.append(
        lambda request: _as(waiting(request.intent, mismatch="A and B", state=EffectState.COMMITTED))
    )
    handle = await stage.start(Probe.run, ONE)
    await until_shown(handle, "A and B")
    assert (await handle.describe()).close_time is None
    await handle.signal(Probe.wake)
    cause = await failure(handle)
    assert isinstance(cause, ApplicationError)
    assert (cause.type, str(cause.message)) == ("FingerprintMismatch", "A and B")


async def test_what_is_pending_is_found_by_a_query_and_in_the_memo_and_gone_afterwards(stage: Stage) -> None:
    """State, key, number and since when, by visibility; the memo says it in words; all empty at the end."""
    held = stage.world.hold(stage.world.commit)
    stage.world.attempts.extend([fails_for_good, held])
    handle = await stage.start(Probe.run, ONE)
    await until_shown(handle, "the test says so")
    key = derive_key("demo", handle.id, "reserve-filter", 1)
    query = f"PendingEffects > 0 AND EffectKey = '{key}' AND EffectState = 'pending' AND UnknownSince IS NOT NULL"

    async def found() -> bool:
        return [one.id async for one in stage.client.list_workflows(query)] == [handle.id]

    await wait_until(found, timeout_seconds=60, what="visibility shows it")
    memo = await (await handle.describe()).memo_value("effects")
    assert key in memo
    assert "pending since" in memo
    assert "the test says so" in memo
    await handle.signal(Probe.wake)
    held.let_go.set()
    await ended(handle)
    described = await handle.describe()
    attributes = {pair.key.name: pair.value for pair in described.typed_search_attributes}
    assert attributes.get("PendingEffects") == 0
    assert not attributes.get("EffectKey")
    assert not attributes.get("EffectState")
    assert "UnknownSince" not in attributes
    assert (
        await described.memo_value("effects") == f"- reserve 2 FILTER-A (`{key}`): committed, receipt of reserve-filter"
    )


async def test_the_queries_say_what_they_are_and_show_decisions_intents_and_observations(stage: Stage) -> None:
    """`journal`, `pending`, `effect`: described for the UI; by name or by key."""
    held = stage.world.hold(stage.world.commit)
    stage.world.attempts.append(held)
    handle = await stage.start(Probe.run, ONE)
    await stage.world.until("inventory.reserve")
    key = derive_key("demo", handle.id, "reserve-filter", 1)
    (pending,) = await handle.query(Probe.pending)
    assert pending == await handle.query(Probe.effect, "reserve-filter") == await handle.query(Probe.effect, key)
    assert (pending["state"], pending["key"], pending["request"]["lines"]) == (
        "pending",
        key,
        [{"quantity": 2, "sku": "FILTER-A"}],
    )
    assert await handle.query(Probe.effect, "no such effect") is None
    held.let_go.set()
    await ended(handle)
    assert await handle.query(Probe.pending) == []
    journal = await handle.query(Probe.journal)
    assert [(line["kind"], line["key"]) for line in journal] == [("intent", key), ("observation", key)]
    shown = await handle.query(Probe.effect, key)
    assert shown is not None
    assert (shown["state"], shown["receipt_id"], shown["waiting"]) == (
        "committed",
        "receipt of reserve-filter",
        None,
    )
    metadata = await handle.query("__temporal_workflow_metadata", result_type=WorkflowMetadata)
    described = {one.name: one.description for one in metadata.definition.query_definitions}
    assert all(described[name] for name in ("journal", "pending", "effect"))


async def test_a_hundred_effects_at_once_with_long_words_do_not_kill_the_workflow(client: Client) -> None:
    """A15: keys and memo stay under the server's limits, the number is true, and each of them is performed."""
    quantities = {f"ФИЛЬТР-{number:02d}-" + "Ж" * 50: 2 for number in range(20)}
    asked = Asked(names=[f"reserve-{number:03d}-ü" for number in range(100)], quantities=quantities, together=True)
    async with stage_of(client, max_concurrent_activities=1) as stage:
        held = stage.world.hold(stage.world.commit)
        stage.world.attempts.append(held)
        handle = await stage.start(Probe.run, asked, memo={"input": "0" * 64}, static_summary="x" * 160)
        await stage.world.until("inventory.reserve")
        assert len(await handle.query(Probe.pending)) == 100
        described = await handle.describe()
        attributes = {pair.key.name: pair.value for pair in described.typed_search_attributes}
        assert attributes["PendingEffects"] == 100
        keys = attributes["EffectKey"]
        assert isinstance(keys, list | tuple)
        assert len(keys) == 40
        held.let_go.set()
        assert len(await ended(handle)) == 100
        history = await handle.fetch_history()
    opened = [event for event in history.events if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED]
    shown = [
        event
        for event in history.events
        if event.HasField("upsert_workflow_search_attributes_event_attributes") and event.event_id < opened[-1].event_id
    ]
    assert (len(opened), len(shown)) == (100, 1)


@pytest.mark.parametrize("cached", [0, 100])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_run_can_leave_the_workers_cache_at_any_time(
    client: Client, caplog: pytest.LogCaptureFixture, *, cancelled: bool, cached: int
) -> None:
    """Evicted while it performs or abandons, or dropped by a worker that stops: cleanly, and the next one goes on."""
    stage = Stage(client, World(), f"queue-{uuid4().hex}")
    attempt, settling = stage.world.hold(stage.world.commit), stage.world.hold(stage.world.look_up)
    stage.world.attempts.extend([attempt, attempt])
    stage.world.settles.extend([settling, settling])
    async with stage.worker(max_cached_workflows=cached):
        handle = await stage.start(Probe.run, ONE)
        await stage.world.until("inventory.reserve")
        if cancelled:
            await handle.cancel()
            await stage.world.until("effects.settle")
        await handle.query(Probe.pending)
        attempt.let_go.set()
        settling.let_go.set()
    gc.collect()
    async with stage.worker(max_cached_workflows=0):
        if cancelled:
            assert isinstance(await failure(handle), CancelledError)
        else:
            assert (await ended(handle))[0].committed
    gc.collect()
    said = [one.getMessage() for one in caplog.records if one.name.startswith("temporalio.worker")]
    assert not [one for one in said if "evict" in one.lower() or "event loop" in one]


async def test_the_key_is_the_same_after_a_start_again(stage: Stage) -> None:
    """G2, A12: another run, the same id: the same key, and the first run's outcome is a replay."""
    handle = await stage.start(Probe.run, ONE)
    (first,) = await ended(handle)
    again = await stage.start(Probe.run, ONE, id=handle.id)
    (second,) = await ended(again)
    one, two = stage.world.of("inventory.reserve")
    assert (one.key, one.decided_at < two.decided_at, one.first_run_id != two.first_run_id) == (two.key, True, True)
    assert (first.replayed, second.replayed) == (False, True)


async def until_shown(handle: WorkflowHandle[Any, Any], words: str) -> None:
    """Wait until the workflow says this of something pending."""

    async def shown() -> bool:
        pending = await handle.query(Probe.pending)
        return any(words in one["waiting"] for one in pending)

    await wait_until(shown, timeout_seconds=60, what=f"the workflow shows {words!r}")


async def _as(standing: Any) -> Any:
    return standing
