"""Whether a checkpoint fits what wants to take it: all differences at once, before a byte of the live run changes.

A dtype is never converted, a name is never guessed and a missing item is never filled in.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .boxes import Box, Shape, count_of, shape_of
from .dtypes import dtype_of
from .errors import Incompatible, LayoutChanged
from .reading import Found
from .records import canonical

FRESH: Final = "fresh"  # the policy for what belongs to one contributor: it begins anew in another layout
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a contributor has a place for.

    Attributes:
        name: the item.
        dtype: a name of dtypes.DTYPES.
        global_shape: of the whole array.
        box: the part.
    """

    name: str
    dtype: str
    global_shape: Shape
    box: Box


def check_fit(
    found: Found,
    targets: Sequence[Target],
    *,
    contributor: str,
    world: Sequence[str],
    profile: str = "resume",
    config: Mapping[str, Any] | None = None,
    lineage: Mapping[str, Any] | None = None,
    overrides: Collection[str] = (),
    layout_policy: str | None = None,
    budget_bytes: int | None = None,
) -> tuple[str, ...]:
    """The checkpoint fits this contributor of this layout.

    Args:
        found: the checkpoint.
        targets: what this contributor has a place for.
        contributor: who it is.
        world: the layout that restores.
        profile: only items of its roles are compared.
        config: this run's settings; each is compared by name.
        lineage: what this run descends from; compared likewise.
        overrides: differences that are accepted, each by its name, such as `config.schedule`.
        layout_policy: FRESH, or None: a contributor's own items refuse another layout.
        budget_bytes: how much memory the parts may take.

    Returns:
        The names of the targets to read: all but those that the policy lets begin anew.

    Raises:
        LayoutChanged: items that are each contributor's own, and another layout.
        Incompatible: anything else; every difference is in it.
    """
    roles = found.contract.profiles[profile]
    stored = {
        item.name: item
        for holder, each in found.contributions.items()
        for item in each.items
        if item.role in roles and (item.placement != "per_contributor" or holder == contributor)
    }
    same = tuple(world) == found.manifest.contributors
    own = sorted({
        item.name for each in found.contributions.values() for item in each.items if item.placement == "per_contributor"
    })  # fmt: skip
    if own and not same and layout_policy != FRESH:
        raise LayoutChanged(
            f"{', '.join(own[:_SHOWN])} are each contributor's own, saved by {', '.join(found.manifest.contributors)}; "
            f"{', '.join(world)} restore. Nothing was changed: name a policy for them, or use the saved layout",
            differences=tuple(own),
        )
    fresh = set(own) if not same else set()
    taken = [target for target in targets if target.name not in fresh]
    differences = _settings("config", found.manifest.config, config) + _settings(
        "lineage", found.manifest.lineage, lineage
    )
    for target in taken:
        item = stored.get(target.name)
        if item is None:
            differences.append((target.name, f"{target.name} is not in checkpoint {found.sequence}"))
        else:
            differences += _item(target, item.dtype, item.global_shape)
    names = {target.name for target in targets}
    differences += [
        (name, f"{name} is in checkpoint {found.sequence} and has no place here")
        for name, item in sorted(stored.items())
        if name not in names and name not in fresh and (item.placement != "global" or contributor == world[0])
    ]
    needed = sum(count_of(shape_of(each.box)) * dtype_of(each.dtype).itemsize for each in taken)
    if budget_bytes is not None and needed > budget_bytes:
        differences.append(("budget", f"{needed} bytes are needed, the budget is {budget_bytes}"))
    left = tuple(text for name, text in differences if name not in overrides)
    if left:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise Incompatible(
            f"checkpoint {found.sequence} does not fit: {'; '.join(left[:_SHOWN])}{more}. Nothing was changed",
            differences=left,
        )
    return tuple(target.name for target in taken)


def _item(target: Target, dtype: str, shape: Shape) -> list[tuple[str, str]]:
    found = []
    if dtype != target.dtype:
        found.append((target.name, f"{target.name} is {dtype}, here {target.dtype}: convert it by name"))
    if shape != target.global_shape:
        found.append((target.name, f"{target.name} has shape {list(shape)}, here {list(target.global_shape)}"))
    return found


def _settings(what: str, saved: Mapping[str, Any], here: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if here is None:
        return []
    try:
        canonical(here)
    except ValueError as error:
        difference = f"{what} has a value that no record holds: {error}"
        raise Incompatible(
            f"{difference}. Nothing was changed: give it as plain JSON", differences=(difference,)
        ) from None
    return [
        (f"{what}.{name}", f"{what}.{name} {saved.get(name, 'absent')!r} != {here.get(name, 'absent')!r}")
        for name in sorted({*saved, *here})
        if canonical([name in saved, saved.get(name)]) != canonical([name in here, here.get(name)])
    ]
