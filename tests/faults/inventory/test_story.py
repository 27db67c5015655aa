"""The rule itself, on histories that are made by hand: one that is good, and everything that may be bad about it."""

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.inventory.caller import Request, Told, deliver, look_up, release, reserve, void
from tests.faults.inventory.story import Kept, contradictions

SKU = "FILTER-A"
TAKEN, OLD, GONE, FULL, BACK, BROUGHT = (
    f"key-{name}-00001" for name in ("taken", "older", "gone", "full", "back", "in")
)

Rows = list[dict[str, Any]]


def receipt(sequence: int, request: Request, kind: str, outcome: str = "committed", **members: Any) -> dict[str, Any]:
    """A receipt, as the service writes it where it matters here."""
    lines = members.pop("lines", [{"sku": SKU, "requested": 2, "granted": 2 if outcome == "committed" else 0}])
    return {
        "receipt_id": f"receipt-{sequence}",
        "sequence": sequence,
        "key": request.key,
        "kind": kind,
        "outcome": outcome,
        "reason": None,
        "request": request.body,
        "reservation_id": None,
        "lines": lines,
        "stock_versions": {},
    } | members


def movement(version: int, kind: str, quantity: int, receipt_id: str, **amounts: int) -> dict[str, Any]:
    """A line of the ledger."""
    changes = {"received": 0, "available": 0, "held": 0, "consumed": 0} | amounts
    return {"version": version, "kind": kind, "quantity": quantity, "receipt_id": receipt_id, **changes}


def told(
    request: Request, at: tuple[int, int], status: int | None, body: Any = None, *, replayed: bool = False
) -> Told:
    """What came of a request that was sent and heard at these times; a refusal carries its receipt as `receipt`."""
    if status is None:
        return Told(request=request, sent_at=at[0], heard_at=at[1])
    outcome = (body.get("receipt") or body).get("outcome", "none")
    headers = {"receipt-outcome": outcome, "idempotency-replayed": str(replayed).lower()}
    content = json.dumps(body).encode()
    return Told(request=request, sent_at=at[0], heard_at=at[1], status=status, headers=headers, content=content)


def problem(name: str, **members: Any) -> dict[str, Any]:
    """A problem document."""
    return {"type": f"/problems/{name}", **members}


BRING, TAKE, REDO = deliver(BROUGHT, SKU, 10), reserve(OLD, {SKU: 2}), reserve(TAKEN, {SKU: 2}, supersedes=(OLD,))
GIVE_BACK, TOO_MUCH, CLOSE = release(BACK, "reservation-1"), reserve(FULL, {SKU: 99}), void(GONE)

RECEIPTS: Rows = [
    receipt(
        1, BRING, "inventory.deliver", lines=[{"sku": SKU, "requested": 10, "granted": 10}], stock_versions={SKU: 1}
    ),
    receipt(2, void(OLD), "void", "voided", reason="superseded", lines=[]),
    receipt(3, REDO, "inventory.reserve", reservation_id="reservation-1", stock_versions={SKU: 2}),
    receipt(4, TOO_MUCH, "inventory.reserve", "rejected", reason="insufficient-stock"),
    receipt(5, CLOSE, "void", "voided", reason="voided", lines=[]),
    receipt(6, GIVE_BACK, "inventory.release", reservation_id="reservation-1", stock_versions={SKU: 3}),
]
RECEIPTS[1]["request"] = RECEIPTS[4]["request"] = None
LEDGER: Rows = [
    movement(1, "delivery", 10, "receipt-1", received=10, available=10),
    movement(2, "reserve", 2, "receipt-3", available=-2, consumed=2),
    movement(3, "release", 2, "receipt-6", available=2, consumed=-2),
]
STOCK = {"received": 10, "available": 10, "held": 0, "consumed": 0, "version": 3}
HEARD = [
    told(BRING, (1, 2), 201, RECEIPTS[0]),
    told(look_up(TAKEN), (3, 4), 404, problem("receipt-not-found")),
    told(REDO, (5, 6), None),
    told(REDO, (7, 9), 201, RECEIPTS[2], replayed=True),
    told(TAKE, (8, 10), 410, problem("key-voided", receipt=RECEIPTS[1]), replayed=True),
    told(look_up(TAKEN), (11, 12), 200, RECEIPTS[2]),
    told(TOO_MUCH, (13, 14), 409, problem("insufficient-stock", receipt=RECEIPTS[3])),
    told(reserve(GONE, {SKU: 2}), (15, 18), 503, problem("overloaded")),
    told(CLOSE, (16, 17), 200, RECEIPTS[4]),
    told(GIVE_BACK, (19, 20), 200, RECEIPTS[5]),
    told(reserve(TAKEN, {SKU: 3}), (21, 22), 422, problem("idempotency-key-reused")),
]


def found(
    heard: list[Told] = HEARD, receipts: Rows = RECEIPTS, ledger: Rows = LEDGER, stock: dict[str, int] = STOCK
) -> list[str]:
    """What the rule says."""
    return contradictions(heard, Kept(receipts=receipts, stock={SKU: stock}, ledger={SKU: ledger}))


def test_a_good_history_is_one_story() -> None:
    """A redo, its closed generation, a lost answer, a refusal, a void and a release."""
    assert found() == []


def test_it_is_one_story_in_whatever_order_it_is_written_down() -> None:
    """Times decide, not places in a list."""
    assert found(HEARD[::-1]) == []


def changed(rows: Rows, index: int, **members: Any) -> Rows:
    """The same rows, but for one."""
    made = copy.deepcopy(rows)
    made[index] |= members
    return made


BAD: dict[str, tuple[Callable[[], list[str]], str]] = {
    "two executions": (
        lambda: found([*HEARD, told(REDO, (5, 30), 201, RECEIPTS[2]), told(REDO, (5, 31), 201, RECEIPTS[2])]),
        "2 answers say that they executed it",
    ),
    "an execution after the receipt was known": (
        lambda: found([*HEARD, told(REDO, (25, 26), 201, RECEIPTS[2])]),
        "executed after its receipt was known",
    ),
    "a receipt that was forgotten": (
        lambda: found([*HEARD, told(look_up(TAKEN), (25, 26), 404, problem("receipt-not-found"))]),
        "not found after its receipt was known",
    ),
    "a receipt that was told and is not kept": (
        lambda: found([*HEARD, told(reserve("key-lost-0000001", {SKU: 2}), (25, 26), 201, RECEIPTS[2])]),
        "and no receipt is kept",
    ),
    "two texts of one receipt": (
        lambda: found(receipts=changed(RECEIPTS, 2, created_at="later")),
        "is not the one that is kept",
    ),
    "a commit told as a void": (
        lambda: found([*HEARD, replace(HEARD[5], headers={"receipt-outcome": "voided"})]),
        "the headers say voided",
    ),
    "a status that is not the receipt's": (
        lambda: found([*HEARD, told(TOO_MUCH, (25, 26), 201, RECEIPTS[3], replayed=True)]),
        "was answered 201 with a receipt that is rejected",
    ),
    "another request's receipt": (
        lambda: found([*HEARD, told(reserve(TAKEN, {SKU: 3}), (25, 26), 201, RECEIPTS[2], replayed=True)]),
        "another request's receipt",
    ),
    "a release of another reservation": (
        lambda: found([*HEARD, told(release(BACK, "reservation-7"), (25, 26), 200, RECEIPTS[5], replayed=True)]),
        "another request's receipt",
    ),
    "done by a delivery that said it did nothing": (
        lambda: found([*(each for each in HEARD if each is not HEARD[2])]),
        "though no delivery of it may have done that",
    ),
    "closed by nobody": (
        lambda: found([each for each in HEARD if each is not HEARD[8]]),
        "though no delivery of it may have done that",
    ),
    "a former generation that is still open": (
        lambda: found(
            [each for each in HEARD if each.request is not TAKE],
            receipts=[{**row, "sequence": number} for number, row in enumerate([RECEIPTS[0], *RECEIPTS[2:]], start=1)],
        ),
        "neither closed nor known",
    ),
    "two generations that are both committed": (
        lambda: found(
            [*HEARD, told(TAKE, (1, 30), None)],
            receipts=changed(
                RECEIPTS,
                1,
                outcome="committed",
                kind="inventory.reserve",
                request=TAKE.body,
                reservation_id="reservation-9",
            ),
        ),
        "are both committed",
    ),
    "a refusal for a generation that did nothing": (
        lambda: found(receipts=changed(RECEIPTS, 2, outcome="rejected", reason="predecessor-committed")),
        "refused for a former generation that is voided",
    ),
    "a predecessor that is not what is kept": (
        lambda: found(
            [
                *HEARD,
                told(
                    REDO,
                    (25, 26),
                    409,
                    problem("predecessor-committed", receipt=RECEIPTS[2], predecessor={"key": OLD}),
                    replayed=True,
                ),
            ]
        ),
        "the predecessor that was told",
    ),
    "one key with two receipts": (lambda: found(receipts=[*RECEIPTS, {**RECEIPTS[2], "sequence": 7}]), "2 receipts"),
    "a hole in the feed": (lambda: found(receipts=changed(RECEIPTS, 5, sequence=8)), "the feed's sequences"),
    "a hole in the ledger": (lambda: found(ledger=changed(LEDGER, 2, version=4)), "the versions are not 1..3"),
    "a movement that a rejection made": (
        lambda: found(ledger=changed(LEDGER, 1, receipt_id="receipt-4")),
        "rejected, and the ledger has moved something else",
    ),
    "a commit that moved nothing": (
        lambda: found(ledger=LEDGER[:2], stock={**STOCK, "available": 8, "consumed": 2, "version": 2}),
        "committed, and the ledger has moved something else",
    ),
    "a movement of nobody": (lambda: found(ledger=changed(LEDGER, 1, receipt_id="receipt-9")), "without a receipt"),
    "a movement that is not of its kind": (
        lambda: found(ledger=changed(LEDGER, 1, consumed=0, held=2)),
        "is no reserve of 2",
    ),
    "below zero": (
        lambda: found(ledger=[LEDGER[1], LEDGER[0], LEDGER[2]]),
        "below zero",
    ),
    "a stock that is not the ledger's sum": (
        lambda: found(stock={**STOCK, "available": 9, "consumed": 1}),
        "the ledger sums to",
    ),
    "a stock that does not balance": (lambda: found(stock={**STOCK, "received": 11}), "does not balance"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_history_is_contradicted(name: str) -> None:
    """By the sentence that says what is wrong."""
    rule, sentence = BAD[name]
    assert [each for each in rule() if sentence in each]
