"""The inventory's errors: RFC 9457 problem documents, whose `type` is what a caller switches on.

    Refused         any answer that is a problem document and stores nothing
      Invalid       400: the request itself is wrong, with a pointer to each fault

Problems that carry a stored receipt are not raised: they are answers, written in the transaction that stored them.
No document says anything about the inside of the service, and none repeats a token or an exception's text.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

# Long enough for a queue of writers to move on, short beside any caller's pause between attempts.
RETRY_AFTER_SECONDS = 1


class Problem(StrEnum):
    """Every problem type there is."""

    VALIDATION_FAILED = "validation-failed"
    IDEMPOTENCY_KEY_MISSING = "idempotency-key-missing"
    IDEMPOTENCY_KEY_INVALID = "idempotency-key-invalid"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    RECEIPT_NOT_FOUND = "receipt-not-found"
    RESERVATION_NOT_FOUND = "reservation-not-found"
    SKU_NOT_FOUND = "sku-not-found"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    INSUFFICIENT_STOCK = "insufficient-stock"
    UNKNOWN_SKU = "unknown-sku"
    HOLD_EXPIRED = "hold-expired"
    INVALID_TRANSITION = "invalid-transition"
    PREDECESSOR_COMMITTED = "predecessor-committed"
    REQUEST_IN_PROGRESS = "request-in-progress"
    KEY_VOIDED = "key-voided"
    KEY_EXPIRED = "key-expired"
    NOT_AFTER_PASSED = "not-after-passed"
    PAYLOAD_TOO_LARGE = "payload-too-large"
    IDEMPOTENCY_KEY_REUSED = "idempotency-key-reused"
    INTERNAL = "internal"
    OVERLOADED = "overloaded"


STATUS: Mapping[Problem, int] = {
    Problem.VALIDATION_FAILED: 400,
    Problem.IDEMPOTENCY_KEY_MISSING: 400,
    Problem.IDEMPOTENCY_KEY_INVALID: 400,
    Problem.UNAUTHORIZED: 401,
    Problem.FORBIDDEN: 403,
    Problem.RECEIPT_NOT_FOUND: 404,
    Problem.RESERVATION_NOT_FOUND: 404,
    Problem.SKU_NOT_FOUND: 404,
    Problem.NOT_FOUND: 404,
    Problem.METHOD_NOT_ALLOWED: 405,
    Problem.INSUFFICIENT_STOCK: 409,
    Problem.UNKNOWN_SKU: 409,
    Problem.HOLD_EXPIRED: 409,
    Problem.INVALID_TRANSITION: 409,
    Problem.PREDECESSOR_COMMITTED: 409,
    Problem.REQUEST_IN_PROGRESS: 409,
    Problem.KEY_VOIDED: 410,
    Problem.KEY_EXPIRED: 410,
    Problem.NOT_AFTER_PASSED: 412,
    Problem.PAYLOAD_TOO_LARGE: 413,
    Problem.IDEMPOTENCY_KEY_REUSED: 422,
    Problem.INTERNAL: 500,
    Problem.OVERLOADED: 503,
}

# The only ones after which the same request may simply be sent again, unchanged.
RETRIABLE = frozenset({Problem.REQUEST_IN_PROGRESS, Problem.OVERLOADED})


def document(problem: Problem, detail: str, **members: Any) -> dict[str, Any]:
    """The problem document: its type, title and status, what happened, and members of its own."""
    title = problem.value.replace("-", " ").capitalize()
    return {
        "type": f"/problems/{problem.value}",
        "title": title,
        "status": STATUS[problem],
        "detail": detail,
        **members,
    }


class Refused(Exception):
    """A request that ends in a problem document; nothing was stored for it."""

    def __init__(self, problem: Problem, detail: str, **members: Any) -> None:
        super().__init__(problem.value)
        self.problem = problem
        self.detail = detail
        self.members = members


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that is wrong with a request: where (a JSON pointer, a header, a parameter) and what."""

    at: str
    message: str


class Invalid(Refused):
    """The request itself is wrong: sending it again cannot help."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__(
            Problem.VALIDATION_FAILED,
            "The request is not valid. Nothing was executed. Correct it before sending it again.",
            errors=[{"at": fault.at, "message": fault.message} for fault in faults],
        )


def overloaded() -> Refused:
    """It cannot be done now; said only where it is certain that nothing was executed."""
    return Refused(
        Problem.OVERLOADED, "The service cannot take this request now. This delivery executed nothing. Send it again."
    )


def no_reservation() -> Refused:
    """There is no such reservation, or it is another tenant's."""
    return Refused(Problem.RESERVATION_NOT_FOUND, "There is no such reservation. Nothing was executed.")


def unauthorized() -> Refused:
    """No token, or none that is known: which of them is nobody's business."""
    return Refused(Problem.UNAUTHORIZED, "This needs a bearer token that the service knows. Nothing was executed.")


def forbidden() -> Refused:
    """A token that may only read."""
    return Refused(Problem.FORBIDDEN, "This token may read and no more. Nothing was executed.")
