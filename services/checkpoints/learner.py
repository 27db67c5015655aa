"""The reference learner: a small model whose every update is the same bits in any layout.

What this module guarantees:

- One update is a function of the state and the configuration alone: binary64, additions in one fixed order, and only
  operations that IEEE 754 rounds correctly (+ - * / sqrt). No BLAS, no tanh, no pairwise sum: their last bit depends on
  the shape they are given.
- Parameters and moments are sharded by rows. What the rows add to one prediction is gathered row by row and added in
  row order on every contributor, so that 1, 2 or 3 contributors compute the same bits.
- Which samples an update takes is a function of the global cursor and of `order_seed` alone: epoch and position are
  derived, and no draw of training moves the order. Each sample takes one draw of the run's one global stream.
- Everything that the next update reads is in the fields that `row_digests` names.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import blake3
import numpy as np
from numpy.typing import NDArray

from .state import Item, State, Versioned
from .versions import NAMES

# Gives this contributor's bytes to all; answers with everybody's, in the contributors' order.
Gather = Callable[[bytes], Sequence[bytes]]

# What each array is to the contract.
ROLES: Mapping[str, str] = {
    "weights": "param",
    "mixing": "param",
    "running_mean": "buffer",
    "moment_m.weights": "moment_m",
    "moment_m.mixing": "moment_m",
    "moment_v.weights": "moment_v",
    "moment_v.mixing": "moment_v",
    "optimizer_step": "optimizer_step",
    "history": "history",
    "scale": "scaler",
    "stream": "rng",
}

_FEATURES, _STREAM, _ROWS = 1, 2, 3  # what a seed is used for: no two uses share a stream
_WORD = 2**64
# A gradient beyond it is an overflow: the largest number of binary16, in which a scaled gradient would be sent.
OVERFLOW_LIMIT = 65504.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """What a run's arithmetic depends on beside its state.

    Attributes:
        rows: of the weights, sharded over the contributors; 7 divides by neither 2 nor 3.
        columns: features of a sample.
        dataset_size: samples of an epoch.
        batch: samples of an update, each its own forward pass: the accumulation.
        seed: of the data, the first weights and the training stream.
        order_seed: of the epochs' order, which no training draw may move.
        schedule: updates until the rate is 0; also how many losses the history holds.
        warmup: updates until the rate is full.
        rate: the full learning rate.
        scaler: whether gradients are scaled, and an overflow skips its update.
    """

    rows: int = 7
    columns: int = 5
    dataset_size: int = 8
    batch: int = 2
    seed: int = 20260113
    order_seed: int = 41
    schedule: int = 40
    warmup: int = 4
    rate: float = 0.0625
    scaler: bool = False

    def document(self) -> dict[str, Any]:
        """As the manifest keeps it."""
        return asdict(self)


def rows_of(contributor: int, world: int, rows: int) -> range:
    """The rows of one contributor: whole and in order, the first ones have one more where it does not divide."""
    if not 0 <= contributor < world:
        raise ValueError(f"contributor {contributor} is not one of {world}.")
    each, more = divmod(rows, world)
    start = contributor * each + min(contributor, more)
    return range(start, start + each + (contributor < more))


def sample_at(config: LearnerConfig, cursor: int) -> tuple[int, int, int]:
    """Epoch, position and sample number of one place of the global order.

    8 of 8 is epoch 1, position 0. The order of an epoch comes from `order_seed` and the epoch alone.
    """
    epoch, position = divmod(cursor, config.dataset_size)
    order = np.random.Generator(np.random.PCG64([config.order_seed, epoch])).permutation(config.dataset_size)
    return epoch, position, int(order[position])


def learning_rate(config: LearnerConfig, scheduled: int) -> float:
    """The rate of the update after `scheduled` ones: linear warm-up, then linear to 0 at `schedule`."""
    warm = min(1.0, (scheduled + 1) / config.warmup)
    return config.rate * warm * max(0, config.schedule - scheduled) / config.schedule


class Learner:
    """One contributor's part of the model, and the whole of what is not sharded.

    Args:
        config: equal on all contributors.
        contributor: which one this is, of `world`.

    Attributes:
        versions: the timeline; every attempt is one mutation of it.
    """

    def __init__(self, config: LearnerConfig, contributor: int = 0, world: int = 1) -> None:
        self.config = config
        self.rows = rows_of(contributor, world, config.rows)
        self.versions = Versioned(dict.fromkeys(NAMES, 0))
        shape = (len(self.rows), config.columns)
        self.weights = np.zeros(shape)
        self.mixing = np.zeros(len(self.rows))
        for index, row in enumerate(self.rows):
            first = _generator(config.seed, _ROWS, row).random(config.columns + 1) - 0.5
            self.weights[index], self.mixing[index] = first[:-1], first[-1]
        self.moments = {
            f"{kind}.{name}": np.zeros_like(array)
            for name, array in (("weights", self.weights), ("mixing", self.mixing))
            for kind in ("moment_m", "moment_v")
        }
        self.running_mean = np.zeros(len(self.rows))
        self.optimizer_step = np.zeros(1, np.int64)
        self.history = np.zeros(config.schedule)
        self.scale = np.array([2.0**20 if config.scaler else 1.0])
        self.stream = stream_words(_generator(config.seed, _STREAM))
        self.values: dict[str, Any] = {}
        self._say_values()
        data = _generator(config.seed, _FEATURES).random((config.dataset_size, config.columns + 1)) * 2.0 - 1.0
        self._features, self._targets = data[:, :-1], data[:, -1]

    @property
    def updates(self) -> int:
        """How many updates have been applied."""
        return self.versions["updates"]

    def sharded(self) -> Mapping[str, NDArray[np.float64]]:
        """The arrays of which this contributor has its rows: name -> array whose first axis is rows."""
        own = {"weights": self.weights, "mixing": self.mixing, "running_mean": self.running_mean}
        return own | self.moments

    def replicated(self) -> Mapping[str, NDArray[Any]]:
        """The arrays that every contributor has whole."""
        return {
            "optimizer_step": self.optimizer_step,
            "history": self.history,
            "scale": self.scale,
            "stream": self.stream,
        }

    def state(self) -> State:
        """Everything that the next update needs, as a session saves and resumes it. The arrays are the live ones."""
        items = {}
        for name, array in self.sharded().items():
            box = ((self.rows.start, self.rows.stop), *((0, length) for length in array.shape[1:]))
            whole = (self.config.rows, *array.shape[1:])
            items[name] = Item(role=ROLES[name], array=array, box=box, global_shape=whole, source="model")
        for name, replica in self.replicated().items():
            items[name] = Item(role=ROLES[name], array=replica, source="model")
        return State(items=items, versions=self.versions, values=self.values)

    def attempt(self, gather: Gather) -> None:
        """One attempt: `batch` samples, then Adam's step, or none where a scaled gradient overflowed.

        Args:
            gather: called once a sample by every contributor, and once more with a scaler.
        """
        with self.versions.mutation():
            gradients = {"weights": np.zeros_like(self.weights), "mixing": np.zeros_like(self.mixing)}
            stream = stream_from(self.stream)
            loss = 0.0
            for _ in range(self.config.batch):
                loss += self._one_sample(gradients, stream, gather)
            if self.config.scaler and self._overflows(gradients, gather):
                self.scale /= 2.0
                self.versions.advance(attempts=1, skips=1)
            else:
                self._step(gradients)
                if self.updates < len(self.history):
                    self.history[self.updates] = loss / self.config.batch
                self.versions.advance(attempts=1, updates=1, scheduler=1)
            self.stream[:] = stream_words(stream)
            self._say_values()

    def _say_values(self) -> None:
        updates, cursor = self.updates, self.versions["cursor"]
        self.values["scheduler"] = {"updates": updates, "rate": learning_rate(self.config, updates)}
        self.values["cursor"] = {"samples": cursor}

    def _one_sample(
        self, gradients: Mapping[str, NDArray[np.float64]], stream: np.random.Generator, gather: Gather
    ) -> float:
        _, _, number = sample_at(self.config, self.versions["cursor"])
        features = self._features[number]
        wanted = float(self._targets[number]) + (float(stream.random()) - 0.5) * 0.125
        summed = np.zeros(len(self.rows))
        for column in range(self.config.columns):
            summed += self.weights[:, column] * features[column]
        steepness = 1.0 / (1.0 + np.abs(summed))
        active = summed * steepness
        self.running_mean += (active - self.running_mean) * 0.125
        self.versions.advance(cursor=1, fetched=1, draws=1, forwards=1)
        predicted = 0.0
        for part in gather((self.mixing * active).astype("<f8").tobytes()):
            for value in np.frombuffer(part, "<f8").tolist():
                predicted += value
        error = (predicted - wanted) * float(self.scale[0])
        slope = self.mixing * steepness * steepness * error
        for column in range(self.config.columns):
            gradients["weights"][:, column] += slope * features[column]
        gradients["mixing"][:] += active * error
        return 0.5 * (predicted - wanted) * (predicted - wanted)

    def _overflows(self, gradients: Mapping[str, NDArray[np.float64]], gather: Gather) -> bool:
        own = any(bool((np.abs(each) > OVERFLOW_LIMIT).any()) for each in gradients.values())
        return any(part == b"\x01" for part in gather(b"\x01" if own else b"\x00"))

    def _step(self, gradients: Mapping[str, NDArray[np.float64]]) -> None:
        self.optimizer_step += 1
        step, rate = int(self.optimizer_step[0]), learning_rate(self.config, self.updates)
        correction_m, correction_v = 1.0 - _power(0.875, step), 1.0 - _power(0.984375, step)
        unscale = float(self.scale[0]) * self.config.batch  # powers of two: what is divided stays exact
        for name, parameter in (("weights", self.weights), ("mixing", self.mixing)):
            gradient = gradients[name] / unscale
            moment_m, moment_v = self.moments[f"moment_m.{name}"], self.moments[f"moment_v.{name}"]
            moment_m += (gradient - moment_m) * 0.125
            moment_v += (gradient * gradient - moment_v) * 0.015625
            parameter[...] -= rate * (moment_m / correction_m) / (np.sqrt(moment_v / correction_v) + 2.0**-20)


def row_digests(learner: Learner) -> dict[str, list[str]]:
    """What stands in every field: of a sharded one a digest for each own row, of any other one digest.

    The counters are fields too. Two runs are equal after an update if and only if these are.
    """
    found = {name: [_digest(row) for row in array] for name, array in learner.sharded().items()}
    found |= {name: [_digest(array)] for name, array in learner.replicated().items()}
    return found | {name: [str(value)] for name, value in learner.versions.timeline().items()}


def whole_digests(parts: Sequence[Mapping[str, Sequence[str]]]) -> dict[str, str]:
    """The fields of the whole model, from every contributor's `row_digests` in their order: equal in every layout.

    Raises:
        ValueError: contributors have different values in a field that all of them hold.
    """
    found = {}
    for name in parts[0]:
        lines = [line for part in parts for line in part[name]]
        if name not in _SHARDED:
            if len(set(lines)) != 1:
                raise ValueError(f"The contributors have different values of {name}: {lines}.")
            found[name] = lines[0]
        else:
            found[name] = blake3.blake3("\n".join(lines).encode()).hexdigest()
    return found


# What is sharded by rows; everything else every contributor has whole.
_SHARDED = frozenset(name for name, role in ROLES.items() if role in {"param", "buffer", "moment_m", "moment_v"})


def stream_words(stream: np.random.Generator) -> NDArray[np.uint64]:
    """The state of a PCG64 stream as six words: state and increment, high word first, and the kept half word."""
    told: Mapping[str, Any] = stream.bit_generator.state
    state, increment = told["state"]["state"], told["state"]["inc"]
    words = [*divmod(state, _WORD), *divmod(increment, _WORD), told["has_uint32"], told["uinteger"]]
    return np.array(words, np.uint64)


def stream_from(words: NDArray[np.uint64]) -> np.random.Generator:
    """The stream that these words are the state of."""
    state_high, state_low, increment_high, increment_low, has_half, half = (int(word) for word in words)
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_high * _WORD + state_low, "inc": increment_high * _WORD + increment_low},
        "has_uint32": has_half,
        "uinteger": half,
    }
    return np.random.Generator(bits)


def _generator(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(seeds)))


def _power(base: float, exponent: int) -> float:
    """Squaring and multiplying only: libm's pow may round its last bit differently."""
    result = 1.0
    while exponent:
        if exponent % 2:
            result *= base
        base *= base
        exponent //= 2
    return result


def _digest(array: NDArray[Any]) -> str:
    return blake3.blake3(np.ascontiguousarray(array).tobytes()).hexdigest()
