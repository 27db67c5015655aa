"""Records: what an intent is made of, what a receipt must say, and that all of it survives Temporal's converter."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.converter import DataConverter

from services.effects import keys
from services.effects.errors import InvalidEffect
from services.effects.records import Effect, Intent, Mark, Outcome, OutcomeState, Receipt, decide, requested
from services.effects.states import TERMINAL, EffectState
from tests.services.effects.halves import DECIDED_AT, make_intent, make_mark, make_receipt, make_release

T = TypeVar("T")
MEMBERS: dict[str, Any] = {
    "origin": "demo",
    "scope": "INC-2041",
    "decided_at": DECIDED_AT,
    "why": {},
    "workflow_id": "INC-2041",
    "workflow_type": "Incident",
    "first_run_id": "run-1",
}
moments = st.datetimes(timezones=st.just(UTC))
names = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=60)


def _through_temporal(value: T, kind: type[T]) -> T:
    converter = DataConverter.default.payload_converter
    back: T = converter.from_payloads(converter.to_payloads([value]), [kind])[0]
    return back


@given(names, moments, st.integers(1, keys.LAST_GENERATION))
def test_an_intent_survives_temporals_converter(name: str, decided_at: datetime, generation: int) -> None:
    """Microseconds, the time zone, tuples and every text come back as they were."""
    intent = make_intent(name=name, decided_at=decided_at, generation=generation)
    back = _through_temporal(intent, Intent)
    assert back == intent
    assert back.key == intent.key
    assert back.decided_at.tzinfo is not None


@given(names, st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers(), max_size=4))
def test_a_mark_survives_temporals_converter(token: str, worker: dict[str, str | int]) -> None:
    """A pid stays a number, a text of digits stays a text."""
    mark = Mark(attempt_id="attempt-1", task_token=token, worker=worker | {"pid": 7, "boot_id": "7"})
    back = _through_temporal(mark, Mark)
    assert back == mark
    assert all(type(value) is type(mark.worker[member]) for member, value in back.worker.items())


@given(st.sampled_from(OutcomeState), moments, st.booleans())
def test_an_outcome_survives_temporals_converter(state: OutcomeState, settled_at: datetime, replayed: bool) -> None:
    """With its receipt, whole."""
    receipt = make_receipt(make_intent(), EffectState.COMMITTED, expires_at=None, stock_versions={"FILTER-A": 4})
    outcome = Outcome(name="n", key="k", state=state, receipt=receipt.body, replayed=replayed, settled_at=settled_at)
    back = _through_temporal(outcome, Outcome)
    assert back == outcome
    assert back.state is state
    assert back.committed == (state is OutcomeState.COMMITTED)
    assert back.reservation_id == "reservation-1"


def test_an_outcome_is_a_replay_for_whoever_asked_after_it_was_settled() -> None:
    """Settled before the question: replayed; settled during it: not."""
    outcome = Outcome(name="n", key="k", state=OutcomeState.VOIDED, receipt={}, replayed=False, settled_at=DECIDED_AT)
    assert not outcome.since(DECIDED_AT).replayed
    assert not outcome.since(DECIDED_AT - timedelta(seconds=1)).replayed
    later = outcome.since(DECIDED_AT + timedelta(microseconds=1))
    assert later == replace(outcome, replayed=True)
    assert later.reservation_id is None


def test_what_nobody_decided_earlier_is_no_replay_whatever_the_clocks_say() -> None:
    """The journal's clock is behind Temporal's: the effect seems to be settled before it was asked for."""
    behind = DECIDED_AT - timedelta(seconds=1)
    outcome = Outcome(
        name="n",
        key="k",
        state=OutcomeState.COMMITTED,
        receipt={},
        replayed=False,
        settled_at=behind,
        decided_at=DECIDED_AT,
    )
    assert not outcome.since(DECIDED_AT).replayed
    assert outcome.since(DECIDED_AT + timedelta(microseconds=1)).replayed
    assert not replace(outcome, settled_at=DECIDED_AT + timedelta(hours=1)).since(DECIDED_AT).replayed


@given(st.integers(1, 10**9), moments)
def test_the_payload_and_the_time_are_never_in_the_key(quantity: int, decided_at: datetime) -> None:
    """Another quantity, another time, the same key; another fingerprint (E13)."""
    asked = make_intent(request={"lines": [{"sku": "FILTER-A", "quantity": quantity}]}, decided_at=decided_at)
    plain = make_intent()
    assert asked.key == plain.key
    assert (asked.fingerprint == plain.fingerprint) == (quantity == 2)


def test_neither_the_run_nor_the_approval_is_in_the_key_or_the_fingerprint() -> None:
    """Another run of another workflow type, approved by somebody else, asks for the same effect (E02, E58)."""
    intent = make_intent()
    again = decide(
        Effect(
            name=intent.name, kind=intent.kind, request={"lines": [{"quantity": 2, "sku": "FILTER-A"}]}, summary="x"
        ),
        **MEMBERS | {"workflow_id": "other", "workflow_type": "Other", "first_run_id": "run-9", "why": {"by": "bob"}},
    )
    assert (again.key, again.fingerprint, again.request) == (intent.key, intent.fingerprint, intent.request)


def test_the_engine_sets_the_reference_and_an_author_may_not() -> None:
    """The reference ties the receipt to scope, name and generation."""
    intent = make_intent(generation=3)
    assert '"reference":"{\\"generation\\":3' in intent.request
    assert len(intent.supersedes) == 2
    with pytest.raises(InvalidEffect, match="reference itself"):
        make_intent(request={"lines": [], "reference": "mine"})


def test_a_kind_without_a_reference_gets_none() -> None:
    """A release's request has no such member."""
    release = make_release()
    assert release.request == "{}"
    assert release.provider == "inventory"


@given(st.integers(1, keys.TEXT_LIMIT), st.integers(1, keys.LAST_GENERATION))
def test_whatever_can_be_taken_can_be_given_back(length: int, generation: int) -> None:
    """A name that is accepted leaves room for the name of its release, in every generation."""
    name = "n" * length
    if length > keys.NAME_LIMIT:
        with pytest.raises(InvalidEffect, match="release"):
            make_intent(name=name, generation=generation)
        return
    make_intent(name=name, generation=generation)
    release = keys.release_name(name, generation)
    assert make_intent(name=release, kind="inventory.release", request={}, path={"id": "r"}).name == release


def test_a_name_shaped_like_a_release_is_kept_for_releases() -> None:
    """A reservation named like a release would make another effect look given back."""
    with pytest.raises(InvalidEffect, match="is no release"):
        make_intent(name="reserve-filter.g1.release")


def test_a_release_under_another_name_is_refused() -> None:
    """What it gives back would still be answered as committed."""
    with pytest.raises(InvalidEffect, match="is a release"):
        make_intent(name="give-back", kind="inventory.release", request={}, path={"id": "reservation-1"})


def test_what_cannot_be_written_down_makes_no_intent() -> None:
    """Refused before anything is recorded."""
    with pytest.raises(InvalidEffect):
        make_intent(request={"lines": [{"sku": "FILTER-A", "quantity": float("nan")}]})
    with pytest.raises(InvalidEffect):
        make_intent(kind="inventory.steal")


@pytest.mark.parametrize("member", ["key", "receipt_id", "created_at", "outcome"])
@pytest.mark.parametrize("value", [None, "", 7])
def test_a_receipt_without_a_member_that_a_conclusion_stands_on_is_none(member: str, value: object) -> None:
    """Missing, empty or of another type."""
    with pytest.raises(ValueError, match=member):
        Receipt(make_receipt(make_intent()).body | {member: value})


@pytest.mark.parametrize("outcome", [state for state in EffectState if state not in TERMINAL] + ["done"])
def test_a_receipt_says_how_it_ended(outcome: str) -> None:
    """A receipt in progress is no receipt."""
    with pytest.raises(ValueError, match=r"outcome|EffectState"):
        Receipt(make_receipt(make_intent()).body | {"outcome": outcome})


@pytest.mark.parametrize("outcome", [EffectState.COMMITTED, EffectState.REJECTED])
def test_what_was_done_or_refused_has_a_fingerprint(outcome: EffectState) -> None:
    """Only a tombstone stands for no payload."""
    with pytest.raises(ValueError, match="fingerprint"):
        make_receipt(make_intent(), outcome, fingerprint=None)
    assert make_receipt(make_intent(), EffectState.VOIDED).fingerprint is None


@pytest.mark.parametrize("value", [2**60, float("nan"), "\ud800"], ids=["2**60", "nan", "surrogate"])
def test_a_receipt_that_cannot_be_journaled_is_none(value: object) -> None:
    """Else it would settle at the provider and never in the journal: every try to record it would fail."""
    with pytest.raises(ValueError, match="canonical"):
        make_receipt(make_intent(), sequence=value)


def test_receipts_are_equal_by_all_their_members() -> None:
    """The same body is the same receipt; equal receipts have one hash."""
    one, other = make_receipt(make_intent()), make_receipt(make_intent())
    assert one == other
    assert hash(one) == hash(other)
    assert one != make_receipt(make_intent(), sequence=2)
    assert one != one.body
    assert repr(one) == f"Receipt(receipt-committed, {one.key}, committed)"


def test_lines_are_summed_per_sku() -> None:
    """A SKU asked for twice counts once, with both quantities."""
    lines = [{"sku": "A", "quantity": 1}, {"sku": "B", "quantity": 2}, {"sku": "A", "quantity": 3}]
    assert requested({"lines": lines}) == {"A": 4, "B": 2}


@pytest.mark.parametrize(
    "lines", [None, {}, ["A"], [{"sku": "A"}], [{"sku": 1, "quantity": 1}], [{"sku": "A", "quantity": True}]]
)
def test_unreadable_lines_have_no_totals(lines: object) -> None:
    """Never a guess: a boolean is no quantity."""
    assert requested({"lines": lines}) is None
    assert make_receipt(make_intent(), lines=lines).totals("granted") is None


def test_records_cannot_be_changed() -> None:
    """Frozen and slotted."""
    mark = make_mark("attempt-1")
    with pytest.raises(AttributeError):
        mark.attempt_id = "attempt-2"  # type: ignore[misc]
    assert not hasattr(mark, "__dict__")
