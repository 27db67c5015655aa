"""Both halves of what a case did, side by side, and how they look when one wanted effect was done once."""

from collections.abc import Mapping
from dataclasses import dataclass

import httpx

from services.drill.proxy import FaultProxy
from services.effects.records import EffectRow
from services.journal.store import Journal

SKU, STOCK, WANTED, NAME = "FILTER-A", 10, 2, "reserve-filter"


@dataclass(frozen=True, kw_only=True)
class Books:
    """Both halves of everything a case did, and what passed between them.

    Attributes:
        available: units of FILTER-A.
        receipts: the outcome of every receipt but the delivery's, in the order of their commits.
        movements: the kind of every movement of FILTER-A but the delivery, in order.
        posts: sends that the proxy saw.
        effects: by name, later generations as "NAME g2": the journal's state and how many attempts it has on record.
    """

    available: int
    receipts: tuple[str, ...]
    movements: tuple[str, ...]
    posts: int
    effects: Mapping[str, tuple[str, int]]


async def read_books(http: httpx.AsyncClient, journal: Journal, proxy: FaultProxy, stock_in: int = STOCK) -> Books:
    """Read both halves; they must agree on every key, and the stock with all that was ever brought in."""
    stock = (await http.get(f"/v1/stock/{SKU}")).raise_for_status().json()
    assert stock["received"] == stock["available"] + stock["held"] + stock["consumed"] == stock_in
    movements = (await http.get(f"/v1/ledger/{SKU}")).raise_for_status().json()["movements"]
    feed = (await http.get("/v1/receipts", params={"limit": 1000})).raise_for_status().json()["receipts"]
    receipts = [receipt for receipt in feed if receipt["kind"] != "inventory.deliver"]
    rows = journal.effects()
    theirs = {receipt["key"]: (receipt["receipt_id"], receipt["outcome"]) for receipt in receipts}
    ours = {row.key: (row.receipt.receipt_id, row.state.value) for row in rows if row.receipt is not None}
    assert ours == theirs
    assert len(theirs) == len(receipts)
    sent = {key for (key, method), count in proxy.requests.items() if method == "POST" and key and count}
    assert sent <= {row.key for row in rows}
    return Books(
        available=stock["available"],
        receipts=tuple(receipt["outcome"] for receipt in receipts),
        movements=tuple(movement["kind"] for movement in movements[1:]),
        posts=sum(count for (key, method), count in proxy.requests.items() if method == "POST" and key),
        effects={_called(row): (row.state.value, row.attempts) for row in rows},
    )


def _called(row: EffectRow) -> str:
    return row.name if row.generation == 1 else f"{row.name} g{row.generation}"


def committed(*, posts: int = 1, attempts: int = 1) -> Books:
    """How every case ends whose one effect was wanted and done: once."""
    return Books(
        available=STOCK - WANTED,
        receipts=("committed",),
        movements=("reserve",),
        posts=posts,
        effects={NAME: ("committed", attempts)},
    )
