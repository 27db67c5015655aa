"""Keys and fingerprints of effects.

A key is a function of origin, scope, name and generation and of nothing else: no run id, attempt, host, time, code
version, position in the code or payload goes in, so that a workflow that comes back in any way asks for the same effect
under the same key. The payload is fingerprinted apart, so that the same key with another payload is noticed.

Test vectors, repeated in docs/design.md:

    derive_key("demo", "INC-2041", "reserve-filter", 1) == "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1"
    fingerprint("inventory.reserve", {}, {"lines": [{"sku": "FILTER-A", "quantity": 2}]})
        == "5fcfd13691813b7f8316ac2c16ad9645a6a00e0eb11209e7c8d4f3ae5b5bb1f7"
"""

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import rfc8785

from services.effects.errors import InvalidEffect

KEY_BYTES = 20  # 160 bits: no collision to be met in practice, and 32 base32 characters without padding
FINGERPRINT_VERSION = "cf-fp1"
# Former generations travel in one header of at most 16 keys, so generation 17 is the last.
LAST_GENERATION = 17
# Longest origin, scope or name: together with JSON they stay under the 512 bytes of a reference.
TEXT_LIMIT = 128
REFERENCE_BYTES = 512
# Longest name of an effect that may have to be given back: `.g17.release` must still fit behind it.
NAME_LIMIT = TEXT_LIMIT - len(f".g{LAST_GENERATION}.release")

# A hold's expiry has a receipt of its own, under the hold's key and this: '@' is in no key that a caller may use.
EXPIRY = "expiry"
_OF_AN_EXPIRY = "@expiry"

# What the keyed contract lets a key be, whoever made it.
PROVIDER_KEY = re.compile(r"[A-Za-z0-9._~:-]{16,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_RELEASE = re.compile(r"^(?P<name>.+)\.g(?P<generation>[1-9][0-9]?)\.release$")

# Members that mean the same when they are absent: left out before a request is fingerprinted.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "inventory.reserve": {"hold_seconds": None, "reference": None},
    "inventory.confirm": {},
    "inventory.release": {"reason": None},
    "inventory.deliver": {},
}


def canonical(value: Any) -> bytes:
    """RFC 8785 canonical JSON, as UTF-8 bytes.

    Raises:
        InvalidEffect: the value has no canonical JSON (NaN, an integer beyond 2**53, a lone surrogate, ...).
    """
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError, RecursionError) as error:
        raise InvalidEffect(
            f"This cannot be written as canonical JSON: {error}. Nothing was recorded or sent."
        ) from None


def check_text(what: str, value: str) -> str:
    """Return a usable origin, scope or name.

    Raises:
        InvalidEffect: empty, over 128 characters, or with control characters or lone surrogates.
    """
    if not value or len(value) > TEXT_LIMIT or _CONTROL.search(value):
        raise InvalidEffect(
            f"The {what} {value!r:.80} is not usable: 1 to {TEXT_LIMIT} characters without control characters. "
            "Nothing was recorded or sent."
        )
    return value


def check_generation(generation: int) -> int:
    """Return a usable generation.

    Raises:
        InvalidEffect: not an integer from 1 to 17.
    """
    if type(generation) is not int or not 1 <= generation <= LAST_GENERATION:
        raise InvalidEffect(f"Generation {generation!r} is not one of 1 to {LAST_GENERATION}. Nothing was sent.")
    return generation


def derive_key(origin: str, scope: str, name: str, generation: int) -> str:
    """The key of an effect: `cf1-<32 base32 characters>-g<generation>`.

    Args:
        origin: the deployment.
        scope: the business identity, by default the workflow id.
        name: the stable name that the workflow gives the effect, used once per scope.
        generation: 1 to 17.

    Raises:
        InvalidEffect: one of them is not usable.
    """
    return f"cf1-{_identity(origin, scope, name)}-g{check_generation(generation)}"


@functools.lru_cache(maxsize=4096)  # a workflow shows its keys at every step: with many effects that was its replay
def _identity(origin: str, scope: str, name: str) -> str:
    identity = {
        "name": check_text("name", name),
        "origin": check_text("origin", origin),
        "scope": check_text("scope", scope),
    }
    digest = hashlib.sha256(canonical(identity)).digest()[:KEY_BYTES]
    return base64.b32encode(digest).decode().lower()


def former_keys(origin: str, scope: str, name: str, generation: int) -> tuple[str, ...]:
    """The keys of all former generations, newest first: what a redo supersedes."""
    return tuple(derive_key(origin, scope, name, former) for former in range(check_generation(generation) - 1, 0, -1))


def release_name(name: str, generation: int) -> str:
    """The name of the effect that gives back what `name` took in this generation; it has generations of its own."""
    return f"{check_text('name', name)}.g{check_generation(generation)}.release"


def released_name(name: str) -> tuple[str, int] | None:
    """Which effect (name, generation) a release's name gives back; None for the name of anything else."""
    match = _RELEASE.match(name)
    return (match["name"], int(match["generation"])) if match else None


def confirm_name(name: str, generation: int) -> str:
    """The name of the effect that consumes what `name` holds in this generation; it has generations of its own."""
    return f"{check_text('name', name)}.g{check_generation(generation)}.confirm"


def expired_key(key: str) -> str | None:
    """The key of the hold whose expiry this is; None for the key of anything else."""
    return key.removesuffix(_OF_AN_EXPIRY) if key.endswith(_OF_AN_EXPIRY) else None


def check_name(name: str, kind: str) -> str:
    """Return a name that an effect of this kind may have.

    Whatever is taken can then be given back, and whether it was is read from the names alone. A confirmation takes
    nothing.

    Raises:
        InvalidEffect: no room for the name of its release, or a release's name on anything but a release.
    """
    release = kind.endswith(".release")
    if release != (released_name(check_text("name", name)) is not None):
        raise InvalidEffect(
            f"The effect {name!r:.80} is {'a' if release else 'no'} release: a release's name, and no other, is "
            "<name>.g<generation>.release, as release_name makes it. Nothing was recorded or sent."
        )
    takes = not release and not kind.endswith(".confirm")
    if takes and len(name) > NAME_LIMIT:
        raise InvalidEffect(
            f"The name {name!r:.80} leaves no room for the name of its release: at most {NAME_LIMIT} characters. "
            "Nothing was recorded or sent."
        )
    return name


def reference(scope: str, name: str, generation: int) -> str:
    """What the provider keeps beside the receipt so that either half can be found from the other.

    Raises:
        InvalidEffect: longer than 512 bytes.
    """
    text = canonical({"generation": generation, "name": name, "scope": scope})
    if len(text) > REFERENCE_BYTES:
        raise InvalidEffect(f"Scope and name make a reference of {len(text)} bytes, over {REFERENCE_BYTES}.")
    return text.decode()


def fingerprint(kind: str, path: Mapping[str, str], request: Mapping[str, Any]) -> str:
    """SHA-256, hex, of the canonical JSON `["cf-fp1", kind, path parameters, request]`; defaults are left out.

    Raises:
        InvalidEffect: an unknown kind, or a request without canonical JSON.
    """
    defaults = DEFAULTS.get(kind)
    if defaults is None:
        raise InvalidEffect(f"The kind {kind!r:.80} is not one of {', '.join(sorted(DEFAULTS))}. Nothing was sent.")
    spoken = {member: value for member, value in request.items() if member not in defaults or value != defaults[member]}
    return hashlib.sha256(canonical([FINGERPRINT_VERSION, kind, dict(path), spoken])).hexdigest()
