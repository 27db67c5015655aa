"""One attempt of an effect: what goes out, what is asked first, and what the journal keeps."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from activities.attempt import LEAST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, REFUSED_PAUSE_SECONDS, least_pause
from activities.contracts import Later
from services.effects.errors import FingerprintMismatch, HeldBack, NotSent, OutcomeUnknown, Retryable
from services.effects.records import Answer, Intent, Mark, OutcomeState, Seen, Source
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal
from services.journal.store import Begun
from services.reconciliation.recovery import recover
from tests.activities.bench import Bench, Exchange, instead, intent_now, response_lost
from tests.services.effects.halves import LINES, make_release
from tests.services.inventory.conftest import NOW

INTENT = intent_now()


async def test_the_first_mark_sends_at_once(bench: Bench) -> None:
    """A new key: one POST, no look-up; decision, intent, attempt and observation in the journal."""
    standing = await bench.attempt(INTENT)
    assert bench.wire.requests == ["POST"]
    assert bench.wire.bodies == [INTENT.request.encode()]
    assert bench.kinds(INTENT) == ["decision", "intent", "attempt", "observation"]
    assert standing.outcome is not None
    assert (standing.outcome.state, standing.outcome.reservation_id) == (OutcomeState.COMMITTED, "reservation-1")
    assert bench.caller.available() == 8


async def test_when_its_first_byte_leaves_an_attempts_mark_is_committed(bench: Bench) -> None:
    """G1: another connection reads decision, intent and this attempt's own mark, the first time and the next."""
    read: list[tuple[list[str], list[int]]] = []

    async def reads(_exchange: Exchange) -> Answer:
        marks = await asyncio.to_thread(bench.journal.attempts, INTENT.key)
        read.append((bench.kinds(INTENT), [mark.number for mark in marks]))
        return Answer(seen=Seen.UNKNOWN, source=Source.SEND, reason="ReadTimeout")

    for _ in range(2):
        bench.between.sends.append(reads)
        with pytest.raises(OutcomeUnknown):
            await bench.attempt(INTENT)
    assert read[0] == (["decision", "intent", "attempt"], [1])
    assert read[1][1] == [1, 2]


async def test_a_settled_key_is_answered_by_the_journal(bench: Bench) -> None:
    """Nothing goes out, and the outcome is the first one's."""
    first = await bench.attempt(INTENT)
    again = await bench.attempt(INTENT)
    assert again == first
    assert bench.wire.requests == ["POST"]


async def test_a_mark_that_exists_means_a_look_up_first_and_found_nothing_is_sent(bench: Bench) -> None:
    """E05, E10: the first answer was lost; the second attempt finds the receipt."""
    bench.between.sends.append(response_lost)
    with pytest.raises(OutcomeUnknown, match=r"ReadTimeout.*looked up next"):
        await bench.attempt(INTENT)
    assert bench.state(INTENT) is EffectState.PENDING
    standing = await bench.attempt(INTENT)
    assert bench.wire.requests == ["POST", "GET"]
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.COMMITTED
    assert bench.caller.available() == 8
    assert bench.row(INTENT).attempts == 1


async def test_after_an_absence_the_same_bytes_go_out_under_the_next_mark(bench: Bench) -> None:
    """A worker that died before its first byte; the second mark's number says that it is another send."""
    bench.pending(INTENT)
    standing = await bench.attempt(INTENT)
    assert bench.wire.requests == ["GET", "POST"]
    assert bench.wire.bodies == [INTENT.request.encode()]
    assert standing.outcome is not None
    assert [mark.number for mark in bench.journal.attempts(INTENT.key)] == [1, 2]
    assert bench.caller.available() == 8


async def test_what_is_sent_again_is_the_rows_text_and_not_the_new_builds(bench: Bench) -> None:
    """Another build writes the same payload in another order: the journaled bytes go out."""
    bench.pending(INTENT)
    spelled = replace(INTENT, request=INTENT.request.replace(",", ", "))
    await bench.attempt(spelled)
    assert bench.wire.bodies == [INTENT.request.encode()]


async def test_a_row_that_recovery_made_is_looked_up_before_its_first_mark(bench: Bench) -> None:
    """G4: no mark, but the row was there: marks may have been lost with an older copy."""
    bench.journal.own(INTENT)
    await bench.attempt(INTENT)
    assert bench.wire.requests == ["GET", "POST"]


async def test_a_look_up_that_goes_unanswered_sends_nothing(bench: Bench) -> None:
    """Nobody knows: so nothing is sent, and the attempt is tried again."""
    bench.pending(INTENT)
    bench.between.look_ups.append(instead(Seen.UNKNOWN, Source.LOOK_UP))
    with pytest.raises(OutcomeUnknown):
        await bench.attempt(INTENT)
    assert (bench.wire.requests, bench.row(INTENT).attempts) == ([], 1)


@pytest.mark.parametrize(
    ("seen", "pause", "error", "waits"),
    [
        (Seen.UNKNOWN, None, OutcomeUnknown, None),
        (Seen.NOT_SENT, None, NotSent, None),
        (Seen.BUSY, 7.0, HeldBack, 7.0),
        (Seen.BUSY, None, HeldBack, LEAST_PAUSE_SECONDS),
        (Seen.BUSY, 0.0, HeldBack, LEAST_PAUSE_SECONDS),
        (Seen.CREDENTIALS_REFUSED, None, HeldBack, REFUSED_PAUSE_SECONDS),
        (Seen.CREDENTIALS_REFUSED, 60.0, HeldBack, 60.0),
    ],
)
async def test_an_answer_that_is_no_conclusion_asks_for_another_try(
    bench: Bench, seen: Seen, pause: float | None, error: type[Retryable], waits: float | None
) -> None:
    """Typed, with the pause that the provider asked for, and the row stays pending with what was seen."""
    bench.between.sends.append(instead(seen, retry_after_seconds=pause))
    with pytest.raises(error) as raised:
        await bench.attempt(INTENT)
    assert getattr(raised.value, "retry_after_seconds", None) == waits
    assert bench.state(INTENT) is EffectState.PENDING
    assert [mark.seen for mark in bench.journal.attempts(INTENT.key)] == [seen]
    standing = await bench.attempt(INTENT)
    assert bench.wire.requests == ["GET", "POST"]
    assert standing.outcome is not None


async def test_a_provider_that_is_busy_all_day_leaves_room_in_the_journal(bench: Bench) -> None:
    """G14: each mark of a key makes its next one dearer; so the pauses grow, and others can write."""
    bench.pending(INTENT, marks=30)
    bench.between.sends.append(instead(Seen.BUSY, retry_after_seconds=1.0))
    with pytest.raises(HeldBack) as raised:
        await bench.attempt(INTENT)
    assert raised.value.retry_after_seconds == LONGEST_PAUSE_SECONDS
    day, marks = timedelta(days=1).total_seconds(), 0
    while day > 0:
        marks += 1
        day -= least_pause(marks)
    assert marks < 1500


@pytest.mark.parametrize("seen", [Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED])
async def test_a_refusal_ends_the_attempt_without_an_outcome(bench: Bench, seen: Seen) -> None:
    """The next step is a look-up and then a void, which `effects.settle` does; an attempt never sends again."""
    bench.between.sends.append(instead(seen))
    standing = await bench.attempt(INTENT)
    assert (standing.outcome, standing.state) == (None, EffectState.PENDING)
    again = await bench.attempt(INTENT)
    assert again.outcome is None
    assert bench.posts() == 0


async def test_a_reused_key_is_in_doubt_and_never_sent_again(bench: Bench) -> None:
    """422: both payloads are on record; a person decides."""
    other = intent_now(request={"lines": [{"sku": "FILTER-A", "quantity": 5}]})
    bench.caller.http.post(
        "/v1/reservations",
        content=other.request.encode(),
        headers={"Idempotency-Key": other.key, "Effect-Not-After": bench.caller.not_after},
    ).raise_for_status()
    standing = await bench.attempt(INTENT)
    assert (standing.state, standing.outcome) == (EffectState.IN_DOUBT, None)
    assert f"counterfoil effects show {INTENT.key}" in standing.waiting
    again = await bench.attempt(INTENT)
    assert (again.state, bench.posts()) == (EffectState.IN_DOUBT, 1)
    assert bench.caller.available() == 5


async def test_another_payload_under_the_key_is_refused_with_both_shown(bench: Bench) -> None:
    """G3: loudly, before anything is asked or sent, and the first one's row is as it was."""
    bench.pending(INTENT)
    before = bench.row(INTENT)
    with pytest.raises(FingerprintMismatch) as raised:
        await bench.attempt(intent_now(request={"lines": [{"sku": "FILTER-A", "quantity": 5}]}))
    assert '"quantity":2' in str(raised.value)
    assert '"quantity":5' in str(raised.value)
    assert (bench.row(INTENT), bench.wire.requests) == (before, [])


async def test_after_giving_up_a_delayed_attempt_sends_nothing(bench: Bench) -> None:
    """A19, A24: the row was inserted by the giving up, before any mark."""
    bench.journal.give_up(INTENT, why="cancelled")
    standing = await bench.attempt(INTENT)
    assert (standing.outcome, bench.posts(), bench.row(INTENT).attempts) == (None, 0, 0)


async def test_giving_up_between_the_look_up_and_the_mark_forbids_the_mark(bench: Bench) -> None:
    """The mark's own transaction looks again, under the row's lock."""
    bench.pending(INTENT)

    class GivenUpMeanwhile(OperatorJournal):
        def mark(self, intent: Intent, mark: Mark) -> Begun:
            self.give_up(intent, why="cancelled")
            return super().mark(intent, mark)

    bench.journal = GivenUpMeanwhile(bench.engine, recorded_by="bench", clock=bench.clock)
    standing = await bench.attempt(INTENT)
    assert "it has been given up" in standing.waiting
    assert (bench.posts(), bench.row(INTENT).attempts) == (0, 1)


async def test_a_mark_that_comes_after_the_settlement_is_refused_and_the_row_answered(bench: Bench) -> None:
    """A23: a zombie between its look-up and its mark; the successor has committed meanwhile."""
    bench.pending(INTENT)

    async def settled_meanwhile(exchange: Exchange) -> Answer:
        answer = await exchange()
        bench.between.look_ups.clear()
        await bench.attempt(INTENT)
        return answer

    bench.between.look_ups.append(settled_meanwhile)
    standing = await bench.attempt(INTENT)
    assert standing.outcome is not None
    assert (bench.posts(), bench.row(INTENT).attempts) == (1, 2)


async def test_a_later_generation_forbids_another_mark_of_the_former(bench: Bench) -> None:
    """G1: a redo has been decided: the former generation is looked up, never sent again."""
    bench.pending(INTENT)
    bench.journal.record_decision(
        origin="demo", scope=INTENT.scope, name=INTENT.name, decided_at=NOW, body={"by": "ada"}, generation=2
    )
    standing = await bench.attempt(INTENT)
    assert "a later generation has been decided" in standing.waiting
    assert bench.posts() == 0


async def test_what_was_redone_is_answered_by_its_later_generation(bench: Bench) -> None:
    """G9: whoever asks for the first one again is told which one stands, and sends nothing for it."""
    bench.pending(INTENT)
    bench.journal.give_up(INTENT, why="the test says so")
    await recover(bench.journal, bench.between, bench.row(INTENT))
    decision, _ = bench.journal.record_decision(
        origin="demo", scope=INTENT.scope, name=INTENT.name, decided_at=NOW, body={"by": "ada"}, generation=2
    )
    standing = await bench.attempt(INTENT)
    assert standing.outcome is None
    assert standing.later == Later(generation=2, decided_at=decision.decided_at)
    assert bench.posts() == 0


async def test_past_the_window_nothing_is_sent_and_nothing_is_voided_by_the_attempt(bench: Bench) -> None:
    """By the provider's clock, margin included; closing the key is `effects.settle`'s and the sweep's."""
    bench.pending(INTENT)
    bench.later(timedelta(hours=24, minutes=5, seconds=1))
    standing = await bench.attempt(INTENT)
    assert standing.outcome is None
    assert (bench.wire.requests, bench.state(INTENT)) == (["GET"], EffectState.PENDING)


async def test_within_the_margin_nothing_is_marked_or_sent(bench: Bench) -> None:
    """The window is over by our clock and not yet by the provider's with its margin: the wait goes on."""
    bench.pending(INTENT)
    marks = bench.journal.attempts(INTENT.key)
    bench.later(timedelta(hours=24, minutes=1))
    standing = await bench.attempt(INTENT)
    assert (standing.outcome, standing.state) == (None, EffectState.PENDING)
    assert "its send window is over" in standing.waiting
    assert bench.journal.attempts(INTENT.key) == marks
    assert (bench.wire.requests, bench.caller.available()) == (["GET"], 10)


async def test_a_start_again_never_extends_the_window(bench: Bench) -> None:
    """A01, G17: a later history's decided_at changes nothing; an earlier one lowers the row's."""
    bench.pending(INTENT)
    await bench.attempt(replace(INTENT, decided_at=NOW + timedelta(hours=20)))
    assert bench.row(INTENT).decided_at == NOW
    assert [mark.not_after for mark in bench.journal.attempts(INTENT.key)] == [NOW + timedelta(hours=24)] * 2
    assert bench.wire.deadlines == ["2026-06-02T12:00:00.000000Z"]


async def test_an_earlier_history_shortens_what_is_sent_and_not_what_was_marked(bench: Bench) -> None:
    """G17: the packet carries its own mark's deadline; what is concluded from it waits for the latest ever marked."""
    bench.pending(INTENT)
    await bench.attempt(replace(INTENT, decided_at=NOW - timedelta(hours=20)))
    assert bench.wire.deadlines == ["2026-06-01T16:00:00.000000Z"]
    assert bench.row(INTENT).deadline == NOW + timedelta(hours=24)


async def test_two_attempts_at_once_do_it_once(bench: Bench) -> None:
    """E11: two hosts, one key: one mark is the first, the other looks up; one effect, one receipt for both."""
    both = await asyncio.gather(
        *(bench.attempt(INTENT, token) for token in ("task-1", "task-2")), return_exceptions=True
    )
    answered = [one for one in both if not isinstance(one, BaseException)]
    assert answered
    assert bench.caller.available() == 8
    assert bench.state(INTENT) is EffectState.COMMITTED


async def test_a_rejection_is_the_outcome(bench: Bench) -> None:
    """E41: refused for good under its key, also after a restock."""
    intent = intent_now(request={"lines": [{"sku": "FILTER-A", "quantity": 11}]})
    standing = await bench.attempt(intent)
    assert standing.outcome is not None
    assert (standing.outcome.state, standing.outcome.receipt["reason"]) == (OutcomeState.REJECTED, "insufficient-stock")
    bench.caller.deliver(10)
    assert await bench.attempt(intent) == standing


async def test_an_effect_whose_release_is_under_way_has_no_outcome_yet(bench: Bench) -> None:
    """A26: then it answers released."""
    await bench.attempt(INTENT)
    release = replace(make_release(), decided_at=NOW)
    bench.pending(release)
    assert (await bench.attempt(INTENT)).outcome is None
    assert (await bench.attempt(release)).outcome is not None
    standing = await bench.attempt(INTENT)
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.RELEASED
    assert bench.caller.available() == 10


async def test_no_transaction_is_open_across_a_send(bench: Bench) -> None:
    """G18: while the request is under way another process may write the journal."""

    async def writes_meanwhile(exchange: Exchange) -> Answer:
        assert bench.engine.pool.checkedout() == 0  # type: ignore[attr-defined]
        await asyncio.to_thread(bench.journal.own, intent_now(name="another"))
        return await exchange()

    bench.between.sends.append(writes_meanwhile)
    assert (await bench.attempt(INTENT)).outcome is not None


@pytest.mark.parametrize("change", ["kind", "path", "request"])
async def test_a_second_payload_is_refused_whatever_differs(bench: Bench, change: str) -> None:
    """Kind, path and request are all of the payload."""
    bench.pending(INTENT)
    others = {
        "kind": replace(INTENT, kind="inventory.deliver"),
        "path": replace(INTENT, path={"id": "reservation-9"}),
        "request": intent_now(request={"lines": [*LINES, *LINES]}),
    }
    with pytest.raises(FingerprintMismatch):
        await bench.attempt(others[change])
    assert bench.posts() == 0


async def test_the_mark_says_who_sends(bench: Bench) -> None:
    """Host, boot, pid and start time; and the task token by which a dead attempt can be failed."""
    await bench.attempt(INTENT, "task-42")
    body = next(entry.body for entry in bench.journal.entries(INTENT.key) if entry.kind == "attempt")
    assert body["worker"] == bench.worker
    assert body["task_token"] == "task-42"  # noqa: S105
    assert body["not_after"] == "2026-06-02T12:00:00.000000Z"
    assert Mark(attempt_id=body["attempt_id"], task_token="", worker={}).attempt_id
