"""What a receipt has done, against its row: lines, movements and the reservation it names. Pure; nothing is believed.

All of it is told by rows that retention leaves, so it holds of a receipt without its body too.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from services.inventory.contract import (
    FINGERPRINT_VERSION,
    MAX_HOLD_SECONDS,
    Kind,
    Outcome,
    ReservationState,
    expiry_key,
)
from services.inventory.problems import Problem
from services.inventory.verification.findings import Fault, Rule, shown

_SHA256 = re.compile("[0-9a-f]{64}")
_SUCCESS = {Kind.RESERVE: 201, Kind.DELIVER: 201, Kind.CONFIRM: 200, Kind.RELEASE: 200, Kind.EXPIRY: 200}
_REASONS: Mapping[str, frozenset[str]] = {
    Kind.RESERVE: frozenset({Problem.INSUFFICIENT_STOCK, Problem.UNKNOWN_SKU, Problem.PREDECESSOR_COMMITTED}),
    Kind.CONFIRM: frozenset({Problem.HOLD_EXPIRED, Problem.INVALID_TRANSITION, Problem.PREDECESSOR_COMMITTED}),
    Kind.RELEASE: frozenset({Problem.HOLD_EXPIRED, Problem.INVALID_TRANSITION, Problem.PREDECESSOR_COMMITTED}),
    Kind.DELIVER: frozenset({Problem.PREDECESSOR_COMMITTED}),
}
_MOVED_BY = {
    Kind.RESERVE: "reserved_by",
    Kind.CONFIRM: "confirmed_by",
    Kind.RELEASE: "released_by",
    Kind.EXPIRY: "expired_by",
}
_BALANCES = ("received", "available", "held", "consumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A receipt with everything that it has done.

    Attributes:
        row: the receipt's columns, and beside them `keyed` (whether its key's row is there), its reservation's
            `reserved`, `state`, `ends_at` and `..._by`, and `parent_key` and `parent_reference`: of the receipt that
            made the reservation.
        lines: its lines: SKU, requested, granted.
        movements: its movements, by column.
        units: SKU and quantity of the lines of the reservation that it names.
    """

    row: Mapping[str, Any]
    lines: Sequence[tuple[str, int, int]]
    movements: Sequence[Mapping[str, Any]]
    units: Sequence[tuple[str, int]]


def check(done: Done) -> Iterator[Fault]:
    """What is wrong with what a receipt has done."""
    row = done.row
    if not row["keyed"]:
        yield Rule.S8, "no row of this key in keys", "one, which rivals for the key wait on"
    yield from _check_facts(row)
    yield from _check_lines(done)
    if row["kind"] in _MOVED_BY:
        yield from _check_reservation(done)
    elif row["reservation_id"] is not None:
        yield Rule.RECEIPT, f"reservation_id {shown(row['reservation_id'])} of a {row['kind']}", "none"
    yield from _check_movements(done)
    if row["kind"] == Kind.EXPIRY and row["reference"] != row["parent_reference"]:
        expected = f"{shown(row['parent_reference'])}, as the hold has"
        yield Rule.RECEIPT, f"reference {shown(row['reference'])} of a hold's end", expected
    if row["kind"] == Kind.VOID and row["reference"] is not None:
        yield Rule.RECEIPT, f"reference {shown(row['reference'])} of a tombstone", "none"


def _check_facts(row: Mapping[str, Any]) -> Iterator[Fault]:
    """Kind, outcome, reason and status go together."""
    kind, outcome, reason = row["kind"], row["outcome"], row["reason"]
    if outcome == Outcome.COMMITTED:
        known, status = kind in _SUCCESS and reason is None, _SUCCESS.get(kind)
    elif outcome == Outcome.VOIDED:
        known, status = kind == Kind.VOID and reason in {"voided", "superseded"}, 410
    else:
        known, status = outcome == Outcome.REJECTED and reason in _REASONS.get(kind, ()), 409
    if not known:
        stored = f"kind {shown(kind)}, outcome {shown(outcome)} and reason {shown(reason)}"
        yield Rule.RECEIPT, stored, "three that go together"
    if row["http_status"] != status:
        yield Rule.RECEIPT, f"http_status {shown(row['http_status'])}", shown(status)
    asked = kind not in {Kind.VOID, Kind.EXPIRY}
    told = row["fingerprint"] is not None if not asked else _SHA256.fullmatch(row["fingerprint"] or "") is not None
    if (told, row["fingerprint_version"]) != (asked, FINGERPRINT_VERSION if asked else None):
        stored = f"fingerprint {shown(row['fingerprint'])} of version {shown(row['fingerprint_version'])}"
        yield Rule.RECEIPT, stored, f"one of version {FINGERPRINT_VERSION}" if asked else "none: nobody asked for it"
    if not _SHA256.fullmatch(row["receipt_sha256"]):
        yield Rule.S9, f"receipt_sha256 {shown(row['receipt_sha256'])}", "64 hex digits"


def _check_lines(done: Done) -> Iterator[Fault]:
    row, committed = done.row, done.row["outcome"] == Outcome.COMMITTED
    asked = {sku: requested for sku, requested, _ in done.lines}
    if len(asked) != len(done.lines):
        yield Rule.RECEIPT, "two lines of one SKU", "one line for each SKU"
    for sku, requested, granted in done.lines:
        if granted != (requested if committed else 0):
            stored = f"{shown(granted)} of {shown(requested)} {shown(sku)} granted"
            yield Rule.RECEIPT, stored, "all of them" if committed else f"none, since it is {row['outcome']}"
    if not asked and committed:
        yield Rule.RECEIPT, "no lines", "at least one, since it is committed"
    if row["kind"] == Kind.VOID and asked:
        yield Rule.RECEIPT, f"lines {shown(asked)} of a tombstone", "none"
    if row["reservation_id"] is not None and asked != dict(done.units):
        rule = Rule.S6 if row["kind"] == Kind.RESERVE else Rule.RECEIPT
        yield rule, f"lines {shown(dict(done.units))} in its reservation", f"{shown(asked)}, as in its receipt"


def _check_movements(done: Done) -> Iterator[Fault]:
    row = done.row
    if row["outcome"] != Outcome.COMMITTED:
        for movement in done.movements:
            stored = f"movement {movement['version']} of {shown(movement['sku'])}"
            yield Rule.S7, stored, f"none, since it is {row['outcome']}"
        return
    asked = {sku: granted for sku, _, granted in done.lines}
    moved = [movement["sku"] for movement in done.movements]
    if sorted(moved) != sorted(asked):
        yield Rule.S5, f"movements of {shown(sorted(moved))}", f"one of each of {shown(sorted(asked))}"
        return
    kind, taken, given = _way(row)
    for movement in done.movements:
        quantity = asked[movement["sku"]]
        changes = dict.fromkeys(_BALANCES, 0)
        if taken:
            changes[taken] -= quantity
        changes[given] += quantity
        if kind == "delivery":
            changes["received"] = quantity
        expected = {
            "kind": kind,
            "quantity": quantity,
            **changes,
            "key": row["key"],
            "reservation_id": row["reservation_id"],
            "created_at": row["created_at"],
        }
        for name, value in expected.items():
            if movement[name] != value:
                where = f"movement {movement['version']} of {shown(movement['sku'])}"
                yield Rule.S5, f"{name} {shown(movement[name])} in {where}", f"{shown(value)}, as its receipt says"


def _way(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """The kind of a committed receipt's movements, from which balance and to which."""
    held = row["ends_at"] is not None
    match row["kind"]:
        case Kind.RESERVE:
            return ("hold", "available", "held") if held else ("reserve", "available", "consumed")
        case Kind.CONFIRM:
            return "confirm", "held", "consumed"
        case Kind.RELEASE:
            return "release", "held" if held and row["confirmed_by"] is None else "consumed", "available"
        case Kind.EXPIRY:
            return "expiry", "held", "available"
        case _:
            return "delivery", "", "available"


def _check_reservation(done: Done) -> Iterator[Fault]:
    row = done.row
    kind, named, there = row["kind"], row["reservation_id"], row["reserved"] is not None
    rule = Rule.S6 if kind == Kind.RESERVE else Rule.S10 if kind in {Kind.RELEASE, Kind.EXPIRY} else Rule.RESERVATION
    if row["outcome"] != Outcome.COMMITTED:
        moves = kind in {Kind.CONFIRM, Kind.RELEASE}
        if (named is not None) != moves or (moves and not there):
            expected = "that of a reservation that is there" if moves else "none: nothing was reserved"
            yield Rule.RECEIPT, f"reservation_id {shown(named)} of a {kind} that is {row['outcome']}", expected
        elif row["reason"] in {Problem.HOLD_EXPIRED, Problem.INVALID_TRANSITION}:
            states = {"expired"} if row["reason"] == Problem.HOLD_EXPIRED else {"consumed", "released"}
            if row["state"] not in states:
                yield Rule.RESERVATION, f"state {shown(row['state'])} of {named}", f"{' or '.join(sorted(states))}"
        return
    if named is None or not there:
        yield rule, f"reservation_id {shown(named)} and no such reservation", f"the reservation of a committed {kind}"
        return
    moved_by = _MOVED_BY[kind]
    if row[moved_by] != row["sequence"]:
        stored = f"{moved_by} {shown(row[moved_by])} in {named}"
        yield rule, stored, f"{row['sequence']}, this committed {kind}"
    if kind == Kind.EXPIRY and row["parent_key"] is not None and row["key"] != expiry_key(row["parent_key"]):
        yield Rule.RECEIPT, f"key {shown(row['key'])} of a hold's end", expiry_key(row["parent_key"])
    if kind == Kind.RESERVE:
        yield from _check_state(row)


def _check_state(row: Mapping[str, Any]) -> Iterator[Fault]:
    """A reservation's state, its end and who moved it; once for each, with the receipt that made it."""
    end, confirmed, released, expired = (row[name] for name in ("ends_at", "confirmed_by", "released_by", "expired_by"))
    if released is not None:
        state = ReservationState.RELEASED
    elif expired is not None:
        state = ReservationState.EXPIRED
    else:
        state = ReservationState.HELD if end is not None and confirmed is None else ReservationState.CONSUMED
    made = {"confirmed_by": confirmed, "released_by": released, "expired_by": expired}
    if row["state"] != state:
        yield (
            Rule.RESERVATION,
            f"state {shown(row['state'])} of {row['reservation_id']}",
            f"{state}, after {shown(made)}",
        )
    moves = [row["sequence"], *(move for move in (confirmed, released, expired) if move is not None)]
    if moves != sorted(set(moves)) or (expired is not None and (confirmed, released) != (None, None)):
        stored = f"{shown(made)} in {row['reservation_id']}"
        yield Rule.RESERVATION, stored, "receipts after it, in an order in which they can have come"
    if end is None:
        if confirmed is not None or expired is not None:
            yield (
                Rule.HOLD,
                f"no expires_at in {row['reservation_id']}",
                "one: it was held, or there was nothing to end",
            )
        return
    made_at = row["created_at"]
    seconds = end - made_at if isinstance(end, datetime) and isinstance(made_at, datetime) else timedelta(0)
    if seconds % timedelta(seconds=1) or not timedelta(0) < seconds <= timedelta(seconds=MAX_HOLD_SECONDS):
        stored = f"expires_at {shown(end)} in {row['reservation_id']}"
        yield Rule.HOLD, stored, f"1 to {MAX_HOLD_SECONDS} whole seconds after {shown(made_at)}"
