"""What an audit can find, in words that stay: the rules, a finding, the report.

Every rule holds at every moment of a correct history, but `unresolved`:

    doubled          a key moved stock twice, an effect stands in two generations, or more was given back than taken
    lost             committed in one half only: the other has no receipt, no movement or no committed row of it
    unresolved       pending or in doubt: the outcome is not known, or the journal has not heard it yet
    orphan           a receipt without an intent; deliveries belong to no journal (the mark of the tenant's origin is
                     one), a tombstone that a redo made is named by that redo, and a hold's expiry belongs to the hold
    receipt-missing  rejected or voided in the journal, and the provider knows nothing of the key
    states-disagree  settled in both halves, committed in neither, and not the same way
    receipt-differs  the receipt that settled the effect is not the one that the provider shows, or that it had before
                     retention took its body
    payload          fingerprints, or what was asked for and what was granted, differ between the halves
    key              a row's key is not that of its origin, scope, name and generation
    movement         stock moved otherwise than the key's receipt says, or for a key that committed nothing
    stock            received is not available + held + consumed, the movements do not sum up to the stock, something
                     fell below zero on the way, or a version is missing
    entry-digest     an entry is not what was written
    entry-order      no intent without an earlier decision, nothing else without an earlier intent, no attempt after the
                     end, no move out of an end
    fold             a row of `effects` is not what its entries come to
    late             a report that contradicts a settlement waits for a person
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Rule(StrEnum):
    """What a finding breaks."""

    DOUBLED = "doubled"
    LOST = "lost"
    UNRESOLVED = "unresolved"
    ORPHAN = "orphan"
    RECEIPT_MISSING = "receipt-missing"
    STATES_DISAGREE = "states-disagree"
    RECEIPT_DIFFERS = "receipt-differs"
    PAYLOAD = "payload"
    KEY = "key"
    MOVEMENT = "movement"
    STOCK = "stock"
    ENTRY_DIGEST = "entry-digest"
    ENTRY_ORDER = "entry-order"
    FOLD = "fold"
    LATE = "late"


_OLDER_JOURNAL = "If the journal was put back to an older copy, stop the workers until both halves have been compared"
_OLDER_PROVIDER = "If the provider was put back to an older copy, stop the workers until both halves have been compared"
_TAMPERED = "Somebody changed the journal's database. Keep it as it is, and compare it with a copy from before"
_PROVIDER_FAULT = "The provider's own books are wrong: tell whoever runs it, with this key"

WHAT_TO_DO: Mapping[Rule, str] = {
    Rule.DOUBLED: "Stop what sends, then find out which movement is meant and give the other back",
    Rule.LOST: f"{_OLDER_JOURNAL}; the receipt is not gone, and the same key gives it back",
    Rule.UNRESOLVED: "The sweep settles what is pending; what is in doubt a person settles: effects resolve",
    Rule.ORPHAN: f"Find out who sent it: another program with this token, or another origin. {_OLDER_JOURNAL}",
    Rule.RECEIPT_MISSING: _OLDER_PROVIDER,
    Rule.STATES_DISAGREE: _OLDER_PROVIDER,
    Rule.RECEIPT_DIFFERS: _OLDER_PROVIDER,
    Rule.PAYLOAD: "Never send it again. Compare both payloads: one of them was changed, or is another's",
    Rule.KEY: _TAMPERED,
    Rule.MOVEMENT: _PROVIDER_FAULT,
    Rule.STOCK: _PROVIDER_FAULT,
    Rule.ENTRY_DIGEST: _TAMPERED,
    Rule.ENTRY_ORDER: _TAMPERED,
    Rule.FOLD: _TAMPERED,
    Rule.LATE: "Nothing more is sent or answered under this name until a person has compared both, and believes the "
    "report (effects accept), dismisses it (effects resolve) or writes it off (effects write-off)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule broken by one key (or SKU, or entry): what each half says of it.

    Attributes:
        key: the effect's key; for `stock` the SKU, for `entry-digest` the entry.
        journal: what the journal says.
        provider: what the provider says.
        what: the effect by its scope and name, where that is known.
    """

    rule: Rule
    key: str
    journal: str
    provider: str
    what: str = ""

    @property
    def what_to_do(self) -> str:
        """The next step, for a person."""
        return WHAT_TO_DO[self.rule]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an audit came to.

    Attributes:
        effects: rows in the journal.
        receipts: receipts at the provider, of every kind.
        findings: at most one for each rule and key.
        resolved: effects and orphans whose halves differ, and of which a person has said what holds.
        expired: receipts that retention has taken: those of the journal's keys, and those that moved stock.
    """

    effects: int
    receipts: int
    findings: tuple[Finding, ...]
    expired: int = 0
    resolved: int = 0

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    @property
    def doubled(self) -> int:
        """How many keys were done twice."""
        return self._count(Rule.DOUBLED)

    @property
    def lost(self) -> int:
        """How many keys are committed in one half only."""
        return self._count(Rule.LOST)

    @property
    def unresolved(self) -> int:
        """How many effects are pending or in doubt."""
        return self._count(Rule.UNRESOLVED)

    @property
    def orphans(self) -> int:
        """How many receipts have no intent."""
        return self._count(Rule.ORPHAN)

    @property
    def stock_conserved(self) -> bool:
        """Whether every unit that came in is available, held or consumed, movement by movement."""
        return not self._count(Rule.STOCK)

    def _count(self, rule: Rule) -> int:
        return sum(finding.rule is rule for finding in self.findings)
