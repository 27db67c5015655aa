"""How records of the journal are said: to people in a few words, to programs with every member."""

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any

from services.effects.records import EffectRow, Receipt
from services.journal.rows import Entry, text, timestamp

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_DIGESTS = frozenset({"input", "command_id"})


def age(begun: datetime, now: datetime) -> str:
    """How long something is ago, in its largest unit."""
    seconds = max(0, int((now - begun).total_seconds()))
    if seconds < _MINUTE:
        return f"{seconds} s"
    if seconds < _HOUR:
        return f"{seconds // _MINUTE} min"
    return f"{seconds // _HOUR} h" if seconds < _DAY else f"{seconds // _DAY} d"


def state_words(row: EffectRow, *, state: str = "") -> str:
    """The state of an effect, or another word in its place, and whether a late report waits for a person."""
    return (state or row.state).replace("_", " ") + (" ALARM" if row.alarmed else "")


def moment(value: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{value:%Y-%m-%d %H:%M:%S}Z"


def document(record: EffectRow | Entry) -> dict[str, Any]:
    """A row or an entry with every member, as JSON has it."""
    return {field.name: _json(getattr(record, field.name)) for field in fields(record)}


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, Receipt):
        return value.body
    return list(value) if isinstance(value, tuple) else value


def entry_words(entry: Entry) -> str:
    """What an entry says, in one line; a kind or body of another build is shown as it is."""
    try:
        return _WORDS[entry.kind](entry.body)
    except (KeyError, TypeError, AttributeError, ValueError):
        return str(entry.body)


def _decision(body: Mapping[str, Any]) -> str:
    why = members_in_words(body["why"])
    generation = f" generation {body['generation']}" if body["generation"] != 1 else ""
    return f"{body['scope']}/{body['name']}{generation} is wanted ({why or 'no reason given'})"


def members_in_words(body: Mapping[str, Any]) -> str:
    """A decision's members in one line, without digests, which compare and say nothing."""
    return ", ".join(
        f"{name.replace('_', ' ')}: {value}" for name, value in body.items() if name not in _DIGESTS and value != ""
    )


def _intent(body: Mapping[str, Any]) -> str:
    path = "".join(f" {name}={value}" for name, value in body["path"].items())
    return f"{body['kind']}{path} {without_reference(body['request'])}"


def without_reference(request: str) -> str:
    """A request without the reference that the engine put in, which says only scope and name again."""
    try:
        members = json.loads(request)
    except ValueError:
        return request
    return text({name: value for name, value in members.items() if name != "reference"})


def _attempt(body: Mapping[str, Any]) -> str:
    worker = body["worker"]
    host = worker["host"].partition("/")[0]  # after it stand the namespaces that the pid counts in
    not_after = moment(datetime.fromisoformat(body["not_after"]))
    return f"attempt {body['number']} by process {worker['pid']} of {host}, not after {not_after}"


def _observation(body: Mapping[str, Any]) -> str:
    receipt = body.get("receipt")
    shown = f"{receipt['receipt_id']} {receipt['outcome']}" if receipt else body["seen"].replace("_", " ")
    reason = f" ({body['reason']})" if body.get("reason") else ""
    alarm = f"; ALARM: {body['alarm']}" if body.get("alarm") else ""
    return (
        f"{body['source'].replace('_', ' ')}: {shown}{reason}; the effect is {body['state'].replace('_', ' ')}{alarm}"
    )


def _resolution(body: Mapping[str, Any]) -> str:
    said = members_in_words({name: value for name, value in body.items() if name not in _OF_A_COMMAND})
    words = f"{body['command']} by {body['by']}: {body['reason']}" + (f" ({said})" if said else "")
    did = f"; {body['ruling'].replace('-', ' ')}" if body.get("ruling") else ""
    state = f"; the effect is {body['state'].replace('_', ' ')}" if body.get("state") else ""
    return f"{words}{did}{state}"


_OF_A_COMMAND = frozenset({"command", "by", "reason", "ruling", "state"})


_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "decision": _decision,
    "intent": _intent,
    "attempt": _attempt,
    "observation": _observation,
    "given_up": lambda body: f"nothing more is sent: {body['why']}",
    "late_observation": lambda body: f"ALARM: {body['alarm']}",
    "resolution": _resolution,
}
