"""The timeline of one effect: both halves in one order, by hand-made halves."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from services.cli.timeline import Moment, note, timeline
from services.effects.records import Receipt
from services.journal.rows import Entry, timestamp
from tests.services.effects.halves import DECIDED_AT, make_intent, make_receipt

INTENT = make_intent()
WORKER = {"host": "worker-1", "pid": 7}


def at(seconds: float) -> datetime:
    """So long after the decision."""
    return DECIDED_AT + timedelta(seconds=seconds)


def entry(id_: int, kind: str, seconds: float, **body: Any) -> Entry:
    """A line of the journal."""
    return Entry(id=id_, key=INTENT.key, kind=kind, body=body, recorded_at=at(seconds), recorded_by="test", digest="")


def marked(number: int, seconds: float) -> Entry:
    """An attempt's mark."""
    told = {"attempt_id": f"a{number}", "number": number, "worker": WORKER, "not_after": timestamp(at(60))}
    return entry(number * 2, "attempt", seconds, **told)


def receipt(seconds: float) -> Receipt:
    """The inventory's half."""
    return Receipt(make_receipt(INTENT).body | {"created_at": timestamp(at(seconds))})


def order(told: tuple[Moment, ...]) -> list[tuple[str, int | None]]:
    """What, and which entry."""
    return [(one.kind, one.entry) for one in told]


def test_a_receipt_stands_between_the_mark_and_what_was_learned_of_it() -> None:
    """Sent, done there, answer lost, looked up: as it went."""
    entries = [
        marked(1, 1),
        entry(3, "observation", 4, source="send", seen="unknown", state="pending", attempt_id="a1"),
        entry(4, "observation", 9, source="look_up", seen="receipt", state="committed"),
    ]
    told = timeline(entries, receipt(2), None)
    assert order(told) == [("attempt", 2), ("receipt", None), ("observation", 3), ("observation", 4)]
    assert [one.attempt for one in told] == [1, None, 1, None]
    assert told[2].says.startswith("of attempt 1: send: unknown")
    assert told[1].half == "inventory"


def test_an_attempt_that_nobody_heard_of_says_so() -> None:
    """Its worker died; the next one was answered."""
    answered = entry(5, "observation", 8, source="send", seen="receipt", state="committed", attempt_id="a2")
    first, second, _ = timeline([marked(1, 1), marked(2, 7), answered], None, None)
    assert first.says.endswith("; no answer was recorded")
    assert not second.says.endswith("; no answer was recorded")


def test_entries_keep_their_order_whatever_the_clock_said() -> None:
    """The journal's clock was put back between two of them."""
    told = timeline([marked(1, 9), marked(2, 3)], receipt(1), None)
    assert order(told) == [("receipt", None), ("attempt", 2), ("attempt", 4)]


def test_the_end_of_a_hold_is_told_by_the_inventorys_clock() -> None:
    """Confirmed, and later given back; and what is still held has its end before it."""
    ends = {"confirmed_at": timestamp(at(5)), "confirm_receipt_id": "receipt-5", "state": "released"}
    ends |= {"released_at": timestamp(at(7)), "release_receipt_id": "receipt-7", "expires_at": timestamp(at(900))}
    told = timeline([marked(1, 1)], receipt(2), ends)
    assert [one.kind for one in told] == ["attempt", "receipt", "confirmed", "released"]
    assert "receipt-7" in told[-1].says
    held = timeline([], receipt(2), {"state": "held", "expires_at": timestamp(at(900))})
    assert [(one.kind, one.at) for one in held] == [("receipt", at(2)), ("hold_ends", at(900))]


@pytest.mark.parametrize(
    ("reservation", "words"),
    [
        ({"state": "expired", "expired_at": timestamp(at(900))}, "ran out at 2026-03-01 12:15:00Z: its units are back"),
        ({"state": "released", "released_at": timestamp(at(60))}, "released at 2026-03-01 12:01:00Z"),
        ({"state": "held", "expires_at": timestamp(at(900))}, "holds its units until 2026-03-01 12:15:00Z"),
        ({"state": "held", "expires_at": None}, "a time that it does not say"),
        ({"state": "consumed"}, ""),
        (None, ""),
    ],
)
def test_where_the_units_are_now_is_a_sentence(reservation: dict[str, Any] | None, words: str) -> None:
    """A committed receipt is not "still held" (E55)."""
    said = note(reservation and reservation | {"reservation_id": "reservation-1"})
    assert words in said
    assert bool(said) == bool(words)
