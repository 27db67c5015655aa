"""Finding and reading checkpoints. Nothing is handed out before its digest was compared.

- `latest` believes the log, then the manifest it names, then the records that names, then the sizes of the files; what
  fails is skipped and reported, or raised where the caller is strict.
- Item bytes are read whole, digested, and only then given, into arrays that nobody has yet.
- Whether an item is finite is seen in its bytes: a record that says otherwise of them is refused.
- A checkpoint that is marked for removal is `Retired`, which is not damage.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from blake3 import blake3

from . import fs
from .boxes import Box, count_of, overlap, shape_of, slices, whole
from .contract import Contract
from .contribution import Contribution, RecordedItem
from .cut import Cut
from .dtypes import Array, dtype_of, is_finite
from .errors import (
    CheckpointError,
    Damaged,
    DigestMismatch,
    Incompatible,
    LayoutChanged,
    ManifestInvalid,
    Retired,
    SizeMismatch,
    WeightsOnly,
)
from .layout import Run, data_name, sequences_in
from .log import LogRecord, last_slot, read_slot
from .manifest import Manifest, read_contract, read_contributions, read_manifest, validate
from .records import digest_of

REASON_LENGTH: Final = 1000
Heard = Callable[[int], None]  # of how many bytes were read since it was last told
DIRECT_BYTES: Final = 1 << 20  # below it, the page cache's reading ahead is faster than asking the disk each time


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A checkpoint that was passed over, and why."""

    sequence: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A checkpoint whose records are all as they were written.

    Attributes:
        sequence: its slot.
        manifest: what it says of itself.
        contract: the one it was made under.
        contributions: the records, in the order of the world.
        cut: what the contract makes of them.
    """

    sequence: int
    manifest: Manifest
    contract: Contract
    contributions: Mapping[str, Contribution]
    cut: Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Want:
    """An item, or the part of it, that a contributor of the new layout takes.

    Attributes:
        name: the item.
        box: the part; None for the whole.
        contributor: whose, where the item is per_contributor.
    """

    name: str
    box: Box | None = None
    contributor: str | None = None


def unheard(_nbytes: int) -> None:
    """Nobody watches."""


def is_retired(run: Run, sequence: int) -> bool:
    """Whether a checkpoint is marked for removal."""
    return run.retired.has(str(sequence))


def load(run: Run, sequence: int, *, marked: bool = False) -> Found:
    """One checkpoint, by its sequence.

    Args:
        run: the run.
        sequence: its slot.
        marked: for retention: also one that is marked for removal and still there.

    Raises:
        Retired: it is marked for removal.
        ManifestInvalid: the slot holds no commit.
        Damaged: something of it is not as it was written.
    """
    try:
        record = read_slot(run, sequence)
    except FileNotFoundError:
        raise ManifestInvalid(f"slot {sequence} of run {run.run_id} is free: there is no such checkpoint") from None
    except OSError as error:
        raise _seen(run, sequence, error) from error
    if record.kind != "commit":
        raise ManifestInvalid(f"slot {sequence} of run {run.run_id} opens epoch {record.epoch}: it is no checkpoint")
    return _loaded(run, record, marked=marked)


def _loaded(run: Run, record: LogRecord, *, marked: bool = False) -> Found:
    sequence = record.sequence
    if not marked and is_retired(run, sequence):
        raise _retired(run, sequence)
    assert record.save_id is not None  # noqa: S101 - a commit record has both
    assert record.manifest is not None  # noqa: S101
    try:
        with run.save(record.epoch, record.save_id) as folder:
            manifest = read_manifest(folder, record.manifest)
            stated = (manifest.run, manifest.sequence, manifest.save_id, manifest.epoch, manifest.writer)
            if stated != (run.run_id, sequence, record.save_id, record.epoch, record.writer):
                raise ManifestInvalid(
                    f"the manifest in slot {sequence} is of {stated}: it belongs to another checkpoint"
                )
            contract = read_contract(run, manifest.contract_digest)
            contributions = read_contributions(folder, record.save_id, manifest.contributors)
            cut = validate(manifest, contract, contributions)
    except (OSError, CheckpointError) as error:
        raise _seen(run, sequence, error) from error
    return Found(
        sequence=sequence, manifest=manifest, contract=contract, contributions=contributions, cut=cut
    )  # fmt: skip


def _retired(run: Run, sequence: int) -> Retired:
    return Retired(f"checkpoint {sequence} of run {run.run_id} is marked for removal, not damaged: look for another")


def latest(
    run: Run, *, profile: str = "resume", strict: bool = False, before: int | None = None
) -> tuple[Found | None, tuple[Skipped, ...]]:
    """The newest checkpoint that serves a profile, and what newer ones were passed over.

    Args:
        run: the run.
        profile: what the restore needs.
        strict: raise instead of passing over.
        before: only older ones than this sequence.

    Raises:
        CheckpointError: with `strict`, what is wrong with the newest.
    """
    skipped: list[Skipped] = []
    for sequence in range(last_slot(run) if before is None else before - 1, 0, -1):
        try:
            record = read_slot(run, sequence)
            if record.kind == "open":
                continue
            found = _loaded(run, record)
            check_profile(found, profile)
        except Retired:
            continue
        except (CheckpointError, OSError) as error:
            known = _known(run, sequence, error)
            if strict:
                raise known from error
            skipped.append(Skipped(sequence=sequence, reason=_reason(known)))
            continue
        return found, tuple(skipped)
    return None, tuple(skipped)


def _gap(run: Run, sequence: int) -> ManifestInvalid:
    return ManifestInvalid(f"slot {sequence} of the log of run {run.run_id} is missing, and later ones are there")


def _known(run: Run, sequence: int, error: CheckpointError | OSError) -> CheckpointError:
    match error:
        case CheckpointError():
            return error
        case FileNotFoundError():
            return _gap(run, sequence)
        case _:
            return _seen(run, sequence, error)


def _reason(error: CheckpointError) -> str:
    """By name, and no longer than a person reads: what a damaged record holds is not passed on."""
    return f"{type(error).__name__}: {error}"[:REASON_LENGTH]


def check_profile(found: Found, profile: str) -> None:
    """The checkpoint has what the profile needs.

    Raises:
        WeightsOnly: it has not; the roles are named.
    """
    if profile not in found.manifest.profiles:
        present = {each.role for parts in found.contributions.values() for each in parts.items}
        present |= {name.partition("/")[0] for parts in found.contributions.values() for name in parts.values}
        missing = found.contract.missing_for(profile, present, found.cut.absent)
        raise WeightsOnly(
            f"checkpoint {found.sequence} does not serve {profile} (missing: {', '.join(missing)}); it is whole for "
            f"{', '.join(found.manifest.profiles) or 'nothing'}: choose an older one, or that profile"
        )


def read_items(run: Run, found: Found, wants: Sequence[Want], *, heard: Heard = unheard) -> dict[str, Array]:
    """Items, or the parts of them that a layout takes, in new arrays.

    Raises:
        DigestMismatch: bytes are not those that were committed; nothing is handed out.
        ManifestInvalid: they hold NaN or infinity and their record denies it, or the other way round.
        Incompatible: there is no such item, or the part is outside of it.
        LayoutChanged: it belongs to a contributor that the checkpoint does not have.
        Retired: it was removed while it was read.
    """
    arrays: dict[str, Array] = {}
    with _opened(run, found) as folder:
        for want in wants:
            parts = _parts(found, want)
            item = parts[0][1]
            box = whole(item.global_shape) if want.box is None else want.box
            inside = len(box) == len(item.global_shape) and all(
                0 <= start <= stop <= length for (start, stop), length in zip(box, item.global_shape, strict=True)
            )
            if not inside:
                raise Incompatible(f"item {want.name}: {box} is not inside {item.global_shape}; nothing was changed")
            arrays[want.name] = _assembled(_Reader(run=run, found=found, folder=folder, heard=heard), parts, box)
    return arrays


def verify_items(run: Run, found: Found, names: Sequence[str] | None = None, *, heard: Heard = unheard) -> None:
    """Read and compare every byte of the items, or of all.

    Raises:
        DigestMismatch: one is not as it was committed.
        ManifestInvalid: one holds NaN or infinity and its record denies it, or the other way round.
    """
    with _opened(run, found) as folder:
        reader = _Reader(run=run, found=found, folder=folder, heard=heard)
        for name, parts in found.cut.items.items():
            if names is None or name in names:
                for contributor, item in parts:
                    reader.compare(contributor, item)


def _opened(run: Run, found: Found) -> fs.Folder:
    try:
        return run.save(found.manifest.epoch, found.manifest.save_id)
    except OSError as error:
        raise _seen(run, found.sequence, error) from error


def _seen(run: Run, sequence: int, error: Exception) -> CheckpointError:
    """What a failure to read means: a checkpoint that is being removed is not damaged."""
    if is_retired(run, sequence):
        return _retired(run, sequence)
    match error:
        case CheckpointError():
            return error
        case FileNotFoundError():
            return SizeMismatch(
                f"checkpoint {sequence} lacks the file {error.filename}; earlier checkpoints are not touched"
            )
        case PermissionError():
            return Damaged(
                f"checkpoint {sequence} cannot be read: permission to open {error.filename} is denied. It may be "
                "whole: look as the user who trains"
            )
        case _:
            return Damaged(f"checkpoint {sequence} cannot be read: {error}; earlier checkpoints are not touched")


def _parts(found: Found, want: Want) -> Sequence[tuple[str, RecordedItem]]:
    parts = found.cut.items.get(want.name)
    if not parts:
        raise Incompatible(f"checkpoint {found.sequence} has no item {want.name}; nothing was changed")
    if parts[0][1].placement != "per_contributor":
        return parts
    own = [part for part in parts if part[0] == want.contributor]
    if not own:
        raise LayoutChanged(
            f"item {want.name} is each contributor's own and {want.contributor} is not one of "
            f"{', '.join(found.manifest.contributors)}; nothing was changed: name a policy for it"
        )
    return own


def _assembled(reader: "_Reader", parts: Sequence[tuple[str, RecordedItem]], box: Box) -> Array:
    dtype = dtype_of(parts[0][1].dtype)
    target: Array | None = None
    for contributor, item in parts:
        if item.box == box:
            return reader.verified(contributor, item)
        shared = overlap(item.box, box)
        if shared is not None:
            piece = reader.verified(contributor, item)
            target = np.empty(shape_of(box), dtype) if target is None else target
            target[slices(shared, box)] = piece[slices(shared, item.box)]
    return np.empty(shape_of(box), dtype) if target is None else target


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reader:
    """Reads the items of one checkpoint from its folder."""

    run: Run
    found: Found
    folder: fs.Folder
    heard: Heard

    def compare(self, contributor: str, item: RecordedItem) -> None:
        """An item's bytes against its record, a piece at a time: however large it is, or says it is."""
        piece = fs.aligned_bytes(min(fs.CHUNK_BYTES, fs.padded_length(item.nbytes)))
        digest, finite, dtype = blake3(), True, dtype_of(item.dtype)
        try:
            with self.folder.open(data_name(contributor), direct=item.nbytes >= DIRECT_BYTES) as file:
                for at in range(0, item.nbytes, fs.CHUNK_BYTES):
                    length = min(fs.CHUNK_BYTES, item.nbytes - at)
                    file.read_into(piece[: fs.padded_length(length)].data, (item.offset or 0) + at)
                    digest.update(piece[:length].data)
                    finite = finite and is_finite(piece[:length].view(dtype))
                    self.heard(length)
        except (OSError, CheckpointError) as error:
            raise _seen(self.run, self.found.sequence, error) from error
        if digest.hexdigest() != item.digest:
            raise _flipped(self.found, contributor, item)
        _check_finite(self.found, contributor, item, finite=finite)

    def verified(self, contributor: str, item: RecordedItem) -> Array:
        """An item's bytes, once they are what its record says."""
        padded = _memory(self.found, item)
        try:
            with self.folder.open(data_name(contributor), direct=item.nbytes >= DIRECT_BYTES) as file:
                for at in range(0, len(padded), fs.CHUNK_BYTES):
                    piece = padded[at : at + fs.CHUNK_BYTES]
                    file.read_into(piece.data, (item.offset or 0) + at)
                    self.heard(len(piece))
        except (OSError, CheckpointError) as error:
            raise _seen(self.run, self.found.sequence, error) from error
        raw = padded[: item.nbytes]
        if digest_of(raw.data) != item.digest:
            raise _flipped(self.found, contributor, item)
        array = raw.view(dtype_of(item.dtype)).reshape(shape_of(item.box))
        _check_finite(self.found, contributor, item, finite=is_finite(array))
        return array


def _check_finite(found: Found, contributor: str, item: RecordedItem, *, finite: bool) -> None:
    if finite != item.finite:
        said, are = ("finite", "hold NaN or infinity") if item.finite else ("not finite", "are finite")
        raise ManifestInvalid(
            f"item {item.name} of contributor {contributor} in checkpoint {found.sequence} is recorded as {said}, and "
            f"its bytes {are}: whoever wrote the record did not look at them; nothing was handed out, earlier "
            "checkpoints are not touched"
        )


def _flipped(found: Found, contributor: str, item: RecordedItem) -> DigestMismatch:
    return DigestMismatch(
        f"item {item.name} of contributor {contributor} in checkpoint {found.sequence} is not the bytes that were "
        "committed; nothing was handed out, earlier checkpoints are not touched"
    )


def _memory(found: Found, item: RecordedItem) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    try:
        return fs.aligned_bytes(fs.padded_length(item.nbytes))
    except MemoryError as error:
        raise Incompatible(
            f"item {item.name} of checkpoint {found.sequence} has {item.nbytes} bytes, more than there is memory for; "
            "nothing was changed: restore on more contributors, or on a larger machine"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What `verify` found.

    Attributes:
        sequence: the checkpoint, or the slot.
        reason: what is wrong, by name.
        usable: whether the checkpoint itself can be restored: only its ancestry is incomplete.
    """

    sequence: int
    reason: str
    usable: bool


def verify(run: Run, *, sequences: Sequence[int] | None = None, heard: Heard = unheard) -> tuple[Damage, ...]:
    """Every byte of every checkpoint, or of some, and the log itself; `heard` is told of each piece that was read."""
    found: list[Damage] = []
    whole_ones: dict[int, str] = {}
    slots = set(sequences_in([name.removesuffix(".json") for name in run.log.names()]))
    for before, after in itertools.pairwise([0, *sorted(slots)]):
        if after - before > 1:  # one line however wide: a single file of a huge number makes a huge gap
            wide = f" up to slot {after - 1}" if after - before > 2 else ""  # noqa: PLR2004
            found.append(Damage(sequence=before + 1, reason=f"the log has a gap{wide}", usable=False))
    last = max(slots, default=0)
    found += [
        Damage(sequence=asked, reason="there is no such slot: nothing was read", usable=False)
        for asked in sequences or ()
        if asked > last
    ]
    for sequence in sorted(slots):
        if sequences is None or sequence in sequences:
            found += _damages(run, sequence, whole_ones, heard)
            heard(0)  # records are read too
    return tuple(found)


def _damages(run: Run, sequence: int, states: dict[int, str], heard: Heard) -> Iterator[Damage]:
    try:
        record = read_slot(run, sequence)
        if record.kind == "open":
            return
        checked = _loaded(run, record)
        verify_items(run, checked, heard=heard)
    except Retired:
        states[sequence] = "pruned"
        return
    except (CheckpointError, OSError) as error:
        states[sequence] = "damaged"
        yield Damage(sequence=sequence, reason=_reason(_known(run, sequence, error)), usable=False)
        return
    states[sequence] = "whole"
    parent = checked.manifest.parent
    if parent is not None and (state := states.get(parent) or _state(run, parent)) != "whole":
        yield Damage(sequence=sequence, reason=f"its parent {parent} is {state}: it restores all the same", usable=True)


def _state(run: Run, sequence: int) -> str:
    try:
        load(run, sequence)
    except Retired:
        return "pruned"
    except CheckpointError:
        return "missing or damaged"
    return "whole"


def bytes_of(found: Found, wants: Sequence[Want]) -> int:
    """How much memory the wanted parts take, before a byte is read."""
    total = 0
    for want in wants:
        item = _parts(found, want)[0][1]
        shape: Sequence[int] = item.global_shape if want.box is None else shape_of(want.box)
        total += count_of(shape) * dtype_of(item.dtype).itemsize
    return total


def summary(found: Found) -> dict[str, Any]:
    """A row of a list: every count in a column of its own, whatever a folder might be called."""
    return {
        "sequence": found.sequence, "boundary": found.manifest.boundary, "kind": found.manifest.kind,
        **{name: found.manifest.versions.get(name) for name in ("attempts", "updates", "cursor")},
        "contributors": len(found.manifest.contributors), "bytes": found.manifest.data_bytes,
        "absent": list(found.manifest.absent), "parent": found.manifest.parent, "created": found.manifest.created,
    }  # fmt: skip
