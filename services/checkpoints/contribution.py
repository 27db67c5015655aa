"""What one contributor gives to a checkpoint: its bytes, and a record of them that is written last.

- The bytes of an item begin at a multiple of 4096 and have the digest that its record states.
- A replica is digested by every contributor and written by the lowest alone; the others record the digest.
- The record is published after the bytes are durable: where it is, they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from . import fs
from .boxes import LARGEST_BYTES, Box, Shape, check_box, check_shape, count_of, shape_of, whole
from .dtypes import dtype_of
from .errors import CommitFailed, DuplicateContributor, ManifestInvalid
from .layout import check_contributor, data_name, record_name
from .records import RECORD_BYTES, canonical, check_digest, check_id, check_random, sealed, unsealed
from .versions import Versions, check_versions

FORMAT: Final = "counterfoil-contribution-1"
PLACEMENTS: Final = ("sharded", "replicated", "per_contributor", "global")
NAME_LENGTH: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedItem:
    """One captured item, its bytes already in staging.

    Attributes:
        name: unique among this contributor's items.
        role: a role of the contract.
        placement: sharded, replicated, per_contributor or global, as the contract places it.
        dtype: a name of dtypes.DTYPES.
        global_shape: of the whole array; of this contributor's own where it is per_contributor.
        box: the part that is held here; the whole where it is not sharded.
        buffer: the item's bytes, C order, little-endian; written without a copy where it begins at a multiple of 4096.
        digest: blake3 of exactly these bytes.
        finite: no NaN and no infinity in them.
    """

    name: str
    role: str
    placement: str
    dtype: str
    global_shape: Shape
    box: Box
    buffer: memoryview
    digest: str
    finite: bool

    @property
    def nbytes(self) -> int:
        """How many bytes the box has."""
        return nbytes_of(self.box, self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedItem:
    """One item as a record states it.

    Attributes:
        offset: where its bytes begin in the contributor's file; None for a replica that another contributor wrote.
    """

    name: str
    role: str
    placement: str
    dtype: str
    global_shape: Shape
    box: Box
    offset: int | None
    nbytes: int
    digest: str
    finite: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """One contributor's record.

    Attributes:
        save_id: the save it belongs to.
        contributor: whose it is.
        versions: where this contributor stood.
        items: what it holds.
        values: small values, by role or `role/name`.
        direct: whether its bytes were written past the page cache.
        digest: of the record.
        record_bytes: how long the record is.
    """

    save_id: str
    contributor: str
    versions: Versions
    items: tuple[RecordedItem, ...]
    values: Mapping[str, Any]
    direct: bool
    digest: str
    record_bytes: int

    @property
    def data_bytes(self) -> int:
        """How long its file of bytes is."""
        return sum(fs.padded_length(item.nbytes) for item in self.items if item.offset is not None)


def nbytes_of(box: Box, dtype: str) -> int:
    """The bytes of a box.

    Raises:
        ManifestInvalid: more than any file can have.
    """
    check_size(shape_of(box), dtype)
    return count_of(shape_of(box)) * dtype_of(dtype).itemsize


def check_size(shape: Shape, dtype: str) -> None:
    """An array of this shape can be: also an empty one, whose other lengths numpy multiplies all the same.

    Raises:
        ManifestInvalid: it cannot.
    """
    if count_of([length or 1 for length in shape]) * dtype_of(dtype).itemsize > LARGEST_BYTES:
        raise ManifestInvalid(f"an array of {len(shape)} dimensions, {dtype}, is larger than any file")


def write_contribution(
    folder: fs.Folder,
    *,
    save_id: str,
    contributor: str,
    lowest: bool,
    items: Sequence[StagedItem],
    versions: Versions,
    values: Mapping[str, Any],
) -> str:
    """Write a contributor's bytes, then its record.

    Args:
        folder: the save's.
        save_id: the save.
        contributor: whose contribution it is.
        lowest: whether it is the first of the world, which writes the replicas.
        items: what was captured.
        versions: where the contributor stood.
        values: small values, by role or `role/name`.

    Returns:
        The digest of the record.

    Raises:
        CommitFailed: a write or an fsync failed: nothing of this save will be published.
        DuplicateContributor: another process wrote under this id.
        ManifestInvalid: an item cannot be recorded.
    """
    written = [item for item in items if lowest or item.placement != "replicated"]
    for item in written:
        if item.buffer.nbytes != item.nbytes:
            raise ManifestInvalid(f"item {item.name} has {item.buffer.nbytes} bytes, its box {item.nbytes}")
    try:
        direct = folder.write_new(data_name(contributor), (item.buffer for item in written))
        record = _record(
            save_id,
            contributor,
            items,
            {item.name for item in written},
            versions=versions,
            values=values,
            direct=direct,
        )
        data = canonical(record)
        _parsed(record, len(data))  # what a reader would refuse is not written
        published = folder.publish(record_name(contributor), data)
    except FileExistsError as error:
        raise _duplicate(folder, contributor) from error
    except OSError as error:
        raise CommitFailed(
            f"contributor {contributor} could not write to {folder.path}: {error}; nothing was published, the previous "
            "checkpoint stands: make room or repair the file system and save again"
        ) from error
    if not published:
        raise _duplicate(folder, contributor)
    return str(record["digest"])


def _duplicate(folder: fs.Folder, contributor: str) -> DuplicateContributor:
    return DuplicateContributor(
        f"contributor {contributor} has written to {folder.path} already: two processes have one id; nothing was "
        "published, give each process its own rank"
    )


def _record(
    save_id: str,
    contributor: str,
    items: Sequence[StagedItem],
    written: set[str],
    *,
    versions: Versions,
    values: Mapping[str, Any],
    direct: bool,
) -> dict[str, Any]:
    offset, recorded = 0, []
    for item in items:
        here = item.name in written
        recorded.append({
            "name": item.name, "role": item.role, "placement": item.placement, "dtype": item.dtype,
            "global_shape": list(item.global_shape), "box": [list(bounds) for bounds in item.box],
            "offset": offset if here else None, "nbytes": item.nbytes, "digest": item.digest, "finite": item.finite,
        })  # fmt: skip
        offset += fs.padded_length(item.nbytes) if here else 0
    try:
        return sealed({
            "format": FORMAT, "save_id": save_id, "contributor": contributor, "versions": dict(versions),
            "items": recorded, "values": dict(values), "direct": direct,
        })  # fmt: skip
    except ValueError as error:
        raise ManifestInvalid(f"contributor {contributor} has a value that no record holds: {error}") from error


def read_contribution(folder: fs.Folder, contributor: str, *, limit: int = RECORD_BYTES) -> Contribution:
    """A contributor's record, checked for itself: whether it fits the others is the contract's to say.

    Raises:
        FileNotFoundError: it is not there.
        ManifestInvalid: it breaks a rule.
        DigestMismatch: it was changed.
    """
    data = folder.read(record_name(contributor), limit)
    found = _parsed(unsealed(data, form=FORMAT, limit=limit), len(data))
    if found.contributor != contributor:
        raise ManifestInvalid(f"{folder.path}/{contributor}.json is the record of contributor {found.contributor}")
    return found


def _parsed(raw: Mapping[str, Any], record_bytes: int) -> Contribution:
    raw_items, values = raw.get("items"), raw.get("values")
    if not isinstance(raw_items, list) or not isinstance(values, dict) or type(raw.get("direct")) is not bool:
        raise ManifestInvalid("a contribution has items, values and how it was written")
    items = tuple(_item(each) for each in raw_items)
    if len({item.name for item in items}) != len(items):
        raise ManifestInvalid("a contribution names an item twice")
    end = 0
    for item in items:
        if item.offset is not None:
            if item.offset != end:
                raise ManifestInvalid(f"item {item.name} begins at {item.offset}, where {end} is the next free block")
            end += fs.padded_length(item.nbytes)
    return Contribution(
        save_id=check_random(raw.get("save_id")),
        contributor=check_contributor(raw.get("contributor")),
        versions=check_versions(raw.get("versions")),
        items=items,
        values=values,
        direct=raw["direct"],
        digest=str(raw["digest"]),
        record_bytes=record_bytes,
    )


def _item(raw: Any) -> RecordedItem:
    if not isinstance(raw, dict):
        raise ManifestInvalid("an item is an object")
    name, placement, dtype = raw.get("name"), raw.get("placement"), str(raw.get("dtype"))
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH or not name.isprintable():
        raise ManifestInvalid(f"item name {name!r} is not a text of 1 to {NAME_LENGTH} printable characters")
    if placement not in PLACEMENTS:
        raise ManifestInvalid(f"item {name}: placement {placement!r} is not one of {', '.join(PLACEMENTS)}")
    dtype_of(dtype)
    shape = check_shape(raw.get("global_shape"))
    check_size(shape, dtype)
    box = check_box(raw.get("box"), shape)
    if placement != "sharded" and box != whole(shape):
        raise ManifestInvalid(f"item {name} is {placement} and its box is not the whole")
    nbytes, offset, finite = raw.get("nbytes"), raw.get("offset"), raw.get("finite")
    if type(nbytes) is not int or nbytes != nbytes_of(box, dtype):
        raise ManifestInvalid(f"item {name}: {nbytes!r} bytes are not the {nbytes_of(box, dtype)} of its box")
    if offset is None and placement != "replicated":
        raise ManifestInvalid(f"item {name} is {placement} and has no bytes in its contributor's file")
    if offset is not None and (type(offset) is not int or not 0 <= offset <= LARGEST_BYTES):
        raise ManifestInvalid(f"item {name}: offset {offset!r} is not a place in a file")
    if type(finite) is not bool:
        raise ManifestInvalid(f"item {name} does not say whether it is finite")
    return RecordedItem(
        name=name,
        role=check_id(raw.get("role"), "role"),
        placement=placement,
        dtype=dtype,
        global_shape=shape,
        box=box,
        offset=offset,
        nbytes=nbytes,
        digest=check_digest(raw.get("digest"), f"item {name}'s digest"),
        finite=finite,
    )
