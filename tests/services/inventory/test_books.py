"""The books, without a database: what a batch of calls comes to, one after the other."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from services.inventory.books import MAX_UNITS, Balance, Books, Entry, Repeated, Reserved, Stored
from services.inventory.contract import Expiry, KeyedCall, Kind, Outcome, ReservationState, VoidCall
from services.inventory.problems import Problem, Refused

KEY, OTHER = "key-0000000000000001-g1", "key-0000000000000002-g1"


def call(key: str = KEY, quantity: int = 2, **changes: Any) -> KeyedCall:
    """A reserve of FILTER-A."""
    reserve = KeyedCall(
        tenant="acme",
        key=key,
        kind=Kind.RESERVE,
        request={"lines": [{"sku": "FILTER-A", "quantity": quantity}]},
        fingerprint=f"{quantity:064x}",
        not_after=datetime(2026, 6, 1, tzinfo=UTC),
        supersedes=(),
        quantities={"FILTER-A": quantity},
    )
    return replace(reserve, **changes)


def books(**balances: int) -> Books:
    """Ten of FILTER-A, unless said otherwise."""
    stock = {"received": 10, "available": 10, "version": 1, "version_before": 1} | balances
    return Books(stock={"FILTER-A": Balance(sku="FILTER-A", **stock)})


def reserved(state: ReservationState = ReservationState.HELD) -> Reserved:
    """Reservation 1 of three units."""
    return Reserved(reservation_id="reservation-1", state=state, quantities={"FILTER-A": 3}, parent_key=KEY)


def made(judgement: object) -> Entry:
    """The entry that a call has made."""
    assert isinstance(judgement, Entry)
    return judgement


def test_calls_of_one_batch_see_each_other() -> None:
    """As if one came after the other: the last units are taken once, and the second call is told what is left."""
    own = books()
    assert made(own.judge(call(quantity=7))).outcome is Outcome.COMMITTED
    short = made(own.judge(call(OTHER, quantity=4)))
    assert (short.reason, short.movements) == (Problem.INSUFFICIENT_STOCK, ())
    assert "3 of 4" in short.detail
    assert [line.granted for line in short.lines] == [0]


def test_a_key_that_comes_twice_in_a_batch_is_one_effect() -> None:
    """The second is the repetition of the first, or reuses its key for something else."""
    own = books()
    first = made(own.judge(call()))
    assert own.judge(call()) == Repeated(known=first)
    assert own.judge(VoidCall(tenant="acme", key=KEY)) == Repeated(known=first)
    reused = own.judge(call(quantity=3))
    assert isinstance(reused, Refused)
    assert reused.problem is Problem.IDEMPOTENCY_KEY_REUSED
    assert own.entries == [first]


def test_a_void_in_a_batch_closes_its_key_for_what_follows() -> None:
    """And loses to what came before."""
    own = books()
    tombstone = made(own.judge(VoidCall(tenant="acme", key=KEY)))
    assert own.judge(call()) == Repeated(known=tombstone)
    assert own.stock["FILTER-A"].available == 10


def test_an_unknown_sku_goes_before_a_short_one_and_exactly_enough_is_enough() -> None:
    """All lines or none."""
    unknown = made(books().judge(call(quantities={"FILTER-A": 11, "HOSE-B": 1})))
    assert unknown.reason is Problem.UNKNOWN_SKU
    assert made(books().judge(call(quantity=10))).outcome is Outcome.COMMITTED


def test_a_redo_meets_a_former_generation_of_its_own_batch() -> None:
    """Committed: refused with it. Absent: closed, and the delayed one that comes after executes nothing."""
    redo = call("key-0000000000000001-g2", supersedes=(KEY,))
    own = books()
    first = made(own.judge(call()))
    assert made(own.judge(redo)).predecessor is first
    own = books()
    assert made(own.judge(redo)).outcome is Outcome.COMMITTED
    late = own.judge(call())
    assert isinstance(late, Repeated)
    assert late.known.outcome is Outcome.VOIDED
    assert [entry.key for entry in own.entries] == [KEY, redo.key]


@pytest.mark.parametrize("kind", [Kind.CONFIRM, Kind.RELEASE])
def test_a_move_refused_for_its_former_generation_names_its_reservation(kind: Kind) -> None:
    """As every refused move does, with the lines that it did not move."""
    own = books(available=7, held=3)
    own.reservations["reservation-1"] = reserved()
    first = made(own.judge(call(OTHER)))
    redo = call(
        "key-0000000000000002-g2", kind=kind, quantities={}, reservation_id="reservation-1", supersedes=(OTHER,)
    )
    refused = made(own.judge(redo))
    assert (refused.reason, refused.predecessor) == (Problem.PREDECESSOR_COMMITTED, first)
    assert refused.reservation is own.reservations["reservation-1"]
    assert [(line.sku, line.requested, line.granted) for line in refused.lines] == [("FILTER-A", 3, 0)]


@pytest.mark.parametrize(
    ("state", "kind", "reason"),
    [
        (ReservationState.HELD, Kind.CONFIRM, None),
        (ReservationState.HELD, Kind.RELEASE, None),
        (ReservationState.CONSUMED, Kind.RELEASE, None),
        (ReservationState.CONSUMED, Kind.CONFIRM, Problem.INVALID_TRANSITION),
        (ReservationState.RELEASED, Kind.CONFIRM, Problem.INVALID_TRANSITION),
        (ReservationState.RELEASED, Kind.RELEASE, Problem.INVALID_TRANSITION),
        (ReservationState.EXPIRED, Kind.CONFIRM, Problem.HOLD_EXPIRED),
        (ReservationState.EXPIRED, Kind.RELEASE, Problem.HOLD_EXPIRED),
    ],
)
def test_a_reservation_moves_on_and_never_back(state: ReservationState, kind: Kind, reason: Problem | None) -> None:
    """Every state with every move; what is refused moves nothing."""
    own = books(available=4, held=3, consumed=3)
    own.reservations["reservation-1"] = reserved(state)
    entry = made(own.judge(call(kind=kind, quantities={}, reservation_id="reservation-1")))
    assert entry.reason == reason
    assert (entry.movements == ()) == (reason is not None)
    balance = own.stock["FILTER-A"]
    assert balance.received == balance.available + balance.held + balance.consumed


def test_what_has_no_reservation_takes_no_key() -> None:
    """404 stores nothing."""
    own = books()
    refused = own.judge(call(kind=Kind.CONFIRM, quantities={}, reservation_id="reservation-9"))
    assert isinstance(refused, Refused)
    assert (refused.problem, own.entries) == (Problem.RESERVATION_NOT_FOUND, [])


def test_a_hold_ends_once() -> None:
    """A second end finds nothing to do."""
    own = books(available=7, held=3)
    own.reservations["reservation-1"] = reserved()
    ending = Expiry(tenant="acme", reservation_id="reservation-1")
    entry = made(own.judge(ending))
    assert (entry.key, own.stock["FILTER-A"].available) == (f"{KEY}@expiry", 10)
    assert isinstance(own.judge(ending), Refused)
    assert own.entries == [entry]


def test_what_retention_has_taken_is_never_executed_or_closed() -> None:
    """410, with what is left: the outcome, and where it was."""
    own = books()
    own.receipts[KEY] = Stored(
        key=KEY, kind=Kind.RESERVE, outcome=Outcome.COMMITTED, fingerprint="0" * 64, http_status=201,
        receipt_id="receipt-7", sequence=7, reservation_id="reservation-1", receipt=None, problem=None,
    )  # fmt: skip
    for use in (call(), call(quantity=3), VoidCall(tenant="acme", key=KEY)):
        refused = own.judge(use)
        assert isinstance(refused, Refused)
        assert refused.problem is Problem.KEY_EXPIRED
        assert refused.members["expired"]["outcome"] == "committed"
    assert own.entries == []


def test_a_delivery_of_more_than_a_sku_can_have_takes_no_key() -> None:
    """Up to there it is committed; what is beyond is refused alone, and closes no former generation."""
    own = books(received=MAX_UNITS - 2, available=MAX_UNITS - 2)
    deliver = replace(call(), kind=Kind.DELIVER, supersedes=(OTHER,))
    refused = own.judge(replace(deliver, quantities={"FILTER-A": 3}))
    assert isinstance(refused, Refused)
    assert (refused.problem, own.entries) == (Problem.VALIDATION_FAILED, [])
    assert made(own.judge(deliver)).outcome is Outcome.COMMITTED
    assert own.stock["FILTER-A"].received == MAX_UNITS


def test_a_delivery_creates_its_sku_for_the_rest_of_the_batch() -> None:
    """Version 1 of what was never there."""
    own = Books(stock={"HOSE-B": Balance(sku="HOSE-B")})
    assert made(own.judge(call(quantities={"HOSE-B": 1}))).reason is Problem.UNKNOWN_SKU
    made(own.judge(call(OTHER, kind=Kind.DELIVER, quantities={"HOSE-B": 5})))
    assert made(own.judge(call(f"{OTHER}-2", quantities={"HOSE-B": 5}))).outcome is Outcome.COMMITTED
    assert own.stock["HOSE-B"].version == 2
