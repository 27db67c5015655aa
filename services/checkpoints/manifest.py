"""The manifest: the one body that a commit record names, and everything a reader needs to judge a checkpoint.

A manifest holds no path: names are derived from validated ids. What it says of the cut must be what the contributions
say under the contract, checked again by every reader.
"""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from . import fs
from .contract import Contract
from .contribution import Contribution, read_contribution
from .cut import KINDS, Cut, check_cut, check_world, roles_of
from .errors import DigestMismatch, ManifestInvalid, SizeMismatch
from .layout import Run, check_contributor, data_name
from .records import (
    CHECKPOINT_RECORD_BYTES,
    RECORD_BYTES,
    canonical,
    check_digest,
    check_id,
    check_random,
    digest_of,
    object_of,
    sealed,
    unsealed,
)
from .versions import check_versions

FORMAT: Final = "counterfoil-checkpoint-1"
FILE: Final = "manifest.json"
NOT_UNDONE: Final = "restore does not undo effects"
_object: Final = partial(object_of, "a manifest")
LINEAGE: Final = ("tokenizer", "data", "model", "reference", "stage", "final_test_exposed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """What a coordinator declares before anything is captured.

    Attributes:
        save_id: 128 random bits.
        world: the contributors, the coordinator first.
        kind: full or weights_only.
        parent: the checkpoint that this writer restored from or committed before.
        config: settings that the next update depends on.
        lineage: what the run descends from.
        effects: the journal's watermark, or None.
    """

    save_id: str
    world: tuple[str, ...]
    kind: str = "full"
    parent: int | None = None
    config: Mapping[str, Any]
    lineage: Mapping[str, Any]
    effects: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the manifest says of one contributor's record: its digest, and how many bytes its data file has."""

    contributor: str
    digest: str
    data_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A parsed manifest."""

    run: str
    sequence: int
    save_id: str
    epoch: int
    parent: int | None
    boundary: str
    versions: Mapping[str, int]
    per_contributor: Mapping[str, Mapping[str, int]]
    contract_name: str
    contract_digest: str
    contributors: tuple[str, ...]
    kind: str
    profiles: tuple[str, ...]
    absent: tuple[str, ...]
    missing: tuple[str, ...]
    records: tuple[Recorded, ...]
    values: Mapping[str, Any]
    config: Mapping[str, Any]
    config_digest: str
    runtime: Mapping[str, Any]
    lineage: Mapping[str, Any]
    effects: Mapping[str, Any] | None
    timing: Mapping[str, Any]
    created: str
    writer: str
    digest: str

    @property
    def data_bytes(self) -> int:
        """The bytes of all contributors."""
        return sum(each.data_bytes for each in self.records)


def runtime() -> dict[str, str]:
    """What the bits of the next update depend on beside the state: an identifier, not a signature."""
    config: Any = np.show_config(mode="dicts")  # type: ignore[no-untyped-call, unused-ignore]
    blas = config.get("Build Dependencies", {}).get("blas", {}) if isinstance(config, dict) else {}
    return {
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "blas": f"{blas.get('name', 'none')} {blas.get('version', '')}".strip(),
        "cpu": f"{platform.machine()} {platform.processor()}".strip(),
        "system": platform.system(),
    }


def build(
    run: Run,
    contract: Contract,
    intent: Intent,
    cut: Cut,
    contributions: Mapping[str, Contribution],
    *,
    sequence: int,
    epoch: int,
    writer: str,
    created: str,
    timing: Mapping[str, Any],
) -> dict[str, Any]:
    """The manifest of a cut that was checked.

    Raises:
        ManifestInvalid: a setting or a value has no place in a record.
    """
    present = {role for each in contributions.values() for role in roles_of(each)}
    try:
        return sealed({
            "format": FORMAT, "run": run.run_id, "sequence": sequence, "save_id": intent.save_id, "epoch": epoch,
            "parent": intent.parent,
            "cut": {"boundary": contract.boundary, "versions": cut.versions, "per_contributor": cut.per_contributor},
            "contract": {"name": contract.name, "digest": contract.digest},
            "contributors": list(intent.world), "kind": intent.kind,
            "profiles": sorted(
                name for name in contract.profiles if not contract.missing_for(name, present, cut.absent)
            ),
            "absent": list(cut.absent), "missing": list(cut.missing),
            "records": [
                {"contributor": contributor, "digest": each.digest, "bytes": each.data_bytes}
                for contributor, each in contributions.items()
            ],
            "values": cut.values,
            "config": {"digest": digest_of(canonical(intent.config)), "fields": intent.config},
            "runtime": runtime(), "lineage": intent.lineage,
            "effects": None if intent.effects is None else {"watermark": intent.effects, "statement": NOT_UNDONE},
            "timing": {**timing, "bytes": sum(each.data_bytes for each in contributions.values())},
            "created": created, "writer": writer,
        })  # fmt: skip
    except ValueError as error:
        raise ManifestInvalid(
            f"the manifest has a value that no record holds: {error}; nothing was published"
        ) from error


def parse_manifest(raw: Mapping[str, Any]) -> Manifest:
    """A manifest from its record, checked for itself.

    Raises:
        ManifestInvalid: a member is missing or not what it must be.
    """
    cut, contract, config = _object(raw, "cut"), _object(raw, "contract"), _object(raw, "config")
    parent, kind, fields = raw.get("parent"), raw.get("kind"), _object(config, "fields")
    if parent is not None and type(parent) is not int:
        raise ManifestInvalid(f"parent {parent!r} is not a sequence")
    if kind not in KINDS:
        raise ManifestInvalid(f"kind {kind!r} is not one of {', '.join(KINDS)}")
    if digest_of(canonical(fields)) != config.get("digest"):
        raise ManifestInvalid("the config's digest is not that of its fields")
    contributors = check_world(_texts(raw, "contributors"))
    records = tuple(
        Recorded(
            contributor=check_contributor(each.get("contributor")),
            digest=check_digest(each.get("digest"), "a record's digest"),
            data_bytes=_whole(each, "bytes"),
        )
        for each in _objects(raw, "records")
    )
    if tuple(each.contributor for each in records) != contributors or not records:
        raise ManifestInvalid("the records are not those of the contributors, each once and in their order")
    effects = raw.get("effects")
    if effects is not None and (not isinstance(effects, dict) or effects.get("statement") != NOT_UNDONE):
        raise ManifestInvalid("the effects are a watermark and its statement, or null")
    return Manifest(
        run=check_id(raw.get("run"), "run"),
        sequence=_whole(raw, "sequence"),
        save_id=check_random(raw.get("save_id")),
        epoch=_whole(raw, "epoch"),
        parent=parent,
        boundary=_text(cut, "boundary"),
        versions=check_versions(cut.get("versions")),
        per_contributor=_object(cut, "per_contributor"),
        contract_name=check_id(contract.get("name"), "contract name"),
        contract_digest=check_digest(contract.get("digest"), "contract digest"),
        contributors=contributors,
        kind=kind,
        profiles=tuple(_texts(raw, "profiles")),
        absent=tuple(_texts(raw, "absent")),
        missing=tuple(_texts(raw, "missing")),
        records=records,
        values=_object(raw, "values"),
        config=fields,
        config_digest=config["digest"],
        runtime=_object(raw, "runtime"),
        lineage=_object(raw, "lineage"),
        effects=effects,
        timing=_object(raw, "timing"),
        created=_text(raw, "created"),
        writer=check_id(raw.get("writer"), "writer"),
        digest=str(raw["digest"]),
    )


def read_manifest(folder: fs.Folder, digest: str) -> Manifest:
    """The manifest that a commit record names.

    Raises:
        FileNotFoundError: it is not there.
        DigestMismatch: it is another one than the record names.
        ManifestInvalid: it breaks a rule.
    """
    raw = unsealed(folder.read(FILE, RECORD_BYTES), form=FORMAT)
    if raw["digest"] != digest:
        raise DigestMismatch(f"{folder.path}/{FILE} is {raw['digest'][:16]}, the log names {digest[:16]}")
    return parse_manifest(raw)


def read_contributions(
    folder: fs.Folder, save_id: str, world: tuple[str, ...], *, room: int = CHECKPOINT_RECORD_BYTES
) -> dict[str, Contribution]:
    """The records of all contributors of one save, in the order of the world, with the sizes of their data files.

    Args:
        folder: the save's.
        save_id: the save.
        world: the contributors.
        room: the bytes that all records together may have.

    Raises:
        FileNotFoundError: one is not there.
        ManifestInvalid: one is of another save, or all together are too large.
        SizeMismatch: a data file is shorter or longer than its record says.
    """
    found: dict[str, Contribution] = {}
    for contributor in check_world(world):
        each = read_contribution(folder, contributor, limit=min(RECORD_BYTES, room))
        room -= each.record_bytes
        if each.save_id != save_id:
            raise ManifestInvalid(f"the record of contributor {contributor} is of save {each.save_id}, not {save_id}")
        with folder.open(data_name(contributor)) as file:
            if file.size != each.data_bytes:
                raise SizeMismatch(f"{file.path} has {file.size} bytes, its record {each.data_bytes}")
        found[contributor] = each
    return found


def validate(manifest: Manifest, contract: Contract, contributions: Mapping[str, Contribution]) -> Cut:
    """The cut, if the manifest says of the contributions what the contract makes of them.

    Raises:
        CheckpointError: whatever is wrong, by its name.
    """
    if contract.digest != manifest.contract_digest:
        raise ManifestInvalid(
            f"the manifest names contract {manifest.contract_digest[:16]}, not {contract.digest[:16]}"
        )
    for stated in manifest.records:
        found = contributions[stated.contributor]
        if (found.digest, found.data_bytes) != (stated.digest, stated.data_bytes):
            raise DigestMismatch(
                f"the record of contributor {stated.contributor} is {found.digest[:16]}, the manifest names "
                f"{stated.digest[:16]}: it belongs to another checkpoint or was changed"
            )
    cut = check_cut(contract, contributions, kind=manifest.kind)
    present = {role for each in contributions.values() for role in roles_of(each)}
    profiles = sorted(name for name in contract.profiles if not contract.missing_for(name, present, cut.absent))
    said = [manifest.boundary, manifest.versions, manifest.per_contributor, manifest.values, list(manifest.profiles)]
    made = [contract.boundary, cut.versions, cut.per_contributor, cut.values, profiles]
    said += [list(manifest.absent), list(manifest.missing)]
    made += [list(cut.absent), list(cut.missing)]
    if canonical(said) != canonical(made):
        raise ManifestInvalid("the manifest says of the cut what its contributions do not say")
    return cut


def store_contract(run: Run, contract: Contract) -> None:
    """Keep the contract under its digest, once, and read it back: without it no checkpoint could be read.

    Raises:
        Damaged: what is there by that name is not it.
    """
    name = f"{contract.digest}.json"
    if not run.contracts.has(name):
        run.contracts.publish(name, contract.document())
    read_contract(run, contract.digest)
    run.contracts.sync()  # also where it was there: who linked it may have died before


def read_contract(run: Run, digest: str) -> Contract:
    """The contract of a digest.

    Raises:
        FileNotFoundError: it is not there.
        DigestMismatch: it was changed.
    """
    found = Contract.parse(run.contracts.read(f"{check_digest(digest)}.json", RECORD_BYTES))
    if found.digest != digest:
        raise DigestMismatch(f"contract {digest[:16]} of run {run.run_id} is {found.digest[:16]}: it was changed")
    return found


def _objects(raw: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = raw.get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ManifestInvalid(f"a manifest's {name} are objects")
    return found


def _texts(raw: Mapping[str, Any], name: str) -> list[str]:
    found = raw.get(name)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ManifestInvalid(f"a manifest's {name} are texts")
    return found


def _text(raw: Mapping[str, Any], name: str) -> str:
    found = raw.get(name)
    if not isinstance(found, str):
        raise ManifestInvalid(f"a manifest's {name} is a text")
    return found


def _whole(raw: Mapping[str, Any], name: str) -> int:
    found = raw.get(name)
    if type(found) is not int or found < 0:
        raise ManifestInvalid(f"a manifest's {name} is not a non-negative integer")
    return found
