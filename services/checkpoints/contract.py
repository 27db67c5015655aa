"""The contract: what a cut of one run is, declared before there is one.

A contract is a JSON document, kept by the SHA-256 of its canonical spelling. A relation that uses what no version or
constant declares, a profile without its roles, an unknown member: all are refused when it is read, not at a save.

    {"format": "counterfoil-contract-1", "name": "reference", "boundary": "after an update, gradients cleared",
     "versions": {"updates": "shared", "cursor": "shared", "fetched": "per_contributor"},
     "constants": {"start": 0, "batch": 2},
     "roles": {"param": {"required": true, "placement": "sharded", "versions": ["updates"], "finite": "refuse"},
               "moment_m": {"required": true, "placement": "sharded", "absent_if": "updates == 0"},
               "cursor": {"required": true, "placement": "global", "agrees": {"": "cursor"}}},
     "relations": ["cursor == start + updates * batch"],
     "profiles": {"resume": ["param", "moment_m", "cursor"], "weights": ["param"]},
     "reproducibility": "exact"}
"""

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from .contribution import PLACEMENTS
from .errors import Incompatible, InvariantViolation, ManifestInvalid
from .expressions import Expression
from .expressions import parse as parse_expression
from .records import canonical, check_id, list_of, object_of, parse
from .versions import LARGEST, NAMES

FORMAT: Final = "counterfoil-contract-1"
DOCUMENT_BYTES: Final = 1 << 20
_object: Final = partial(object_of, "a contract")
_list: Final = partial(list_of, "a contract")
ROLES: Final = (
    "param", "moment_m", "moment_v", "master", "buffer", "optimizer_step", "scaler", "scheduler", "cursor", "rng",
    "config", "history", "grad", "in_flight", "prefetched",
)  # fmt: skip
CONTRIBUTORS: Final = "contributors"  # a constant that every contract has: how many there are


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What the contract says of one role.

    Attributes:
        name: the role.
        required: whether a full checkpoint must have it, as an item or as a value.
        placement: where its items are, but for the patterns.
        patterns: item name patterns and their placements; the first that matches counts.
        versions: what a contributor that holds it must state.
        absent_if: when a required role may be absent nevertheless.
        refuses_non_finite: whether NaN or infinity in it refuses the cut.
        agrees: member of the role's value (dotted, "" for the value itself) and the version it must equal.
    """

    name: str
    required: bool
    placement: str
    patterns: tuple[tuple[str, str], ...]
    versions: tuple[str, ...]
    absent_if: Expression | None
    refuses_non_finite: bool
    agrees: tuple[tuple[str, str], ...]

    def placement_of(self, item: str) -> str:
        """Where an item of this role is."""
        return next((placed for pattern, placed in self.patterns if fnmatchcase(item, pattern)), self.placement)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """A parsed contract.

    Attributes:
        name: for people.
        boundary: the boundary in words.
        versions: name, and whether it is shared or per_contributor.
        constants: named integers for the relations.
        roles: by name.
        relations: what must be true of every cut.
        profiles: what a restore needs: `resume` and `weights`.
        reproducibility: exact, or a tolerance.
        digest: SHA-256 of the canonical document.
    """

    name: str
    boundary: str
    versions: Mapping[str, str]
    constants: Mapping[str, int]
    roles: Mapping[str, Role]
    relations: tuple[Expression, ...]
    profiles: Mapping[str, tuple[str, ...]]
    reproducibility: str | Mapping[str, float]
    digest: str
    _document: bytes = field(repr=False)

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Self:
        """A contract from a file, or from the document itself.

        Raises:
            ManifestInvalid: the document is not a contract; the message says where.
        """
        if isinstance(source, Mapping):
            try:
                data = canonical(source)
            except ValueError as error:
                raise ManifestInvalid(f"the contract has no canonical spelling: {error}") from error
        else:
            data = Path(source).read_bytes()
        return cls.parse(data)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """A contract from its bytes, as a person or this store wrote them."""
        raw = parse(data, limit=DOCUMENT_BYTES, by_hand=True)
        if raw.get("format") != FORMAT:
            raise ManifestInvalid(f"format {raw.get('format')!r} is not {FORMAT!r}: this is no contract")
        known = {
            "format",
            "name",
            "boundary",
            "versions",
            "constants",
            "roles",
            "relations",
            "profiles",
            "reproducibility",
        }
        if unknown := sorted(set(raw) - known):
            raise ManifestInvalid(f"a contract has no member {', '.join(unknown)}; nothing was checked by it")
        spelled = canonical(raw)
        roles = {name: _role(name, each) for name, each in _object(raw, "roles").items()}
        contract = cls(
            name=check_id(raw.get("name"), "contract name"),
            boundary=_text(raw, "boundary"),
            versions=_object(raw, "versions"),
            constants=_object(raw, "constants", {}),
            roles=roles,
            relations=tuple(parse_expression(each) for each in _list(raw, "relations")),
            profiles={name: tuple(_texts(each, name)) for name, each in _object(raw, "profiles").items()},
            reproducibility=_reproducibility(raw.get("reproducibility", "exact")),
            digest=hashlib.sha256(spelled).hexdigest(),
            _document=spelled,
        )
        contract._check_itself()
        return contract

    def document(self) -> bytes:
        """The canonical document, whose SHA-256 is the digest."""
        return self._document

    def placement_of(self, role: str, item: str) -> str:
        """Where an item of a role is.

        Raises:
            InvariantViolation: the contract has no such role.
        """
        return self.role(role, item).placement_of(item)

    def refuses_non_finite(self, role: str) -> bool:
        """Whether NaN or infinity in an item of this role refuses the cut."""
        return self.role(role, role).refuses_non_finite

    def missing_for(self, profile: str, present: Iterable[str], absent: Iterable[str]) -> tuple[str, ...]:
        """The roles that a profile needs and a checkpoint lacks."""
        if profile not in self.profiles:
            raise ManifestInvalid(f"contract {self.name} has no profile {profile!r}")
        return tuple(sorted(set(self.profiles[profile]) - set(present) - set(absent)))

    def _check_itself(self) -> None:
        for name, scope in self.versions.items():
            if name not in NAMES or scope not in ("shared", "per_contributor"):
                raise ManifestInvalid(
                    f"version {name!r} ({scope!r}): the versions are {', '.join(NAMES)}, each shared or per_contributor"
                )
        for name, value in self.constants.items():
            if type(value) is not int or abs(value) > LARGEST or name in self.versions or name == CONTRIBUTORS:
                raise ManifestInvalid(f"constant {name!r} is not an integer of 64 bits, or has the name of a version")
        expressions = [*self.relations, *(role.absent_if for role in self.roles.values() if role.absent_if)]
        scopes = {**dict.fromkeys((*self.constants, CONTRIBUTORS), "shared"), **self.versions}
        for used in {each for expression in expressions for each in expression.names()}:
            scoped = scopes.get(used.name)
            if scoped != ("per_contributor" if used.summed else "shared"):
                how = f"sum({used.name})" if used.summed else used.name
                raise ManifestInvalid(
                    f"a relation uses {how}, and {used.name} is {scoped or 'not declared'}: a bare name is of the "
                    "whole cut, sum() is over what each contributor states"
                )
        for profile in ("resume", "weights"):
            if profile not in self.profiles:
                raise ManifestInvalid(f"the contract lacks profile {profile}: the roles that such a restore needs")
            if unknown := set(self.profiles[profile]) - set(self.roles):
                raise ManifestInvalid(
                    f"profile {profile} names roles that are not declared: {', '.join(sorted(unknown))}"
                )
        required = {role.name for role in self.roles.values() if role.required}
        if lost := required - set(self.profiles["resume"]):
            raise ManifestInvalid(f"required roles are not in profile resume: {', '.join(sorted(lost))}")
        for role in self.roles.values():
            if unknown := ({*role.versions, *dict(role.agrees).values()}) - set(self.versions):
                raise ManifestInvalid(f"role {role.name} carries versions that are not declared: {', '.join(unknown)}")

    def role(self, role: str, item: str) -> Role:
        """What the contract says of an item's role.

        Raises:
            InvariantViolation: it has no such role.
        """
        try:
            return self.roles[role]
        except KeyError:
            raise InvariantViolation(
                f"item {item} has role {role}, which contract {self.name} does not have; nothing was published"
            ) from None


def check_same_contract(one: Contract, digest: str) -> None:
    """A restore is by the contract that the checkpoint was made under.

    Raises:
        Incompatible: it is another one.
    """
    if one.digest != digest:
        difference = f"contract {one.digest[:16]} != {digest[:16]}"
        raise Incompatible(
            f"the checkpoint was saved under another contract: {difference}. Nothing was changed: open with that one "
            "(it is in the run's folder contracts), allow 'contract', or begin another run",
            differences=(difference,),
        )


def _role(name: str, raw: Any) -> Role:
    if name not in ROLES or not isinstance(raw, dict):
        raise ManifestInvalid(f"role {name!r} is not one of {', '.join(ROLES)}")
    known = {"required", "placement", "patterns", "versions", "absent_if", "finite", "agrees"}
    if unknown := sorted(set(raw) - known):
        raise ManifestInvalid(f"role {name} has no member {', '.join(unknown)}")
    if type(raw.get("required", False)) is not bool or raw.get("finite", "refuse") not in ("refuse", "allow"):
        raise ManifestInvalid(f"role {name}: required is true or false, finite is refuse or allow")
    patterns = _object(raw, "patterns", {})
    for placement in (raw.get("placement"), *patterns.values()):
        if placement not in PLACEMENTS:
            raise ManifestInvalid(f"role {name}: placement {placement!r} is not one of {', '.join(PLACEMENTS)}")
    absent_if = raw.get("absent_if")
    return Role(
        name=name,
        required=raw.get("required", False),
        placement=raw["placement"],
        patterns=tuple(patterns.items()),
        versions=tuple(_texts(raw.get("versions", []), f"versions of {name}")),
        absent_if=None if absent_if is None else parse_expression(absent_if),
        refuses_non_finite=raw.get("finite", "refuse") == "refuse",
        agrees=tuple((path, str(version)) for path, version in _object(raw, "agrees", {}).items()),
    )


def _reproducibility(raw: Any) -> str | dict[str, float]:
    match raw:
        case "exact":
            return "exact"
        case {"rtol": float() | int() as rtol, "atol": float() | int() as atol, **rest} if not rest:
            if 0 <= rtol < math.inf and 0 <= atol < math.inf:
                return {"rtol": float(rtol), "atol": float(atol)}
    raise ManifestInvalid("reproducibility is 'exact' or {rtol, atol}, both not negative")


def _texts(raw: Any, what: str) -> list[str]:
    if not isinstance(raw, list) or not all(isinstance(each, str) for each in raw):
        raise ManifestInvalid(f"{what}: a list of names")
    return raw


def _text(raw: Mapping[str, Any], name: str) -> str:
    found = raw.get(name)
    if not isinstance(found, str) or not found:
        raise ManifestInvalid(f"a contract's {name} is a text")
    return found
