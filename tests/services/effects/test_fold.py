"""The fold over attempts: what one attempt left unknown, no later one takes back."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from services.effects.records import Answer, Attempt, Seen, Source
from services.effects.settle import DID_NOTHING, AttemptClass, Next, fold, settle
from services.effects.states import EffectState
from tests.services.effects.halves import DECIDED_AT, WINDOW, make_intent, make_receipt, make_row, shows

INTENT = make_intent()
ROW = make_row(INTENT)
SEEN = st.none() | st.sampled_from(Seen)
NOTHING = st.sampled_from(sorted(DID_NOTHING))
PERHAPS = st.none() | st.sampled_from(sorted(set(Seen) - DID_NOTHING))


def attempts(seen: list[Seen | None]) -> tuple[Attempt, ...]:
    """Attempts of which this was seen, in order."""
    return tuple(
        Attempt(attempt_id=f"attempt-{number}", number=number, not_after=DECIDED_AT + WINDOW, marked_at=DECIDED_AT,
                worker={}, seen=one)
        for number, one in enumerate(seen, start=1)
    )  # fmt: skip


@given(st.lists(SEEN, max_size=4), PERHAPS, st.lists(SEEN, max_size=6))
def test_nothing_that_comes_before_or_after_takes_an_unknown_back(
    before: list[Seen | None], unknown: Seen | None, later: list[Seen | None]
) -> None:
    """No not-sent, busy, 401, 412 or 400, however many: the first delivery may still have been taken."""
    assert fold(attempts([*before, unknown, *later])) is AttemptClass.UNKNOWN


@given(st.lists(NOTHING, min_size=1, max_size=6))
def test_only_when_every_attempt_did_nothing_is_nothing_done(seen: list[Seen | None]) -> None:
    """And an attempt that nobody has heard of is not one of those."""
    assert fold(attempts(seen)) is AttemptClass.NOTHING_DONE
    assert fold(attempts([*seen, None])) is AttemptClass.UNKNOWN
    assert fold(()) is AttemptClass.UNKNOWN


@given(st.lists(SEEN, max_size=6), st.randoms())
def test_the_order_of_attempts_says_nothing(seen: list[Seen | None], random: object) -> None:
    """A successor's answer may come before its predecessor's."""
    mixed = list(seen)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert fold(attempts(mixed)) is fold(attempts(seen))


@given(st.lists(SEEN, max_size=4), PERHAPS, st.lists(NOTHING, max_size=4), NOTHING, st.sampled_from(Source))
def test_a_delivery_that_did_nothing_ends_no_effect_and_closes_no_key(
    before: list[Seen | None], unknown: Seen | None, later: list[Seen | None], now: Seen, source: Source
) -> None:
    """Whatever it says of itself, the effect stays pending and unknown, and the receipt is asked for."""
    known = attempts([*before, unknown, *later, now])
    settlement = settle(ROW, known, Answer(seen=now, source=source))
    assert (settlement.state, settlement.next) == (EffectState.PENDING, Next.LOOK_UP)
    assert settlement.attempt_class is AttemptClass.UNKNOWN


@given(st.lists(SEEN, max_size=6), st.sampled_from([EffectState.COMMITTED, EffectState.REJECTED, EffectState.VOIDED]))
def test_only_the_receipt_ends_it_whatever_was_seen_of_the_attempts(
    seen: list[Seen | None], outcome: EffectState
) -> None:
    """The class of the attempts is for people; what settles is the provider's word on the key."""
    assert settle(ROW, attempts(seen), shows(make_receipt(INTENT, outcome))).state is outcome
    late = Answer(seen=Seen.ABSENT, source=Source.LOOK_UP, observed_at=DECIDED_AT + WINDOW + timedelta(hours=1))
    absent = settle(replace(ROW, given_up=True), attempts(seen), late)
    assert (absent.state, absent.next) == (EffectState.PENDING, Next.VOID)
