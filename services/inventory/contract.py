"""The keyed contract as types: keys, Effect headers, requests, fingerprints and receipts.

- A key is 16 to 128 characters of `[A-Za-z0-9._~:-]`, in exactly one header, quoted or bare.
- The fingerprint covers the kind, the path parameters and the request, never the key or a header: the same matter has
  the same fingerprint under any key, and the key of one kind can never pass for another's.
- A receipt is made once, as text, and that text is what every later answer repeats.

Pydantic models are what comes in; frozen dataclasses are everything else.
"""

import dataclasses
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import rfc8785
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from services.inventory.problems import Fault, Invalid, Problem, Refused

FINGERPRINT_VERSION = "cf-fp1"
SCHEMA_VERSION = 1
MAX_SUPERSEDED = 16
MAX_TEXT_BYTES = 512
MAX_LOOKED_UP = 500
MAX_HOLD_SECONDS = 31_536_000  # a year: what is kept for longer is not held, it is taken

SKU_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._~:-]{0,127}$"
KEY_PATTERN = "[A-Za-z0-9._~:-]{16,128}"
_KEY = re.compile(KEY_PATTERN)
_QUOTED_KEY = re.compile(f'"({KEY_PATTERN})"')
# What ends a hold has its parent's key with a sign in it that no caller's key may have: nobody can take or close it.
_EXPIRY = "@expiry"
READ_KEY_PATTERN = f"{KEY_PATTERN}(?:{_EXPIRY})?"
_READ_KEY = re.compile(READ_KEY_PATTERN)
_RESERVATION_ID = re.compile("reservation-[1-9][0-9]{0,17}")
_GENERATION = re.compile("-g([1-9][0-9]{0,8})$")
# RFC 3339, and UTC spelled as UTC: "-00:00" says that the offset is unknown, any other that a clock is elsewhere. Hour
# 24 is the next day to some readers.
_UTC_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:[Zz]|\+00:00)"
)


class Kind(StrEnum):
    """What a key was used for; part of the fingerprint."""

    RESERVE = "inventory.reserve"
    CONFIRM = "inventory.confirm"
    RELEASE = "inventory.release"
    DELIVER = "inventory.deliver"
    VOID = "void"  # a tombstone: the key is closed and nothing happened under it
    EXPIRY = "expiry"  # a hold has ended: the service's own, under a key that no caller can use


class Outcome(StrEnum):
    """How a key ended. There is no fourth: a key is used up or it is not known."""

    COMMITTED = "committed"  # the effect and its receipt landed in one transaction
    REJECTED = "rejected"  # refused for a business reason, for good; nothing moved
    VOIDED = "voided"  # closed before anything came; nothing moved, and nothing ever will


class ReservationState(StrEnum):
    """Where a reservation's units are: never back to where they were."""

    HELD = "held"  # a reserve with hold_seconds put it here; a confirm, a release or its end takes it away
    CONSUMED = "consumed"  # a reserve without, or a confirm, put it here; a release takes it away
    RELEASED = "released"  # its units are available again; nothing leaves this state
    EXPIRED = "expired"  # the hold has ended and its units are available again; nothing leaves this state


TEXT_PATTERN = r"^[^\x00]*$"


def _storable(text: str) -> str:
    """Text that every database keeps: no NUL, and bounded in bytes."""
    if "\x00" in text or len(text.encode()) > MAX_TEXT_BYTES:
        raise ValueError(f"must be at most {MAX_TEXT_BYTES} bytes, without NUL")
    return text


Sku = Annotated[str, StringConstraints(pattern=SKU_PATTERN)]
Quantity = Annotated[int, Field(ge=1, le=1_000_000_000)]
ReadKey = Annotated[str, StringConstraints(pattern=f"^{READ_KEY_PATTERN}$")]
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT_BYTES, pattern=TEXT_PATTERN), AfterValidator(_storable)]


class Request(BaseModel):
    """A request body: no coercion, no member that is not named here."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class LineRequest(Request):
    """So many units of one SKU."""

    sku: Sku
    quantity: Quantity


class ReservationRequest(Request):
    """Take these units, all or none."""

    lines: Annotated[list[LineRequest], Field(min_length=1, max_length=100)]
    hold_seconds: Annotated[int, Field(ge=1, le=MAX_HOLD_SECONDS)] | None = None
    reference: Text | None = None


class ConfirmRequest(Request):
    """Take what is held: there is nothing more to say."""


class ReleaseRequest(Request):
    """Give a reservation's units back."""

    reason: Text | None = None


class DeliveryRequest(Request):
    """Units that have come in; creates the SKU if it is new."""

    sku: Sku
    quantity: Quantity


class VoidRequest(Request):
    """Nothing needs saying; the body may be left out."""


class LookupRequest(Request):
    """The keys whose receipts are asked for."""

    keys: Annotated[list[ReadKey], Field(min_length=1, max_length=MAX_LOOKED_UP)]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectHeaders:
    """The three headers of a keyed POST."""

    key: str
    not_after: datetime
    supersedes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedCall:
    """A valid keyed request of one tenant, before anything is known about its key."""

    tenant: str
    key: str
    kind: Kind
    request: Mapping[str, Any]
    fingerprint: str
    not_after: datetime
    supersedes: tuple[str, ...]
    quantities: Mapping[str, int]  # units per SKU, duplicates summed, SKUs ascending; empty for a confirm or a release
    reservation_id: str | None = None  # what a confirm takes or a release gives back
    hold_seconds: int | None = None
    reference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VoidCall:
    """The wish to close a key."""

    tenant: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """The service's own wish to end a hold that is due."""

    tenant: str
    reservation_id: str


Call = KeyedCall | VoidCall | Expiry


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Units of one SKU: what was asked for and what was given."""

    sku: str
    requested: int
    granted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a key. Immutable: it never says where the units are now, only what happened under the key."""

    schema_version: int
    receipt_id: str
    sequence: int
    key: str
    kind: Kind
    outcome: Outcome
    reason: str | None
    request: dict[str, Any] | None
    fingerprint: str | None
    fingerprint_version: str | None
    supersedes: tuple[str, ...]
    reservation_id: str | None
    lines: tuple[Line, ...]
    stock_versions: dict[str, int]
    expires_at: str | None
    http_status: int
    created_at: str
    signature: str | None

    def document(self) -> dict[str, Any]:
        """The receipt as JSON members, in this order for good."""
        # `dataclasses.asdict` copies all that is inside, at ten times the time.
        members = {name: getattr(self, name) for name in self.__slots__}
        members["lines"] = [{name: getattr(line, name) for name in line.__slots__} for line in self.lines]
        return members


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer made of a receipt: its exact bytes, and whether this request or an earlier one earned them."""

    http_status: int
    body: bytes
    outcome: Outcome
    replayed: bool


def to_json(value: Any) -> str:
    """Compact JSON in ASCII: the same text for the same value, whatever characters it holds."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def rfc3339(moment: datetime) -> str:
    """A moment in UTC, always to the microsecond."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def sign(receipt: Receipt, key: bytes) -> Receipt:
    """The receipt with its signature: HMAC-SHA-256 over the RFC 8785 form of all its other members."""
    members = receipt.document()
    del members["signature"]
    code = hmac.new(key, rfc8785.dumps(members), hashlib.sha256).hexdigest()
    return dataclasses.replace(receipt, signature=f"hmac-sha256:{code}")


def fingerprint(kind: Kind, path: Mapping[str, str], request: Mapping[str, Any]) -> str:
    """SHA-256, in hex, over the RFC 8785 form of what is asked for; members equal to their default are left out."""
    return hashlib.sha256(rfc8785.dumps([FINGERPRINT_VERSION, kind.value, dict(path), dict(request)])).hexdigest()


def canonical(request: Request) -> dict[str, Any]:
    """A request without the members that say nothing, in RFC 8785's order of members."""
    members: dict[str, Any] = json.loads(rfc8785.dumps(request.model_dump(exclude_defaults=True)))
    return members


def total(lines: Sequence[LineRequest]) -> dict[str, int]:
    """Units per SKU, in ascending order of SKU: the order in which stock rows are locked."""
    quantities: dict[str, int] = {}
    for line in lines:
        quantities[line.sku] = quantities.get(line.sku, 0) + line.quantity
    return dict(sorted(quantities.items()))


def is_sku(text: str) -> bool:
    """Whether a SKU may be called that."""
    return re.fullmatch(SKU_PATTERN[1:-1], text) is not None


def is_reservation_id(text: str) -> bool:
    """Whether a reservation may be called that."""
    return _RESERVATION_ID.fullmatch(text) is not None


def parse_key(values: Sequence[str]) -> str:
    """The key in the values of an Idempotency-Key header.

    Raises:
        Refused: no header, several, or not a key.
    """
    if not values:
        raise Refused(
            Problem.IDEMPOTENCY_KEY_MISSING,
            "This request changes stock and needs an Idempotency-Key header. Nothing was executed.",
        )
    quoted = _QUOTED_KEY.fullmatch(values[0])
    key = quoted.group(1) if quoted else values[0]
    if len(values) > 1 or not _KEY.fullmatch(key):
        raise _invalid_key()
    return key


def parse_path_key(text: str) -> str:
    """The key in a path, where it is bare.

    Raises:
        Refused: not a key.
    """
    if not _KEY.fullmatch(text):
        raise _invalid_key()
    return text


def parse_read_key(text: str) -> str:
    """The key in the path of a read: a caller's, or that of the end of a hold.

    Raises:
        Refused: neither.
    """
    if not _READ_KEY.fullmatch(text):
        raise _invalid_key()
    return text


def expiry_key(parent: str) -> str:
    """The key under which the hold that `parent` made ends."""
    return f"{parent}{_EXPIRY}"


def _invalid_key() -> Refused:
    return Refused(
        Problem.IDEMPOTENCY_KEY_INVALID,
        "An idempotency key is 16 to 128 characters of A-Z a-z 0-9 . _ ~ : - and stands alone. Nothing was executed.",
    )


def effect_headers(key: str, not_after: Sequence[str], supersedes: Sequence[str]) -> EffectHeaders:
    """Read the values of Effect-Not-After and Effect-Supersedes.

    Raises:
        Invalid: absent, several, or malformed.
    """
    return EffectHeaders(key=key, not_after=_parse_not_after(not_after), supersedes=_parse_supersedes(key, supersedes))


def _parse_not_after(values: Sequence[str]) -> datetime:
    if len(values) == 1 and _UTC_TIME.fullmatch(values[0]):
        try:
            # A seventh digit is cut off: the deadline moves earlier, never later.
            return datetime.fromisoformat(values[0].upper())
        except ValueError:
            pass
    message = "There must be one, an RFC 3339 time in UTC such as 2026-01-31T12:00:00Z."
    raise Invalid([Fault(at="Effect-Not-After", message=message)])


def _parse_supersedes(own: str, values: Sequence[str]) -> tuple[str, ...]:
    if not values:
        return ()
    # A list header may be split over several lines by anything between the caller and here.
    parts = [part.strip(" \t") for part in ",".join(values).split(",")]
    keys = [quoted.group(1) if (quoted := _QUOTED_KEY.fullmatch(part)) else part for part in parts]
    if len(keys) > MAX_SUPERSEDED or own in keys or not all(map(_KEY.fullmatch, keys)):
        message = f"It must be at most {MAX_SUPERSEDED} keys, without the request's own."
        raise Invalid([Fault(at="Effect-Supersedes", message=message)])
    return newest_first(dict.fromkeys(keys))  # twice is once


def newest_first(keys: Iterable[str]) -> tuple[str, ...]:
    """Keys of generations from the newest down, however they were listed: all callers lock them in one order.

    Keys that name no generation come last, as given.
    """
    return tuple(sorted(keys, key=_generation, reverse=True))


def _generation(key: str) -> int:
    match = _GENERATION.search(key)
    return int(match.group(1)) if match else 0
