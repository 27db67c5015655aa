"""`effects.settle`: it owns the row, looks up, voids where the rules say so and nowhere else, and sends nothing."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.contracts import Later, SettleRequest, Standing
from activities.effects import EffectActivities
from services.effects.records import Answer, Intent, OutcomeState, Seen, Source
from services.effects.states import EffectState
from tests.activities.bench import Bench, Exchange, instead, intent_now, response_lost
from tests.services.effects.halves import make_mark
from tests.services.inventory.conftest import NOW

INTENT = intent_now()
OTHER = intent_now(request={"lines": [{"sku": "FILTER-A", "quantity": 5}]})


async def settle(bench: Bench, intent: Intent = INTENT, *, given_up: str = "") -> Standing:
    """Settle, inside an activity."""
    activities = EffectActivities(bench.journal, bench.between, "demo")
    request = SettleRequest(intent=intent, given_up=given_up)
    standing: Standing = await ActivityEnvironment().run(activities.settle, request)
    return standing


async def test_without_a_row_settle_makes_one_and_asks_for_the_same_key_again(bench: Bench) -> None:
    """No row is never nothing to do: a delayed attempt may still come, and finds that it is not the first."""
    standing = await settle(bench)
    assert (standing.state, standing.outcome, standing.send_again) == (EffectState.PENDING, None, True)
    assert (bench.row(INTENT).born_by, bench.row(INTENT).attempts) == ("recovery", 0)
    assert bench.wire.requests == ["GET"]
    await bench.attempt(INTENT)
    assert bench.wire.requests == ["GET", "GET", "POST"]


async def test_without_a_row_giving_up_makes_one_and_voids(bench: Bench) -> None:
    """A24: cancelled before the first mark; the attempt that comes afterwards is refused and sends nothing."""
    standing = await settle(bench, given_up="the workflow was cancelled")
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.VOIDED
    assert bench.wire.requests == ["GET", "PUT"]
    assert bench.kinds(INTENT)[:3] == ["decision", "intent", "given_up"]
    late = await bench.attempt(INTENT)
    assert late.outcome == standing.outcome
    assert bench.posts() == 0
    assert bench.caller.available() == 10


async def test_what_was_redone_is_settled_in_its_later_generation(bench: Bench) -> None:
    """G9: whoever gives up the first one is told which one stands, and that one is left as it is."""
    await settle(bench, given_up="the workflow was cancelled")
    decision, _ = bench.journal.record_decision(
        origin="demo", scope=INTENT.scope, name=INTENT.name, decided_at=NOW, body={"by": "ada"}, generation=2
    )
    for given_up in ("", "the workflow was cancelled"):
        standing = await settle(bench, given_up=given_up)
        assert standing.outcome is None
        assert standing.later == Later(generation=2, decided_at=decision.decided_at)


async def test_giving_up_is_journaled_before_the_provider_is_asked(bench: Bench) -> None:
    """A19: while the look-up is under way, no mark can be written any more."""
    bench.pending(INTENT)

    async def mark_meanwhile(exchange: Exchange) -> Answer:
        assert bench.row(INTENT).given_up
        begun = await asyncio.to_thread(bench.journal.mark, INTENT, make_mark("frozen"))
        assert begun.attempt is None
        return await exchange()

    bench.between.look_ups.append(mark_meanwhile)
    standing = await settle(bench, given_up="cancelled")
    assert standing.state is EffectState.VOIDED


async def test_a_receipt_that_is_found_settles_and_nothing_is_closed(bench: Bench) -> None:
    """E16: cancel too late, committed: given up or not, the receipt is the outcome."""
    bench.between.sends.append(response_lost)
    with pytest.raises(Exception, match="ReadTimeout"):
        await bench.attempt(INTENT)
    standing = await settle(bench, given_up="cancelled")
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.COMMITTED
    assert bench.wire.requests == ["POST", "GET"]
    assert bench.caller.available() == 8


async def test_a_held_packet_that_commits_before_the_void_is_the_outcome(bench: Bench) -> None:
    """A27, E38: absent, then it lands, then the void: the void answers the receipt that was first."""
    row = bench.pending(INTENT)
    attempt = bench.journal.attempts(INTENT.key)[0]

    async def lands_first(exchange: Exchange) -> Answer:
        await bench.between._real.send(row, attempt)
        return await exchange()

    bench.between.voids.append(lands_first)
    standing = await settle(bench, given_up="cancelled")
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.COMMITTED
    assert bench.caller.available() == 8


async def test_a_held_packet_that_lands_after_the_void_does_nothing(bench: Bench) -> None:
    """E50, E35: the late reserve meets a closed key; ten are left, and its report agrees."""
    row = bench.pending(INTENT)
    attempt = bench.journal.attempts(INTENT.key)[0]
    standing = await settle(bench, given_up="cancelled")
    late = await bench.between._real.send(row, attempt)
    observed = bench.journal.observe(INTENT.key, late, attempt_id=attempt.attempt_id)
    assert (observed.row.state, observed.settlement.late) == (EffectState.VOIDED, False)
    assert bench.caller.available() == 10
    assert (await settle(bench)).outcome == standing.outcome


async def test_an_absence_within_the_window_never_voids(bench: Bench) -> None:
    """A17: hours of the window are left: the same key again, however often it was asked."""
    bench.pending(INTENT, marks=3)
    for _ in range(3):
        standing = await settle(bench)
        assert standing.send_again
        assert "sent again" in standing.waiting
    bench.later(timedelta(hours=24, minutes=4))
    assert (await settle(bench)).send_again
    assert bench.wire.count()["PUT"] == 0


async def test_the_window_is_over_by_the_providers_clock_and_not_by_ours(bench: Bench) -> None:
    """G17: the absence carries the time that counts; ours says nothing."""
    bench.pending(INTENT)
    late = bench.clock.now + timedelta(hours=24, minutes=5, seconds=1)
    bench.between.look_ups.append(instead(Seen.ABSENT, Source.LOOK_UP, observed_at=late))
    standing = await settle(bench)
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.VOIDED


@pytest.mark.parametrize("seen", [Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED])
async def test_a_refused_request_is_looked_up_and_then_voided(bench: Bench, seen: Seen) -> None:
    """412, 400, 413, 404 reservation-not-found: this delivery did nothing; another try is a redo."""
    bench.between.sends.append(instead(seen))
    await bench.attempt(INTENT)
    standing = await settle(bench)
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.VOIDED
    assert bench.wire.requests == ["GET", "PUT"]


@pytest.mark.parametrize("given_up", ["", "the workflow was cancelled"])
async def test_a_mismatch_never_voids_and_is_told_when_the_row_is_settled(bench: Bench, given_up: str) -> None:
    """A18: another payload's live key is watched, never given up, never closed, and its outcome is not ours."""
    bench.pending(INTENT)
    bench.later(timedelta(hours=30))
    standing = await settle(bench, OTHER, given_up=given_up)
    assert "stands for another payload" in standing.mismatch
    assert (standing.state, standing.send_again, standing.outcome) == (EffectState.PENDING, False, None)
    assert not bench.row(INTENT).given_up
    assert bench.wire.count()["PUT"] == 0
    bench.clock.now -= timedelta(hours=30)
    await bench.attempt(INTENT)
    standing = await settle(bench, OTHER, given_up=given_up)
    assert (standing.state, standing.outcome) == (EffectState.COMMITTED, None)
    assert standing.mismatch


@pytest.mark.parametrize(
    ("where", "seen", "type_name", "pause"),
    [
        ("look_ups", Seen.UNKNOWN, "OutcomeUnknown", None),
        ("look_ups", Seen.BUSY, "HeldBack", 7.0),
        ("look_ups", Seen.CREDENTIALS_REFUSED, "HeldBack", 7.0),
        ("voids", Seen.UNKNOWN, "OutcomeUnknown", None),
        ("voids", Seen.BUSY, "HeldBack", 7.0),
    ],
)
async def test_a_question_without_an_answer_is_asked_again_and_concludes_nothing(
    bench: Bench, where: str, seen: Seen, type_name: str, pause: float | None
) -> None:
    """A lost void is no void: the row stays as it is until the provider says what owns the key."""
    bench.pending(INTENT)
    source = Source.VOID if where == "voids" else Source.LOOK_UP
    getattr(bench.between, where).append(instead(seen, source, retry_after_seconds=pause))
    with pytest.raises(ApplicationError) as raised:
        await settle(bench, given_up="cancelled")
    assert (raised.value.type, raised.value.non_retryable) == (type_name, False)
    assert raised.value.next_retry_delay == (None if pause is None else timedelta(seconds=pause))
    assert bench.state(INTENT) is EffectState.PENDING
    standing = await settle(bench, given_up="cancelled")
    assert standing.state is EffectState.VOIDED


async def test_a_void_whose_answer_was_lost_is_found_by_the_next_look_up(bench: Bench) -> None:
    """The tombstone is a receipt like any other."""
    bench.pending(INTENT)
    bench.between.voids.append(response_lost)
    with pytest.raises(ApplicationError):
        await settle(bench, given_up="cancelled")
    assert (await settle(bench, given_up="cancelled")).state is EffectState.VOIDED
    assert bench.wire.requests == ["GET", "PUT", "GET"]


async def test_an_effect_in_doubt_is_never_voided_and_ends_by_a_receipt(bench: Bench) -> None:
    """An alarm or a dropped receipt: a person decides, or a receipt turns up; giving up closes nothing."""
    bench.between.sends.append(instead(Seen.KEY_EXPIRED))
    await bench.attempt(INTENT)
    standing = await settle(bench, given_up="cancelled")
    assert (standing.state, standing.outcome, standing.send_again) == (EffectState.IN_DOUBT, None, False)
    assert f"counterfoil effects show {INTENT.key}" in standing.waiting
    assert bench.wire.count()["PUT"] == 0
    bench.caller.http.post(
        "/v1/reservations",
        content=INTENT.request.encode(),
        headers={"Idempotency-Key": INTENT.key, "Effect-Not-After": bench.caller.not_after},
    ).raise_for_status()
    assert (await settle(bench)).state is EffectState.COMMITTED


async def test_what_is_answered_is_what_the_row_says_after_its_own_update(bench: Bench) -> None:
    """An absence that is out of date when it is written down: a rival has settled the row."""
    bench.pending(INTENT)

    async def settled_meanwhile(exchange: Exchange) -> Answer:
        answer = await exchange()
        await bench.attempt(INTENT)
        return answer

    bench.between.look_ups.append(settled_meanwhile)
    standing = await settle(bench, given_up="")
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.COMMITTED


async def test_a_settled_row_is_answered_without_asking_anybody(bench: Bench) -> None:
    """Also when it is given up too late."""
    await bench.attempt(INTENT)
    standing = await settle(bench, given_up="cancelled")
    assert standing.outcome is not None
    assert bench.wire.requests == ["POST"]
    assert not bench.row(INTENT).given_up


async def test_another_deployments_intent_is_refused_and_nothing_recorded(bench: Bench) -> None:
    """Origin demo at a worker of staging."""
    activities = EffectActivities(bench.journal, bench.between, "staging")
    with pytest.raises(ApplicationError, match="Nothing was recorded or sent") as raised:
        await ActivityEnvironment().run(activities.settle, SettleRequest(intent=INTENT, given_up="cancelled"))
    assert (raised.value.type, raised.value.non_retryable) == ("OriginMismatch", True)
    assert bench.journal.effect(INTENT.key) is None
    assert bench.wire.requests == []
