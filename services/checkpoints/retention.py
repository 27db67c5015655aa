"""What is kept and what is removed. Nothing that a reader may have chosen goes without a mark and a grace.

- Only the holder of the newest epoch prunes, and it looks again before it removes: a later coordinator's save is never
  touched, because its epoch is higher. Data is listed before the log is read, so that a save which began in between is
  not in the list.
- A checkpoint counts as kept after every byte of it was read back; one that is incomplete or damaged never counts.
- First a mark, durable; then a grace; then, if no pin and no newer epoch came, the bytes. The log keeps the record.
"""

import errno
import math
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from . import fs
from .errors import CheckpointError, CommitFailed, FencedWriter, ManifestInvalid, Retired
from .layout import Run, epoch_of_folder, save_folder, sequences_in
from .log import Epoch, LogRecord, last_slot, newest_epoch, open_epoch, read_log
from .manifest import FILE
from .reading import is_retired, load, verify_items
from .records import RECORD_BYTES, SMALL_BYTES, canonical, parse, sealed, unsealed

MARK_FORMAT: Final = "counterfoil-retired-1"
PIN_FORMAT: Final = "counterfoil-pin-1"
DECLARE: Final = "declare"  # the message of a save that names the slot it intends to have
FEWEST: Final = 2  # one may turn out damaged on the day it is needed
GRACE_SECONDS: Final = 3600.0  # longer than the longest restore of a checkpoint that was chosen just before


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What a call of `prune` did.

    Attributes:
        kept: checkpoints verified by reading back, pinned, or kept by the rule.
        marked: marked now; they go after the grace.
        removed: checkpoints whose bytes went.
        abandoned: folders of saves that never became one.
        damaged: what could not be verified and is left for a person.
    """

    kept: tuple[int, ...]
    marked: tuple[int, ...]
    removed: tuple[int, ...]
    abandoned: tuple[str, ...]
    damaged: tuple[int, ...]


def take_over(run: Run, writer: str) -> Epoch:
    """Open an epoch of one's own: whoever trains on this run is fenced from now on."""
    return open_epoch(run, secrets.token_hex(16), writer)


def check_idle(run: Run, *, take_it_over: bool, writer: str) -> Epoch:
    """The epoch for a command that changes a run from outside.

    Raises:
        FencedWriter: the run is somebody's, and `take_it_over` was not said.
    """
    newest = newest_epoch(run)
    if newest is not None and newest.writer != writer and not take_it_over:
        raise FencedWriter(
            f"run {run.run_id} is held by {newest.writer} (epoch {newest.epoch}); nothing was changed. If that "
            "trainer is over, say --take-over: it fences whoever still trains there"
        )
    if take_it_over:
        return take_over(run, writer)
    # In the slot behind what was looked at, and in no other: a trainer that came meanwhile has it.
    return open_epoch(run, secrets.token_hex(16), writer, after=newest.sequence if newest is not None else 0)


def check_newest(run: Run, epoch: Epoch) -> None:
    """The epoch is the run's newest.

    Raises:
        FencedWriter: another one is.
    """
    newest = newest_epoch(run)
    if newest is None or newest.epoch != epoch.number:
        held = "nobody" if newest is None else f"{newest.writer} (epoch {newest.epoch})"
        raise FencedWriter(f"run {run.run_id} is held by {held}, not by epoch {epoch.number}: nothing was removed")


def pin(run: Run, sequence: int) -> None:
    """Keep a checkpoint from retention; no epoch is needed.

    Raises:
        Retired: it is marked already.
        CheckpointError: there is no such checkpoint.
    """
    load(run, sequence)
    mine = run.pins.publish(str(sequence), canonical(sealed({"format": PIN_FORMAT, "sequence": sequence})))
    run.pins.sync()
    if is_retired(run, sequence):
        if mine:  # another's pin may be older than the mark, which then goes
            run.pins.remove(str(sequence))
        raise Retired(f"checkpoint {sequence} was marked for removal meanwhile: it is not pinned")


def unpin(run: Run, sequence: int) -> None:
    """Give a checkpoint back to retention."""
    run.pins.remove(str(sequence))
    run.pins.sync()


def prune(
    run: Run,
    epoch: Epoch,
    *,
    keep: int = FEWEST,
    every: int | None = None,
    grace_seconds: float = GRACE_SECONDS,
    now: float | None = None,
) -> Pruned:
    """Mark what is not kept, and remove what was marked a grace ago.

    Args:
        run: the run.
        epoch: the newest one; nobody else prunes.
        keep: how many of the newest are kept, at least 2, each verified by reading it back.
        every: also keep each whose number of updates is a multiple of this.
        grace_seconds: between mark and removal.
        now: the time, as seconds since the epoch.

    Raises:
        FencedWriter: the epoch is not the newest.
        CommitFailed: the file system refused a step.
    """
    if keep < FEWEST or (every is not None and every < 1):
        raise ManifestInvalid(f"keep is at least {FEWEST} and every at least 1; nothing was removed")
    now = time.time() if now is None else now
    try:
        return _pruned(run, epoch, keep=keep, every=every, grace_seconds=grace_seconds, now=now)
    except OSError as error:
        raise _stopped(run, error) from error


def _stopped(run: Run, error: OSError) -> CommitFailed:
    return CommitFailed(
        f"retention of run {run.run_id} stopped: {error}. What is kept was not touched: repair that and prune again"
    )


def _pruned(run: Run, epoch: Epoch, *, keep: int, every: int | None, grace_seconds: float, now: float) -> Pruned:
    listed = run.data.names()  # before the log: a save that begins from now on is not in it
    check_newest(run, epoch)
    records = read_log(run)
    commits = [each for each in records if isinstance(each, LogRecord) and each.kind == "commit"]
    unread = {slot for slot, each in enumerate(records, start=1) if isinstance(each, CheckpointError)}
    kept, ruled, damaged, extra = _kept(run, epoch, commits, keep, every)
    # Nothing newer than the oldest that counts goes, whatever its kind; and nothing at all while too few count.
    oldest = sorted(kept)[-keep] if len(kept) >= keep else 0
    marked: list[int] = []
    failure: OSError | None = None
    try:
        marked += (each for each in extra if each < oldest and _mark(run, epoch, each, now))
        run.retired.sync()  # a predecessor's marks too, before their bytes go
        marked = [each for each in marked if not _unmark_pinned(run, each)]
    except OSError as error:
        failure = error  # a full disk takes no mark, and what was marked before has to go all the more
    # Those that count were read back just now: what was marked while others counted may be the last that is whole.
    going = [each for each in commits if each.sequence < oldest]
    removed = [each.sequence for each in going if _remove(run, epoch, each, grace_seconds, now)]
    abandoned = _abandoned(
        run, epoch, listed, commits, complete=not unread, grace_seconds=grace_seconds, now=now
    )  # fmt: skip
    _clear(run, epoch, records, listed, now=now)
    if failure is not None:
        raise _stopped(run, failure) from failure
    return Pruned(
        kept=tuple(sorted(kept | ruled)), marked=tuple(sorted(marked)),
        removed=tuple(removed), abandoned=tuple(abandoned), damaged=tuple(sorted(damaged | unread)),
    )  # fmt: skip


def _kept(
    run: Run, epoch: Epoch, commits: Sequence[LogRecord], keep: int, every: int | None
) -> tuple[set[int], set[int], set[int], list[int]]:
    """Verified and counted; kept by a pin or by the rule; damaged; and what is left.

    One that is marked and still there counts like any other while too few do, and then its mark goes.
    """
    pins = set(sequences_in(run.pins.names()))
    retired = set(sequences_in(run.retired.names()))
    kept: set[int] = set()
    ruled: set[int] = set()
    damaged: set[int] = set()
    extra: list[int] = []
    finite = False
    for record in sorted(commits, key=lambda each: each.sequence, reverse=True):
        sequence = record.sequence
        waits = sequence in retired
        if waits and not run.data.has(save_folder(record.epoch, record.save_id or "")):
            continue
        try:
            found = load(run, sequence, marked=waits)
            is_finite = all(item.finite for each in found.contributions.values() for item in each.items)
            if found.manifest.kind == "full" and (len(kept) < keep or (is_finite and not finite)):
                verify_items(run, found)
                if waits:
                    check_newest(run, epoch)
                    _unmark(run, sequence)
                kept.add(sequence)
                finite = finite or is_finite
            elif waits:
                continue
            elif _by_rule(sequence, found.manifest.versions.get("updates"), pins, every):
                ruled.add(sequence)
            else:
                extra.append(sequence)
        except FencedWriter:
            raise
        except Retired:
            continue
        except CheckpointError:
            if not waits:
                damaged.add(sequence)
    return kept, ruled, damaged, extra


def _by_rule(sequence: int, updates: int | None, pins: set[int], every: int | None) -> bool:
    return sequence in pins or (every is not None and updates is not None and updates % every == 0)


def _mark(run: Run, epoch: Epoch, sequence: int, now: float) -> bool:
    check_newest(run, epoch)  # reading back took its time: a later coordinator may have resumed from this one
    body = {"format": MARK_FORMAT, "sequence": sequence, "epoch": epoch.number, "at": now}
    return run.retired.publish(str(sequence), canonical(sealed(body)))


def _unmark(run: Run, sequence: int) -> None:
    run.retired.remove(str(sequence))
    run.retired.sync()


def _unmark_pinned(run: Run, sequence: int) -> bool:
    if not run.pins.has(str(sequence)):
        return False
    _unmark(run, sequence)
    return True


def _marked_at(run: Run, name: str) -> float:
    """When it was marked; as the file system says where the mark itself does not."""
    try:
        at = unsealed(run.retired.read(name, SMALL_BYTES), form=MARK_FORMAT).get("at")
    except CheckpointError:
        at = None
    return float(at) if isinstance(at, float | int) and math.isfinite(at) else run.retired.changed_at(name)


def _remove(run: Run, epoch: Epoch, record: LogRecord, grace_seconds: float, now: float) -> bool:
    name = str(record.sequence)
    folder = save_folder(record.epoch, record.save_id or "")
    if not run.retired.has(name) or not run.data.has(folder):
        return False
    if now - _marked_at(run, name) < grace_seconds or _unmark_pinned(run, record.sequence):
        return False
    check_newest(run, epoch)
    return _empty(run.data, folder)


def _abandoned(
    run: Run,
    epoch: Epoch,
    listed: Sequence[str],
    commits: Sequence[LogRecord],
    *,
    complete: bool,
    grace_seconds: float,
    now: float,
) -> list[str]:
    """Folders of saves that were never committed and cannot be any more.

    A save of a lower epoch is over: the slot that it declared is at most that of a later `open`, and taken. Where not
    every record of the log could be read, one with a manifest may be what such a record names: it is left.
    """
    committed = {save_folder(each.epoch, each.save_id or "") for each in commits}
    gone = []
    for name in listed:
        made_in = epoch_of_folder(name)
        if made_in is None or name in committed or made_in >= epoch.number or not run.data.has(name):
            continue
        if now - run.data.changed_at(name) < grace_seconds or not _is_over(run, name, complete=complete):
            continue
        check_newest(run, epoch)
        if _empty(run.data, name):
            gone.append(name)
    return gone


def _is_over(run: Run, name: str, *, complete: bool) -> bool:
    """By the slot that the save's declaration names; by its epoch alone where there is none."""
    try:
        folder = run.data.folder(name)
    except ManifestInvalid:
        return False  # no folder at all: for a person
    with folder:
        if not complete and folder.has(FILE):
            return False
        try:
            slot = parse(folder.read(DECLARE, RECORD_BYTES)).get("sequence")
        except (FileNotFoundError, CheckpointError):
            return True
    return type(slot) is not int or slot <= last_slot(run)


def _empty(parent: fs.Folder, name: str) -> bool:
    """Remove a folder and its files; what others put into it, or still read on a file server, is left for later."""
    try:
        folder = parent.folder(name)
    except (FileNotFoundError, ManifestInvalid):
        return False
    with folder:
        # The manifest first: a reader that comes now finds a checkpoint that is gone, not one that lacks bytes.
        for each in sorted([*folder.names(), *folder.temporaries()], key=lambda file: file != FILE):
            with suppress(IsADirectoryError):
                folder.remove(each)
    try:
        parent.remove_folder(name)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
    parent.sync()
    return True


def _clear(
    run: Run, epoch: Epoch, records: Sequence[LogRecord | CheckpointError], listed: Sequence[str], *, now: float
) -> None:
    """What dead writers left: unlinked files, and the words of launches that a later one fenced.

    Only what nobody has touched for the default grace: a writer that lives has its file for moments, and a launch that
    lives says something at every look. One that sleeps for longer finds its word refused, and publishes nothing.
    """
    epochs = {each.launch: each.epoch for each in records if isinstance(each, LogRecord) and each.kind == "open"}
    for name in run.meet.names():
        if epochs.get(name, epoch.number) < epoch.number and now - run.meet.changed_at(name) >= GRACE_SECONDS:
            _empty(run.meet, name)
    for folder in (run.folder, run.log, run.contracts, run.pins, run.retired):
        clear_temporaries(folder, older_than_seconds=GRACE_SECONDS, now=now)
    for name in listed:
        if (epoch_of_folder(name) or epoch.number) < epoch.number:
            with suppress(FileNotFoundError, ManifestInvalid), run.data.folder(name) as folder:
                clear_temporaries(folder, older_than_seconds=GRACE_SECONDS, now=now)


def clear_temporaries(folder: fs.Folder, *, older_than_seconds: float, now: float) -> int:
    """Remove what writers that died left in a folder."""
    cleared = 0
    for each in folder.temporaries():
        with suppress(FileNotFoundError):  # its writer lives, and took it away
            if now - folder.changed_at(each) >= older_than_seconds:
                folder.remove(each)
                cleared += 1
    return cleared
