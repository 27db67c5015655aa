"""The rule that every campaign is held against: what was told and what is kept are one story.

Pure: a history goes in, the contradictions come out as sentences. None means that there is one story in which every
answer was true when it was given.

A *definitive* answer carries the key's receipt. An answer that carries none has executed nothing by its delivery, but
for those that say themselves that nobody knows (500), and for no answer at all.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.faults.inventory.caller import Told

Receipt = Mapping[str, Any]

_REPLAYED_STATUS = {"committed": {200, 201}, "rejected": {409}, "voided": {410}}
_AMOUNTS = ("received", "available", "held", "consumed")
# What one unit does to the stock, by the kind of its movement.
_CHANGE: Mapping[str, Mapping[str, int]] = {
    "delivery": {"received": 1, "available": 1},
    "reserve": {"available": -1, "consumed": 1},
    "hold": {"available": -1, "held": 1},
    "confirm": {"held": -1, "consumed": 1},
    "expiry": {"held": -1, "available": 1},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a tenant's inventory holds when all is over.

    Attributes:
        receipts: the whole feed.
        stock: by SKU.
        ledger: each SKU's movements in order.
    """

    receipts: Sequence[Receipt]
    stock: Mapping[str, Mapping[str, Any]]
    ledger: Mapping[str, Sequence[Mapping[str, Any]]]

    def receipt(self, key: str) -> Receipt | None:
        """The receipt of a key."""
        return next((receipt for receipt in self.receipts if receipt["key"] == key), None)


def contradictions(heard: Iterable[Told], kept: Kept) -> list[str]:
    """Everything that cannot be true together."""
    of_key: dict[str, list[Told]] = defaultdict(list)
    for told in heard:
        if told.request.key is not None:
            of_key[told.request.key].append(told)
    receipts = {receipt["key"]: receipt for receipt in kept.receipts}
    found = [each for key, tellings in of_key.items() for each in of_one_key(key, tellings, receipts.get(key))]
    found += [each for key, tellings in of_key.items() for each in _of_its_generations(key, tellings, receipts)]
    return found + of_the_books(kept)


def of_one_key(key: str, heard: Sequence[Told], receipt: Receipt | None) -> list[str]:
    """What of one key's answers contradicts its receipt, or another answer."""
    found: list[str] = []
    first_known: Told | None = None
    executed = 0
    for told in sorted(heard, key=lambda told: told.heard_at):
        saw = told.receipt
        if saw is not None:
            found += _of_a_definitive_answer(key, told, saw, receipt)
            executed += not told.replayed and told.request.method != "GET"
            if first_known is None:
                first_known = told
        if first_known is None or told.sent_at <= first_known.heard_at:
            continue  # it was under way when the first receipt was heard, or that is this very answer
        if told.status == 404 and told.problem == "receipt-not-found":
            found.append(f"{key}: not found after its receipt was known")
        if saw is not None and not told.replayed and told.request.method != "GET":
            found.append(f"{key}: executed after its receipt was known")
    if executed > 1:
        found.append(f"{key}: {executed} answers say that they executed it")
    if receipt is not None and not any(_may_have_made(told, receipt) for told in heard):
        closed_by_another = receipt["outcome"] == "voided" and receipt["reason"] == "superseded"
        if not closed_by_another:
            found.append(f"{key}: {receipt['outcome']}, though no delivery of it may have done that")
    return found


def _of_a_definitive_answer(key: str, told: Told, saw: Receipt, receipt: Receipt | None) -> Iterator[str]:
    if receipt is None:
        yield f"{key}: {saw['outcome']} was told, and no receipt is kept"
        return
    if saw != receipt:
        yield f"{key}: the receipt that was told is not the one that is kept"
    if told.outcome != saw["outcome"]:
        yield f"{key}: the headers say {told.outcome}, the receipt {saw['outcome']}"
    wanted = {200} if told.request.method != "POST" else _REPLAYED_STATUS[saw["outcome"]]
    if told.status not in wanted:
        yield f"{key}: {told.request.method} was answered {told.status} with a receipt that is {saw['outcome']}"
    if told.request.method == "POST" and saw["outcome"] != "voided" and not _is_of(saw, told):
        yield f"{key}: another request's receipt was told"


def _is_of(receipt: Receipt, told: Told) -> bool:
    """Whether a receipt is of just this request: of its path, and of its body but for what it left out."""
    wanted = {name: value for name, value in (told.request.body or {}).items() if value is not None}
    path = told.request.path
    if not path.startswith("/v1/reservations/"):
        return bool(receipt["request"] == wanted)
    return bool(receipt["request"] == wanted) and receipt["reservation_id"] == path.split("/")[3]


def _may_have_made(told: Told, receipt: Receipt) -> bool:
    """Whether this delivery may be the one that made the receipt."""
    if not told.sent or told.request.method == "GET":
        return False
    if (receipt["kind"] == "void") != (told.request.method == "PUT"):
        return False
    if told.request.method == "POST" and not _is_of(receipt, told):
        return False
    if told.status is None or told.problem == "internal":
        return True
    return told.receipt is not None and not told.replayed


def _of_its_generations(key: str, heard: Sequence[Told], receipts: Mapping[str, Receipt]) -> Iterator[str]:
    """A redo and its former generations never both take units, and each says of the other what is kept of it."""
    redo = receipts.get(key)
    for older in {older for told in heard for older in told.request.supersedes}:
        former = receipts.get(older)
        if redo is None or redo["kind"] == "void":
            continue
        if former is None:
            yield f"{key}: it supersedes {older}, which is neither closed nor known"
        elif former["outcome"] == "committed" and redo["outcome"] == "committed" and former["kind"] != "expiry":
            if not _was_given_back(former, redo, receipts.values()):
                yield f"{key} and its former generation {older} are both committed"
        elif redo["reason"] == "predecessor-committed" and former["outcome"] != "committed":
            yield f"{key}: refused for a former generation that is {former['outcome']}"
    for told in heard:
        if told.problem == "predecessor-committed":
            predecessor = told.body["predecessor"]
            if predecessor != receipts.get(predecessor["key"]):
                yield f"{key}: the predecessor that was told is not the one that is kept"


def _was_given_back(former: Receipt, redo: Receipt, receipts: Iterable[Receipt]) -> bool:
    """Whether a reservation had been released, or had ended, before its redo."""
    return any(
        each["reservation_id"] == former["reservation_id"] and each["sequence"] < redo["sequence"]
        for each in receipts
        if each["outcome"] == "committed" and each["kind"] in {"inventory.release", "expiry"}
    )


def of_the_books(kept: Kept) -> list[str]:
    """What of receipts, stock and ledger does not add up."""
    found = [*_of_the_feed(kept.receipts)]
    for sku, stock in kept.stock.items():
        found += _of_a_ledger(sku, stock, kept.ledger[sku])
    moved: dict[str, Counter[tuple[str, int, int]]] = defaultdict(Counter)
    for sku, movements in kept.ledger.items():
        for movement in movements:
            moved[movement["receipt_id"]][sku, movement["quantity"], movement["version"]] += 1
    for receipt in kept.receipts:
        committed = receipt["outcome"] == "committed"
        lines = {line["sku"]: line["granted"] for line in receipt["lines"]} if committed else {}
        versions = receipt["stock_versions"]
        due = Counter((sku, quantity, versions.get(sku, 0)) for sku, quantity in lines.items())
        if moved.pop(receipt["receipt_id"], Counter()) != due:
            found.append(f"{receipt['key']}: {receipt['outcome']}, and the ledger has moved something else for it")
    found += [f"{receipt_id}: movements without a receipt" for receipt_id in moved]
    return found


def _of_the_feed(receipts: Sequence[Receipt]) -> Iterator[str]:
    if [receipt["sequence"] for receipt in receipts] != list(range(1, len(receipts) + 1)):
        yield "the feed's sequences are not 1..n"
    for key, times in Counter(receipt["key"] for receipt in receipts).items():
        if times > 1:
            yield f"{key}: {times} receipts"


def _of_a_ledger(sku: str, stock: Mapping[str, Any], movements: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if [movement["version"] for movement in movements] != list(range(1, stock["version"] + 1)):
        yield f"{sku}: the versions are not 1..{stock['version']}"
    balance = dict.fromkeys(_AMOUNTS, 0)
    for movement in movements:
        for name in _AMOUNTS:
            balance[name] += movement[name]
        if min(balance.values()) < 0:
            yield f"{sku}: below zero at version {movement['version']}"
        if {name: movement[name] for name in _AMOUNTS} != _due(movement):
            yield f"{sku}: version {movement['version']} is no {movement['kind']} of {movement['quantity']}"
    if balance != {name: stock[name] for name in _AMOUNTS}:
        yield f"{sku}: the ledger sums to {balance}, the stock is {dict(stock)}"
    if stock["received"] != stock["available"] + stock["held"] + stock["consumed"]:
        yield f"{sku}: the stock does not balance"


def _due(movement: Mapping[str, Any]) -> dict[str, int]:
    """What a movement of this kind changes; a release gives back from where the units were."""
    change = _CHANGE.get(movement["kind"])
    if change is None:
        source = "held" if movement["held"] else "consumed"
        change = {"available": 1, source: -1}
    return {name: change.get(name, 0) * movement["quantity"] for name in _AMOUNTS}
