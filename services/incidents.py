"""Incidents: what a workflow is started with, read from JSON Lines.

What this module guarantees:

- Every line is either an incident or at least one problem that names the line and the field; no input raises.
- A bad line never costs a good one. Of two lines with the same id the first one counts, if it is good.
- Two incidents have the same digest when, and only when, they ask for the same: it is taken over the RFC 8785 JSON of
  the meaning, not over the bytes as typed.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from importlib import resources
from typing import Any, BinaryIO, NoReturn, cast

import rfc8785
from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend

# Twenty effects of 100 lines each are about 200 KB; a longer line is not an incident.
MAX_LINE_BYTES = 256 * 1024
_CHUNK_BYTES = 64 * 1024
_BOM = b"\xef\xbb\xbf"
# A quoted value longer than this is cut: a problem is one readable line.
_SHOWN_CHARACTERS = 60


class Severity(StrEnum):
    """How soon an incident matters."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Approval(StrEnum):
    """Whether a person approves before anything is reserved."""

    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """So many of one SKU."""

    sku: str
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """One effect of an incident: a reservation under its stable name."""

    name: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One incident, checked."""

    id: str
    title: str
    site: str
    severity: Severity
    reported_at: datetime
    approval: Approval
    effects: tuple[Reservation, ...]
    description: str | None = None
    approvers: int = 1
    approval_within_seconds: int | None = None

    def document(self) -> dict[str, Any]:
        """The incident as JSON, one spelling for one meaning: the time in UTC, no defaults."""
        document: dict[str, Any] = {
            "id": self.id,
            "title": self.title,
            "site": self.site,
            "severity": self.severity.value,
            "reported_at": self.reported_at.astimezone(UTC).isoformat().replace("+00:00", "Z"),
            "approval": self.approval.value,
            "effects": [
                {
                    "name": effect.name,
                    "lines": [{"sku": line.sku, "quantity": line.quantity} for line in effect.lines],
                }
                for effect in self.effects
            ],
        }
        if self.description is not None:
            document["description"] = self.description
        if self.approvers != 1:
            document["approvers"] = self.approvers
        if self.approval_within_seconds is not None:
            document["approval_within_seconds"] = self.approval_within_seconds
        return document

    @property
    def digest(self) -> str:
        """SHA-256, hex, of the canonical (RFC 8785) JSON: the same input has the same digest."""
        return hashlib.sha256(rfc8785.dumps(self.document())).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a line is not an incident; `field` is empty when the whole line is at fault."""

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.field}: {self.message}" if self.field else f"line {self.line}: {self.message}"


class _BadLine(Exception):
    """The line is not JSON that means one thing."""


def read_incidents(stream: BinaryIO) -> tuple[list[Incident], list[Problem]]:
    """Read JSON Lines: the incidents of the good lines, in order, and every problem of the others."""
    schema = _validator()
    incidents: list[Incident] = []
    problems: list[Problem] = []
    taken: dict[str, int] = {}
    number = 0
    blank = True
    for number, raw in enumerate(_lines(stream), start=1):
        if raw is not None and not raw.strip(b" \t\r\n"):
            continue
        blank = False
        try:
            document = _parse(raw)
        except _BadLine as error:
            problems.append(Problem(line=number, field="", message=str(error)))
            continue
        found = [Problem(line=number, field=field, message=message) for field, message in _check(schema, document)]
        if not found and document["id"] in taken:
            first = taken[document["id"]]
            message = f"{document['id']} is already used on line {first}; only line {first} is read."
            found = [Problem(line=number, field="id", message=message)]
        if found:
            problems.extend(found)
            continue
        taken[document["id"]] = number
        incidents.append(_incident(document))
    if blank:
        problems.append(Problem(line=max(number, 1), field="", message="There is no incident in the file."))
    return incidents, problems


def schema_text() -> str:
    """The JSON Schema of an incident, as it is installed."""
    return resources.files("services").joinpath("incident.schema.json").read_text(encoding="utf-8")


def _lines(stream: BinaryIO) -> Iterator[bytes | None]:
    """The lines, without their ends; None for one that is too long, which is never held in memory."""
    while raw := stream.readline(MAX_LINE_BYTES + 2):
        if len(raw.rstrip(b"\r\n")) <= MAX_LINE_BYTES:
            yield raw
            continue
        while raw and not raw.endswith(b"\n"):
            raw = stream.readline(_CHUNK_BYTES)
        yield None


def _parse(raw: bytes | None) -> Any:
    if raw is None:
        raise _BadLine(f"The line is longer than {MAX_LINE_BYTES} bytes.")
    if raw.startswith(_BOM):
        raise _BadLine("The line begins with a byte order mark. Save the file as UTF-8 without one.")
    try:
        text = raw.rstrip(b"\r\n").decode("utf-8")
    except UnicodeDecodeError as error:
        raise _BadLine(f"The line is not UTF-8 (byte {error.start + 1}). Save the file as UTF-8.") from None
    try:
        document = json.loads(text, object_pairs_hook=_members, parse_constant=_refuse_constant, parse_int=_integer)
        json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise _BadLine(f"The line is not JSON: {error.msg} at column {error.colno}.") from None
    except RecursionError:
        raise _BadLine("The line is nested too deep.") from None
    except UnicodeEncodeError:
        raise _BadLine("A \\u escape is half of a surrogate pair: that is no character.") from None
    return document


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _BadLine(f"The member {_shown(twice)} is given twice in one object.")
    return members


def _refuse_constant(name: str) -> NoReturn:
    raise _BadLine(f"{name} is not JSON.")


def _integer(digits: str) -> int:
    # Python refuses to read 4,300 digits; the first twenty are beyond every limit too, and enough for the message.
    return int(digits[:20])


def _is_integer(_checker: Any, instance: Any) -> bool:
    # JSON Schema counts 2.0 as an integer; a quantity is written as one.
    return isinstance(instance, int) and not isinstance(instance, bool)


def _fullmatch(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    # Python's `$` also matches before a last line break, JSON Schema's does not.
    if isinstance(instance, str) and not re.fullmatch(pattern, instance):
        yield ValidationError(f"does not match {pattern}")


def _is_time(value: object) -> bool:
    try:
        return not isinstance(value, str) or _time(value) is not None
    except (ValueError, OverflowError):
        return False


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def _validator() -> Draft202012Validator:
    formats = FormatChecker(formats=())
    formats.checks("date-time")(_is_time)
    strict = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator,
        validators={"pattern": _fullmatch},
        type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
    )
    validator: Draft202012Validator = strict(json.loads(schema_text()), format_checker=formats)
    return validator


def _check(schema: Draft202012Validator, document: Any) -> Iterator[tuple[str, str]]:
    """Every (field, message) that keeps a document from being an incident, in the document's order."""
    if not isinstance(document, dict):
        yield "", "The line must be one JSON object."
        return
    found = {
        (field, message): None
        for error in sorted(schema.iter_errors(document), key=lambda error: [str(step) for step in error.path])
        for field, message in _sentences(error)
    }
    yield from found
    if found:
        return
    for member in ("approvers", "approval_within_seconds"):
        if member in document and document["approval"] != Approval.REQUIRED:
            yield member, f"says something only where approval is required, and here it is {document['approval']}"
    first: dict[str, int] = {}
    for index, effect in enumerate(document["effects"]):
        if effect["name"] in first:
            before = f"effects[{first[effect['name']]}]"
            yield f"effects[{index}].name", f"{effect['name']} is already the name of {before}; a name is used once."
        first.setdefault(effect["name"], index)


def _sentences(error: ValidationError) -> Iterator[tuple[str, str]]:
    field = _path(error.absolute_path)
    # jsonschema's types allow an error without these; one that a schema raised has them all.
    rule, limit, value = str(error.validator), cast("Any", error.validator_value), cast("Any", error.instance)
    if rule == "additionalProperties":
        known = cast("Any", error.schema)["properties"]
        for name in sorted(set(value) - set(known)):
            yield _join(field, name), f"unknown field; known are {', '.join(known)}"
    elif rule == "required":
        # One error per absent name, and jsonschema gives the name in its sentence alone.
        for name in limit:
            if name not in value and error.message.startswith(repr(name)):
                yield _join(field, name), "is missing"
    else:
        yield field, _sentence(rule, limit, value, field)


def _sentence(rule: str, limit: Any, value: Any, field: str) -> str:
    match rule:
        case "type":
            text = f"must be {_ARTICLES.get(limit, limit)}, not {_shown(value)}"
        case "enum":
            text = f"must be one of {', '.join(limit)}, not {_shown(value)}"
        case "minimum" | "maximum":
            text = f"must be at {'least' if rule == 'minimum' else 'most'} {limit}, not {_shown(value)}"
        case "minItems" | "maxItems" | "minLength" | "maxLength":
            what = "entries" if rule.endswith("Items") else "characters"
            text = f"must have at {'least' if rule.startswith('min') else 'most'} {limit} {what}, has {len(value)}"
        case "format" | "pattern":
            text = f"must be {_meaning(field)}, not {_shown(value)}"
        case "not":
            text = (
                f"must not end in .release, nor be approval or approval.second ({_shown(value)}): such names belong to "
                "the release of an effect, and to decisions"
            )
        case _:
            text = f"is not usable ({rule})"
    return text


_ARTICLES: Mapping[str, str] = {
    "string": "text",
    "integer": "a whole number",
    "object": "an object",
    "array": "a list",
}
_MEANINGS: Mapping[str, str] = {
    "id": "1-100 of A-Z, a-z, 0-9, '.', '_', ':' and '-', beginning with a letter or digit",
    "name": "1-64 of a-z, 0-9, '.', '_' and '-', beginning with a letter or digit",
    "sku": "1-64 of A-Z, 0-9, '.', '_' and '-', beginning with a letter or digit",
    "reported_at": "a time with an offset, such as 2026-11-30T08:15:00Z",
}


def _meaning(field: str) -> str:
    return _MEANINGS.get(field.rpartition(".")[2], "text without control characters")


def _path(steps: Any) -> str:
    path = ""
    for step in steps:
        path = f"{path}[{step}]" if isinstance(step, int) else _join(path, step)
    return path


def _join(path: str, name: str) -> str:
    # A name is the file's own text: shown as it is only when it can be mistaken for nothing else.
    shown = name if re.fullmatch(r"[A-Za-z0-9_-]{1,60}", name) else _shown(name)
    return f"{path}.{shown}" if path else shown


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."


def _incident(document: Mapping[str, Any]) -> Incident:
    return Incident(
        id=document["id"],
        title=document["title"],
        site=document["site"],
        severity=Severity(document["severity"]),
        reported_at=_time(document["reported_at"]),
        approval=Approval(document["approval"]),
        effects=tuple(
            Reservation(
                name=effect["name"],
                lines=tuple(Line(sku=line["sku"], quantity=line["quantity"]) for line in effect["lines"]),
            )
            for effect in document["effects"]
        ),
        description=document.get("description"),
        approvers=document.get("approvers", 1),
        approval_within_seconds=document.get("approval_within_seconds"),
    )
