"""A cut: what the contributors of one save state, checked against the contract as one whole.

The committer and every reader call the same check. It refuses by name, with both numbers: there is no maximum of two
versions, no choice between two replicas and no warning.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .boxes import check_tiling
from .contract import CONTRIBUTORS, Contract
from .contribution import Contribution, RecordedItem
from .errors import (
    CutVersionMismatch,
    DuplicateContributor,
    InvariantViolation,
    ManifestInvalid,
    NonFinite,
    ReplicaDivergence,
)
from .expressions import Names
from .records import canonical

KINDS: Final = ("full", "weights_only")
# Work in flight is drained or represented: a count may be above zero only where the contract requires who carries it.
CARRIED_BY: Final = {"microbatch": "grad", "in_flight": "in_flight"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A cut that satisfies its contract.

    Attributes:
        versions: what all contributors stand at.
        per_contributor: versions that each contributor states for itself, by name and contributor.
        absent: required roles that are absent as the contract allows.
        missing: required roles that are absent otherwise; only where the kind is not full.
        values: the values that belong to the whole cut.
        items: by name, whose files hold its bytes, and where.
    """

    versions: Mapping[str, int]
    per_contributor: Mapping[str, Mapping[str, int]]
    absent: tuple[str, ...]
    missing: tuple[str, ...]
    values: Mapping[str, Any]
    items: Mapping[str, tuple[tuple[str, RecordedItem], ...]]


def check_cut(contract: Contract, contributions: Mapping[str, Contribution], *, kind: str = "full") -> Cut:
    """The cut that the contributions are, all of them.

    Args:
        contract: what a cut of this run is.
        contributions: by contributor, in the order of the world: the first is the coordinator's.
        kind: full, or weights_only where the rest is left out on purpose.

    Raises:
        CutVersionMismatch: contributors stand at different positions.
        InvariantViolation: a relation is false, a role is missing or unknown, a value contradicts the cut.
        ReplicaDivergence: replicas differ.
        CoverageError: shards do not tile their shape.
        NonFinite: NaN or infinity where it is refused.
    """
    if kind not in KINDS or not contributions:
        raise ManifestInvalid(f"kind {kind!r} is not one of {', '.join(KINDS)}, or nobody contributed")
    shared, own = _versions(contract, contributions)
    names: dict[str, int | Mapping[str, int]] = {
        CONTRIBUTORS: len(contributions),
        **contract.constants,
        **own,
        **shared,
    }
    for relation in contract.relations:
        if not relation.value(names):
            raise InvariantViolation(
                f"{relation.why_false(names)} (the contract says: {relation.text}); nothing was published, the "
                "previous checkpoint stands: save at the declared boundary"
            )
    _check_in_flight(contract, shared, own)
    items = _items(contract, contributions)
    values = _values(contract, contributions, shared, own)
    absent, missing = _presence(contract, contributions, names, kind)
    return Cut(
        versions=shared, per_contributor=own, absent=absent, missing=missing, values=values, items=items
    )  # fmt: skip


def _versions(
    contract: Contract, contributions: Mapping[str, Contribution]
) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
    shared: dict[str, int] = {}
    own: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    for contributor, each in contributions.items():
        for name, value in each.versions.items():
            scope = contract.versions.get(name)
            if scope is None:
                raise InvariantViolation(
                    f"rank {contributor} states {name}, which contract {contract.name} does not have"
                )
            if scope == "per_contributor":
                own.setdefault(name, {})[contributor] = value
            elif shared.setdefault(name, value) != value:
                wrong.append(f"rank {contributor}: {name} {value} != {shared[name]}")
        for role in roles_of(each):
            for name in contract.role(role, role).versions:
                if name not in each.versions:
                    raise InvariantViolation(
                        f"rank {contributor} holds {role} and does not state {name}; nothing was published"
                    )
    if wrong:
        raise CutVersionMismatch(
            f"{'; '.join(wrong)}: these are different cuts, none is chosen; nothing was published, the previous "
            "checkpoint stands: save when all ranks have applied the same update"
        )
    for name, stated in own.items():
        if lacking := [contributor for contributor in contributions if contributor not in stated]:
            raise InvariantViolation(f"rank {lacking[0]} does not state {name}, which every rank states for itself")
    return shared, own


def _check_in_flight(contract: Contract, shared: Mapping[str, int], own: Mapping[str, Mapping[str, int]]) -> None:
    for name, carrier in CARRIED_BY.items():
        count = shared.get(name, 0) + sum(own.get(name, {}).values())
        role = contract.roles.get(carrier)
        if count and (role is None or not role.required):
            raise InvariantViolation(
                f"{name} {count} != 0 and the contract requires no {carrier} that would carry it: drain before "
                "saving; nothing was published"
            )


def _items(
    contract: Contract, contributions: Mapping[str, Contribution]
) -> dict[str, tuple[tuple[str, RecordedItem], ...]]:
    held: dict[str, list[tuple[str, RecordedItem]]] = {}
    for contributor, each in contributions.items():
        for item in each.items:
            held.setdefault(item.name, []).append((contributor, item))
    world = tuple(contributions)
    for name, parts in held.items():
        role = contract.role(parts[0][1].role, name)
        placed = role.placement_of(name)
        for contributor, item in parts:
            if (item.role, item.placement) != (role.name, placed):
                raise InvariantViolation(
                    f"rank {contributor} gives item {name} as {item.role}, {item.placement}; it is {role.name}, "
                    f"{placed}; nothing was published"
                )
            if role.refuses_non_finite and not item.finite:
                raise NonFinite(
                    f"item {name} of rank {contributor} holds NaN or infinity and {role.name} refuses them; "
                    "nothing was published, the previous checkpoint stands"
                )
        _check_placement(name, placed, parts, world)
    return {name: tuple(part for part in parts if part[1].offset is not None) for name, parts in held.items()}


def _values(
    contract: Contract,
    contributions: Mapping[str, Contribution],
    shared: Mapping[str, int],
    own: Mapping[str, Mapping[str, int]],
) -> dict[str, Any]:
    first = next(iter(contributions))
    kept: dict[str, Any] = {}
    for contributor, each in contributions.items():
        for name, value in each.values.items():
            role = contract.role(name.partition("/")[0], name)
            placed = role.placement_of(name)
            if placed == "sharded" or (placed == "global" and contributor != first):
                raise InvariantViolation(f"rank {contributor} gives value {name}, whose placement is {placed}")
            if placed != "per_contributor":
                kept.setdefault(name, value)
                if canonical(kept[name]) != canonical(value):
                    raise ReplicaDivergence(f"value {name} of rank {contributor} differs from rank {first}'s")
            for path, version in role.agrees:
                stated = _member(value, path)
                expected = own[version][contributor] if version in own else shared.get(version)
                if stated != expected or type(stated) is not int:
                    where = f"{name}.{path}" if path else name
                    raise InvariantViolation(f"value {where} {stated!r} != {version} {expected}; nothing was published")
    for contributor, each in contributions.items():
        for name in kept:
            if (
                contract.role(name.partition("/")[0], name).placement_of(name) == "replicated"
                and name not in each.values
            ):
                raise ReplicaDivergence(f"value {name} is replicated and rank {contributor} does not give it")
    return kept


def _presence(
    contract: Contract, contributions: Mapping[str, Contribution], names: Names, kind: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    present = {role for each in contributions.values() for role in roles_of(each)}
    lacking = [role for role in contract.roles.values() if role.required and role.name not in present]
    absent = tuple(role.name for role in lacking if role.absent_if is not None and role.absent_if.value(names))
    missing = tuple(role.name for role in lacking if role.name not in absent)
    if kind == "full" and missing:
        raise InvariantViolation(
            f"required roles are missing: {', '.join(missing)}; nothing was published. Give them, or save what there "
            "is as weights_only: resume will refuse it"
        )
    own = [role.name for role in contract.roles.values() if role.placement == "per_contributor" and not role.patterns]
    for contributor, each in contributions.items():
        held = roles_of(each)
        if without := [name for name in own if name in present and contract.roles[name].required and name not in held]:
            raise InvariantViolation(f"rank {contributor} has no {without[0]}, of which every rank has its own")
    if lost := contract.missing_for("weights", present, absent):
        raise InvariantViolation(f"not even the weights are complete: {', '.join(lost)} missing; nothing was published")
    return absent, missing


def roles_of(contribution: Contribution) -> set[str]:
    """The roles that a contribution has, as items or as values."""
    return {item.role for item in contribution.items} | {name.partition("/")[0] for name in contribution.values}


def _check_placement(name: str, placed: str, parts: list[tuple[str, RecordedItem]], world: tuple[str, ...]) -> None:
    first, example = parts[0]
    if placed == "global":
        if [contributor for contributor, _ in parts] != [world[0]]:
            raise InvariantViolation(
                f"item {name} is global and rank {parts[-1][0]} holds it: rank {world[0]} alone does"
            )
    elif placed == "replicated":
        holders = {contributor for contributor, _ in parts}
        if lacking := [contributor for contributor in world if contributor not in holders]:
            raise ReplicaDivergence(f"item {name} is replicated and rank {lacking[0]} does not hold it")
        for contributor, item in parts:
            if (item.dtype, item.global_shape, item.digest) != (example.dtype, example.global_shape, example.digest):
                raise ReplicaDivergence(
                    f"item {name} of rank {contributor} ({item.digest[:16]}) differs from rank {first}'s "
                    f"({example.digest[:16]}), and the contract says they are replicas; nothing was published"
                )
            if item.finite != example.finite:
                raise ReplicaDivergence(
                    f"item {name}: rank {contributor} and rank {first} have the same bytes and do not agree whether "
                    "they are finite; nothing was published"
                )
            if (item.offset is None) != (contributor != first):
                raise InvariantViolation(f"item {name} is replicated: rank {first} alone writes its bytes")
    elif placed == "sharded":
        for contributor, item in parts:
            if (item.dtype, item.global_shape) != (example.dtype, example.global_shape):
                raise InvariantViolation(
                    f"item {name}: rank {contributor} has {item.dtype} {item.global_shape}, rank {first} "
                    f"{example.dtype} {example.global_shape}; nothing was published"
                )
        check_tiling(example.global_shape, [item.box for _, item in parts], what=f"item {name}")


def check_world(contributors: Iterable[str]) -> tuple[str, ...]:
    """The contributors, each once.

    Raises:
        DuplicateContributor: one stands twice.
    """
    world = tuple(contributors)
    seen: set[str] = set()
    for contributor in world:
        if contributor in seen:
            raise DuplicateContributor(f"contributor {contributor} stands twice among the {len(world)} contributors")
        seen.add(contributor)
    return world


def _member(value: Any, path: str) -> Any:
    for part in path.split(".") if path else ():
        value = value.get(part) if isinstance(value, Mapping) else None
    return value
