"""One save: declared, captured by all, released, written by each, committed by the coordinator or by nobody.

    declare -> captured.<n> (all) -> release | abort -> <n>.json | failed.<n> (all) -> commit -> outcome

What this module guarantees:

- The trainer is blocked until every contributor has captured, and no longer: what is written is the copy.
- A contributor that fails, or that does not report, ends the save for all by name; nothing is published.
- Contributors wait longer than the coordinator does, so that nobody calls a coordinator lost that is alive.
- A contributor that lost its coordinator after the release reads the intended slot: what happened there is the truth,
  and where nothing did, the outcome is unknown and not "not committed".
- A failure in the background that nobody saw is raised by the next save, by `wait` and on close.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from .capture import Captured, capture
from .delays import At
from .errors import (
    CheckpointError,
    CommitFailed,
    CommitUnknown,
    CoordinatorLost,
    CutVersionMismatch,
    FencedWriter,
)
from .group import COORDINATOR, MEET, Body, Group, error_body, error_of, missing, until
from .staging import Staging
from .state import State

DECLARATION: Final = "counterfoil-checkpoint-declaration-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long is waited.

    Attributes:
        entry_seconds: a contributor that called a collective waits so long for the coordinator to begin it.
        capture_seconds: from the declaration until every contributor has captured.
        persist_seconds: from the release until every contributor has written; also for verifying in a restore.
        margin_seconds: so much longer do contributors wait than the coordinator.
    """

    entry_seconds: float = 120.0
    capture_seconds: float = 120.0
    persist_seconds: float = 1800.0
    margin_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A checkpoint that is committed.

    Attributes:
        sequence: its place in the run's log.
        digest: of its manifest.
        save_id: 128 bits that no other save has.
        versions: the counters of this contributor's copy.
        blocked_seconds: how long the trainer waited for all captures.
        persist_seconds: from the release to the outcome.
        nbytes: what this contributor captured.
    """

    sequence: int
    digest: str
    save_id: str
    versions: Mapping[str, int]
    blocked_seconds: float
    persist_seconds: float
    nbytes: int


class Save:
    """A save under way: all have captured, and the trainer goes on."""

    def __init__(self, save_id: str) -> None:
        self.save_id = save_id
        self._over = threading.Event()
        self._result: Saved | None = None
        self._error: BaseException | None = None
        self.seen = False

    def run(self, work: Callable[[], Saved]) -> None:
        """Do the work in the background; its result or error is kept until somebody asks."""

        def target() -> None:
            try:
                self._result = work()
            except BaseException as error:  # noqa: BLE001 - it is raised where somebody waits for it
                self._error = error
            finally:
                self._over.set()

        # A process whose trainer is done waits for its save in `close`, and not in the interpreter's exit.
        threading.Thread(target=target, name=f"checkpoint-{self.save_id[:8]}", daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether it is over, in one way or the other."""
        return self._over.is_set()

    @property
    def unseen(self) -> BaseException | None:
        """Its failure, when it is over and nobody was told."""
        return None if self.seen or not self.done else self._error

    def settle(self) -> None:
        """Wait until it is over, without asking how it ended."""
        self._over.wait()

    def wait(self, timeout_seconds: float | None = None) -> Saved:
        """Wait for the commit.

        Raises:
            TimeoutError: it is not over yet; it goes on.
            CheckpointError: it failed, and how.
        """
        if not self._over.wait(timeout_seconds):
            raise TimeoutError(f"The save is not over after {timeout_seconds} s. It goes on: wait again.")
        self.seen = True
        if self._error is not None:
            raise self._error
        assert self._result is not None  # noqa: S101 - over without an error
        return self._result


class Store(Protocol):
    """What a save asks of the files."""
