"""The fold: what a key's rows of `effects` and `decisions` must be, computed from its entries and nothing else.

- Pure: the store writes row and entries together in one transaction, and this computes the one from the other by the
  same rules, in its own code.
- It reads the bodies as the text that was written, so that a digest can be computed again.
- An entry that moved nothing leaves no trace in the row: that one is missing is not seen from here.
- Entries that no build could have written in that order are refused, and why is said.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from services.effects.commands import LATE_RULINGS
from services.effects.keys import derive_key
from services.effects.states import MOVES, TERMINAL, EffectState
from services.journal.rows import entry_digest, text

# Taken from the first intent as they stand.
_COPIED = (
    "origin",
    "scope",
    "name",
    "generation",
    "kind",
    "provider",
    "request",
    "fingerprint",
    "fingerprint_version",
    "born_by",
    "workflow_id",
    "workflow_type",
    "first_run_id",
)


class Unfoldable(ValueError):
    """No row can be computed from these entries."""


class OutOfOrder(Unfoldable):
    """An entry stands where none of its kind may stand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenEntry:
    """One line of the journal with its body as the text that was written."""

    id: int
    key: str
    kind: str
    body: str
    recorded_at: datetime
    recorded_by: str
    digest: str

    @property
    def intact(self) -> bool:
        """Whether the digest is that of the rest; what no build could have written is not."""
        try:
            return self.digest == entry_digest(self.key, self.kind, self.body, self.recorded_at, self.recorded_by)
        except (AttributeError, TypeError, ValueError):
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The whole journal at one moment: the rows of `effects` by column, and every entry in order."""

    effects: tuple[Mapping[str, Any], ...]
    entries: tuple[WrittenEntry, ...]


def fold(entries: Sequence[WrittenEntry]) -> dict[str, Any] | None:
    """The row that a key's entries come to, by column; None where they hold no intent.

    Args:
        entries: all of one key, in order.

    Raises:
        OutOfOrder: an intent without a decision, anything else without an intent, or an attempt or a move that the
            state before it forbids.
        Unfoldable: a body cannot be read, or is of a kind that this build does not know.
    """
    row: dict[str, Any] | None = None
    decided = False
    for entry in entries:
        try:
            body = json.loads(entry.body)
            if entry.kind == "decision":
                decided = True
            elif entry.kind == "intent":
                if not decided:
                    raise OutOfOrder(f"entry {entry.id} is an intent without an earlier decision")
                row = _born(entry, body) if row is None else _asked_again(row, body)
            elif row is None and entry.kind == "resolution":
                continue  # of an orphan: a receipt that no intent is for
            elif row is None:
                raise OutOfOrder(f"entry {entry.id} is of kind {entry.kind} without an earlier intent")
            else:
                _apply(row, entry, body)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, Unfoldable):
                raise
            raise Unfoldable(f"the body of entry {entry.id} ({entry.kind}) cannot be read") from None
    return row


def decided(entries: Sequence[WrittenEntry]) -> dict[str, Any] | None:
    """The row of `decisions` that a key's entries tell of, by column; None where they tell of none.

    Raises:
        Unfoldable: the body cannot be read, or tells of another key's decision.
    """
    entry = next((entry for entry in entries if entry.kind == "decision"), None)
    if entry is None:
        return None
    try:
        body = json.loads(entry.body)
        name = {column: body[column] for column in ("origin", "scope", "name", "generation")}
        if derive_key(**name) == entry.key:
            return name | {
                "decided_at": datetime.fromisoformat(body["decided_at"]),
                "body": text(body["why"]),
                "recorded_at": entry.recorded_at,
                "recorded_by": entry.recorded_by,
            }
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError):
        raise Unfoldable(f"the body of entry {entry.id} ({entry.kind}) cannot be read") from None
    raise Unfoldable(f"entry {entry.id} tells of the decision of another key")


def differences(row: Mapping[str, Any], folded: Mapping[str, Any]) -> str:
    """In what a stored row is not the one that it should be, for people; empty where it is."""
    return "; ".join(
        f"{name} is {row.get(name)!s:.60} and should be {value!s:.60}"
        for name, value in folded.items()
        if row.get(name) != value
    )


def _born(entry: WrittenEntry, body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: body[name] for name in _COPIED} | {
        "key": entry.key,
        "path": text(body["path"]),
        "supersedes": text(body["supersedes"]),
        "decided_at": datetime.fromisoformat(body["decided_at"]),
        "last_not_after": None,
        "given_up": False,
        "alarmed": False,
        "state": EffectState.PENDING.value,
        "version": 1,
        "attempts": 0,
        "created_at": entry.recorded_at,
        "settled_at": None,
        "receipt": None,
        "closed_as": None,
        "accepted": False,
    }


def _asked_again(row: dict[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """An intent of a history that decided earlier: the window is only ever made shorter."""
    earlier = min(row["decided_at"], datetime.fromisoformat(body["decided_at"]))
    return row | {"decided_at": earlier, "version": row["version"] + 1}


def _apply(row: dict[str, Any], entry: WrittenEntry, body: Mapping[str, Any]) -> None:
    match entry.kind:
        case "attempt":
            _check_attempt(row, entry, body)
            not_after = datetime.fromisoformat(body["not_after"])
            latest = row["last_not_after"]
            row["last_not_after"] = not_after if latest is None else max(latest, not_after)
            row["attempts"] += 1
        case "observation":
            state = EffectState(body["state"])
            if "closed_as" in body:
                row["closed_as"] = body["closed_as"]
            elif state == row["state"]:
                return
            else:
                _move(row, entry, state, text(body["receipt"]) if state in TERMINAL else None)
        case "given_up":
            row["given_up"] = True
        case "late_observation":
            row["alarmed"] = True
        case "resolution":
            if not _resolve(row, entry, body):
                return
        case _:
            raise Unfoldable(f"entry {entry.id} is of kind {entry.kind}, which this build never writes for an effect")
    row["version"] += 1


def _check_attempt(row: Mapping[str, Any], entry: WrittenEntry, body: Mapping[str, Any]) -> None:
    if row["state"] != EffectState.PENDING:
        raise OutOfOrder(f"entry {entry.id} is an attempt after the effect was {row['state']}")
    if row["given_up"] or row["alarmed"]:
        raise OutOfOrder(
            f"entry {entry.id} is an attempt after {'giving up' if row['given_up'] else 'a late observation'}"
        )
    if body["number"] != row["attempts"] + 1:
        raise OutOfOrder(f"entry {entry.id} is attempt {body['number']} after {row['attempts']}")


def _resolve(row: dict[str, Any], entry: WrittenEntry, body: Mapping[str, Any]) -> bool:
    """What a person's word did to the row; most of it only asks, and the answer moves the row."""
    ruling = body.get("ruling")
    match ruling:
        case None:
            return False
        case "asserted":
            _move(row, entry, EffectState(body["state"]), None)
        case "accepted":
            row["accepted"] = True
        case _ if ruling in LATE_RULINGS:
            row["alarmed"] = False
        case _:
            raise Unfoldable(f"entry {entry.id} has the ruling {ruling}, which this build never writes")
    return True


def _move(row: dict[str, Any], entry: WrittenEntry, state: EffectState, receipt: str | None) -> None:
    if state not in MOVES[EffectState(row["state"])]:
        raise OutOfOrder(f"entry {entry.id} moves the effect from {row['state']} to {state}")
    row["state"] = state.value
    if state in TERMINAL:
        row["settled_at"] = entry.recorded_at
        row["receipt"] = receipt
