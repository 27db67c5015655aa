"""Export: a checkpoint, or a profile of it, as safetensors files that say everything that an import needs.

What this module guarantees:

- Bytes are verified before they are written, and a file has its name when it is whole: no half export is found.
- One item is in memory at a time.
- The weights are tensors under their own names, so that any reader of the format loads them. What is more than tensors
  (the contract, versions, values, boxes, digests, the journal's watermark) is one sealed record in the metadata.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from . import fs
from .boxes import Box, Shape, check_box, check_shape, shape_of, whole
from .contract import Contract
from .contribution import Contribution, RecordedItem
from .cut import KINDS, check_world
from .dtypes import Array, dtype_of
from .errors import CommitFailed, Incompatible, ManifestInvalid
from .layout import Run, check_contributor
from .manifest import NOT_UNDONE
from .reading import Found, Heard, Want, check_profile, read_items, unheard
from .records import canonical, check_digest, check_id, list_of, object_of, parse, sealed, unsealed
from .safetensors import HEADER_BYTES, METADATA, Tensor, check_name, lay_out, write
from .versions import check_versions
from .watermark import read_watermark

FORMAT: Final = "counterfoil-export-1"
MEMBER: Final = "counterfoil"  # of a file's metadata
SUFFIX: Final = ".safetensors"
_object: Final = partial(object_of, "an export")
_list: Final = partial(list_of, "an export")
_SEPARATOR: Final = "@"  # between an item's name and whose it is, where one file holds what is each contributor's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """One tensor of an export, and which item it is.

    Attributes:
        tensor: its name in the file.
        name: the item.
        role: its role.
        dtype: a name of dtypes.DTYPES.
        global_shape: of the whole item.
        box: the part that the tensor is.
        contributor: whose it is.
        digest: of its bytes.
    """

    tensor: str
    name: str
    role: str
    dtype: str
    global_shape: Shape
    box: Box
    contributor: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What belongs to one contributor beside its items."""

    versions: Mapping[str, int]
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What a file of ours says of itself.

    Attributes:
        run: whose checkpoint it was.
        sequence: which one.
        manifest: its manifest's digest.
        kind: full, or weights_only.
        contract: the one it was made under.
        world: the contributors, in their order.
        parts: of all contributors, or of the one whose file it is.
        items: the tensors.
        config: as in the manifest.
        lineage: as in the manifest.
        watermark: the journal's, or None.
    """

    run: str
    sequence: int
    manifest: str
    kind: str
    contract: Contract
    world: tuple[str, ...]
    parts: Mapping[str, Part]
    items: tuple[Placed, ...]
    config: Mapping[str, Any]
    lineage: Mapping[str, Any]
    watermark: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What was written."""

    files: tuple[Path, ...]
    tensors: int
    data_bytes: int


def export(
    run: Run, found: Found, target: Path, *, profile: str | None = None, per_contributor: bool = False,
    heard: Heard = unheard,
) -> Exported:  # fmt: skip
    """Write a checkpoint as one file, or as one for each contributor.

    Args:
        run: the run.
        found: the checkpoint.
        target: a file that is not there; or, per contributor, a folder that is not there or empty.
        profile: only the roles of this profile; None: everything.
        per_contributor: each contributor's own parts in a file of its own, instead of whole arrays in one.
        heard: told of each piece that was read.

    Raises:
        WeightsOnly: the checkpoint does not serve the profile.
        DigestMismatch: bytes are not those that were committed; the file was not written.
        ManifestInvalid: an item that the format cannot hold.
        CommitFailed: the target is taken, or cannot be written.
    """
    if profile is not None:
        check_profile(found, profile)
    roles = set(found.contract.roles if profile is None else found.contract.profiles[profile])
    parts: Mapping[str | None, tuple[Placed, ...]] = (
        _own_parts(found, roles) if per_contributor else {None: _whole_items(found, roles)}
    )
    folder = target if per_contributor else target.parent
    files = {owner: f"{owner}{SUFFIX}" if owner is not None else target.name for owner in parts}
    plans = {
        owner: lay_out([(each.tensor, each.dtype, shape_of(each.box)) for each in parts[owner]]) for owner in parts
    }
    try:
        with fs.open_root(folder, create=True) as place:
            if taken := [name for name in place.names() if per_contributor or name == target.name]:
                raise CommitFailed(f"{folder / taken[0]} is there already: name a new target. Nothing was written")
            for owner, placed in parts.items():
                if not _write(
                    run, found, place, files[owner], owner=owner, placed=placed, plan=plans[owner], roles=roles,
                    heard=heard,
                ):  # fmt: skip
                    raise CommitFailed(f"{folder / files[owner]} came meanwhile and was left as it is")
            place.sync()
    except OSError as error:
        raise CommitFailed(f"the export to {target} stopped: {error}. The checkpoint is as it was") from error
    except MemoryError as error:
        raise Incompatible(
            f"an item of checkpoint {found.sequence} is larger than there is memory for; export it per contributor"
        ) from error
    return Exported(
        files=tuple(folder / name for name in files.values()),
        tensors=sum(map(len, parts.values())),
        data_bytes=sum(each.stop - each.start for plan in plans.values() for each in plan),
    )


def _write(
    run: Run, found: Found, place: fs.Folder, file: str, *, owner: str | None, placed: Sequence[Placed],
    plan: Sequence[Tensor], roles: set[str], heard: Heard,
) -> bool:  # fmt: skip
    by_name = {each.tensor: each for each in placed}

    def array_of(tensor: Tensor) -> Array:
        each = by_name[tensor.name]
        want = Want(name=each.name, box=each.box, contributor=each.contributor)
        (array,) = read_items(run, found, [want], heard=heard).values()
        return array

    def metadata_of(digests: Mapping[str, str]) -> dict[str, str]:
        record = _record(found, owner=owner, placed=placed, digests=digests, roles=roles)
        return {"format": "pt", MEMBER: canonical(record).decode()}  # what readers of weights want to see

    return write(place, file, plan, array_of, metadata_of)


def _whole_items(found: Found, roles: set[str]) -> tuple[Placed, ...]:
    first = found.manifest.contributors[0]
    placed: list[Placed] = []
    for name, holders in sorted(found.cut.items.items()):
        item = holders[0][1]
        if item.role not in roles:
            continue
        if item.placement == "per_contributor":
            placed += (_placed(f"{name}{_SEPARATOR}{owner}", each, each.box, owner) for owner, each in holders)
        else:
            placed.append(_placed(name, item, whole(item.global_shape), first))
    return tuple(placed)


def _own_parts(found: Found, roles: set[str]) -> dict[str | None, tuple[Placed, ...]]:
    return {
        owner: tuple(
            _placed(item.name, item, item.box, owner)
            for item in each.items
            if item.role in roles and item.offset is not None
        )
        for owner, each in found.contributions.items()
    }


def _placed(tensor: str, item: RecordedItem, box: Box, contributor: str) -> Placed:
    return Placed(
        tensor=tensor, name=item.name, role=item.role, dtype=item.dtype, global_shape=item.global_shape, box=box,
        contributor=contributor, digest="",
    )  # fmt: skip


def _record(
    found: Found, *, owner: str | None, placed: Sequence[Placed], digests: Mapping[str, str], roles: set[str]
) -> dict[str, Any]:
    manifest, effects = found.manifest, found.manifest.effects
    lacking = [name for name, role in found.contract.roles.items() if role.required and name not in roles]
    try:
        return sealed({
            "format": FORMAT, "run": manifest.run, "sequence": manifest.sequence, "manifest": manifest.digest,
            "kind": "weights_only" if lacking else manifest.kind,
            "contract": parse(found.contract.document(), by_hand=True),
            "world": list(manifest.contributors),
            "parts": {
                name: {"versions": dict(each.versions), "values": _values(each, roles)}
                for name, each in found.contributions.items()
                if owner in (None, name)
            },
            "items": [
                {"tensor": each.tensor, "name": each.name, "role": each.role, "dtype": each.dtype,
                 "global_shape": list(each.global_shape), "box": [list(bounds) for bounds in each.box],
                 "contributor": each.contributor, "digest": digests[each.tensor]}
                for each in placed
            ],
            "config": dict(manifest.config), "lineage": dict(manifest.lineage),
            "watermark": None if effects is None else effects["watermark"], "statement": NOT_UNDONE,
        })  # fmt: skip
    except ValueError as error:
        raise ManifestInvalid(
            f"checkpoint {found.sequence} has a value that no export holds: {error}; nothing was written"
        ) from error


def _values(contribution: Contribution, roles: set[str]) -> dict[str, Any]:
    return {name: value for name, value in contribution.values.items() if name.partition("/")[0] in roles}


def read_export(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Export:
    """What a file of ours says of itself, checked for itself and against its header.

    Raises:
        DigestMismatch: the record was changed.
        ManifestInvalid: it breaks a rule, or says of the tensors what the header does not say.
    """
    try:
        raw = unsealed(metadata[MEMBER].encode(), form=FORMAT, limit=HEADER_BYTES)
    except KeyError:
        raise ManifestInvalid(f"the file's {METADATA} has no {MEMBER}: it is no export of a checkpoint") from None
    world = check_world([check_contributor(each) for each in _list(raw, "world")])
    watermark, kind = raw.get("watermark"), raw.get("kind")
    if watermark is not None:
        read_watermark(watermark)
    if kind not in KINDS or type(raw.get("sequence")) is not int:
        raise ManifestInvalid("an export says which checkpoint it was, and of which kind")
    items = tuple(_item(each, world, tensors) for each in _list(raw, "items"))
    if sorted(each.tensor for each in items) != sorted(tensors):
        raise ManifestInvalid("the export's record does not name the tensors of its file, each once")
    parts = _object(raw, "parts")
    if not parts or set(parts) - set(world):
        raise ManifestInvalid("an export has the versions and values of its contributors, and of no others")
    return Export(
        run=check_id(raw.get("run"), "run"),
        sequence=raw["sequence"],
        manifest=check_digest(raw.get("manifest"), "the manifest's digest"),
        kind=kind,
        contract=Contract.load(_object(raw, "contract")),
        world=world,
        parts={
            name: Part(
                versions=check_versions(_object(parts, name).get("versions")), values=_object(parts[name], "values")
            )
            for name in parts
        },
        items=items,
        config=_object(raw, "config"),
        lineage=_object(raw, "lineage"),
        watermark=watermark,
    )


def _item(raw: Any, world: Sequence[str], tensors: Mapping[str, Tensor]) -> Placed:
    if not isinstance(raw, dict) or not isinstance(raw.get("tensor"), str) or not isinstance(raw.get("name"), str):
        raise ManifestInvalid("an item of an export is an object with the names of a tensor and of an item")
    tensor = tensors.get(raw["tensor"])
    if tensor is None:
        raise ManifestInvalid(f"the export's record names a tensor {raw['tensor'][:60]!r} that its file does not have")
    shape = check_shape(raw.get("global_shape"))
    box = check_box(raw.get("box"), shape)
    if dtype_of(raw.get("dtype")) != dtype_of(tensor.dtype) or shape_of(box) != tensor.shape:
        raise ManifestInvalid(f"tensor {tensor.name} is not of the dtype and shape that the export's record says")
    if raw.get("contributor") not in world:
        raise ManifestInvalid(f"tensor {tensor.name} is of a contributor that the export does not have")
    return Placed(
        tensor=tensor.name, name=check_name(raw["name"]), role=check_id(raw.get("role"), "role"), dtype=tensor.dtype,
        global_shape=shape, box=box, contributor=raw["contributor"],
        digest=check_digest(raw.get("digest"), f"tensor {tensor.name}'s digest"),
    )  # fmt: skip
