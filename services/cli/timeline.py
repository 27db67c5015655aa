"""What happened to one effect, in order: each half by its own clock, side by side.

The journal's entries stand in their order; what the inventory tells of (the receipt, the end of a hold) stands before
the first entry that was recorded later. Two clocks differ by up to the margin, so what is close together may have been
the other way round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.cli.words import entry_words, moment
from services.effects.records import Receipt
from services.journal.rows import Entry, timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One thing that happened.

    Attributes:
        half: whose clock and record it is: "journal" or "inventory".
        entry: the journal's entry, in the journal's half.
        attempt: the number of the attempt that it is about, if it is about one.
    """

    at: datetime
    half: str
    kind: str
    says: str
    entry: int | None = None
    attempt: int | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "at": timestamp(self.at),
            "half": self.half,
            "kind": self.kind,
            "says": self.says,
            "entry": self.entry,
            "attempt": self.attempt,
        }

    def line(self) -> tuple[object, ...]:
        """As a line of the table: entry, time, kind, and each half's word."""
        journal, inventory = (self.says, None) if self.half == "journal" else (None, self.says)
        return self.entry, moment(self.at), self.kind.replace("_", " "), journal, inventory


COLUMNS = ("id", "at", "what", "journal", "inventory")


def timeline(
    entries: Sequence[Entry], receipt: Receipt | None, reservation: Mapping[str, Any] | None
) -> tuple[Moment, ...]:
    """Both halves of an effect in one order.

    Args:
        entries: the journal's, of this key.
        receipt: the inventory's, if it has one.
        reservation: what the inventory says of the reservation that the receipt made.
    """
    theirs = sorted(_inventory(receipt, reservation), key=lambda one: one.at)
    told: list[Moment] = []
    for ours in _journal(entries):
        while theirs and theirs[0].at < ours.at:
            told.append(theirs.pop(0))
        told.append(ours)
    return (*told, *theirs)


def _journal(entries: Sequence[Entry]) -> list[Moment]:
    numbers = {entry.body.get("attempt_id"): entry.body.get("number") for entry in entries if entry.kind == "attempt"}
    heard = {entry.body.get("attempt_id") for entry in entries if entry.kind == "observation"}
    told = []
    for entry in entries:
        says, attempt_id = entry_words(entry), entry.body.get("attempt_id")
        attempt = numbers.get(attempt_id) if attempt_id else None
        if entry.kind == "attempt" and attempt_id not in heard:
            says += "; no answer was recorded"
        if entry.kind == "observation" and attempt is not None:
            says = f"of attempt {attempt}: {says}"
        told.append(
            Moment(at=entry.recorded_at, half="journal", kind=entry.kind, says=says, entry=entry.id, attempt=attempt)
        )
    return told


def _inventory(receipt: Receipt | None, reservation: Mapping[str, Any] | None) -> list[Moment]:
    told = []

    def tell(at: Any, kind: str, says: str) -> None:
        if isinstance(at, str):
            told.append(Moment(at=datetime.fromisoformat(at), half="inventory", kind=kind, says=says))

    if receipt is not None:
        made = f", {receipt.reservation_id}" if receipt.reservation_id else ""
        reason = f" ({receipt.reason})" if receipt.reason else ""
        tell(receipt.created_at, "receipt", f"{receipt.receipt_id} {receipt.outcome}{reason}{made}")
    if reservation is not None:
        for ended, by in (("confirmed", "confirm"), ("released", "release"), ("expired", "expiry")):
            tell(reservation.get(f"{ended}_at"), ended, f"{reservation.get(f'{by}_receipt_id')}: {_ENDS[ended]}")
        if reservation.get("state") == "held":
            tell(reservation.get("expires_at"), "hold_ends", "what is still held then comes back by itself")
    return told


_ENDS: Mapping[str, str] = {
    "confirmed": "the hold's units are taken for good",
    "released": "its units are back in stock",
    "expired": "the hold ran out, its units are back in stock",
}


def note(reservation: Mapping[str, Any] | None) -> str:
    """What a committed receipt does not say: where the reservation's units are now; empty where it says it all."""
    told = reservation or {}
    name = told.get("reservation_id")
    match told.get("state"):
        case "expired":
            return (
                f"{name} was only a hold and ran out at {_when(told.get('expired_at'))}: its units are back in stock, "
                "and a confirm or a release is refused."
            )
        case "released":
            return f"{name} was released at {_when(told.get('released_at'))}: its units are back in stock."
        case "held":
            return f"{name} holds its units until {_when(told.get('expires_at'))}, unless it is confirmed before."
        case _:
            return ""


def _when(at: Any) -> str:
    try:
        return moment(datetime.fromisoformat(at))
    except (TypeError, ValueError):
        return "a time that it does not say"
