"""What an effect's row must be by its entries alone: written apart from the store, to be compared with it."""

import hashlib
import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from services.effects.records import EffectRow
from services.journal.rows import Entry

TERMINAL = {"committed", "rejected", "voided"}
TAKEN = [
    "origin",
    "scope",
    "name",
    "generation",
    "kind",
    "provider",
    "path",
    "request",
    "fingerprint",
    "fingerprint_version",
    "supersedes",
    "born_by",
    "workflow_id",
    "workflow_type",
    "first_run_id",
]


def fold(entries: Iterable[Entry]) -> dict[str, Any] | None:
    """The row's values, or None where no intent is recorded."""
    row: dict[str, Any] = {}
    for entry in entries:
        body = entry.body
        if entry.kind == "intent" and not row:
            row = {member: body[member] for member in TAKEN}
            row |= {"key": entry.key, "decided_at": body["decided_at"], "created_at": entry.recorded_at, "version": 1}
            row |= {"state": "pending", "given_up": False, "alarmed": False, "attempts": 0, "last_not_after": None}
            row |= {"settled_at": None, "receipt": None, "closed_as": None, "accepted": False}
            continue
        if entry.kind == "intent":
            assert body["decided_at"] < row["decided_at"], "an intent is recorded again only when it is earlier"
            row["decided_at"] = body["decided_at"]
        elif entry.kind == "attempt":
            row["attempts"] += 1
            assert body["number"] == row["attempts"]
            row["last_not_after"] = max(row["last_not_after"] or "", body["not_after"])
        elif entry.kind == "given_up":
            row["given_up"] = True
        elif entry.kind == "late_observation":
            row["alarmed"] = True
        elif "closed_as" in body:
            row["closed_as"] = body["closed_as"]
        elif entry.kind == "resolution" and "ruling" in body:
            if body["ruling"] == "asserted":
                row |= {"state": body["state"], "settled_at": entry.recorded_at}
            elif body["ruling"] == "accepted":
                row["accepted"] = True
            else:
                row["alarmed"] = False
        elif entry.kind == "observation" and row["state"] not in TERMINAL and body["state"] != row["state"]:
            row["state"] = body["state"]
            if body["state"] in TERMINAL:
                row |= {"settled_at": entry.recorded_at, "receipt": body["receipt"]}
        else:
            assert entry.kind in {"observation", "decision", "resolution"}, entry.kind
            continue
        row["version"] += 1
    return row or None


def as_folded(row: EffectRow, *, marked: bool) -> dict[str, Any]:
    """The store's row in the same form."""
    told = {member: getattr(row, member) for member in TAKEN}
    return told | {
        "key": row.key,
        "supersedes": list(row.supersedes),
        "decided_at": written(row.decided_at),
        "created_at": row.created_at,
        "version": row.version,
        "state": str(row.state),
        "given_up": row.given_up,
        "alarmed": row.alarmed,
        "attempts": row.attempts,
        "last_not_after": written(row.deadline) if marked else None,
        "settled_at": row.settled_at,
        "receipt": None if row.receipt is None else row.receipt.body,
        "closed_as": row.closed_as,
        "accepted": row.accepted,
    }


def written(moment: datetime) -> str:
    """RFC 3339, UTC, microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def digest(entry: Entry) -> str:
    """SHA-256 over key, kind, body text, time and writer, each in canonical JSON (the bodies here are ASCII)."""
    body = json.dumps(entry.body, sort_keys=True, separators=(",", ":"))
    sealed = [entry.key, entry.kind, body, written(entry.recorded_at), entry.recorded_by]
    return hashlib.sha256(json.dumps(sealed, separators=(",", ":")).encode()).hexdigest()
