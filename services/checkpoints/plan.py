"""What saving costs and how often it is worth it: arithmetic on a few measured numbers.

floor       bytes / bandwidth: no schedule writes faster; asynchronous saving hides time, not bytes
interval    Young and Daly: sqrt(2 * MTBF * blocked seconds), at least the time a save takes to become durable
loss        of one interruption: half an interval, and the save that was not durable yet
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from .errors import Incompatible


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What is known of a run.

    Attributes:
        checkpoint_bytes: of one checkpoint.
        bandwidth_bytes_per_second: that all contributors together write.
        mtbf_seconds: mean time between two interruptions of the whole run.
        blocked_seconds: that a save keeps training from going on.
        persist_seconds: from the capture until the checkpoint is durable.
        restart_seconds: from an interruption until training goes on.
    """

    checkpoint_bytes: int
    bandwidth_bytes_per_second: float
    mtbf_seconds: float
    blocked_seconds: float
    persist_seconds: float
    restart_seconds: float = 0.0

    def check(self) -> None:
        """Refuse numbers of which nothing can be computed.

        Raises:
            Incompatible: one is negative, infinite, not a number, or 0 where it divides.
        """
        wrong = tuple(f"{name} is {value}" for name, value in asdict(self).items() if not 0 <= value < math.inf)
        divides = ("bandwidth_bytes_per_second", "mtbf_seconds")
        wrong += tuple(f"{name} is 0" for name in divides if getattr(self, name) == 0)
        if wrong:
            raise Incompatible(
                f"Nothing can be planned: {'; '.join(wrong)}. Give what was measured.", differences=wrong
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What follows from the costs.

    Attributes:
        floor_seconds: less than this no save takes to become durable.
        persist_seconds: what a save takes: what was measured, but not less than the floor.
        interval_seconds: between the beginnings of two saves.
        loss_seconds: what one interruption costs on average, beside the restart.
        blocked_fraction: of the time, kept from training by saves.
        lost_fraction: of the time, computed again or restarting.
    """

    floor_seconds: float
    persist_seconds: float
    interval_seconds: float
    loss_seconds: float
    blocked_fraction: float
    lost_fraction: float

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def plan(costs: Costs) -> Plan:
    """The interval that loses least, and what it loses.

    Raises:
        Incompatible: nothing can be computed of these numbers.
    """
    costs.check()
    floor = costs.checkpoint_bytes / costs.bandwidth_bytes_per_second
    persist = max(floor, costs.persist_seconds)
    # One save is in flight at a time: to begin them more often than they end would block training.
    interval = max(math.sqrt(2.0 * costs.mtbf_seconds * costs.blocked_seconds), persist, costs.blocked_seconds)
    loss = interval / 2.0 + persist
    return Plan(
        floor_seconds=floor,
        persist_seconds=persist,
        interval_seconds=interval,
        loss_seconds=loss,
        blocked_fraction=costs.blocked_seconds / interval if interval else 0.0,
        lost_fraction=min(1.0, (loss + costs.restart_seconds) / costs.mtbf_seconds),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """Where the time of a run went; the four kinds of seconds are all of it.

    Attributes:
        interruptions: how often the run was interrupted.
        checkpoints: how many became durable.
        useful_seconds: training whose result was kept.
        redone_seconds: training that was lost and done again.
        blocked_seconds: kept from training by a save.
        restart_seconds: from interruptions until training went on.
    """

    interruptions: int
    checkpoints: int
    useful_seconds: float
    redone_seconds: float
    blocked_seconds: float
    restart_seconds: float

    @property
    def total_seconds(self) -> float:
        """All of it."""
        return self.useful_seconds + self.redone_seconds + self.blocked_seconds + self.restart_seconds

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"total_seconds": self.total_seconds}


def simulate(
    costs: Costs,
    *,
    interval_seconds: float,
    useful_seconds: float,
    seed: int = 0,
    until_interrupted: Callable[[], float] | None = None,
    at_most_interruptions: int = 1_000_000,
) -> Simulated:
    """Play a run until so much useful training is done.

    A save begins `interval_seconds` of training after the one before began, blocks training, and is durable
    `persist_seconds` later, while training goes on. An interruption loses what was trained since the capture of the
    last durable one.

    Args:
        costs: of the run.
        interval_seconds: training between two saves.
        useful_seconds: what the run needs.
        seed: of the interruptions, which are memoryless with the costs' mean.
        until_interrupted: seconds to the next interruption, instead of drawing them.
        at_most_interruptions: then the run is called hopeless.

    Raises:
        Incompatible: nothing can be computed of these numbers, or the run makes no progress between interruptions.
    """
    costs.check()
    if not 0 < interval_seconds < math.inf or not 0 <= useful_seconds < math.inf:
        raise Incompatible(f"An interval of {interval_seconds} s for {useful_seconds} s of training is none.")
    persist = plan(costs).persist_seconds
    draw = until_interrupted or _memoryless(costs.mtbf_seconds, seed)
    kept = redone = blocked = restart = 0.0
    interruptions = checkpoints = 0
    while True:
        left = draw()
        life = _live(
            kept, left, interval=interval_seconds, wanted=useful_seconds, blocks=costs.blocked_seconds, persist=persist
        )
        blocked += life.blocked
        checkpoints += life.checkpoints
        if life.done:
            return Simulated(
                interruptions=interruptions,
                checkpoints=checkpoints,
                useful_seconds=useful_seconds,
                redone_seconds=redone,
                blocked_seconds=blocked,
                restart_seconds=restart,
            )
        redone += life.trained - life.kept
        kept = life.kept
        restart += costs.restart_seconds
        interruptions += 1
        if interruptions >= at_most_interruptions:
            raise Incompatible(
                f"After {interruptions} interruptions the run has kept {kept:.0f} s of {useful_seconds:.0f} s: it is "
                "interrupted more often than it can save. Save more often, or make saves and restarts faster."
            )


_AT_ONCE: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Life:
    """What happened from one start to the next interruption."""

    trained: float
    kept: float
    blocked: float
    checkpoints: int
    done: bool


def _live(start: float, left: float, *, interval: float, wanted: float, blocks: float, persist: float) -> _Life:
    """Train from `start` until an interruption after `left` seconds, or until `wanted` is reached."""
    trained, kept, blocked, checkpoints, clock = start, start, 0.0, 0, 0.0
    flying: tuple[float, float] | None = None  # what was captured, and when it will be durable
    while True:
        if flying is not None and persist <= interval:
            # Saves that are durable before the next one begins go on alike: all of them but the last few at once.
            alike = int(min((left - clock) / (interval + blocks), (wanted - trained) / interval, _AT_ONCE)) - 2
            if alike > 0:
                trained, blocked = trained + alike * interval, blocked + alike * blocks
                clock, checkpoints = clock + alike * (interval + blocks), checkpoints + alike
                kept, flying = trained - interval, (trained, clock + persist)
        step = min(interval, wanted - trained)
        alive = clock + step <= left
        trained += step if alive else left - clock
        clock = clock + step if alive else left
        if flying is not None and flying[1] <= clock:
            kept, flying, checkpoints = flying[0], None, checkpoints + 1
        if not alive:
            return _Life(trained=trained, kept=kept, blocked=blocked, checkpoints=checkpoints, done=False)
        if trained >= wanted:
            return _Life(trained=trained, kept=trained, blocked=blocked, checkpoints=checkpoints, done=True)
        # One save is in flight: the next one waits for it, and training with it.
        ready = clock if flying is None else max(clock, flying[1])
        until = min(ready + blocks, left)
        if flying is not None and flying[1] <= until:
            kept, flying, checkpoints = flying[0], None, checkpoints + 1
        blocked += until - clock
        clock = until
        if ready + blocks > left:
            return _Life(trained=trained, kept=kept, blocked=blocked, checkpoints=checkpoints, done=False)
        flying = (trained, clock + persist)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One interval, and what runs with it lost.

    Attributes:
        interval_seconds: training between two saves.
        overhead: everything but useful training, as a part of it.
    """

    interval_seconds: float
    overhead: float


def best_interval(costs: Costs, *, seeds: Sequence[int] = (0, 1, 2)) -> tuple[Tried, Tried | None]:
    """The interval that loses least when runs of these costs are played, and what Young's and Daly's loses.

    Tried are intervals from an eighth of Young's and Daly's to eight times it, each with the same interruptions, in
    runs of about 100 of them.

    Returns:
        The best one, and Young's and Daly's own; None where that one makes no progress.

    Raises:
        Incompatible: nothing can be computed of these numbers, or no interval makes progress.
    """
    young = plan(costs).interval_seconds
    if young == 0:
        raise Incompatible("A save that blocks nothing and is durable at once has no best interval: save always.")
    tried = [
        each for step in range(-_STEPS, _STEPS + 1)
        if (each := _overhead(costs, young * 8 ** (step / _STEPS), seeds)) is not None
    ]  # fmt: skip
    if not tried:
        raise Incompatible(
            "No interval makes progress: the run is interrupted more often than it can save. Make saves or restarts "
            "faster."
        )
    return min(tried, key=lambda each: each.overhead), _overhead(costs, young, seeds)


_STEPS: Final = 9  # on each side of Young's and Daly's interval
_PLAYED_INTERRUPTIONS: Final = 100


def _overhead(costs: Costs, interval: float, seeds: Sequence[int]) -> Tried | None:
    useful = costs.mtbf_seconds * _PLAYED_INTERRUPTIONS
    try:
        total = sum(
            simulate(
                costs, interval_seconds=interval, useful_seconds=useful, seed=seed,
                at_most_interruptions=20 * _PLAYED_INTERRUPTIONS,
            ).total_seconds
            for seed in seeds
        )  # fmt: skip
    except Incompatible:
        return None
    return Tried(interval_seconds=interval, overhead=total / (useful * len(seeds)) - 1.0)


def _memoryless(mean_seconds: float, seed: int) -> Callable[[], float]:
    draws = random.Random(seed)  # noqa: S311 - a simulation, repeatable by its seed
    return lambda: draws.expovariate(1.0 / mean_seconds)
