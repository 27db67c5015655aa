"""Contributors of a small training run, each saving and resuming through a session of its own."""

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from services.checkpoints.contract import Contract
from services.checkpoints.delays import At, Hold, Late, fingerprint
from services.checkpoints.dtypes import Array
from services.checkpoints.errors import CheckpointError
from services.checkpoints.saving import Deadlines
from services.checkpoints.session import Session
from services.checkpoints.state import Item, State, Versioned

Say = Callable[..., None]

ROWS, COLUMNS = 7, 3

CONTRACT: dict[str, Any] = {
    "format": "counterfoil-contract-1",
    "name": "small",
    "boundary": "after an update",
    "versions": {"attempts": "shared", "updates": "shared", "cursor": "shared"},
    "constants": {"batch": 2},
    "roles": {
        "param": {"required": True, "placement": "sharded", "versions": ["updates"]},
        "moment_m": {"required": True, "placement": "sharded", "absent_if": "updates == 0"},
        "buffer": {"placement": "replicated"},
        "rng": {"placement": "per_contributor"},
        "cursor": {"placement": "per_contributor", "patterns": {"cursor": "replicated"}},
        "history": {"placement": "global"},
    },
    "relations": ["attempts == updates", "cursor == updates * batch"],
    "profiles": {"resume": ["param", "moment_m", "buffer", "rng"], "weights": ["param"]},
}


def rows_of(rank: int, world: int) -> tuple[int, int]:
    """The rows of a contributor: uneven where the world does not divide them."""
    return ROWS * rank // world, ROWS * (rank + 1) // world


class Trainer:
    """A run whose arrays are functions of the update: parameters w = u, moments m = 10 u, a buffer b = 100 u."""

    def __init__(self, rank: int, world: int) -> None:
        low, high = rows_of(rank, world)
        self.rank = rank
        self.w = np.zeros((high - low, COLUMNS))
        self.m = np.zeros((high - low, COLUMNS), np.float32)
        self.b = np.zeros(5, np.int64)
        self.rng = np.full(2, 1000 * rank, np.uint64)
        self.versions = Versioned({"attempts": 0, "updates": 0, "cursor": 0})
        self.values: dict[str, Any] = {"cursor": 0, "cursor/own": 220 + rank}
        if rank == 0:
            self.values["history"] = []
        box, whole = ((low, high), (0, COLUMNS)), (ROWS, COLUMNS)
        self.items = {
            "w": Item(role="param", array=self.w, box=box, global_shape=whole, source="model"),
            "m": Item(role="moment_m", array=self.m, box=box, global_shape=whole, source="model"),
            "b": Item(role="buffer", array=self.b, source="model"),
            "rng": Item(role="rng", array=self.rng),
        }
        self.state = State(items=self.items, versions=self.versions, values=self.values)

    @property
    def updates(self) -> int:
        """Where it stands."""
        return self.versions["updates"]

    def update(self) -> None:
        """One update."""
        with self.versions.mutation():
            self.w += 1
            self.m += 10
            self.b += 100
            self.rng += np.uint64(1)
            self.versions.advance(attempts=1, updates=1, cursor=2)
            self.values["cursor"] = self.versions["cursor"]
            if self.rank == 0:
                self.values["history"].append(0.5 * self.updates)

    def until(self, updates: int) -> None:
        """Updates until it stands there."""
        while self.updates < updates:
            self.update()

    def told(self) -> dict[str, Any]:
        """Everything of it, for the test."""
        return {
            "w": sorted(set(self.w.ravel().tolist())),
            "m": sorted(set(self.m.ravel().tolist())),
            "b": sorted(set(self.b.tolist())),
            "rng": self.rng.tolist(),
            "values": dict(self.values),
            "versions": dict(self.versions.timeline()),
        }


def whole(updates: int, rank: int, *, rng_of: int | None = None) -> dict[str, Any]:
    """What a contributor tells that stands at an update, all of it."""
    values: dict[str, Any] = {"cursor": 2 * updates, "cursor/own": 220 + rank}
    if rank == 0:
        values["history"] = [0.5 * each for each in range(1, updates + 1)]
    owner = rank if rng_of is None else rng_of
    return {
        "w": [updates], "m": [10 * updates], "b": [100 * updates], "rng": [1000 * owner + updates] * 2,
        "values": values, "versions": {"attempts": updates, "updates": updates, "cursor": 2 * updates},
    }  # fmt: skip


def opened(
    *, root: str, launch: str, rank: int, world: int, folder: str,
    hold: Sequence[str] = (), late: Mapping[str, float] | None = None, at: At | None = None,
    deadlines: Mapping[str, float] | None = None, contract: Mapping[str, Any] | None = None, **given: Any,
) -> Session:  # fmt: skip
    """A session of the small run."""
    known = {key: given[key] for key in ("config", "lineage", "in_flight") if key in given}
    if at is None:
        at = Late(seconds=late) if late else Hold(folder=Path(folder), who=str(rank), points=frozenset(hold))
    limits = {"entry_seconds": 30.0, "capture_seconds": 30.0, "persist_seconds": 30.0, "margin_seconds": 1.0}
    return Session.open(
        root, run="r1", rank=rank, world=world, launch=launch, contract=Contract.load({**CONTRACT, **(contract or {})}),
        deadlines=Deadlines(**{**limits, **(deadlines or {})}), at=at, **known,
    )  # fmt: skip


def train(say: Say, *, until: int, every: int, go_on: int = 0, mode: str = "sync", **given: Any) -> None:
    """Resume if there is something, train, save every few updates, and train on after the last save began."""
    trainer = Trainer(given["rank"], given["world"])
    with opened(**given) as session:
        if session.resume(trainer.state):
            assert session.report is not None
            say(
                resumed=trainer.told(), sequence=session.report.sequence,
                skipped=[[each.sequence, each.reason] for each in session.report.skipped],
            )  # fmt: skip
        save = None
        while trainer.updates < until:
            trainer.update()
            if trainer.updates % every == 0:
                save = session.save_async(trainer.state)
                if mode == "sync":
                    save.wait()
        for _ in range(go_on):
            trainer.update()
        if save is not None:
            saved = save.wait()
            say(saved=saved.sequence, versions=dict(saved.versions), live=trainer.updates)


def resume(say: Say, **given: Any) -> None:
    """Resume, and tell everything."""
    trainer = Trainer(given["rank"], given["world"])
    asked = {key: given[key] for key in ("strict", "allow", "fresh", "budget_bytes") if key in given}
    before = fingerprint({name: item.array for name, item in trainer.items.items()})
    try:
        with opened(**given) as session:
            there = session.resume(trainer.state, **asked)
            report = session.report
            say(
                there=there, state=trainer.told(), sequence=report.sequence if report else None,
                skipped=[[each.sequence, each.reason] for each in report.skipped] if report else [],
                allowed=list(report.allowed) if report else [],
            )  # fmt: skip
    except CheckpointError as error:
        untouched = before == fingerprint({name: item.array for name, item in trainer.items.items()})
        say(error=type(error).__name__, message=str(error), untouched=untouched)


STORIES: dict[str, Callable[..., None]] = {"train": train, "resume": resume}

__all__ = ["STORIES", "Array", "Trainer", "opened", "os", "signal", "threading", "whole"]
