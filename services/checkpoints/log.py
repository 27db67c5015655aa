"""The log of a run, which is the truth: gap-free slots, each holding one `open` or `commit` record for ever.

- A slot is taken by link(2): one writer gets it, and whatever link returned, reading the slot back says whose it is.
- An epoch is the number of its `open` record's own slot, so that a later one is higher.
- A coordinator takes its own last known slot + 1 and never skips one: who opened in between has that slot, and the
  earlier coordinator is fenced there, however long it slept after its last check.
- No slot is removed: the last one is found by doubling and halving, in a number of looks that hardly grows.
"""

from dataclasses import dataclass
from typing import Any, Final, Literal

from .errors import CheckpointError, CommitFailed, CommitUnknown, Damaged, FencedWriter, ManifestInvalid
from .layout import Run, sequences_in, slot_name
from .records import SMALL_BYTES, canonical, check_digest, check_id, check_random, sealed, unsealed

FORMAT: Final = "counterfoil-log-1"
_OPEN_ATTEMPTS: Final = 10_000  # each lost one was another's progress; so many in a row is not a race but a fault


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One record of the log.

    Attributes:
        sequence: its slot.
        kind: open or commit.
        epoch: of the coordinator that wrote it.
        writer: who that was.
        launch: of an `open`: which start of the job.
        save_id: of a `commit`: which save.
        manifest: of a `commit`: the digest of the manifest.
    """

    sequence: int
    kind: Literal["open", "commit"]
    epoch: int
    writer: str
    launch: str | None = None
    save_id: str | None = None
    manifest: str | None = None


@dataclass(slots=True, kw_only=True)
class Epoch:
    """A coordinator's right to write, until another opens.

    Attributes:
        number: the slot of its `open` record.
        launch: the start of the job that it belongs to.
        writer: who holds it.
        slot: the last slot it knows; it grows with every commit.
    """

    number: int
    launch: str
    writer: str
    slot: int


def last_slot(run: Run, *, known: int = 0) -> int:
    """The last slot that is taken; 0 in an empty log."""
    low, step = known, 1
    while run.log.has(slot_name(low + step)):
        low, step = low + step, step * 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if run.log.has(slot_name(middle)) else (low, middle)
    return low


def read_slot(run: Run, sequence: int) -> LogRecord:
    """One record.

    Raises:
        FileNotFoundError: the slot is free.
        ManifestInvalid: it is not a record of this log, in this slot.
        Damaged: it was changed, or cannot be read.
    """
    try:
        data = run.log.read(slot_name(sequence), SMALL_BYTES)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"slot {sequence} of run {run.run_id} cannot be read: {error}; nothing was changed") from error
    raw = unsealed(data, form=FORMAT)
    if raw.get("run") != run.run_id or raw.get("sequence") != sequence or type(raw.get("epoch")) is not int:
        raise ManifestInvalid(
            f"the record in slot {sequence} is of run {raw.get('run')!r}, slot {raw.get('sequence')!r}"
        )
    epoch, writer = raw["epoch"], check_id(raw.get("writer"), "writer")
    match raw.get("kind"):
        case "open" if epoch == sequence:
            launch = check_random(raw.get("launch"), "launch")
            return LogRecord(sequence=sequence, kind="open", epoch=epoch, writer=writer, launch=launch)
        case "commit" if 0 < epoch < sequence:
            return LogRecord(
                sequence=sequence, kind="commit", epoch=epoch, writer=writer,
                save_id=check_random(raw.get("save_id")), manifest=check_digest(raw.get("manifest"), "manifest"),
            )  # fmt: skip
        case kind:
            raise ManifestInvalid(f"slot {sequence} holds a record of kind {kind!r} and epoch {epoch}, which cannot be")


def read_log(run: Run, *, first: int = 1) -> tuple[LogRecord | CheckpointError, ...]:
    """All records from a slot on; in the place of one that cannot be believed, why not."""
    found: list[LogRecord | CheckpointError] = []
    for sequence in range(first, last_slot(run) + 1):
        try:
            found.append(read_slot(run, sequence))
        except CheckpointError as error:
            found.append(error)
        except FileNotFoundError:
            found.append(ManifestInvalid(f"slot {sequence} of run {run.run_id} is missing, and later ones are there"))
    return tuple(found)


def newest_epoch(run: Run) -> LogRecord | None:
    """The newest record's, which carries the epoch that holds the run now; None in an empty log."""
    last = last_slot(run)
    return read_slot(run, last) if last else None


def open_epoch(run: Run, launch: str, writer: str, *, after: int | None = None) -> Epoch:
    """Take the right to write: link an `open` record behind everything there is.

    Whoever held it is fenced from this moment. Only after this the checkpoint to restore is chosen.

    Args:
        run: the run.
        launch: the start of the job that it is for.
        writer: who takes it.
        after: only directly behind this slot, which the caller has looked at; None: behind whatever comes meanwhile.

    Raises:
        FencedWriter: with `after`, somebody wrote there first; nothing was changed.
        CommitFailed: the record could not be written.
        ManifestInvalid: a slot is missing: later checkpoints would not be found.
    """
    check_random(launch, "launch")
    check_id(writer, "writer")
    check_no_gap(run)
    try:
        slot = last_slot(run) if after is None else after
        for _ in range(_OPEN_ATTEMPTS):
            slot += 1
            body: dict[str, Any] = {"kind": "open", "epoch": slot, "launch": launch, "writer": writer}
            if run.log.publish(slot_name(slot), _record(run, slot, body)):
                _sync_log(run)
                return Epoch(number=slot, launch=launch, writer=writer, slot=slot)
            if after is not None:
                raise FencedWriter(
                    f"slot {slot} of run {run.run_id} was taken meanwhile: somebody trains there. Nothing was changed"
                )
    except OSError as error:
        raise CommitFailed(
            f"the log of run {run.run_id} could not be opened: {error}; nothing in it changed"
        ) from error
    raise CommitFailed(
        f"run {run.run_id} was opened by others {_OPEN_ATTEMPTS} times in a row; look for a restart loop"
    )


def check_no_gap(run: Run) -> None:
    """Looked at once a start, by listing: the search for the last slot would stop before a gap.

    Raises:
        ManifestInvalid: a slot is missing: later checkpoints would not be found.
    """
    slots = set(sequences_in([name.removesuffix(".json") for name in run.log.names()]))
    for sequence in range(1, max(slots, default=0)):
        # A listing may miss a name that is being linked meanwhile: it is looked at by itself.
        if sequence not in slots and not run.log.has(slot_name(sequence)):
            raise ManifestInvalid(
                f"slot {sequence} of the log of run {run.run_id} is missing, and later ones are there: a file was "
                "taken away. Nothing was opened; bring it back, or the checkpoints after it are not found"
            )


def append_commit(run: Run, epoch: Epoch, *, save_id: str, manifest: str) -> int:
    """Link the commit record into this coordinator's next slot, make it durable and read it back.

    Returns:
        The sequence: the checkpoint is acknowledged.

    Raises:
        FencedWriter: the slot is another writer's.
        CommitFailed: the record was not linked.
        CommitUnknown: it was linked, or perhaps, and a later step failed: the session must end.
    """
    slot = epoch.slot + 1
    body = {"kind": "commit", "epoch": epoch.number, "writer": epoch.writer, "save_id": save_id, "manifest": manifest}
    failure: OSError | None = None
    try:
        run.log.publish(slot_name(slot), _record(run, slot, body))
    except OSError as error:
        failure = error
    found = _slot_after(run, slot, failure)
    if found is None:
        msg = f"slot {slot} of run {run.run_id} is free after a failed link: {failure}; nothing was published"
        raise CommitFailed(msg) from failure
    if found.kind != "commit" or found.save_id != save_id:
        raise FencedWriter(
            f"slot {slot} of run {run.run_id} holds {found.kind} of epoch {found.epoch} by {found.writer}: this "
            f"coordinator (epoch {epoch.number}) is over. Earlier checkpoints stand; this save is not one of them"
        )
    try:
        _sync_log(run)
    except OSError as error:
        raise CommitUnknown(
            f"commit {slot} of run {run.run_id} is linked, but fsync failed: {error}. It may be lost with the power; "
            "end this session: the next start reads what is there"
        ) from error
    epoch.slot = slot
    return slot


def _slot_after(run: Run, slot: int, failure: OSError | None) -> LogRecord | None:
    try:
        return read_slot(run, slot)
    except FileNotFoundError:
        return None
    except (OSError, CheckpointError) as error:
        msg = f"slot {slot} of run {run.run_id} cannot be read back: {error} (link said: {failure}); end this session"
        raise CommitUnknown(msg) from error


def _sync_log(run: Run) -> None:
    for folder in (run.log, *run.chain):
        folder.sync()


def _record(run: Run, slot: int, body: dict[str, Any]) -> bytes:
    return canonical(sealed({"format": FORMAT, "run": run.run_id, "sequence": slot, **body}))
