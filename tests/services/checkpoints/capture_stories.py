"""Captures in a real process, and what mutates meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np

from services.checkpoints.capture import Captured, capture
from services.checkpoints.delays import Then, nowhere
from services.checkpoints.dtypes import Array
from services.checkpoints.errors import CheckpointError
from services.checkpoints.records import digest_of
from services.checkpoints.staging import Staging
from services.checkpoints.state import Item, State, Versioned

Say = Callable[..., None]


class Everywhere:
    """A contract that replicates everything."""

    def placement_of(self, role: str, item: str) -> str:
        """Replicated."""
        return f"replicated{role[:0]}{item[:0]}"


def taken(state: State, **actions: Callable[[], None]) -> Captured:
    """A capture, with what the trainer does at its points."""
    named = {name.replace("_", "-"): action for name, action in actions.items()}
    return capture(state, Staging(), Everywhere(), at=Then(actions=named) if named else nowhere)


def told(state: State, **actions: Callable[[], None]) -> str:
    """How a capture ends: ok, or its error."""
    try:
        taken(state, **actions)
    except CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


class Trainer:
    """Two arrays, updated in place: both are full of the number of the update."""

    def __init__(self, source: str | None = "model") -> None:
        self.a = np.ones(1000)
        self.b = np.ones(1000)
        self.versions = Versioned({"updates": 1}, sources=("model", "buffers"))
        items = {
            "a": Item(role="param", array=self.a, source=source),
            "b": Item(role="param", array=self.b, source=source),
        }
        self.state = State(items=items, versions=self.versions, values={"scheduler": 1})

    def update(self) -> None:
        """One whole update."""
        with self.versions.mutation("model"):
            self.a += 1
            self.b += 1
            self.versions.advance(updates=1)

    @contextmanager
    def half_an_update(self) -> Iterator[None]:
        """Another thread has changed half of an array and is not done."""
        halfway, go_on = threading.Event(), threading.Event()

        def work() -> None:
            with self.versions.mutation("model"):
                self.a[:500] += 1
                halfway.set()
                go_on.wait()
                self.a[500:] += 1

        thread = threading.Thread(target=work)
        thread.start()
        halfway.wait()
        yield
        go_on.set()
        thread.join()


def once(action: Callable[[], None]) -> Callable[[], None]:
    """The action, the first time only."""
    left = [action]

    def do() -> None:
        if left:
            left.pop()()

    return do


def races(say: Say, **_: Any) -> None:
    """Every way in which a capture and a mutation may meet; one word each."""
    ended = {}
    for point in ("marks_read", "item_copied", "copied"):
        marked, unmarked, beside = Trainer(), Trainer(None), Trainer()
        ended[f"marked {point}"] = told(marked.state, **{point: once(marked.update)})

        def silent(trainer: Trainer = unmarked) -> None:
            trainer.a += 1

        ended[f"unmarked {point}"] = told(unmarked.state, **{point: once(silent)})

        def buffers(trainer: Trainer = beside) -> None:
            with trainer.versions.mutation("buffers"):
                pass

        ended[f"another source {point}"] = told(beside.state, **{point: once(buffers)})
        valued = Trainer()

        def value(trainer: Trainer = valued) -> None:
            trainer.state.values["scheduler"] += 1

        ended[f"value {point}"] = told(valued.state, **{point: once(value)})
    torn = Trainer()
    with torn.half_an_update():
        ended["torn"] = told(torn.state)
    ended["whole again"] = told(torn.state)
    ended["quiet unmarked"] = told(Trainer(None).state)
    early = Trainer()
    ended["before the first look"] = told(early.state, ready=once(early.update))
    say(**ended)


def bytes_taken(say: Say, **_: Any) -> None:
    """Views of every kind, and what was captured of each."""
    big = np.arange(6_000_000, dtype=np.float64).reshape(2000, 3000)
    arrays: dict[str, Array] = {
        "whole": np.arange(10.0),
        "transposed": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "every-second": np.arange(20, dtype=np.int16)[::2],
        "a-corner": big[:2, :2],
        "reversed": np.arange(5)[::-1],
        "one-number": np.array(7, np.int64),
        "nothing": np.zeros((0, 3)),
        "bfloat16": np.array([1.5, -2.0, 3.25], ml_dtypes.bfloat16),
        "not-a-number": np.array([1.0, np.nan]),
        "infinite-bfloat16": np.array([np.inf], ml_dtypes.bfloat16),
    }
    for source in ("model", None):
        items = {name: Item(role="param", array=array, source=source) for name, array in arrays.items()}
        state = State(items=items, versions=Versioned({"updates": 1}))
        captured = taken(state)
        for item in captured.staged():
            expected = np.ascontiguousarray(arrays[item.name]).tobytes()
            say(
                item=item.name,
                equal=bytes(item.buffer) == expected,
                digest=item.digest == digest_of(expected),
                nbytes=item.buffer.nbytes == len(expected) == item.nbytes,
                apart=not np.shares_memory(np.frombuffer(item.buffer, np.uint8), arrays[item.name]),
                finite=item.finite,
            )


def refusals(say: Say, **_: Any) -> None:
    """States that cannot be captured at all."""

    def of(**changes: Any) -> str:
        item = {"role": "param", "array": np.zeros((2, 3)), "source": "model", **changes}
        values = item.pop("values", {})
        return told(State(items={"w": Item(**item)}, versions=Versioned({"updates": 1}), values=values))

    say(
        box=of(box=((0, 1), (0, 3)), global_shape=(4, 3)),
        source=of(source="elsewhere"),
        objects=of(array=np.array([object()])),
        structured=of(array=np.zeros(2, [("x", "f8")])),
        big_endian=of(array=np.zeros(2, ">f8")),
        value=of(values={"x": {1, 2}}),
    )


def later(say: Say, **_: Any) -> None:
    """What changes after the capture, and what a device still does before it."""
    trainer = Trainer()
    captured = taken(trainer.state)
    trainer.update()
    trainer.state.values["scheduler"] = 103
    arrays = {item.name: np.frombuffer(item.buffer).tolist()[0] for item in captured.staged()}
    say(arrays=arrays, versions=captured.versions, values=captured.values)
    device = Trainer()

    def ready() -> None:
        device.a += 41

    state = State(items=device.state.items, versions=device.versions, values={}, wait_ready=ready)
    say(first=float(np.frombuffer(taken(state).staged()[0].buffer)[0]))


STORIES = {
    "capture-races": races,
    "capture-bytes": bytes_taken,
    "capture-refusals": refusals,
    "capture-later": later,
}
