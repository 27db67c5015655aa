"""A receipt's text, its problem document and its signature against its row: pure, and nothing is believed.

A person's words in a problem document (`detail`) are the one member that nothing else tells of.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import rfc8785

from services.inventory.contract import (
    SCHEMA_VERSION,
    Kind,
    Outcome,
    fingerprint,
    rfc3339,
    to_json,
)
from services.inventory.problems import STATUS, Problem
from services.inventory.verification.findings import Fault, Rule, shown

MEMBERS = (
    "schema_version",
    "receipt_id",
    "sequence",
    "key",
    "kind",
    "outcome",
    "reason",
    "request",
    "fingerprint",
    "fingerprint_version",
    "supersedes",
    "reservation_id",
    "lines",
    "stock_versions",
    "expires_at",
    "http_status",
    "created_at",
    "signature",
)
_FROM_ROW = ("sequence", "key", "kind", "outcome", "reason", "fingerprint", "reservation_id", "http_status")
_UNREADABLE = (ValueError, TypeError, RecursionError, OverflowError)


def read(text: Any) -> dict[str, Any] | None:
    """A JSON object in the service's own form, or None: not an object, not JSON, or not so written."""
    if not isinstance(text, str):
        return None
    try:
        document = json.loads(text)
        written = to_json(document)
    except _UNREADABLE:
        return None
    return document if isinstance(document, dict) and written == text else None


def check_text(row: Mapping[str, Any]) -> Iterator[Fault]:
    """S9: the text of a receipt that has its body."""
    text, digest = row["receipt"], row["receipt_sha256"]
    made = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest() if isinstance(text, str) else "none"
    if made != digest:
        yield Rule.S9, f"receipt_sha256 {shown(digest)}", f"{made}, which is the SHA-256 of the receipt's text"


def check_members(
    row: Mapping[str, Any],
    document: Mapping[str, Any] | None,
    lines: Sequence[tuple[str, int, int]],
    versions: Mapping[str, int],
) -> Iterator[Fault]:
    """The members of a receipt against its row, its lines (SKU, requested, granted) and its movements' versions."""
    if document is None or tuple(document) != MEMBERS:
        yield Rule.RECEIPT, f"the text {shown(row['receipt'])}", "a receipt as the service writes it"
        return
    committed_reserve = (row["kind"], row["outcome"]) == (Kind.RESERVE, Outcome.COMMITTED)
    told = committed_reserve and row["reserved"] is not None
    expected: dict[str, Any] = {
        **{name: row[name] for name in _FROM_ROW},
        "schema_version": SCHEMA_VERSION,
        "receipt_id": f"receipt-{row['sequence']}",
        "fingerprint_version": row["fingerprint_version"],
        "lines": [{"sku": sku, "requested": asked, "granted": given} for sku, asked, given in sorted(lines)],
        "stock_versions": dict(sorted(versions.items())),
        "created_at": _rfc3339(row["created_at"]),
    }
    if to_json({**document, **expected}) != row["receipt"]:
        for name, value in expected.items():
            if not same(document[name], value):
                yield Rule.RECEIPT, f"{name} {shown(value)} beside the text", f"{shown(document[name])}, as in the text"
                return
    if told and not same(document["expires_at"], _rfc3339(row["ends_at"])):
        end = shown(_rfc3339(row["ends_at"]))
        yield Rule.HOLD, f"expires_at {end} in the reservation", f"{shown(document['expires_at'])}, as in its receipt"
    if not committed_reserve and document["expires_at"] is not None:
        yield Rule.RECEIPT, f"expires_at {shown(document['expires_at'])} in the text", "none: only a hold has one"
    yield from _check_request(row, document, {sku: asked for sku, asked, _ in lines})


def _check_request(row: Mapping[str, Any], document: Mapping[str, Any], asked: Mapping[str, int]) -> Iterator[Fault]:
    request, kind = document["request"], row["kind"]
    if kind in {Kind.VOID, Kind.EXPIRY}:
        if request is not None or document["supersedes"] != []:
            yield Rule.RECEIPT, f"request {shown(request)} in the text of a {kind}", "none: nobody asked for it"
        return
    reason = row["reason"]
    if not isinstance(request, dict):
        yield Rule.RECEIPT, f"request {shown(request)} in the text", "an object"
        return
    if not same(request.get("reference"), row["reference"]):
        yield (
            Rule.RECEIPT,
            f"reference {shown(row['reference'])}",
            f"{shown(request.get('reference'))}, as was asked for",
        )
    moves = kind in {Kind.CONFIRM, Kind.RELEASE}
    if not (moves and row["reservation_id"] is None):  # refused before its reservation was looked at
        path = {"id": row["reservation_id"]} if moves else {}
        made = _fingerprint(kind, path, request)
        if made != row["fingerprint"]:
            yield Rule.RECEIPT, f"fingerprint {shown(row['fingerprint'])}", f"{made}, which is that of its request"
    if not moves and asked != (wanted := _wanted(kind, request)):
        yield Rule.RECEIPT, f"lines {shown(dict(asked))}", f"{shown(wanted)}, as was asked for"
    hold = request.get("hold_seconds") if kind == Kind.RESERVE else None
    if reason is None and kind == Kind.RESERVE and row["reserved"] is not None:
        end = None
        if isinstance(row["created_at"], datetime) and type(hold) is int:
            end = row["created_at"] + timedelta(seconds=hold)
        if row["ends_at"] != end:
            stored = f"expires_at {shown(_rfc3339(row['ends_at']))} in the reservation"
            yield Rule.HOLD, stored, f"{shown(_rfc3339(end))}: hold_seconds {shown(hold)} after the receipt"


def _wanted(kind: str, request: Mapping[str, Any]) -> dict[str, int] | None:
    wanted: dict[str, int] = {}
    try:
        for line in request["lines"] if kind == Kind.RESERVE else [request]:
            wanted[line["sku"]] = wanted.get(line["sku"], 0) + line["quantity"]
    except (KeyError, TypeError):
        return None
    return wanted


def _fingerprint(kind: str, path: Mapping[str, str], request: Mapping[str, Any]) -> str:
    try:
        return fingerprint(Kind(kind), path, request)
    except _UNREADABLE:
        return "none"


def check_problem(row: Mapping[str, Any], document: Mapping[str, Any] | None) -> Iterator[Fault]:
    """The stored answer of a rejection or a tombstone that has its body."""
    if row["outcome"] == Outcome.COMMITTED:
        if row["problem"] is not None:
            yield Rule.PROBLEM, f"the problem {shown(row['problem'])}", "none beside a committed receipt"
        return
    problem = read(row["problem"])
    name = Problem.KEY_VOIDED if row["kind"] == Kind.VOID else Problem(row["reason"])
    members = ["type", "title", "status", "detail", "receipt"]
    if problem is not None and "predecessor" in problem and name is Problem.PREDECESSOR_COMMITTED:
        members.insert(-1, "predecessor")
    if problem is None or list(problem) != members or not isinstance(problem["detail"], str) or not problem["detail"]:
        yield Rule.PROBLEM, f"the problem {shown(row['problem'])}", f"a document with {', '.join(members)}"
        return
    expected = {
        "type": f"/problems/{name.value}",
        "title": name.value.replace("-", " ").capitalize(),
        "status": STATUS[name],
        "receipt": document,
    }
    for member, value in expected.items():
        if not same(problem[member], value):
            yield Rule.PROBLEM, f"{member} {shown(problem[member])} in the problem", shown(value)


def predecessor(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The key and the SHA-256 of the receipt that stood in the way of a redo, as its problem document shows it."""
    shown_receipt = (read(row["problem"]) or {}).get("predecessor")
    if not isinstance(shown_receipt, dict):
        return None
    return str(shown_receipt.get("key")), hashlib.sha256(to_json(shown_receipt).encode()).hexdigest()


class Signatures:
    """Checks signatures in order of sequence.

    From the first receipt that is signed on, all are: else whoever forges one leaves its signature away.

    Args:
        keys: any of them verifies; without any, nothing is checked.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = keys
        self._begun = False
        self.checked = 0

    def check(self, document: Mapping[str, Any]) -> Iterator[Fault]:
        """The signature of one receipt."""
        if not self._keys:
            return
        signature = document["signature"]
        if signature is None:
            if self._begun:
                yield Rule.SIGNATURE, "no signature", "one, since an earlier receipt has one"
            return
        self._begun = True
        self.checked += 1
        try:
            members = rfc8785.dumps({name: value for name, value in document.items() if name != "signature"})
        except _UNREADABLE:
            members = None
        codes = [] if members is None else [hmac.new(key, members, hashlib.sha256).hexdigest() for key in self._keys]
        if not any(hmac.compare_digest(str(signature).encode(), f"hmac-sha256:{code}".encode()) for code in codes):
            expected = "one that a key of COUNTERFOIL_INVENTORY_SIGNING_KEYS verifies"
            yield Rule.SIGNATURE, f"signature {shown(signature)}", expected


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: 1, 1.0 and true are three values."""
    if isinstance(one, str) or isinstance(other, str):
        return bool(one == other)
    try:
        return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    except _UNREADABLE:
        return False


def _rfc3339(moment: Any) -> Any:
    return rfc3339(moment) if isinstance(moment, datetime) else moment
