"""One request and its answer, as they went over the wire. The token is in none of it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Enough to see what was wrong; the longest bodies are those that are meant to be too long.
SHOWN_CHARACTERS = 1200
PROBLEMS = "/problems/"
_SHOWN_HEADERS = (
    "content-type",
    "receipt-outcome",
    "idempotency-replayed",
    "cache-control",
    "retry-after",
    "x-request-id",
    "location",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What was sent and what was heard."""

    method: str
    path: str
    sent_headers: tuple[tuple[str, str], ...]
    sent: bytes
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The body as a JSON object; empty if it is none."""
        try:
            parsed = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}

    @property
    def problem(self) -> str:
        """The name of its problem type; empty if it is no problem."""
        kind = self.document.get("type")
        return kind.removeprefix(PROBLEMS) if isinstance(kind, str) and kind.startswith(PROBLEMS) else ""

    @property
    def receipt(self) -> dict[str, Any]:
        """The receipt that it is, or carries; empty if there is none."""
        document = self.document
        carried = document.get("receipt") if self.problem else document
        return carried if isinstance(carried, dict) and "receipt_id" in carried and "outcome" in carried else {}

    @property
    def outcome(self) -> str:
        """The outcome in its receipt; empty if there is none."""
        return str(self.receipt.get("outcome", ""))

    @property
    def replayed(self) -> bool:
        """Whether it says that an earlier request earned it."""
        return self.headers.get("idempotency-replayed") == "true"

    @property
    def said(self) -> str:
        """Status and problem type in a word or two."""
        return f"{self.status} {self.problem or self.outcome}".strip()

    def as_document(self) -> dict[str, Any]:
        """The exchange as JSON members."""
        return {
            "method": self.method,
            "path": self.path,
            "request_headers": [list(header) for header in self.sent_headers],
            "request": _shown(self.sent),
            "status": self.status,
            "response_headers": {name: self.headers[name] for name in _SHOWN_HEADERS if name in self.headers},
            "response": _shown(self.body),
        }

    def as_text(self) -> str:
        """The exchange as a person reads it."""
        sent = [f"> {self.method} {self.path}", *(f"> {name}: {value}" for name, value in self.sent_headers)]
        heard = [
            f"< {self.status}",
            *(f"< {name}: {self.headers[name]}" for name in _SHOWN_HEADERS if name in self.headers),
        ]
        return "\n".join([*sent, *_body(">", self.sent), *heard, *_body("<", self.body)])


def _body(mark: str, body: bytes) -> list[str]:
    return [f"{mark} {_shown(body)}"] if body else []


def _shown(body: bytes) -> str:
    text = body[: 4 * SHOWN_CHARACTERS].decode("utf-8", errors="backslashreplace")
    if len(text) <= SHOWN_CHARACTERS and len(body) <= 4 * SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]}... ({len(body)} bytes)"
