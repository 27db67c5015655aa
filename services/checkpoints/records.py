"""Records: canonical JSON with a digest of its own, and a parser that takes nothing else.

- One value has one spelling: sorted keys, no spaces, UTF-8, floats as {"$float": "0x1p-3"}, integers beyond 2**53 as
  {"$int": "..."}. What is not spelled so is refused, so that equal digests mean equal bytes.
- The digest of a record is the blake3 of that spelling without its member `digest`.
- Parsing is bounded in bytes and depth before anything is believed.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from blake3 import blake3

from .errors import DigestMismatch, ManifestInvalid

RECORD_BYTES: Final = 64 << 20
SMALL_BYTES: Final = 64 << 10  # of a record that holds a few ids and numbers: a log's, a mark's
CHECKPOINT_RECORD_BYTES: Final = 1 << 30
DEPTH: Final = 32
EXACT_INTEGER: Final = 2**53  # beyond it, other JSON readers round
INTEGER_DIGITS: Final = 1000  # longer than any generator's state

_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_RANDOM: Final = re.compile(r"[0-9a-f]{32}")
_INTEGER: Final = re.compile(r"-?[1-9][0-9]*")
_NOT_FINITE: Final = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def check_id(text: object, what: str = "id") -> str:
    """An id that may become a file name: `[a-z0-9][a-z0-9._-]{0,63}` without `..`."""
    if not isinstance(text, str) or not _ID.fullmatch(text) or ".." in text:
        msg = f"{what} {text!r} is not an id ([a-z0-9][a-z0-9._-]{{0,63}}, no '..'); nothing was opened by that name"
        raise ManifestInvalid(msg)
    return text


def check_digest(text: object, what: str = "digest") -> str:
    """64 hexadecimal digits."""
    if not isinstance(text, str) or not _DIGEST.fullmatch(text):
        raise ManifestInvalid(f"{what} {text!r} is not a digest (64 hexadecimal digits)")
    return text


def check_random(text: object, what: str = "save_id") -> str:
    """128 random bits, as 32 hexadecimal digits: a step or a counter identifies nothing."""
    if not isinstance(text, str) or not _RANDOM.fullmatch(text):
        raise ManifestInvalid(f"{what} {text!r} is not 128 bits (32 hexadecimal digits)")
    return text


def digest_of(data: bytes | memoryview) -> str:
    """The blake3 of bytes, in hexadecimal."""
    return blake3(data).hexdigest()


def _float_text(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):  # noqa: PLR0124 - only NaN differs from itself
        return repr(value)
    mantissa, _, exponent = value.hex().partition("p")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}p{exponent}"


def _tagged(value: Any, depth: int) -> Any:
    if depth > DEPTH:
        raise ValueError(f"a record is at most {DEPTH} levels deep")
    match value:
        case None | bool():
            return value
        case str():
            value.encode()  # a lone surrogate has no UTF-8: UnicodeEncodeError is a ValueError
            return value
        case int():
            return int(value) if abs(value) <= EXACT_INTEGER else {"$int": str(int(value))}
        case float():
            return {"$float": _float_text(value)}
        case list() | tuple():
            return [_tagged(each, depth + 1) for each in value]
        case Mapping():
            return {_key(key): _tagged(each, depth + 1) for key, each in value.items()}
        case _:
            raise ValueError(f"{type(value).__name__} has no place in a record")


def _key(key: object) -> str:
    if not isinstance(key, str) or key.startswith("$"):
        raise ValueError(f"{key!r} cannot be a key of a record: keys are texts that do not begin with '$'")
    key.encode()
    return key


def canonical(value: Any) -> bytes:
    """The one spelling of a value.

    Raises:
        ValueError: the value has none (an array, a set, a lone surrogate, a key that is not text, too deep).
    """
    return json.dumps(
        _tagged(value, 0), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ManifestInvalid("a key stands twice in one object: two readers would read two records")
    return found


def _untagged(value: Any, depth: int) -> Any:
    if depth > DEPTH:
        raise ManifestInvalid(f"a record is at most {DEPTH} levels deep")
    match value:
        case {"$float": str(text), **rest} if not rest:
            return _float(text)
        case {"$int": str(text), **rest} if not rest:
            if not _INTEGER.fullmatch(text) or len(text) > INTEGER_DIGITS:
                raise ManifestInvalid("an {$int} that is not a plain integer")
            return int(text)
        case dict():
            return {key: _untagged(each, depth + 1) for key, each in value.items()}
        case list():
            return [_untagged(each, depth + 1) for each in value]
        case _:
            return value


def _float(text: str) -> float:
    if text in _NOT_FINITE:
        return _NOT_FINITE[text]
    try:
        return float.fromhex(text)
    except (ValueError, OverflowError) as error:
        raise ManifestInvalid(f"a {{$float}} that is not one: {text[:40]!r}") from error


def _no_constant(text: str) -> Any:
    raise ManifestInvalid(f"{text} is not JSON")


def parse(data: bytes, *, limit: int = RECORD_BYTES, by_hand: bool = False, form: str | None = None) -> dict[str, Any]:
    """One JSON object, bounded and strict.

    Args:
        data: the bytes of the whole file.
        limit: how long they may be.
        by_hand: a document that a person wrote: spaces and plain decimal fractions are fine there.
        form: the format that it has to name; another store's file is refused by that, however it is spelled.

    Raises:
        ManifestInvalid: anything else.
    """
    if len(data) > limit:
        raise ManifestInvalid(f"{len(data)} bytes are more than the {limit} that a record may have")
    try:
        value = _untagged(json.loads(data.decode(), object_pairs_hook=_pairs, parse_constant=_no_constant), 0)
        spelled = canonical(value)
    except ManifestInvalid:
        raise
    except (ValueError, RecursionError) as error:
        raise ManifestInvalid(f"not a record: {error}"[:300]) from error
    if not isinstance(value, dict):
        raise ManifestInvalid("a record is a JSON object")
    if form is not None and value.get("format") != form:
        raise ManifestInvalid(
            f"format {value.get('format')!r} is not {form!r}: a file of another store, or of another kind, is not read"
        )
    if not by_hand and spelled != data:
        raise ManifestInvalid("a record that is not in its canonical spelling: it was not written by this store")
    return value


def record_digest(record: Mapping[str, Any]) -> str:
    """The blake3 of a record without its own digest."""
    return digest_of(canonical({key: value for key, value in record.items() if key != "digest"}))


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record with its digest."""
    return {**record, "digest": record_digest(record)}


def unsealed(data: bytes, *, form: str, limit: int = RECORD_BYTES) -> dict[str, Any]:
    """A record of one format, its digest present and true.

    Raises:
        ManifestInvalid: not a record, no digest, or another store's file.
        DigestMismatch: the digest is another record's.
    """
    record = parse(data, limit=limit, form=form)
    stated = check_digest(record.get("digest"), "the record's digest")
    if stated != (found := record_digest(record)):
        raise DigestMismatch(
            f"a {form} record has the digest {found[:16]}, not {stated[:16]} as it says: it was changed"
        )
    return record


def object_of(whose: str, raw: Mapping[str, Any], name: str, default: dict[str, Any] | None = None) -> dict[str, Any]:
    """A member that is an object; `whose` names the record for people, as in "a manifest".

    Raises:
        ManifestInvalid: it is none.
    """
    found = raw.get(name, default)
    if not isinstance(found, dict):
        raise ManifestInvalid(f"{whose}'s {name[:60]} is an object")
    return found


def list_of(whose: str, raw: Mapping[str, Any], name: str) -> list[Any]:
    """A member that is a list.

    Raises:
        ManifestInvalid: it is none.
    """
    found = raw.get(name)
    if not isinstance(found, list):
        raise ManifestInvalid(f"{whose}'s {name} is a list")
    return found
