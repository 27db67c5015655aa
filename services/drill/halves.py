"""Both halves laid side by side: what the journal says was done, and what the inventory's ledger says was done.

Pure: the books are fetched elsewhere, and compared here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.effects.records import EffectRow
from services.effects.states import EffectState

RESERVE, RELEASE, DELIVERY = "reserve", "release", "delivery"
_BALANCES = ("received", "available", "held", "consumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Everything that both sides have on record.

    Attributes:
        effects: the journal's rows.
        receipts: the inventory's, in commit order.
        movements: by SKU, every line of the ledger in order.
        stock: by SKU, the balances.
    """

    effects: Sequence[EffectRow]
    receipts: Sequence[Mapping[str, Any]]
    movements: Mapping[str, Sequence[Mapping[str, Any]]]
    stock: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What the comparison found; all of it empty, and the stock conserved, is how it should be.

    Attributes:
        doubled: keys with more than one effect, by the ledger.
        lost: keys that are committed in one half only.
        unresolved: keys that are pending or in doubt.
        stock_conserved: every balance is the sum of its movements and never was below zero, and what left the stock
            is exactly what the journal's committed effects asked for.
    """

    doubled: tuple[str, ...]
    lost: tuple[str, ...]
    unresolved: tuple[str, ...]
    stock_conserved: bool


def compare(books: Books) -> Compared:
    """Compare the two halves, both ways."""
    movements = [line for lines in books.movements.values() for line in lines if line["kind"] != DELIVERY]
    times = Counter((line["key"], line["sku"]) for line in movements)
    receipts_of = defaultdict(set)
    for line in movements:
        receipts_of[line["key"]].add(line["receipt_id"])
    doubled = {key for (key, _), count in times.items() if count > 1}
    doubled |= {key for key, receipts in receipts_of.items() if len(receipts) > 1}
    journal = {row.key for row in books.effects if row.state is EffectState.COMMITTED}
    receipts = {
        receipt["key"]
        for receipt in books.receipts
        if receipt["outcome"] == EffectState.COMMITTED and receipt["kind"] != "inventory.deliver"
    }
    ledger = set(receipts_of)
    return Compared(
        doubled=tuple(sorted(doubled)),
        lost=tuple(sorted((journal | receipts | ledger) - (journal & receipts & ledger))),
        unresolved=tuple(sorted(row.key for row in books.effects if not row.state.terminal)),
        stock_conserved=all(_sums(books.stock[sku], lines) for sku, lines in books.movements.items())
        and set(books.stock) == set(books.movements)
        and _moved(movements) == _asked(books.effects),
    )


def _sums(stock: Mapping[str, int], movements: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a SKU's balances are the sum of its movements, never below zero, with nothing made or lost inside."""
    balances = dict.fromkeys(_BALANCES, 0)
    for line in movements:
        for name in _BALANCES:
            balances[name] += line[name]
        if min(balances.values()) < 0 or balances["received"] != sum(balances.values()) - balances["received"]:
            return False
    return all(stock[name] == balance for name, balance in balances.items())


def _moved(movements: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """Units that left the stock, by key and SKU."""
    moved: Counter[tuple[str, str]] = Counter()
    for line in movements:
        moved[line["key"], line["sku"]] -= line["available"]
    return dict(moved)


def _asked(effects: Iterable[EffectRow]) -> dict[tuple[str, str], int]:
    """Units that the committed effects were granted, by key and SKU: the journal's half."""
    asked: Counter[tuple[str, str]] = Counter()
    for row in effects:
        if row.state is EffectState.COMMITTED and row.receipt is not None:
            sign = -1 if row.kind == "inventory.release" else 1
            for sku, units in (row.receipt.totals("granted") or {}).items():
                asked[row.key, sku] += sign * units
    return dict(asked)
