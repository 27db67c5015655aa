"""Sequences, reservation numbers, retention's progress and digests: what is counted while a tenant's receipts go by."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from services.inventory import digests
from services.inventory.contract import Kind, Outcome
from services.inventory.verification.findings import Fault, Rule, shown


class Numbers:
    """One tenant's, in order of sequence.

    Args:
        counter: its row of counters by column, or None.
    """

    def __init__(self, counter: Mapping[str, Any] | None) -> None:
        self._counter = counter
        self._sequence = 0
        self._reservation = 0
        self._ranges: dict[tuple[str, str], tuple[int, int]] = {}

    def begin(self) -> Iterator[Fault]:
        """Who has rows has a counter."""
        if self._counter is None:
            yield Rule.SEQUENCE, "no row in counters", "one, since the tenant has rows"

    def check(self, row: Mapping[str, Any]) -> Iterator[Fault]:
        """The next receipt."""
        self._sequence += 1
        if row["sequence"] != self._sequence:
            expected = f"receipt-{self._sequence}"
            yield Rule.SEQUENCE, f"receipt-{row['sequence']}", f"{expected}: each number once, and no gap"
            self._sequence = row["sequence"]
        yield from self._check_body(row)
        if (row["kind"], row["outcome"]) == (Kind.RESERVE, Outcome.COMMITTED):
            self._reservation += 1
            expected = f"reservation-{self._reservation}"
            if row["reservation_id"] != expected:
                yield Rule.SEQUENCE, f"reservation_id {shown(row['reservation_id'])}", f"{expected}, the next one"
        place = digests.place(row["key"])
        if row["key_range"] != place:
            yield Rule.DIGEST, f"key_range {shown(row['key_range'])}", f"{place}, which SHA-256 of the key begins with"
        item = digests.item(row["key"], row["outcome"], f"receipt-{row['sequence']}")
        for parent, prefix in (("", place[:2]), (place[:2], place)):
            count, total = self._ranges.get((parent, prefix), (0, 0))
            self._ranges[parent, prefix] = (count + 1, digests.total((total, item)))

    def _check_body(self, row: Mapping[str, Any]) -> Iterator[Fault]:
        through = 0 if self._counter is None else self._counter["expired_through"]
        taken = row["expired_at"] is not None
        if taken != (row["sequence"] <= through):
            stored = f"expired_at {shown(row['expired_at'])}"
            yield Rule.EXPIRED, stored, f"one up to sequence {through}, where retention has come to, and none after it"
        if taken and (row["receipt"] is not None or row["problem"] is not None):
            yield Rule.EXPIRED, "a text beside expired_at", "none: retention takes receipt and problem"
        if not taken and row["receipt"] is None:
            yield Rule.EXPIRED, "no receipt and no expired_at", "the receipt's text"
        if taken and not _ordered(row["created_at"], row["expired_at"]):
            stored = f"expired_at {shown(row['expired_at'])}"
            yield Rule.EXPIRED, stored, f"a time after {shown(row['created_at'])}, when it was written"

    def end(self, ranges: Iterable[Mapping[str, Any]]) -> Iterator[Fault]:
        """The counter and the stored ranges, after the last receipt."""
        counter = self._counter or {"last_sequence": 0, "last_reservation": 0, "expired_through": 0}
        highest = {"last_sequence": self._sequence, "last_reservation": self._reservation}
        for name, number in highest.items():
            if counter[name] != number:
                yield Rule.SEQUENCE, f"{name} {shown(counter[name])} in counters", f"{number}, the highest there is"
        if not 0 <= counter["expired_through"] <= self._sequence:
            stored = f"expired_through {shown(counter['expired_through'])} in counters"
            yield Rule.EXPIRED, stored, f"0 to {self._sequence}, the highest there is"
        for row in ranges:
            count, total = self._ranges.pop((row["parent"], row["prefix"]), (0, 0))
            stored = f"{shown(row['count'])} receipts and digest {shown(row['digest'])} of range {shown(row['prefix'])}"
            if (row["count"], row["digest"]) != (count, digests.to_hex(total)):
                yield Rule.DIGEST, stored, f"{count} and {digests.to_hex(total)}, by the receipts"
        for (_, prefix), (count, total) in self._ranges.items():
            expected = f"{count} receipts and digest {digests.to_hex(total)}, by the receipts"
            yield Rule.DIGEST, f"no digest of range {prefix}", expected


def _ordered(one: Any, other: Any) -> bool:
    return isinstance(one, datetime) and isinstance(other, datetime) and one <= other
