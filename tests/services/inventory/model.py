"""What the inventory has to answer, in a few lines of its own: no row, no lock, nothing of the service's code."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Lines = Mapping[str, int]


@dataclass(slots=True)
class Reservation:
    """Where units are."""

    lines: Lines
    state: str


@dataclass(slots=True)
class Receipt:
    """What a key came to."""

    key: str
    outcome: str
    problem: str  # "" where it is committed
    reservation: str | None = None
    stands: bool = False  # for good: a delivery or a release
    text: str = ""  # as it was first answered
    gone: bool = False


@dataclass(slots=True)
class Model:
    """One tenant."""

    available: dict[str, int] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    received: dict[str, int] = field(default_factory=dict)
    reservations: dict[str, Reservation] = field(default_factory=dict)
    receipts: dict[str, Receipt] = field(default_factory=dict)  # in order of sequence

    def add(self, receipt: Receipt) -> Receipt:
        """A key is used up."""
        self.receipts[receipt.key] = receipt
        return receipt

    def move(self, lines: Lines, sign: int) -> None:
        """Units become available, or are taken."""
        for sku, quantity in lines.items():
            self.available[sku] = self.available.get(sku, 0) + sign * quantity
            self.versions[sku] = self.versions.get(sku, 0) + 1

    def close(self, key: str, former: Sequence[str]) -> Receipt | None:
        """The refusal of a redo over what stands; what never came is closed either way."""
        standing = [self.receipts[one] for one in former if one in self.receipts and self._stands(self.receipts[one])]
        for one in former:
            if one not in self.receipts:
                self.add(Receipt(key=one, outcome="voided", problem="key-voided"))
        return self.add(Receipt(key, "rejected", "predecessor-committed")) if standing else None

    def _stands(self, receipt: Receipt) -> bool:
        if receipt.outcome != "committed" or receipt.reservation is None or receipt.stands:
            return receipt.outcome == "committed"
        return self.reservations[receipt.reservation].state in {"held", "consumed"}

    def deliver(self, key: str, sku: str, quantity: int) -> Receipt:
        """Units come in."""
        self.received[sku] = self.received.get(sku, 0) + quantity
        self.move({sku: quantity}, 1)
        return self.add(Receipt(key, "committed", "", stands=True))

    def reserve(self, key: str, lines: Lines, former: Sequence[str], *, held: bool) -> Receipt:
        """All of the lines or none."""
        refused = self.close(key, former)
        if refused is not None:
            return refused
        if any(sku not in self.received for sku in lines):
            return self.add(Receipt(key, "rejected", "unknown-sku"))
        if any(self.available[sku] < quantity for sku, quantity in lines.items()):
            return self.add(Receipt(key, "rejected", "insufficient-stock"))
        self.move(lines, -1)
        name = f"reservation-{len(self.reservations) + 1}"
        self.reservations[name] = Reservation(lines, "held" if held else "consumed")
        return self.add(Receipt(key, "committed", "", reservation=name))

    def confirm(self, key: str, name: str) -> Receipt:
        """Held units are taken."""
        reservation = self.reservations[name]
        if reservation.state != "held":
            return self._refuse(key, name)
        self.move(reservation.lines, 0)
        reservation.state = "consumed"
        return self.add(Receipt(key, "committed", "", reservation=name))

    def release(self, key: str, name: str) -> Receipt:
        """Units go back, once."""
        reservation = self.reservations[name]
        if reservation.state not in {"held", "consumed"}:
            return self._refuse(key, name)
        self.move(reservation.lines, 1)
        reservation.state = "released"
        return self.add(Receipt(key, "committed", "", reservation=name, stands=True))

    def _refuse(self, key: str, name: str) -> Receipt:
        expired = self.reservations[name].state == "expired"
        problem = "hold-expired" if expired else "invalid-transition"
        return self.add(Receipt(key, "rejected", problem, reservation=name))

    def expire(self, name: str) -> Receipt:
        """A hold ends."""
        made = next(each for each in self.receipts.values() if each.reservation == name and each.outcome == "committed")
        reservation = self.reservations[name]
        self.move(reservation.lines, 1)
        reservation.state = "expired"
        return self.add(Receipt(f"{made.key}@expiry", "committed", "", reservation=name, stands=True))

    def balances(self, sku: str) -> dict[str, Any]:
        """The stock of a SKU."""
        sums = {
            state: sum(each.lines.get(sku, 0) for each in self.reservations.values() if each.state == state)
            for state in ("held", "consumed")
        }
        own = {"sku": sku, "received": self.received[sku], "available": self.available[sku]}
        return {**own, **sums, "version": self.versions[sku]}

    def digest(self) -> tuple[int, str]:
        """Count and digest of all keys, also of those whose receipts are gone."""
        items = [
            json.dumps(["cf-rd1", each.key, each.outcome, f"receipt-{number}"], separators=(",", ":"))
            for number, each in enumerate(self.receipts.values(), start=1)
        ]
        total = sum(int.from_bytes(hashlib.sha256(item.encode()).digest()) for item in items) % 2**256
        return len(items), f"{total:064x}"
