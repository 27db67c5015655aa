"""The provider's ledger against its own receipts and stock: pure.

- A committed receipt moved each of its SKUs once, by what it granted; nothing else moved anything.
- received = available + held + consumed, in the stock and in every movement, and nothing fell below zero on the way.
- Versions are 1..n without a gap, and the movements up to the stock's version sum up to the stock.
- A reservation gave back nothing, or what it took, and neither gave back nor confirmed what it did not hold any more.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from services.effects.keys import EXPIRY
from services.effects.records import Receipt
from services.effects.states import EffectState
from services.reconciliation.findings import Finding, Rule
from services.reconciliation.provider_half import Balance, Movement, ProviderHalf, Remains, sequence

_SIDES = ("received", "available", "held", "consumed")
# What a kind may add, for each unit that it granted, to received, available, held and consumed.
_MOVES: Mapping[str, frozenset[tuple[int, int, int, int]]] = {
    "inventory.deliver": frozenset({(1, 1, 0, 0)}),
    "inventory.reserve": frozenset({(0, -1, 0, 1), (0, -1, 1, 0)}),  # consumed, or held
    "inventory.confirm": frozenset({(0, 0, -1, 1)}),
    "inventory.release": frozenset({(0, 1, 0, -1), (0, 1, -1, 0)}),
    EXPIRY: frozenset({(0, 1, -1, 0)}),
}
_HELD = (0, -1, 1, 0)
JOURNAL_HAS_NO_PART = "the journal has no part in this"


def check_ledger(provider: ProviderHalf, seen: Mapping[str, Receipt] | None = None) -> Iterator[Finding]:
    """Everything that the ledger says against the receipts and the stock.

    Args:
        provider: the provider's half.
        seen: by key, receipts that retention has taken, as they were seen before.
    """
    movements: defaultdict[str, list[Movement]] = defaultdict(list)
    for ledger in provider.ledgers.values():
        for movement in ledger:
            movements[movement.key].append(movement)
    receipts = {**(seen or {}), **{receipt.key: receipt for receipt in provider.receipts}}
    times = Counter(receipt.key for receipt in provider.receipts)
    for key in sorted(receipts.keys() | movements.keys()):
        if times[key] > 1:
            yield _finding(Rule.DOUBLED, key, f"{times[key]} receipts under this one key")
        receipt = receipts.get(key) or provider.dropped.get(key)
        yield from _of_key(key, receipt, movements[key], provider.covered)
    yield from _given_back(movements)
    for sku, balance in sorted(provider.stock.items()):
        why = _stock(balance, provider.ledgers[sku])
        if why:
            yield _finding(Rule.STOCK, sku, why)


def _finding(rule: Rule, key: str, provider: str) -> Finding:
    return Finding(rule=rule, key=key, journal=JOURNAL_HAS_NO_PART, provider=provider)


def _of_key(key: str, receipt: Receipt | Remains | None, movements: list[Movement], covered: int) -> Iterator[Finding]:
    times = Counter(movement.sku for movement in movements)
    for sku, count in times.items():
        if count > 1:
            yield _finding(Rule.DOUBLED, key, f"{sku} moved {count} times under this one key")
            return
    if receipt is None:
        yield _finding(Rule.MOVEMENT, key, f"{', '.join(times)} moved, and there is no receipt")
        return
    if isinstance(receipt, Remains):
        why = next(filter(None, (_unlike(movement, receipt) for movement in movements)), "")
        if why:
            yield _finding(Rule.MOVEMENT, key, why)
        return
    granted = (receipt.totals("granted") or {}) if receipt.outcome is EffectState.COMMITTED else {}
    for movement in movements:
        why = _wrong(movement, receipt, granted)
        if why:
            yield _finding(Rule.MOVEMENT, key, why)
    missing = sorted(granted.keys() - times.keys())
    if missing and sequence(receipt) <= covered:
        yield _finding(Rule.LOST, key, f"{receipt.receipt_id} is committed, and {', '.join(missing)} never moved")


def _wrong(movement: Movement, receipt: Receipt, granted: Mapping[str, int]) -> str:
    if movement.sku not in granted:
        return f"{movement.sku} moved, and {receipt.receipt_id} is {receipt.outcome} without it"
    if movement.receipt_id != receipt.receipt_id:
        return f"{movement.sku} moved for {movement.receipt_id}, and the key's receipt is {receipt.receipt_id}"
    units = granted[movement.sku]
    moved = (movement.received, movement.available, movement.held, movement.consumed)
    if moved not in {tuple(units * one for one in move) for move in _moves(receipt)}:
        return (
            f"{receipt.receipt_id} grants {units} {movement.sku}, and the ledger moved received by "
            f"{movement.received}, "
            f"available by {movement.available}, held by {movement.held}, consumed by {movement.consumed}"
        )
    return ""


def _unlike(movement: Movement, left: Remains) -> str:
    """Why a movement is not of the receipt that this is left of; its units and their kind are not known any more."""
    if left.outcome is not EffectState.COMMITTED:
        return f"{movement.sku} moved, and {left.receipt_id} is {left.outcome}"
    if (movement.receipt_id, movement.reservation_id) != (left.receipt_id, left.reservation_id):
        return (
            f"{movement.sku} moved for {movement.receipt_id} and {movement.reservation_id}, and the key's receipt was "
            f"{left.receipt_id} and {left.reservation_id}"
        )
    return ""


def _moves(receipt: Receipt) -> Collection[tuple[int, int, int, int]]:
    """What a receipt may have moved, for each unit."""
    moves = _MOVES.get(str(receipt.body.get("kind")), frozenset())
    request = receipt.body.get("request")
    if receipt.body.get("kind") != "inventory.reserve" or not isinstance(request, dict):
        return moves
    return {_HELD} if request.get("hold_seconds") is not None else moves - {_HELD}


def _given_back(movements: Mapping[str, list[Movement]]) -> Iterator[Finding]:
    sums: defaultdict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    newest: dict[tuple[str, str], tuple[int, str]] = {}
    for lines in movements.values():
        for line in lines:
            if line.reservation_id is not None:
                where = (line.reservation_id, line.sku)
                moved = (line.available, line.held, line.consumed)
                sums[where] = [before + more for before, more in zip(sums[where], moved, strict=True)]
                newest[where] = max(newest.get(where, (0, "")), (line.version, line.key))
    for (reservation, sku), (available, held, consumed) in sorted(sums.items()):
        key = newest[reservation, sku][1]
        if available > 0:
            yield _finding(Rule.DOUBLED, key, f"{reservation} gave back {available} {sku} more than it took")
        elif min(held, consumed) < 0:
            books = f"held {held}, consumed {consumed}"
            yield _finding(Rule.DOUBLED, key, f"{reservation} moved {sku} that it did not hold any more: {books}")


def _stock(balance: Balance, ledger: tuple[Movement, ...]) -> str:
    """What is wrong with a SKU's books; empty when they are right."""
    sums = dict.fromkeys(_SIDES, 0)
    version = 0
    for movement in ledger:
        if movement.version != version + 1:
            return f"version {movement.version} follows {version} in the ledger"
        if version == balance.version:
            break  # moved since the stock was read
        version = movement.version
        for side in _SIDES:
            sums[side] += getattr(movement, side)
        if min(sums.values()) < 0:
            return f"below zero at version {version}: {_sides(sums)}"
        if sums["received"] != sums["available"] + sums["held"] + sums["consumed"]:
            return f"units appear or vanish at version {version}: {_sides(sums)}"
    stands = {side: getattr(balance, side) for side in _SIDES}
    if version != balance.version:
        return f"the stock is at version {balance.version}, and the ledger ends at {version}"
    if stands != sums:
        return f"the stock says {_sides(stands)}, and its movements sum up to {_sides(sums)}"
    return ""


def _sides(sums: Mapping[str, int]) -> str:
    return ", ".join(f"{side} {count}" for side, count in sums.items())
