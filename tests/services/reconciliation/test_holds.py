"""Holds in the audit: what expired belongs to its hold, and stands no more; what was confirmed moved once."""

import json
from datetime import timedelta
from typing import Any

import pytest

from services.effects.records import Intent, Receipt
from services.effects.states import EffectState
from services.journal import rows
from services.journal.fold import Snapshot
from services.reconciliation.checker import check
from services.reconciliation.findings import Finding, Rule
from services.reconciliation.ledger import check_ledger
from services.reconciliation.provider_half import Balance, Movement, ProviderHalf
from tests.services.effects.halves import make_intent, make_receipt

HOLD = make_intent(name="hold-filter", request={"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 60})
EXPIRED = f"{HOLD.key}@expiry"
DELIVERY = "delivery-of-ten-units"
CONFIRM = make_intent(name="hold-filter.g1.confirm", kind="inventory.confirm", request={}, path={"id": "reservation-1"})


SIDES = ("received", "available", "held", "consumed")


class Books:
    """A provider's half, receipt by receipt, each with its movement of FILTER-A."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.movements: list[Movement] = []
        self.add(DELIVERY, "inventory.deliver", 10, (1, 1, 0, 0), reservation=None)

    def add(
        self, key: str, kind: str, units: int, move: tuple[int, int, int, int], *, reservation: str | None, **more: Any
    ) -> "Books":
        """A committed receipt and what it moved, for each unit."""
        number = len(self.receipts) + 1
        body = {
            "receipt_id": f"receipt-{number}", "sequence": number, "key": key, "kind": kind, "outcome": "committed",
            "created_at": "2026-03-01T12:00:01Z", "reservation_id": reservation, "request": {}, "fingerprint": "f",
            "lines": [{"sku": "FILTER-A", "requested": units, "granted": units}],
        }  # fmt: skip
        self.receipts.append(Receipt(body | more))
        moved: dict[str, Any] = dict(zip(SIDES, (units * one for one in move), strict=True))
        place: dict[str, Any] = {"sku": "FILTER-A", "version": number, "kind": "move", "reservation_id": reservation}
        self.movements.append(Movement(key=key, receipt_id=f"receipt-{number}", **place, **moved))
        return self

    def hold(self, intent: Intent = HOLD, reservation: str = "reservation-1") -> "Books":
        """Two units held."""
        request = json.loads(intent.request)
        return self.add(
            intent.key, intent.kind, 2, (0, -1, 1, 0), reservation=reservation, request=request,
            fingerprint=intent.fingerprint,
        )  # fmt: skip

    def expire(self, key: str = EXPIRED, reservation: str = "reservation-1") -> "Books":
        """They come back by themselves."""
        return self.add(key, "expiry", 2, (0, 1, -1, 0), reservation=reservation, request=None, fingerprint=None)

    def confirm(self) -> "Books":
        """They are consumed."""
        return self.add(
            CONFIRM.key, CONFIRM.kind, 2, (0, 0, -1, 1), reservation="reservation-1", fingerprint=CONFIRM.fingerprint
        )

    @property
    def half(self) -> ProviderHalf:
        """As the audit reads it."""
        sums = {side: sum(getattr(one, side) for one in self.movements) for side in SIDES}
        return ProviderHalf(
            receipts=tuple(self.receipts),
            covered=len(self.receipts),
            stock={"FILTER-A": Balance(sku="FILTER-A", version=len(self.movements), **sums)},
            ledgers={"FILTER-A": tuple(self.movements)},
        )

    def found(self) -> set[tuple[Rule, str]]:
        """What the audit finds where the journal has nothing."""
        return _named(check(Snapshot(effects=(), entries=()), self.half).findings)

    def wrong(self) -> set[tuple[Rule, str]]:
        """What is wrong in the books themselves."""
        return _named(check_ledger(self.half))


def _named(findings: Any) -> set[tuple[Rule, str]]:
    return {(finding.rule, finding.key) for finding in findings}


@pytest.mark.parametrize(
    "books",
    [Books().hold(), Books().hold().expire(), Books().hold().confirm()],
    ids=["held", "expired", "confirmed"],
)
def test_a_hold_its_expiry_and_its_confirmation_are_right_in_the_books(books: Books) -> None:
    """Held, then back or consumed: each moves what it says."""
    assert books.wrong() == set()


def test_an_expiry_belongs_to_its_hold_and_is_no_orphan_of_its_own() -> None:
    """The hold has no row here, and that is said once, of the hold; an expiry of nothing is an orphan."""
    assert Books().hold().expire().found() == {(Rule.ORPHAN, HOLD.key)}
    assert Books().hold().expire("nobodys-hold-of-16@expiry").found() == {
        (Rule.ORPHAN, HOLD.key),
        (Rule.ORPHAN, "nobodys-hold-of-16@expiry"),
    }


def test_a_confirmation_that_the_journal_has_lost_is_known_for_ours() -> None:
    """It has no reference: what made the reservation says whose it is."""
    assert check(Snapshot(effects=(), entries=()), Books().hold().confirm().half, origin="demo").lost == 2


def test_what_moves_otherwise_than_its_kind_says_is_found() -> None:
    """A hold that consumes, a reserve that holds, a confirmation that takes more from stock, an expiry that adds."""
    consumed = Books().add(
        HOLD.key, HOLD.kind, 2, (0, -1, 0, 1), reservation="reservation-1", request={"hold_seconds": 60}
    )
    assert consumed.wrong() == {(Rule.MOVEMENT, HOLD.key)}
    held = Books().add(HOLD.key, HOLD.kind, 2, (0, -1, 1, 0), reservation="reservation-1")
    assert held.wrong() == {(Rule.MOVEMENT, HOLD.key)}
    again = Books().hold().add(CONFIRM.key, CONFIRM.kind, 2, (0, -1, 0, 1), reservation="reservation-1")
    assert (Rule.MOVEMENT, CONFIRM.key) in again.wrong()
    added = Books().hold().add(EXPIRED, "expiry", 2, (1, 1, 0, 0), reservation="reservation-1")
    assert (Rule.MOVEMENT, EXPIRED) in added.wrong()


def test_a_hold_that_ends_twice_is_doubled() -> None:
    """I23: expired and confirmed all the same, out of what somebody else holds; or expired twice."""
    other = make_intent(scope="INC-2042", request={"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 60})
    late = Books().hold().expire().hold(other, "reservation-2").confirm()
    assert late.wrong() == {(Rule.DOUBLED, CONFIRM.key)}
    twice = Books().hold().expire().hold(other, "reservation-2").expire("again-and-again-1@expiry")
    assert twice.wrong() == {(Rule.DOUBLED, "again-and-again-1@expiry")}


def test_a_redo_of_a_hold_that_expired_stands_alone(committed_twice: Snapshot) -> None:
    """Two generations are committed: doubled while the first one is held, and right once it has expired."""
    second = make_intent(name="hold-filter", generation=2)
    books = Books().hold()
    assert (Rule.DOUBLED, second.key) in _named(check(committed_twice, books.half).findings)
    assert Rule.DOUBLED not in {rule for rule, _ in _named(check(committed_twice, books.expire().half).findings)}


@pytest.fixture
def committed_twice() -> Snapshot:
    """A journal in which two generations of one hold are committed, as rows alone."""
    effects = []
    for generation in (1, 2):
        request = {"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 60}
        effects.append(_values(make_intent(name="hold-filter", generation=generation, request=request)))
    return Snapshot(effects=tuple(effects), entries=())


def _values(intent: Intent) -> dict[str, Any]:
    values = rows.complete(rows.new_effect(intent, born_by="attempt", created_at=intent.decided_at))
    receipt = make_receipt(intent, EffectState.COMMITTED)
    settled_at = intent.decided_at + timedelta(seconds=1)
    return values | {"state": "committed", "settled_at": settled_at, "receipt": rows.text(receipt.body)}


def test_a_finding_reads_as_words() -> None:
    """An expiry that is an orphan says what it is."""
    (finding, *_) = [
        one for one in check(Snapshot(effects=(), entries=()), Books().expire().half).findings if one.key == EXPIRED
    ]
    assert isinstance(finding, Finding)
    assert "reservation-1" in finding.provider
