"""One request and what it was answered with, as the log and the metrics see it: never its body, never its token."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Not one of the routes, so that no path of a caller's invention becomes a series or a line of its own.
UNMATCHED = "unmatched"
UNREADABLE = "unreadable"  # not even HTTP
# Asked every few seconds by machines: a line for each would bury the others.
_PROBES = frozenset({"/livez", "/readyz", "/metrics"})
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE"})


def known_method(method: str) -> str:
    """The method, or "other": a caller may send any word."""
    return method if method in _METHODS else "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request and its answer."""

    request_id: str
    method: str
    route: str  # the route's template, never the path
    seconds: float
    status: int | None  # None: nobody was left to answer
    outcome: str = "none"
    replayed: bool = False
    problem: str | None = None
    tenant: str | None = None
    key: str | None = None  # a well-formed one only

    @property
    def is_noise(self) -> bool:
        """Whether it is a probe that went well."""
        return self.route in _PROBES and self.status is not None and self.status < 400  # noqa: PLR2004

    def fields(self) -> Mapping[str, Any]:
        """Its members in the order in which they are read."""
        return {
            "method": self.method,
            "route": self.route,
            "status": self.status,
            "outcome": self.outcome,
            "replayed": self.replayed,
            "problem": self.problem,
            "seconds": round(self.seconds, 6),
            "tenant": self.tenant,
            "key": self.key,
            "request_id": self.request_id,
        }
