"""What the contract says of one answer by itself: pure functions over what was heard.

The fingerprint and the digest are computed here by code of this package's own, from the words of docs/effects-api.md.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import rfc8785

from services.conformance.exchanges import PROBLEMS, Exchange

# docs/effects-api.md, section 13: status, whether it carries a stored receipt, further members.
PROBLEM_TYPES: Mapping[str, tuple[int, frozenset[str]]] = {
    "validation-failed": (400, frozenset({"errors"})),
    "idempotency-key-missing": (400, frozenset()),
    "idempotency-key-invalid": (400, frozenset()),
    "unauthorized": (401, frozenset()),
    "forbidden": (403, frozenset()),
    "receipt-not-found": (404, frozenset({"observed_at", "watermark"})),
    "reservation-not-found": (404, frozenset()),
    "sku-not-found": (404, frozenset()),
    "not-found": (404, frozenset()),
    "method-not-allowed": (405, frozenset()),
    "insufficient-stock": (409, frozenset({"receipt"})),
    "unknown-sku": (409, frozenset({"receipt"})),
    "hold-expired": (409, frozenset({"receipt"})),
    "invalid-transition": (409, frozenset({"receipt"})),
    "predecessor-committed": (409, frozenset({"predecessor", "receipt"})),
    "request-in-progress": (409, frozenset()),
    "key-voided": (410, frozenset({"receipt"})),
    "key-expired": (410, frozenset({"expired"})),
    "not-after-passed": (412, frozenset()),
    "payload-too-large": (413, frozenset()),
    "idempotency-key-reused": (422, frozenset()),
    "internal": (500, frozenset()),
    "overloaded": (503, frozenset()),
}
# After these the same request may simply be sent again.
RETRIABLE = frozenset({"request-in-progress", "overloaded"})
OUTCOMES = frozenset({"committed", "rejected", "voided"})
REQUEST_KINDS = frozenset({"inventory.reserve", "inventory.confirm", "inventory.release", "inventory.deliver"})
_REFUSALS = frozenset(
    name for name, (_, members) in PROBLEM_TYPES.items() if "receipt" in members and name != "key-voided"
)

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z")
_SIGNATURE = re.compile("hmac-sha256:[0-9a-f]{64}")
_SUCCESS = {
    "inventory.reserve": 201,
    "inventory.deliver": 201,
    "inventory.confirm": 200,
    "inventory.release": 200,
    "expiry": 200,
}
_RECEIPT_MEMBERS = frozenset(
    {
        "schema_version", "receipt_id", "sequence", "key", "kind", "outcome", "reason", "request", "fingerprint",
        "fingerprint_version", "supersedes", "reservation_id", "lines", "stock_versions", "expires_at", "http_status",
        "created_at", "signature",
    }
)  # fmt: skip


class Broken(Exception):
    """The provider did something else than the contract says: what, and the exchanges that show it."""

    def __init__(self, message: str, exchanges: Iterable[Exchange] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.exchanges = tuple(exchanges)


def expect(holds: bool, message: str, *exchanges: Exchange) -> None:
    """Raise Broken unless it holds."""
    if not holds:
        raise Broken(message, exchanges)


def expect_answer(exchange: Exchange, status: int, problem: str = "") -> Exchange:
    """Return the exchange if its status and problem type are these; for success, no problem type."""
    said = f"{status} {problem}".strip()
    matches = exchange.status == status and exchange.problem == problem
    expect(matches, f"{exchange.method} {exchange.path} should be {said}; it is {exchange.said}", exchange)
    return exchange


def fingerprint(kind: str, path: Mapping[str, str], request: Mapping[str, Any]) -> str:
    """Section 2, for a request without members that equal their default."""
    return hashlib.sha256(rfc8785.dumps(["cf-fp1", kind, dict(path), dict(request)])).hexdigest()


def digest_item(key: str, outcome: str, receipt_id: str) -> int:
    """Section 10: what one receipt adds to the digests of its ranges."""
    return int.from_bytes(hashlib.sha256(rfc8785.dumps(["cf-rd1", key, outcome, receipt_id])).digest(), "big")


def digest(items: Iterable[int]) -> str:
    """Section 10: the digest of a range."""
    return f"{sum(items) % 2**256:064x}"


def moment(text: object) -> datetime | None:
    """A time as the contract writes it; None if it is none."""
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def header_faults(exchange: Exchange) -> list[str]:
    """What is wrong with an answer's headers, section 4."""
    headers = exchange.headers
    faults = []
    outcome = headers.get("receipt-outcome")
    if exchange.method != "GET" or exchange.path.startswith("/v1/receipts/"):
        carried = exchange.outcome or "none"
        if outcome != carried:
            faults.append(f"Receipt-Outcome should be {carried}; it is {outcome}")
    elif outcome != "none":
        faults.append(f"Receipt-Outcome should be none; it is {outcome}")
    if headers.get("idempotency-replayed") not in {"true", "false"}:
        faults.append(f"Idempotency-Replayed is {headers.get('idempotency-replayed')}")
    if headers.get("cache-control") != "no-store":
        faults.append(f"Cache-Control is {headers.get('cache-control')}")
    if not headers.get("x-request-id"):
        faults.append("X-Request-Id is missing")
    if ("retry-after" in headers) != (exchange.problem in RETRIABLE):
        faults.append(f"Retry-After is {headers.get('retry-after')}")
    expected = "application/json" if exchange.status < 400 else "application/problem+json"  # noqa: PLR2004
    if headers.get("content-type", "").partition(";")[0].strip() != expected:
        faults.append(f"Content-Type should be {expected}; it is {headers.get('content-type')}")
    if 300 <= exchange.status < 400:  # noqa: PLR2004
        faults.append(f"{exchange.status} is a redirect")
    return faults


def problem_faults(exchange: Exchange) -> list[str]:
    """What is wrong with an answer from 400 on as a problem document, section 13."""
    document = exchange.document
    if exchange.problem not in PROBLEM_TYPES:
        return [f"{exchange.status} has no problem type of the contract: {document.get('type')}"]
    status, members = PROBLEM_TYPES[exchange.problem]
    faults = []
    # 429 is a limit in front of the service; it says what 503 says.
    statuses = {status, 429} if exchange.problem == "overloaded" else {status}
    if exchange.status not in statuses or document.get("status") != exchange.status:
        faults.append(f"{exchange.problem} has status {exchange.status}, and {document.get('status')} in its document")
    expected = {"type", "title", "status", "detail"} | members
    if set(document) != expected:
        faults.append(f"{PROBLEMS}{exchange.problem} has the members {sorted(document)}, not {sorted(expected)}")
    if not all(isinstance(document.get(name), str) and document[name] for name in ("title", "detail")):
        faults.append("title and detail should be text")
    return faults


def receipt_faults(receipt: Mapping[str, Any]) -> list[str]:
    """What is wrong with a receipt by itself, section 7."""
    if set(receipt) != _RECEIPT_MEMBERS:
        return [f"its members are {sorted(receipt)}, not {sorted(_RECEIPT_MEMBERS)}"]
    said = {
        "schema_version is 1": receipt["schema_version"] == 1,
        "receipt_id is text": _is_text(receipt["receipt_id"]),
        "sequence is a whole number from 1": type(receipt["sequence"]) is int and receipt["sequence"] > 0,
        "key is text": _is_text(receipt["key"]),
        "outcome is one of the three": receipt["outcome"] in OUTCOMES,
        "created_at is a time": moment(receipt["created_at"]) is not None,
        "supersedes is a list of keys": _are_texts(receipt["supersedes"]),
        "signature is null or hmac-sha256": _is_signature(receipt["signature"]),
        "expires_at is null or a time": receipt["expires_at"] is None or moment(receipt["expires_at"]) is not None,
    }
    faults = [sentence for sentence, holds in said.items() if not holds]
    return faults or [*_kind_faults(receipt), *_outcome_faults(receipt)]


def _kind_faults(receipt: Mapping[str, Any]) -> list[str]:
    kind, request = receipt["kind"], receipt["request"]
    if kind not in REQUEST_KINDS:
        made = {"void": "voided", "expiry": "committed"}.get(kind)
        nothing = (request, receipt["fingerprint"], receipt["fingerprint_version"]) == (None, None, None)
        return (
            [] if made == receipt["outcome"] and nothing else [f"a receipt of kind {kind} is {made}, without request"]
        )
    if not isinstance(request, dict):
        return [f"request of {kind} is not an object"]
    moved = kind in {"inventory.confirm", "inventory.release"}
    if moved and receipt["reservation_id"] is None:
        return [f"{kind} names no reservation"]
    expected = fingerprint(kind, {"id": receipt["reservation_id"]} if moved else {}, request)
    if (receipt["fingerprint_version"], receipt["fingerprint"]) != ("cf-fp1", expected):
        return [f"fingerprint should be {expected}; it is {receipt['fingerprint']}"]
    return []


def _outcome_faults(receipt: Mapping[str, Any]) -> list[str]:
    outcome, lines = receipt["outcome"], receipt["lines"]
    skus = [line["sku"] for line in lines]
    faults = []
    if skus != sorted(set(skus)):
        faults.append("lines should be one per SKU, ascending")
    match outcome:
        case "committed":
            holds = (
                receipt["reason"] is None
                and receipt["http_status"] == _SUCCESS[receipt["kind"]]
                and all(line["granted"] == line["requested"] for line in lines)
                and sorted(receipt["stock_versions"]) == skus
            )
        case "rejected":
            holds = (
                receipt["reason"] in _REFUSALS
                and receipt["http_status"] == PROBLEM_TYPES[receipt["reason"]][0]
                and all(line["granted"] == 0 for line in lines)
                and not receipt["stock_versions"]
                and receipt["expires_at"] is None
            )
        case _:
            nothing = (lines, receipt["stock_versions"], receipt["reservation_id"], receipt["expires_at"])
            holds = (
                receipt["reason"] in {"voided", "superseded"}
                and receipt["http_status"] == PROBLEM_TYPES["key-voided"][0]
                and nothing == ([], {}, None, None)
            )
    if not holds:
        faults.append(f"reason, http_status, lines or stock_versions are not those of a {outcome} receipt")
    return faults


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_signature(value: object) -> bool:
    return value is None or (isinstance(value, str) and _SIGNATURE.fullmatch(value) is not None)
