"""Import: safetensors files become a new checkpoint of a run, by the commit order of every other, or nothing changes.

    headers -> contract, shapes, boxes, budget -> what the run has -> every byte -> the cut -> epoch -> write -> commit

What this module guarantees:

- Everything is checked before the run is touched: a refused import opens no epoch, writes no byte and fences nobody.
- A file is believed to hold what it holds and nothing else: what it is, its own sealed record says, or a document that
  the caller gives. Names, roles and dtypes are never guessed and never converted.
- The bytes are read twice, to be checked and to be written. Where they differ, nothing is published.
- However large the files are, a piece of `fs.CHUNK_BYTES` is in memory.
- Only the holder of the newest epoch commits: a run that somebody trains is refused, or taken over where that is said.
- A watermark of a journal goes with the checkpoint: it is restored beside that journal only, also elsewhere.
"""

import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

import numpy as np
from blake3 import blake3

from . import fs
from .boxes import Box, Shape, whole
from .commit import Committed, commit
from .contract import Contract, check_same_contract
from .contribution import Contribution, StagedItem, contribution_of, write_contribution
from .cut import KINDS, Cut, check_cut
from .dtypes import dtype_of, is_finite
from .errors import (
    CommitFailed,
    ContributorMissing,
    DigestMismatch,
    DuplicateContributor,
    Incompatible,
    ManifestInvalid,
    SourceChanged,
)
from .exchange import MEMBER, Export, Part, read_export
from .fit import FRESH, Target, check_fit
from .layout import Run
from .manifest import Intent
from .reading import Heard, latest, unheard
from .records import canonical, parse
from .retention import DECLARE, check_idle
from .safetensors import FRAMEWORKS, Header, Tensor, check_name, chunks, read_header
from .versions import check_versions

FORMAT: Final = "counterfoil-import-1"
DESCRIPTION_BYTES: Final = 4 << 20  # a contract, and some ten thousand names
BUDGET_BYTES: Final = 1 << 37  # 128 GiB: more is meant only by who says so
_MEMBERS: Final = ("format", "contract", "kind", "versions", "values", "roles", "names", "config", "lineage")
_SHOWN: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An open file, with its header read."""

    file: fs.ReadFile
    header: Header


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One tensor of one file, and which part of which item it is."""

    source: Source
    tensor: Tensor
    name: str
    role: str
    contributor: str
    global_shape: Shape
    box: Box
    digest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What the files are, all together: a cut that was not checked yet."""

    contract: Contract
    kind: str
    world: tuple[str, ...]
    parts: Mapping[str, Part]
    held: tuple[Held, ...]
    config: Mapping[str, Any] | None
    lineage: Mapping[str, Any] | None
    watermark: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedItem(StagedItem):
    """An item whose bytes come from a file when they are written; its digest is of what was read and checked before."""

    held: Held
    heard: Heard
    buffer: memoryview = field(default=memoryview(b""), repr=False)

    @property
    def held_bytes(self) -> int:
        """How many bytes there are to write."""
        return self.held.tensor.stop - self.held.tensor.start

    def parts(self) -> Iterator[memoryview]:
        """The bytes again.

        Raises:
            SourceChanged: they are others now.
        """
        digest = blake3()
        for piece in chunks(self.held.source.file, self.held.source.header, self.held.tensor):
            digest.update(piece)
            self.heard(len(piece))
            yield piece
        if digest.hexdigest() != self.digest:
            raise SourceChanged(
                f"{self.held.source.file.path} changed while {self.name} was imported; nothing was published, the "
                "run's checkpoints stand: let its writer end, and import again"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What was checked and, unless only that was asked for, committed.

    Attributes:
        committed: the new checkpoint; None where it was only checked.
        kind: full, or weights_only.
        versions: where the cut stands.
        profiles: what it serves.
        items: how many it has.
        data_bytes: of all tensors.
    """

    committed: Committed | None
    kind: str
    versions: Mapping[str, int]
    profiles: tuple[str, ...]
    items: int
    data_bytes: int


def import_files(
    root: str | Path,
    run_id: str,
    paths: Sequence[Path],
    *,
    writer: str,
    description: Mapping[str, Any] | None = None,
    allow: Collection[str] = (),
    budget_bytes: int = BUDGET_BYTES,
    take_over: bool = False,
    create: bool = False,
    check_only: bool = False,
    heard: Heard = unheard,
) -> Imported:
    """Check files, and commit them as the newest checkpoint of a run.

    Args:
        root: the store's folder.
        run_id: the run.
        paths: an export of ours, one file or all contributors'; or, with a description, any safetensors files.
        writer: who commits.
        description: what the files are (`counterfoil-import-1`), where they do not say it themselves.
        allow: differences from the run's newest checkpoint that are wanted, by name: config.schedule.
        budget_bytes: the most that all tensors together may have.
        take_over: also where a trainer holds the run, which is fenced then.
        create: make the run where it is not there.
        check_only: commit nothing.
        heard: told of each piece that was read, of both readings.

    Raises:
        FileNotFoundError: a file, or the run, is not there.
        FencedWriter: a trainer holds the run, and `take_over` was not said.
        CheckpointError: whatever is wrong, by its name: the run is as it was.
    """
    try:
        return _imported(
            root, run_id, paths, writer=writer, description=description, allow=allow, budget_bytes=budget_bytes,
            take_over=take_over, create=create, check_only=check_only, heard=heard,
        )  # fmt: skip
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CommitFailed(f"the import into run {run_id} stopped: {error}; its checkpoints stand") from error


def _imported(
    root: str | Path, run_id: str, paths: Sequence[Path], *, writer: str, description: Mapping[str, Any] | None,
    allow: Collection[str], budget_bytes: int, take_over: bool, create: bool, check_only: bool,
    heard: Heard,
) -> Imported:  # fmt: skip
    with ExitStack() as opened:
        sources = [_opened(path, opened) for path in paths]
        described = _from_exports(sources) if description is None else _from_description(sources, description)
        needed = sum(each.tensor.stop - each.tensor.start for each in described.held)
        if needed > budget_bytes:
            raise Incompatible(f"the files hold {needed} bytes, the budget is {budget_bytes}; nothing was changed")
        found = _run(root, run_id, create=create)
        if found is not None:
            with found:
                described = _compared(found, described, allow)
        items = _items(described, heard)
        cut, contributions = _checked(described, items)
        done = None
        if not check_only:
            with Run.open(root, run_id, create=create) as run:
                done = _committed(run, described, items, writer=writer, take_over=take_over)
        present = {name.partition("/")[0] for each in contributions.values() for name in each.values}
        present |= {each.role for each in described.held}
        contract = described.contract
    return Imported(
        committed=done,
        kind=described.kind,
        versions=cut.versions,
        profiles=tuple(name for name in contract.profiles if not contract.missing_for(name, present, cut.absent)),
        items=len(cut.items),
        data_bytes=needed,
    )


def _opened(path: Path, opened: ExitStack) -> Source:
    """The caller's own path may hold links; what it leads to is a regular file."""
    path = path.resolve()
    with fs.open_root(path.parent) as folder:
        file = opened.enter_context(folder.open(path.name))
    return Source(file=file, header=read_header(file))


def _run(root: str | Path, run_id: str, *, create: bool) -> Run | None:
    try:
        return Run.open(root, run_id)
    except FileNotFoundError:
        if not create:
            raise
        return None


def _from_exports(sources: Sequence[Source]) -> Described:
    exports: list[tuple[Source, Export]] = []
    for source in sources:
        if MEMBER not in source.header.metadata:
            _check_framework(source)
            raise ManifestInvalid(
                f"{source.file.path} does not say what its tensors are: give a document that does (format {FORMAT}: "
                "contract, versions, roles). Nothing was changed"
            )
        exports.append((source, read_export(source.header.metadata, source.header.tensors)))
    first = exports[0][1]
    parts: dict[str, Part] = {}
    for source, each in exports:
        if (each.manifest, each.contract.digest, each.world, each.kind) != (
            first.manifest, first.contract.digest, first.world, first.kind,
        ):  # fmt: skip
            raise Incompatible(
                f"{source.file.path} is of checkpoint {each.sequence} of {each.run}, the first file of "
                f"{first.sequence} of {first.run}: files of one export make a checkpoint. Nothing was changed"
            )
        if twice := sorted(set(parts) & set(each.parts)):
            raise DuplicateContributor(f"contributor {twice[0]} is in two of the files; nothing was changed")
        parts |= each.parts
    if missing := [name for name in first.world if name not in parts]:
        raise ContributorMissing(
            f"the files lack contributor {', '.join(missing[:_SHOWN])} of {len(first.world)}; nothing was changed: "
            "give all files of the export"
        )
    return Described(
        contract=first.contract, kind=first.kind, world=first.world, parts=parts,
        held=tuple(
            Held(
                source=source, tensor=source.header.tensors[placed.tensor], name=placed.name, role=placed.role,
                contributor=placed.contributor, global_shape=placed.global_shape, box=placed.box, digest=placed.digest,
            )
            for source, each in exports
            for placed in each.items
        ),
        config=first.config, lineage=first.lineage, watermark=first.watermark,
    )  # fmt: skip


def _check_framework(source: Source) -> None:
    stated = source.header.metadata.get("format", FRAMEWORKS[0])
    if stated not in FRAMEWORKS:
        raise ManifestInvalid(
            f"{source.file.path} has format {stated[:60]!r}, which is no model's: a file of another store is not read"
        )


def read_description(data: bytes) -> dict[str, Any]:
    """The document that says what foreign files are, as a person wrote it.

    Raises:
        ManifestInvalid: it is none.
    """
    return parse(data, limit=DESCRIPTION_BYTES, by_hand=True, form=FORMAT)


def _from_description(sources: Sequence[Source], raw: Mapping[str, Any]) -> Described:
    if raw.get("format") != FORMAT or set(raw) - set(_MEMBERS):
        raise ManifestInvalid(f"what the files are is said in {FORMAT}, which has {', '.join(_MEMBERS)} and no others")
    texts = {name: _texts(raw, name) for name in ("roles", "names")}
    roles, names, kind = texts["roles"] or {"*": "param"}, texts["names"], raw.get("kind", "weights_only")
    if kind not in KINDS:
        raise ManifestInvalid(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    contract = Contract.load(_object(raw, "contract"))
    held: dict[str, Held] = {}
    without: list[str] = []
    for source in sources:
        _check_framework(source)
        for tensor in source.header.tensors.values():
            name = check_name(names.get(tensor.name, tensor.name))
            if name in held:
                raise Incompatible(f"two tensors are item {name}; nothing was changed: rename one by `names`")
            role = next((role for pattern, role in roles.items() if fnmatchcase(name, pattern)), None)
            if role is None or role not in contract.roles:
                without.append(f"{name} has no role of the contract")
                continue
            held[name] = Held(
                source=source, tensor=tensor, name=name, role=role, contributor="0", global_shape=tensor.shape,
                box=whole(tensor.shape),
            )  # fmt: skip
    known = {tensor for source in sources for tensor in source.header.tensors}
    without += [f"{name} is renamed, and no file has it" for name in sorted(set(names) - known)]
    if without:
        more = f" and {len(without) - _SHOWN} more" if len(without) > _SHOWN else ""
        raise Incompatible(f"{'; '.join(without[:_SHOWN])}{more}. Nothing was changed", differences=tuple(without))
    part = Part(versions=check_versions(raw.get("versions")), values=_object(raw, "values"))
    return Described(
        contract=contract, kind=kind, world=("0",), parts={"0": part}, held=tuple(held.values()),
        config=_object(raw, "config") if "config" in raw else None,
        lineage=_object(raw, "lineage") if "lineage" in raw else None,
    )  # fmt: skip


def _object(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = raw.get(name, {})
    if not isinstance(found, dict):
        raise ManifestInvalid(f"{name} is an object")
    return found


def _texts(raw: Mapping[str, Any], name: str) -> dict[str, str]:
    found = _object(raw, name)
    if not all(isinstance(each, str) for each in found.values()):
        raise ManifestInvalid(f"{name} is an object of texts")
    return found


def _compared(run: Run, described: Described, allow: Collection[str]) -> Described:
    """What the run has must be what it goes on with: all differences in one error.

    Settings that nobody stated are those of the run.
    """
    profiles = ("resume", "weights") if described.kind == "full" else ("weights",)
    for profile in profiles:
        found, _ = latest(run, profile=profile)
        if found is None:
            continue
        contract, first = described.contract, described.world[0]
        differences: list[str] = []
        targets = {
            each.name: Target(
                name=each.name, dtype=each.tensor.dtype, global_shape=each.global_shape, box=whole(each.global_shape)
            )
            for each in described.held
            if each.role in found.contract.profiles[profile]
            and (contract.placement_of(each.role, each.name) != "per_contributor" or each.contributor == first)
        }
        try:
            check_same_contract(contract, found.manifest.contract_digest)
        except Incompatible as error:
            differences += error.differences
        try:
            check_fit(
                found, list(targets.values()), contributor=first, world=described.world, profile=profile,
                config=described.config, lineage=described.lineage, overrides=allow, layout_policy=FRESH,
            )  # fmt: skip
        except Incompatible as error:
            differences += error.differences
        if differences:
            more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
            raise Incompatible(
                f"the files do not fit checkpoint {found.sequence} of run {run.run_id}, which they would follow: "
                f"{'; '.join(differences[:_SHOWN])}{more}. Nothing was changed: give another run, or allow a "
                "difference by its name",
                differences=tuple(differences),
            )
        return Described(
            contract=contract, kind=described.kind, world=described.world, parts=described.parts, held=described.held,
            config=found.manifest.config if described.config is None else described.config,
            lineage=found.manifest.lineage if described.lineage is None else described.lineage,
            watermark=described.watermark,
        )  # fmt: skip
    return described


def _items(described: Described, heard: Heard) -> dict[str, tuple[StreamedItem, ...]]:
    """Every byte read once: its digest, whether it is finite, and whether it is what its file says of it."""
    items: dict[str, list[StreamedItem]] = {name: [] for name in described.world}
    for held in sorted(described.held, key=lambda each: each.name):
        placement = described.contract.placement_of(held.role, held.name)
        digest, finite = _scanned(held, heard)
        item = StreamedItem(
            name=held.name, role=held.role, placement=placement, dtype=held.tensor.dtype,
            global_shape=held.global_shape, box=held.box, digest=digest, finite=finite, held=held,
            heard=heard,
        )  # fmt: skip
        for contributor in described.world if placement == "replicated" else (held.contributor,):
            items[contributor].append(item)
    return {name: tuple(each) for name, each in items.items()}


def _scanned(held: Held, heard: Heard) -> tuple[str, bool]:
    digest, finite, dtype = blake3(), True, dtype_of(held.tensor.dtype)
    for piece in chunks(held.source.file, held.source.header, held.tensor):
        digest.update(piece)
        heard(len(piece))
        if dtype.kind == "b" and np.frombuffer(piece, np.uint8).max() > 1:
            raise ManifestInvalid(f"tensor {held.tensor.name} is BOOL and has a byte that is neither 0 nor 1")
        finite = finite and is_finite(np.frombuffer(piece, dtype))
    if held.digest not in (None, digest.hexdigest()):
        raise DigestMismatch(
            f"tensor {held.tensor.name} of {held.source.file.path} is not the bytes that were exported; nothing was "
            "changed: export again"
        )
    return digest.hexdigest(), finite


def _checked(described: Described, items: Mapping[str, Sequence[StreamedItem]]) -> tuple[Cut, dict[str, Contribution]]:
    """The cut that the files are, by the same check as every save and every reader."""
    try:
        for settings in (described.config, described.lineage):
            canonical(settings or {})
    except ValueError as error:
        raise ManifestInvalid(f"a setting has no place in a record: {error}") from error
    contributions = {
        name: contribution_of(
            name, items[name], save_id="0" * 32, lowest=name == described.world[0],
            versions=described.parts[name].versions, values=described.parts[name].values,
        )
        for name in described.world
    }  # fmt: skip
    return check_cut(described.contract, contributions, kind=described.kind), contributions


def _committed(
    run: Run, described: Described, items: Mapping[str, Sequence[StreamedItem]], *, writer: str, take_over: bool
) -> Committed:
    started, save_id = time.monotonic(), secrets.token_hex(16)
    epoch = check_idle(run, take_it_over=take_over, writer=writer)
    try:
        folder = run.save(epoch.number, save_id, create=True)
        with folder:
            # As a save declares it: retention knows by this slot when what is left of it can go.
            folder.publish(DECLARE, canonical({"save_id": save_id, "sequence": epoch.slot + 1}), durable=False)
    except OSError as error:
        raise CommitFailed(f"no folder could be made for the import: {error}. Nothing was published") from error
    with run.save(epoch.number, save_id) as folder:
        digests = {
            name: write_contribution(
                folder, save_id=save_id, contributor=name, lowest=name == described.world[0], items=items[name],
                versions=described.parts[name].versions, values=described.parts[name].values,
            )
            for name in described.world
        }  # fmt: skip
    intent = Intent(
        save_id=save_id, world=described.world, kind=described.kind, config=described.config or {},
        lineage=described.lineage or {}, effects=described.watermark,
    )  # fmt: skip
    timing = {"blocked_seconds": 0.0, "persist_seconds": time.monotonic() - started}
    return commit(run, epoch, described.contract, intent, digests=digests, timing=timing)
