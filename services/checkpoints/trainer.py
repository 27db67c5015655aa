"""A contributor of the reference learner: the program that the supervisor starts, and the loop that a trainer writes.

    python -m <this package>.trainer '{"contributor": 0, ...}'

It ends when its supervisor does: by PR_SET_PDEATHSIG on Linux, and everywhere when its socket closes.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from typing import Any

from .delays import nowhere
from .errors import CheckpointError, WeightsOnly
from .learner import Learner, LearnerConfig, row_digests
from .reference import contract_of
from .saving import Deadlines, Save
from .session import Session
from .state import State
from .wire import Closed, Line

# A few processes on one host start in seconds, also on a busy one; a supervisor notices a dead one much earlier.
DEADLINES = Deadlines(entry_seconds=60.0, capture_seconds=60.0, persist_seconds=60.0, margin_seconds=5.0)
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Do one task; 0 when it is done, 1 when it was refused and the supervisor told why."""
    task: dict[str, Any] = json.loads(arguments[0])
    die_with(task["supervisor"])
    with socket.socket(fileno=task["line"]) as connection, socket.socket(fileno=task["points"]) as points:
        line = Line(connection, points)
        try:
            train(task, line)
        except Closed:
            return 1  # the supervisor is gone: there is nobody to tell
        except CheckpointError as error:
            line.tell(error={"type": type(error).__name__, "message": str(error)})
            return 1
        except OSError as error:
            message = f"The system refused ({error}). Committed checkpoints stand: look for a full or read-only disk."
            line.tell(error={"type": type(error).__name__, "message": message})
            return 1
        line.tell(done=True)
    return 0


def die_with(supervisor: int) -> None:
    """Be killed when the supervisor dies, or now when it is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:
        sys.exit("The supervisor is gone. Nothing was done.")


def train(task: dict[str, Any], line: Line) -> None:
    """The whole of a contributor's work: the loop that README shows, with this learner in it.

    Raises:
        CheckpointError: what the store refused; the supervisor is told.
    """
    config = LearnerConfig(**task["config"])
    learner = Learner(config, task["contributor"], task["world"])
    store, until = task["store"], task["until"]
    if store is None:
        while learner.updates < until:
            attempt(learner, line)
        return
    saving = {"update": 0}
    with Session.open(
        store["root"],
        run=store["run"],
        rank=task["contributor"],
        world=task["world"],
        launch=store["launch"],
        contract=contract_of(config),
        config=task["config"],
        deadlines=DEADLINES,
        at=(lambda name: line.point(f"{name}@{saving['update']}")) if store["points"] else nowhere,
    ) as session:
        if store["resume"]:
            resume(session, learner.state(), store, line)
            if learner.updates:  # what was restored is compared too
                line.tell(update=learner.updates, rows=row_digests(learner))
        line.tell(began={"update": learner.updates, "at": time.monotonic()})
        save: Save | None = None
        while learner.updates < until:
            if not attempt(learner, line):
                continue
            stop = session.agree_stop(learner.updates)
            due = stop or learner.updates in store["save_at"]
            if due:
                line.tell(saving={"update": learner.updates, "at": time.monotonic()})
            if save is not None and (due or save.done or not store["overlap"]):
                tell_saved(save, line)
                save = None
            if due:
                saving["update"] = learner.updates
                save = session.save_async(saved_state(learner, store["kind"]), kind=store["kind"],
                                          watermark=store["effects"])  # fmt: skip
                line.tell(released={"update": learner.updates, "at": time.monotonic()})
            if stop:
                break
        if save is not None:
            tell_saved(save, line)


def resume(session: Session, state: State, store: dict[str, Any], line: Line) -> None:
    """Take up the newest checkpoint, beside the journal whose watermark it carries, and tell of it.

    Raises:
        WeightsOnly: there are weights alone; the roles that are missing are told.
        CheckpointError: whatever else the store refuses.
    """
    try:
        # Where weights alone were saved there is nothing older to go back to: what is missing is to be named.
        found = session.resume(state, strict=store["kind"] != "full", watermark=store["watermark"])
    except WeightsOnly:
        newest, _ = session.latest(profile="weights")
        line.tell(missing_roles=[] if newest is None else list(newest.manifest.missing))
        raise
    report = session.report
    if not found or report is None:
        line.tell(resumed={"update": 0, "sequence": None, "skipped": []})
        return
    line.tell(
        resumed={
            "update": report.versions["updates"],
            "sequence": report.sequence,
            "skipped": [[each.sequence, each.reason] for each in report.skipped],
            "effects": None if report.not_undone is None else dict(report.not_undone),
        }
    )


def saved_state(learner: Learner, kind: str) -> State:
    """All of the state, or the weights alone."""
    state = learner.state()
    if kind == "full":
        return state
    weights = {name: item for name, item in state.items.items() if item.role == "param"}
    return State(items=weights, versions=state.versions)


def tell_saved(save: Save, line: Line) -> None:
    """Wait for a save and tell the supervisor of it."""
    saved = save.wait()
    line.tell(
        saved={
            "update": saved.versions["updates"],
            "sequence": saved.sequence,
            "blocked_seconds": saved.blocked_seconds,
            "persist_seconds": saved.persist_seconds,
        }
    )


def attempt(learner: Learner, line: Line) -> bool:
    """One attempt; whether it applied an update, which the supervisor is told."""
    before = learner.updates
    learner.attempt(line.gather)
    if learner.updates == before:
        return False
    line.tell(update=learner.updates, rows=row_digests(learner))
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
