"""How the journal's records become rows and entries, and come back."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from services.effects.keys import canonical
from services.effects.records import EffectRow, Intent, Receipt
from services.effects.states import EffectState


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the journal."""

    id: int
    key: str
    kind: str
    body: dict[str, Any]
    recorded_at: datetime
    recorded_by: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Why something is wanted and who said so; the first one under (origin, scope, name, generation) stands."""

    origin: str
    scope: str
    name: str
    generation: int
    decided_at: datetime
    body: dict[str, str]
    recorded_at: datetime


def text(value: Any) -> str:
    """Canonical JSON text."""
    return canonical(value).decode()


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds, the one form in which times stand in entries and headers."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def entry_digest(key: str, kind: str, body: str, recorded_at: datetime, recorded_by: str) -> str:
    """SHA-256, hex, of the canonical JSON `[key, kind, body text, recorded_at, recorded_by]`.

    Of text alone, canonical JSON is what the standard library writes, in a fiftieth of the time.
    """
    line = [key, kind, body, timestamp(recorded_at), recorded_by]
    return hashlib.sha256(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()).hexdigest()


def intent_body(intent: Intent, born_by: str) -> dict[str, Any]:
    """The body of an intent entry: everything that the effects row takes from it."""
    return {
        "origin": intent.origin,
        "scope": intent.scope,
        "name": intent.name,
        "generation": intent.generation,
        "kind": intent.kind,
        "provider": intent.provider,
        "path": intent.path,
        "request": intent.request,
        "fingerprint": intent.fingerprint,
        "fingerprint_version": intent.fingerprint_version,
        "supersedes": list(intent.supersedes),
        "decided_at": timestamp(intent.decided_at),
        "born_by": born_by,
        "workflow_id": intent.workflow_id,
        "workflow_type": intent.workflow_type,
        "first_run_id": intent.first_run_id,
    }


def new_effect(intent: Intent, *, born_by: str, created_at: datetime) -> dict[str, Any]:
    """The values of a new effects row."""
    return intent_body(intent, born_by) | {
        "key": intent.key,
        "path": text(intent.path),
        "supersedes": text(list(intent.supersedes)),
        "decided_at": intent.decided_at,
        "given_up": False,
        "alarmed": False,
        "state": EffectState.PENDING,
        "version": 1,
        "attempts": 0,
        "created_at": created_at,
        "accepted": False,
    }


def complete(new: Mapping[str, Any]) -> dict[str, Any]:
    """A new effects row as it is read back: with the columns that are empty at first."""
    return {"last_not_after": None, "settled_at": None, "receipt": None, "closed_as": None, **new}


def effect_row(row: sa.RowMapping | Mapping[str, Any], send_window: timedelta) -> EffectRow:
    """Read an effects row."""
    values = dict(row)
    last_not_after = values.pop("last_not_after")
    receipt = values.pop("receipt")
    return EffectRow(
        **values
        | {
            "path": json.loads(values["path"]),
            "supersedes": tuple(json.loads(values["supersedes"])),
            "state": EffectState(values["state"]),
            "deadline": last_not_after or values["decided_at"] + send_window,
            "receipt": None if receipt is None else Receipt(json.loads(receipt)),
        }
    )


def entry(row: sa.RowMapping | Mapping[str, Any]) -> Entry:
    """Read an entries row."""
    return Entry(**dict(row) | {"body": json.loads(row["body"])})


def decision(row: sa.RowMapping | Mapping[str, Any]) -> Decision:
    """Read a decisions row."""
    values = {name: value for name, value in row.items() if name != "recorded_by"}
    return Decision(**values | {"body": json.loads(row["body"])})
