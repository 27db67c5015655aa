"""A run that is killed again and again: where its time went, and what was expected of it.

What this module guarantees:

- Every start is killed by SIGKILL, all of its contributors, and the next one has nothing but the files.
- Each second from the first attempt to the last update is of one kind: useful, redone, blocked or restart. Useful is
  what the next start took up; what it did not, was done again. The seconds of the kinds add up to the run.
- Every field is compared with the run uninterrupted, after each update of each start.
"""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from .errors import Incompatible
from .learner import LearnerConfig
from .plan import Costs, Simulated, Tried, best_interval, plan, simulate
from .reference import RUN
from .supervisor import Difference, Life, Ran, Store, Supervisor, first_difference

# So many starts that retain nothing: the next one will not either.
IN_VAIN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """What to do.

    Attributes:
        root: the store's folder; the run is new in it.
        run: the run's id.
        config: of the learner.
        ranks: contributors.
        updates: of the whole run.
        every: save after each so many updates.
        life: of each start.
    """

    root: Path
    run: str = RUN
    config: LearnerConfig
    ranks: int = 1
    updates: int
    every: int
    life: Life


@dataclass(slots=True, kw_only=True)
class Lived:
    """One start, by one clock.

    Attributes:
        started: when its contributors were started.
        began: when training did.
        taken_up: the update from which.
        ended: when it was killed, or had applied the last update.
        killed: whether it was.
        applied: when all had applied each update.
        blocked: of each save, the update, when training was held, and when it went on.
        saved: of each committed save, seconds blocked and seconds until it was durable.
    """

    started: float
    began: float
    taken_up: int
    ended: float
    killed: bool
    applied: Mapping[int, float]
    blocked: Sequence[tuple[int, float, float]] = ()
    saved: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One start: from which update, how far it came, how far the next one did not have to go again."""

    taken_up: int
    reached: int
    retained: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where the time of a run went.

    Attributes:
        measured: the kinds of seconds.
        expected: the same, played with the costs that were measured; None where that run makes no progress.
        costs: what was measured of one save, one restart, one life.
        every_updates: between two saves.
        interval_seconds: of training between two saves.
        young_daly_seconds: the interval that loses least by Young's and Daly's formula.
        best: the interval that lost least when runs of these costs were played; None where none makes progress.
        young_daly: what Young's and Daly's lost there.
        start_seconds: before the first attempt, which is none of the kinds.
        starts: of each.
        first_difference: where a start first differed from the uninterrupted run.
    """

    measured: Simulated
    expected: Simulated | None
    costs: Costs
    every_updates: int
    interval_seconds: float
    young_daly_seconds: float
    best: Tried | None
    young_daly: Tried | None
    start_seconds: float
    starts: tuple[Progress, ...]
    first_difference: Difference | None

    @property
    def equal_to_uninterrupted(self) -> bool:
        """In every field after each update."""
        return self.first_difference is None

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        told = asdict(self) | {"equal_to_uninterrupted": self.equal_to_uninterrupted}
        told["measured"] = self.measured.document()
        told["expected"] = None if self.expected is None else self.expected.document()
        return told


def endure(what: Endurance, progress: Callable[[str], None] = lambda _text: None) -> Account:
    """Do it.

    Raises:
        ContributorFailed: a contributor ended in a way that nobody asked for.
        Incompatible: the run is interrupted more often than it can save.
    """
    progress(f"uninterrupted: {what.updates} updates on {what.ranks} contributors")
    whole = Supervisor(what.config, world=what.ranks, until=what.updates).run()
    lives: list[Lived] = []
    difference: Difference | None = None
    while not lives or lives[-1].killed:
        ran, lived = _live(what)
        lives.append(lived)
        reached = max(ran.fields, default=lived.taken_up)
        difference = difference or first_difference(
            whole.fields, ran.fields, after=max(0, lived.taken_up - 1), until=reached
        )
        progress(f"start {len(lives)}: from update {lived.taken_up} to {reached}{', killed' if lived.killed else ''}")
        if len(lives) > IN_VAIN and lives[-1].taken_up == lives[-1 - IN_VAIN].taken_up:
            raise Incompatible(
                f"{IN_VAIN} starts after each other were killed before they had saved anything after update "
                f"{lived.taken_up}: save more often, or let them live longer."
            )
    return account(lives, updates=what.updates, every=what.every, difference=difference)


def _live(what: Endurance) -> tuple[Ran, Lived]:
    applied: dict[int, float] = {}
    store = Store(
        root=str(what.root.absolute()), run=what.run, launch=secrets.token_hex(16), resume=True, overlap=True,
        save_at=tuple(range(what.every, what.updates + 1, what.every)),
    )  # fmt: skip
    started = time.monotonic()
    supervisor = Supervisor(
        what.config, world=what.ranks, until=what.updates, store=store, life=what.life,
        applied=lambda update: applied.__setitem__(update, time.monotonic()),
    )  # fmt: skip
    ran = supervisor.run()
    killed = bool(ran.killed)
    told = [said for who, said in ran.told if who == 0]
    begun = [said["began"] for said in told if "began" in said]
    ended = supervisor.killed_at if killed else applied.get(what.updates, time.monotonic())
    began: dict[str, Any] = begun[0] if begun else {"update": 0, "at": ended}
    released = {said["released"]["update"]: said["released"]["at"] for said in told if "released" in said}
    blocked = tuple(
        (said["saving"]["update"], said["saving"]["at"], released.get(said["saving"]["update"], ended))
        for said in told if "saving" in said and said["saving"]["at"] < ended
    )  # fmt: skip
    return ran, Lived(
        started=started, began=began["at"], taken_up=began["update"], ended=max(ended, began["at"]), killed=killed,
        applied={update: at for update, at in applied.items() if update > began["update"]},
        blocked=blocked, saved=tuple(said["saved"] for said in told if "saved" in said),
    )  # fmt: skip


def account(lives: Sequence[Lived], *, updates: int, every: int, difference: Difference | None = None) -> Account:
    """Where the time of these starts went, and what was to be expected of the costs that they had.

    Args:
        lives: the starts, the last of which came to the end.
        updates: of the whole run.
        every: updates between two saves.
        difference: where one of them first differed from the uninterrupted run.
    """
    measured, starts = kinds_of(lives, updates=updates)
    useful = measured.useful_seconds
    killed = [life.ended - life.began for life in lives if life.killed]
    costs = _costs(lives, killed)
    interval = every * useful / updates
    best, young = _best(costs)
    return Account(
        measured=measured, expected=_expected(costs, interval, useful, killed), costs=costs, every_updates=every,
        interval_seconds=interval, young_daly_seconds=plan(costs).interval_seconds, best=best, young_daly=young,
        start_seconds=lives[0].began - lives[0].started, starts=starts, first_difference=difference,
    )  # fmt: skip


def kinds_of(lives: Sequence[Lived], *, updates: int) -> tuple[Simulated, tuple[Progress, ...]]:
    """Each second of these starts is of one kind; and how far each of them came."""
    useful = redone = blocked = 0.0
    starts = []
    for number, life in enumerate(lives):
        retained = lives[number + 1].taken_up if number + 1 < len(lives) else updates
        held = sum(min(until, life.ended) - since for _, since, until in life.blocked)
        trained = max(0.0, life.ended - life.began - held)
        kept = trained if retained == updates and not life.killed else min(trained, _trained_until(life, retained))
        useful, redone, blocked = useful + kept, redone + trained - kept, blocked + held
        reached = max(life.applied, default=life.taken_up)
        starts.append(
            Progress(taken_up=life.taken_up, reached=reached, retained=retained, seconds=life.ended - life.began)
        )
    measured = Simulated(
        interruptions=len(lives) - 1, checkpoints=sum(len(life.saved) for life in lives), useful_seconds=useful,
        redone_seconds=redone, blocked_seconds=blocked, restart_seconds=sum(_restarts(lives)),
    )  # fmt: skip
    return measured, tuple(starts)


def _restarts(lives: Sequence[Lived]) -> list[float]:
    return [after.began - before.ended for before, after in pairwise(lives)]


def _costs(lives: Sequence[Lived], killed: Sequence[float]) -> Costs:
    saved, restarts = [each for life in lives for each in life.saved], _restarts(lives)
    return Costs(
        checkpoint_bytes=0, bandwidth_bytes_per_second=1.0,  # what was measured is beyond the floor already
        mtbf_seconds=max(1e-9, fmean(killed) if killed else sum(life.ended - life.began for life in lives)),
        # Without the wait for the save before: whoever plays a run adds that by itself.
        blocked_seconds=fmean([each["blocked_seconds"] for each in saved]) if saved else 0.0,
        persist_seconds=fmean([each["persist_seconds"] for each in saved]) if saved else 0.0,
        restart_seconds=fmean(restarts) if restarts else 0.0,
    )  # fmt: skip


def _trained_until(life: Lived, update: int) -> float:
    """Seconds of training from the beginning of a start until all had applied this update."""
    if update not in life.applied:
        return 0.0  # the next start took up what this one had taken up
    at = life.applied[update]
    return max(0.0, at - life.began - sum(until - since for saved, since, until in life.blocked if saved < update))


def _expected(costs: Costs, interval: float, useful: float, killed: Sequence[float]) -> Simulated | None:
    """The same run played: interrupted after as much of each start, as often as it was."""
    try:
        return simulate(
            costs, interval_seconds=interval, useful_seconds=useful,
            until_interrupted=(lambda: costs.mtbf_seconds) if killed else (lambda: float("inf")),
            at_most_interruptions=100 * (len(killed) + 1),
        )  # fmt: skip
    except Incompatible:
        return None


def _best(costs: Costs) -> tuple[Tried | None, Tried | None]:
    try:
        return best_interval(costs)
    except Incompatible:
        return None, None
