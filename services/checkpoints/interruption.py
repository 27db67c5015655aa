"""A run that is killed and taken up again, beside the same run uninterrupted: equal in every field, or where not.

What this module guarantees:

- Both runs are processes; the one that is interrupted is killed by SIGKILL, all of it, and started again from its files
  alone, in new processes and perhaps in another number of them.
- Every field of the whole model is compared after each update, up to the kill, as it was restored, and from there to
  the end.
"""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from .learner import LearnerConfig
from .reference import RUN
from .supervisor import ContributorFailed, Dead, Difference, Ran, Store, Supervisor, first_difference

# Contributors run on for so many updates after the checkpoint: what they did then is lost, and done again.
RUNS_ON: Final = 2
KILLED_DURING: Final = "written"  # a contributor's record is durable, and nothing is committed


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """What to do.

    Attributes:
        root: the store's folder.
        run: the run's id.
        config: of the learner.
        ranks: contributors before the kill.
        resume_ranks: contributors after it.
        updates: of the whole run.
        every: save after each so many updates; 0: only at `kill_at`.
        kill_at: commit a checkpoint after this update, run on, be held two updates later and killed; None: no kill.
        during_save: be killed in the middle of the save at `kill_at` instead.
        weights_only: save weights alone.
        effects: the watermark that checkpoints keep.
        watermark: asked for the journal's watermark of the moment of the restore, by the seal that was kept.
        applied: told about each update of the interrupted run, before the kill and after it.
    """

    root: Path
    run: str = RUN
    config: LearnerConfig
    ranks: int = 1
    resume_ranks: int = 1
    updates: int = 40
    every: int = 0
    kill_at: int | None = None
    during_save: bool = False
    weights_only: bool = False
    effects: Mapping[str, Any] | None = None
    watermark: Callable[[], Mapping[str, Any]] | None = None
    applied: Callable[[int], None] = lambda _update: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How it ended.

    Attributes:
        equal_to_uninterrupted: every field after each update.
        draws: of the one sample stream, at the end.
        updates: applied at the end.
        resumed_from: the update from which it went on after the kill; None where it was not taken up.
        killed: who was killed, and what the system says of it.
        first_difference: the first field and update that differ.
        missing_roles: why it could not be taken up, where it could not.
        skipped: checkpoints that were passed over, and why.
        saved: the updates whose checkpoints were committed, in order.
        effects: what the restore did not undo; None where the checkpoint carries no watermark.
        error: what the store refused; None where it did not.
    """

    equal_to_uninterrupted: bool
    draws: int | None
    updates: int
    resumed_from: int | None
    killed: tuple[Dead, ...]
    first_difference: Difference | None
    missing_roles: tuple[str, ...] = ()
    skipped: tuple[tuple[int, str], ...] = ()
    saved: tuple[int, ...] = ()
    effects: Mapping[str, Any] | None = None
    error: Mapping[str, Any] | None = None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def interrupt(what: Interruption, progress: Callable[[str], None] = lambda _text: None) -> Comparison:
    """Do it.

    Raises:
        ContributorFailed: a contributor ended in a way that nobody asked for.
    """
    progress(f"uninterrupted: {what.updates} updates on {what.ranks} contributors")
    whole = Supervisor(what.config, world=what.ranks, until=what.updates).run()
    killed: tuple[Dead, ...] = ()
    saved: list[int] = []
    before = Ran()
    if what.kill_at is not None:
        before = _until_killed(what, progress)
        killed = before.killed
        saved += _saved(before)
    progress(f"taken up on {what.resume_ranks} contributors" if killed else f"on {what.resume_ranks} contributors")
    last = Supervisor(
        what.config, world=what.resume_ranks, until=what.updates,
        store=_store(what, watermark=None if what.watermark is None else what.watermark()), applied=what.applied,
    )  # fmt: skip
    try:
        after = last.run()
    except ContributorFailed as error:
        missing: list[str] = next(iter(last.ran.said("missing_roles")), [])
        if error.told.get("type") != "WeightsOnly":
            raise
        return Comparison(
            equal_to_uninterrupted=False, draws=None, updates=max(before.fields, default=0), resumed_from=None,
            killed=killed, first_difference=None, missing_roles=tuple(missing), saved=tuple(saved), error=error.told,
        )  # fmt: skip
    resumed = next(what["resumed"] for who, what in after.told if who == 0 and "resumed" in what)
    reached = max(before.fields, default=0)
    difference = first_difference(whole.fields, before.fields, after=0, until=reached) or first_difference(
        whole.fields, after.fields, after=max(0, resumed["update"] - 1), until=what.updates
    )
    return Comparison(
        equal_to_uninterrupted=difference is None,
        draws=int(after.fields[what.updates]["draws"]) if what.updates in after.fields else None,
        updates=max(after.fields, default=resumed["update"]),
        resumed_from=resumed["update"],
        killed=killed,
        first_difference=difference,
        skipped=tuple((sequence, reason) for sequence, reason in resumed["skipped"]),
        saved=(*saved, *_saved(after)),
        effects=resumed.get("effects"),
    )


def _until_killed(what: Interruption, progress: Callable[[str], None]) -> Ran:
    assert what.kill_at is not None  # noqa: S101 - the only caller asks
    where = "in the save" if what.during_save else f"at {what.kill_at + RUNS_ON}"
    progress(f"on {what.ranks} contributors: saved at {what.kill_at}, killed {where}")
    # Nothing is saved between the checkpoint and the kill: the run is taken up from that one.
    store = _store(what)
    store = replace(
        store, resume=False, points=what.during_save, save_at=tuple(at for at in store.save_at if at <= what.kill_at)
    )
    return Supervisor(
        what.config, world=what.ranks, until=what.updates, store=store,
        hold_after=None if what.during_save else what.kill_at + RUNS_ON,
        kill_at=f"{KILLED_DURING}@{what.kill_at}" if what.during_save else None, applied=what.applied,
    ).run()  # fmt: skip


def _store(what: Interruption, watermark: Mapping[str, Any] | None = None) -> Store:
    often = range(what.every, what.updates + 1, what.every) if what.every else ()
    once = () if what.kill_at is None else (what.kill_at,)
    return Store(
        root=str(what.root.absolute()),
        run=what.run,
        launch=secrets.token_hex(16),
        save_at=tuple(sorted({*often, *once})),
        resume=True,
        kind="weights_only" if what.weights_only else "full",
        effects=what.effects,
        watermark=watermark,
    )


def _saved(ran: Ran) -> list[int]:
    return sorted({each["update"] for each in ran.said("saved")})
