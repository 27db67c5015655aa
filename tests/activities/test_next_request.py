"""What is asked next, for each row of the outcome table: the real attempt, settle and journal over a raw wire.

The receipt first; then the same key with the same bytes, or a void; and nothing at all where only a person can go on.
"""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from activities.attempt import REFUSED_PAUSE_SECONDS
from services.effects.records import OutcomeState
from services.effects.states import EffectState
from tests.activities.peer import Script, http, problem
from tests.activities.sending import COMMITTED, INTENT, OK, REJECTED, VOIDED, cut, refused
from tests.activities.story import Story
from tests.activities.test_breaks import (
    BREAKS,
    GOAWAY,
    close_after_the_request,
    end_its_half_after_the_request,
    reset_after_the_request,
)
from tests.services.effects.halves import make_intent, make_receipt

ABSENT = problem(404, "receipt-not-found", observed_at="2026-03-01T12:01:00Z")
ABSENT_LATE = problem(404, "receipt-not-found", observed_at="2026-03-02T12:05:01Z")
TOMBSTONE = http(200, VOIDED)
FOUND = http(200, COMMITTED)
OTHER = make_receipt(make_intent(name="other")).body

UNKNOWN: dict[str, bytes | Script] = {
    **{f"{status}": http(status, b"<html>") for status in (202, 301, 303, 307, 404, 408, 409, 410, 421, 425, 500, 502,
       503, 504)},
    "500 internal": problem(500, "internal"),
    "a problem of another type": problem(409, "made-up"),
    "a 201 that is cut": cut(OK[:-1]),
    "a 201 without its receipt": http(201, {"outcome": "committed"}),
    "a 201 of a pending receipt": http(201, COMMITTED | {"outcome": "pending"}),
    "an HTTP/2 farewell": cut(GOAWAY),
    "closed": close_after_the_request,
    "reset": reset_after_the_request,
    "half closed": end_its_half_after_the_request,
}  # fmt: skip


def _all_alike(story: Story) -> None:
    """Every keyed request is the same request: key, path, deadline and body."""
    first = story.posts[0]
    assert (first.key, first.body) == (INTENT.key, INTENT.request.encode())
    assert {(one.key, one.path, one.body, one.headers["effect-not-after"]) for one in story.posts} == {
        (first.key, first.path, first.body, first.headers["effect-not-after"])
    }


@pytest.mark.parametrize("fault", UNKNOWN.values(), ids=UNKNOWN)
async def test_after_an_unknown_the_receipt_is_asked_for_and_then_the_same_bytes_go_out(
    story: Story, fault: bytes | Script
) -> None:
    """I35, I55, I56: whatever it was, all attempts carry one key and one body, and no second POST comes first."""
    standing = await story.perform(fault, ABSENT, OK)
    assert story.methods == ["POST", "GET", "POST"]
    _all_alike(story)
    assert [error.type for error in story.raised] == ["OutcomeUnknown"]
    assert standing.outcome is not None
    assert standing.outcome.state is OutcomeState.COMMITTED


@pytest.mark.parametrize("fault", [BREAKS["close_after_the_request"], http(500, b""), OK[:-1] + b"?"])
async def test_after_an_unknown_a_receipt_that_is_found_is_the_outcome(story: Story, fault: bytes | Script) -> None:
    """Nothing is sent again."""
    standing = await story.perform(fault, FOUND)
    assert story.methods == ["POST", "GET"]
    assert standing.state is EffectState.COMMITTED


@pytest.mark.parametrize(
    ("owner", "state"), [(TOMBSTONE, EffectState.VOIDED), (FOUND, EffectState.COMMITTED)], ids=["nobody", "the first"]
)
async def test_after_an_unknown_whose_window_has_passed_the_key_is_closed(
    story: Story, owner: bytes, state: EffectState
) -> None:
    """By the provider's clock; what the void answers settles, be it a tombstone or the receipt."""
    story.answers.append(close_after_the_request)
    assert await story.attempt() is None
    story.clock.now += timedelta(hours=24, minutes=6)
    standing = await story.perform(ABSENT_LATE, ABSENT_LATE, owner)
    assert story.methods == ["POST", "GET", "GET", "PUT"]
    assert standing.state is state


@dataclass(frozen=True)
class Held:
    """An answer that asks for a pause."""

    answer: bytes
    seconds: float


HELD = {
    "429": Held(problem(429, "overloaded", "Retry-After: 7"), 7.0),
    "503": Held(problem(503, "overloaded", "Retry-After: 3"), 3.0),
    "409 in progress": Held(problem(409, "request-in-progress", "Retry-After: 1"), 1.0),
    "503 until a date": Held(problem(503, "overloaded", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"), 300.0),
    "401": Held(problem(401, "unauthorized"), REFUSED_PAUSE_SECONDS),
    "403": Held(problem(403, "forbidden"), REFUSED_PAUSE_SECONDS),
}


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
async def test_after_a_pause_that_was_asked_for_the_same_key_goes_out(story: Story, held: Held) -> None:
    """Busy, or refused credentials that somebody mends: Temporal is told how long to wait."""
    standing = await story.perform(held.answer, ABSENT, OK)
    assert story.methods == ["POST", "GET", "POST"]
    _all_alike(story)
    (error,) = story.raised
    assert (error.type, error.next_retry_delay) == ("HeldBack", timedelta(seconds=held.seconds))
    assert standing.state is EffectState.COMMITTED


SETTLES = {
    "201": (OK, EffectState.COMMITTED),
    "200": (http(200, COMMITTED), EffectState.COMMITTED),
    "409 insufficient-stock": (refused("insufficient-stock", REJECTED), EffectState.REJECTED),
    "409 hold-expired": (refused("hold-expired", REJECTED), EffectState.REJECTED),
    "410 key-voided": (refused("key-voided", VOIDED), EffectState.VOIDED),
    "200 of a rejection": (http(200, REJECTED), EffectState.REJECTED),
}


@pytest.mark.parametrize(("answer", "state"), SETTLES.values(), ids=SETTLES)
async def test_after_a_matching_receipt_nothing_is_asked(story: Story, answer: bytes, state: EffectState) -> None:
    """Its outcome settles, whatever status carried it; the next to ask is answered by the journal."""
    standing = await story.perform(answer)
    assert (standing.state, standing.outcome is not None) == (state, True)
    assert (await story.perform()).state is state
    assert story.methods == ["POST"]


HALTS = {
    "another key's receipt": http(201, OTHER),
    "another payload's receipt": http(201, COMMITTED | {"fingerprint": "0" * 64}),
    "other lines": http(201, COMMITTED | {"lines": [{"sku": "HOSE-B", "requested": 2, "granted": 2}]}),
    "fewer units": http(201, COMMITTED | {"lines": [{"sku": "FILTER-A", "requested": 2, "granted": 1}]}),
    "410 key-expired": problem(410, "key-expired"),
    "422": problem(422, "idempotency-key-reused"),
}


@pytest.mark.parametrize("answer", HALTS.values(), ids=HALTS)
async def test_what_contradicts_the_intent_halts_the_effect(story: Story, answer: bytes) -> None:
    """I46: in doubt, with an alarm: the receipt is asked for, nothing is sent or closed, whoever asks and gives up."""
    standing = await story.perform(answer, ABSENT)
    assert story.methods == ["POST", "GET"]
    assert (standing.state, standing.outcome) == (EffectState.IN_DOUBT, None)
    assert f"counterfoil effects show {INTENT.key}" in standing.waiting
    (alarm,) = [
        entry.body["alarm"] for entry in story.journal.entries(INTENT.key)
        if entry.kind == "observation" and entry.body.get("alarm")
    ]  # fmt: skip
    assert alarm
    story.answers.extend([ABSENT, ABSENT_LATE])
    assert await story.attempt() is not None
    given_up = await story.settle(given_up="cancelled")
    assert given_up is not None
    assert (given_up.state, given_up.outcome) == (EffectState.IN_DOUBT, None)
    assert story.methods == ["POST", "GET", "GET", "GET"]


async def test_an_effect_in_doubt_is_settled_by_its_own_receipt_when_that_turns_up(story: Story) -> None:
    """The wrong answer was somebody else's: the look-up finds the right one."""
    standing = await story.perform(HALTS["another key's receipt"], FOUND)
    assert (story.methods, standing.state) == (["POST", "GET"], EffectState.COMMITTED)


CLOSES = {
    "412": problem(412, "not-after-passed"),
    "400": problem(400, "validation-failed"),
    "413": problem(413, "payload-too-large"),
    "404 reservation-not-found": problem(404, "reservation-not-found"),
}


@pytest.mark.parametrize("answer", CLOSES.values(), ids=CLOSES)
async def test_after_a_refusal_of_this_delivery_the_receipt_is_asked_for_and_the_key_closed(
    story: Story, answer: bytes
) -> None:
    """It did nothing; an earlier one is another matter, so the provider says what owns the key."""
    standing = await story.perform(answer, ABSENT, TOMBSTONE)
    assert (story.methods, standing.state) == (["POST", "GET", "PUT"], EffectState.VOIDED)


@pytest.mark.parametrize("answer", CLOSES.values(), ids=CLOSES)
async def test_a_refusal_after_an_unknown_takes_nothing_back(story: Story, answer: bytes) -> None:
    """The first delivery lands between the look-up and the void: its receipt owns the key, and is the outcome."""
    standing = await story.perform(close_after_the_request, ABSENT, answer, ABSENT, FOUND)
    assert (story.methods, standing.state) == (["POST", "GET", "POST", "GET", "PUT"], EffectState.COMMITTED)
    _all_alike(story)


async def test_a_void_that_goes_unheard_is_repeated_and_nothing_is_sent(story: Story) -> None:
    """Unknown, like any other answer: the receipt is asked for again, then the key is closed."""
    standing = await story.perform(CLOSES["400"], ABSENT, close_after_the_request, ABSENT, ABSENT, TOMBSTONE)
    assert story.methods == ["POST", "GET", "PUT", "GET", "GET", "PUT"]
    assert standing.state is EffectState.VOIDED


async def test_a_refused_predecessor_settles_this_generation_and_asks_nothing(story: Story) -> None:
    """409 predecessor-committed: rejected; the former generation has its late observation."""
    second = make_intent(generation=2)
    story.answers.extend([close_after_the_request])
    assert await story.attempt() is None
    story.answers.extend([ABSENT, TOMBSTONE])
    assert await story.settle(given_up="an operator redoes it") is not None
    story.journal.record_decision(
        origin="demo", scope=second.scope, name=second.name, decided_at=second.decided_at, body={"by": "ada"},
        generation=2,
    )  # fmt: skip
    rejected = make_receipt(second, EffectState.REJECTED, reason="predecessor-committed").body
    story.answers.append(refused("predecessor-committed", rejected, predecessor=COMMITTED))
    standing = await story.attempt(second)
    assert standing is not None
    assert standing.state is EffectState.REJECTED
    assert standing.outcome is None  # a person deals with the alarm first
    assert story.row().alarmed
    assert story.posts[-1].headers["effect-supersedes"] == INTENT.key
