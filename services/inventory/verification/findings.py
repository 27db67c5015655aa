"""What a verification says: the rules, and what is stored against what was expected."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Rule(StrEnum):
    """What holds of the records, whatever happened to the service."""

    S1 = "S1"  # one row per tenant and key
    S2 = "S2"  # received = available + held + consumed, none below zero
    S3 = "S3"  # the sum of a SKU's movements is its stock row
    S4 = "S4"  # a SKU's movements are numbered 1..n without a gap, and n is the stock's version
    S5 = "S5"  # a movement belongs to a committed receipt, and is what that receipt says
    S6 = "S6"  # a committed reserve has one reservation; held and consumed are the sums of the reservations
    S7 = "S7"  # a rejection and a tombstone move nothing
    S8 = "S8"  # no key without its receipt: nothing is "in progress"
    S9 = "S9"  # a receipt's text has the SHA-256 that is stored beside it
    S10 = "S10"  # a reservation's units have gone back once or not at all
    SEQUENCE = "sequence"  # receipts and reservations are numbered without a gap, up to the tenant's counter
    RECEIPT = "receipt"  # a receipt's members, its row and its lines say the same
    PROBLEM = "problem"  # a problem document is that of its receipt, and carries it
    RESERVATION = "reservation"  # a reservation's state is what its receipts have made of it
    HOLD = "hold"  # a hold's end is the one that its receipt gave it
    REDO = "redo"  # of the generations of one effect at most one stands
    EXPIRED = "expired"  # retention has taken bodies in order, whole, and nothing else
    DIGEST = "digest"  # the ranges' counts and digests are the sums of their receipts
    SIGNATURE = "signature"  # a receipt's signature verifies
    ROW = "row"  # a value is of its column's type, and the database can read it
    KEPT = "kept"  # the constraints and triggers that keep the records are in force


_RESTORE = "Stop writing, keep a copy of this database and compare it with the last good backup"

WHAT_TO_DO: Mapping[Rule, str] = {
    Rule.S1: "Stop writing: the key may have been executed twice; keep both rows and bring back the unique constraint",
    Rule.S2: "Stop writing and count this SKU from its ledger; the ledger is what happened",
    Rule.S3: "Stop writing and compare the stock row with its ledger; the receipts decide which of them was changed",
    Rule.S4: "Stop writing: a movement is lost or was put in by hand; look for it in the last good backup",
    Rule.S5: "Stop writing and compare the movement with its receipt; a committed receipt's text is the truth",
    Rule.S6: "Stop writing and compare the reservation with its receipt; a committed receipt's text is the truth",
    Rule.S7: "Stop writing: units moved without an effect; take the movement back by hand once it is understood",
    Rule.S8: "Stop writing: that key would never be answered; look for its receipt in the last good backup",
    Rule.S9: "The receipt was changed after it was written: bring its text back from the last good backup",
    Rule.S10: "Stop writing: units went back twice or never; the reservation's receipts say which",
    Rule.SEQUENCE: "Stop writing: receipts are lost, or the database was put back to an older copy; look in a backup",
    Rule.RECEIPT: "A row was changed after it was written: bring it back from the last good backup",
    Rule.PROBLEM: "The stored answer was changed after it was written: bring it back from the last good backup",
    Rule.RESERVATION: "Stop writing and set the reservation to what its receipts say; they are the truth",
    Rule.HOLD: "Set the reservation's expires_at to what its receipt says; the receipt is the truth",
    Rule.REDO: "Release the units of one of the two generations once it is clear which of them is wanted",
    Rule.EXPIRED: "A body was taken out of turn, or came back: bring the row back from the last good backup",
    Rule.DIGEST: "An audit by digests cannot be trusted until it is mended; the receipts are the truth",
    Rule.SIGNATURE: "Callers settle nothing by this receipt: name the key that signed it, or bring back its text",
    Rule.ROW: _RESTORE,
    Rule.KEPT: "Bring it back before the service writes again: nothing else keeps the records from being changed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One thing that is not as it has to be.

    Attributes:
        rule: which rule it breaks.
        tenant: whose it is; empty where it is nobody's.
        where: the key, SKU, reservation, sequence or table.
        stored: what is stored.
        expected: what was expected.
    """

    rule: Rule
    tenant: str
    where: str
    stored: str
    expected: str

    @property
    def what_to_do(self) -> str:
        """What a person does about it."""
        return WHAT_TO_DO[self.rule]

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        tenant = f"tenant {self.tenant}, " if self.tenant else ""
        return (
            f"{self.rule}: {tenant}{self.where}: stored is {self.stored}, expected {self.expected}. {self.what_to_do}."
        )


# What a check that knows neither tenant nor place says: the rule, what is stored, what was expected.
Fault = tuple[Rule, str, str]

_LONGEST_SHOWN = 200


def shown(value: object) -> str:
    """A stored value as a person can read it, whatever it is, in ASCII and not too long."""
    if isinstance(value, datetime):
        return str(value)
    text = value if isinstance(value, str) and value.isascii() and value.isprintable() and value else ascii(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}... ({len(text)} characters)"


@dataclass(slots=True, kw_only=True)
class Checked:
    """How much was looked at."""

    tenants: int = 0
    receipts: int = 0
    expired_receipts: int = 0
    signatures: int = 0
    keys: int = 0
    reservations: int = 0
    skus: int = 0
    movements: int = 0
    ranges: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What came of a verification.

    Attributes:
        violation: the first that was found, or None.
        checked: how much was looked at until then.
    """

    violation: Violation | None
    checked: Checked
