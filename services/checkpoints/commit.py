"""The coordinator's half of a save: from everybody's records to one record in the log.

The order is the guarantee: records re-read and checked, manifest written and synced, the folder and its parent synced,
and only then the commit record, synced and linked. A crash anywhere leaves the old or the new checkpoint, whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .contract import Contract
from .cut import check_cut
from .errors import CommitFailed, ContributorMissing, DigestMismatch
from .layout import Run
from .log import Epoch, append_commit
from .manifest import FILE, Intent, build, parse_manifest, read_contributions, store_contract, validate
from .records import canonical


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """An acknowledged checkpoint.

    Attributes:
        sequence: its slot in the log.
        digest: of its manifest.
    """

    sequence: int
    digest: str


def commit(
    run: Run,
    epoch: Epoch,
    contract: Contract,
    intent: Intent,
    *,
    digests: Mapping[str, str] | None = None,
    timing: Mapping[str, Any] | None = None,
) -> Committed:
    """Publish a save whose contributors have all written their records.

    Args:
        run: the run.
        epoch: this coordinator's right to write; its slot grows when the commit is acknowledged.
        contract: what a cut of this run is.
        intent: what was declared.
        digests: the digest of its record as each contributor reported it.
        timing: what was measured up to now.

    Raises:
        Refused: the cut is none, by the name of what is wrong: nothing was published.
        CommitFailed: nothing was published.
        FencedWriter: another coordinator has the slot.
        CommitUnknown: the record was linked, or perhaps; the session must end.
    """
    try:
        digest = _manifest(run, epoch, contract, intent, digests=digests or {}, timing=timing or {})
    except FileNotFoundError as error:
        raise ContributorMissing(
            f"a file of save {intent.save_id} is not there: {error}; nothing was published, the previous "
            "checkpoint stands"
        ) from error
    except OSError as error:
        raise CommitFailed(f"save {intent.save_id} failed: {error}; nothing was published: save again") from error
    sequence = append_commit(run, epoch, save_id=intent.save_id, manifest=digest)
    return Committed(sequence=sequence, digest=digest)


def _manifest(
    run: Run, epoch: Epoch, contract: Contract, intent: Intent, *, digests: Mapping[str, str], timing: Mapping[str, Any]
) -> str:
    with run.save(epoch.number, intent.save_id) as folder:
        contributions = read_contributions(folder, intent.save_id, intent.world)
        for contributor, each in contributions.items():
            if digests.get(contributor, each.digest) != each.digest:
                raise DigestMismatch(
                    f"contributor {contributor} reported record {digests[contributor][:16]}, the file is "
                    f"{each.digest[:16]}; nothing was published, the previous checkpoint stands"
                )
        raw = build(
            run, contract, intent, check_cut(contract, contributions, kind=intent.kind), contributions,
            sequence=epoch.slot + 1, epoch=epoch.number, writer=epoch.writer,
            created=datetime.now(UTC).isoformat(timespec="milliseconds"), timing=timing,
        )  # fmt: skip
        manifest = parse_manifest(raw)
        validate(manifest, contract, contributions)
        store_contract(run, contract)
        if not folder.publish(FILE, canonical(raw)):
            raise CommitFailed(f"{folder.path} has a manifest already: a save id is used once; nothing was published")
        folder.sync()
        run.data.sync()
    return manifest.digest
