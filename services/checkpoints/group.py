"""How the contributors of one launch speak with each other: words under names that are used once, and deadlines.

What an implementation guarantees: a word is seen whole or not at all, a name is published once, and a word that was
published is seen by everybody soon after. Words are not durable: a checkpoint's truth is in its files.

`meeting.Meeting` is the one for a shared file system. Over a network, a key-value store that can create a key only when
it is absent is enough.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from . import errors
from .errors import CheckpointError, CommitFailed, ContributorMissing, CoordinatorLost

Body = dict[str, Any]
T = TypeVar("T")

# A wait begins with the first and is never longer than the last: three processes that poll cost little, and a trainer
# that waits for the last of the captures waits at most that much longer than it must.
_FIRST_PAUSE_SECONDS: Final = 0.0005
_LONGEST_PAUSE_SECONDS: Final = 0.005

MEET: Final = "meet"
COORDINATOR: Final = 0


def error_body(error: CheckpointError, *, who: str = "") -> Body:
    """An error as a word: its name and what it says."""
    return {"error": {"type": type(error).__name__, "message": f"{who}{error}"}}


def error_of(body: Mapping[str, Any]) -> CheckpointError | None:
    """The error that a word carries, if it carries one."""
    match body.get("error"):
        case {"type": str(name), "message": str(message)}:
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, CheckpointError):
                return kind(message)
            return CommitFailed(message)
        case _:
            return None


def told_by(rank: int, error: CheckpointError) -> CheckpointError:
    """The same error, with the contributor that had it named once."""
    return error if str(error).startswith("contributor ") else type(error)(f"contributor {rank}: {error}")


class Group(ABC):
    """The contributors of one launch.

    Attributes:
        rank: this contributor's number; 0 is the coordinator.
        world: how many there are.
    """

    def __init__(self, *, rank: int, world: int) -> None:
        self.rank = rank
        self.world = world

    @abstractmethod
    def publish(self, place: str, name: str, body: Body) -> None:
        """Say a word.

        Raises:
            DuplicateContributor: the name was published already: somebody else speaks under our number.
        """

    @abstractmethod
    def look(self, place: str, name: str) -> Body | None:
        """A word that was said, or None."""

    @abstractmethod
    def forget(self, place: str, name: str) -> None:
        """Take back a word of one's own that everybody has seen."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""

    @abstractmethod
    def leave(self, place: str) -> None:
        """Nothing is said or looked at in this place any more."""

    def gone(self, rank: int) -> bool:
        """Whether it is certain that this contributor says nothing more; False where that cannot be known."""
        del rank
        return False

    def wait(
        self, place: str, names: Sequence[str], *, seconds: float, over: Callable[[], bool] = lambda: False
    ) -> tuple[str, Body] | None:
        """The first of these words of the coordinator that is said.

        Returns:
            None when the deadline passes first, the coordinator is gone, or `over` says that no word is needed.
        """
        heard: list[tuple[str, Body]] = []

        def look() -> bool:
            ended = self.gone(COORDINATOR) or over()  # before the words: what it said last is heard all the same
            for name in names:
                if (body := self.look(place, name)) is not None:
                    heard.append((name, body))
                    return True
            return ended

        until(look, seconds=seconds)
        return heard[0] if heard else None

    def broadcast(self, place: str, name: str, body: Body | None, *, seconds: float) -> Body:
        """The coordinator's word, to all.

        Args:
            place: where it is said.
            name: its name, used once.
            body: the word, at the coordinator.
            seconds: how long the others wait.

        Raises:
            CoordinatorLost: it did not come in time.
        """
        if self.rank == COORDINATOR:
            if body is None:
                raise ValueError("The coordinator broadcasts a word of its own.")
            self.publish(place, name, body)
            return body
        heard = self.wait(place, (name,), seconds=seconds)
        if heard is None:
            raise CoordinatorLost(
                f"The coordinator (contributor 0) ended, or did not say {name!r} within {seconds:g} s. Nothing was "
                "published by this; committed checkpoints stand: start all contributors again with a fresh launch id."
            )
        return heard[1]

    def gather(
        self,
        place: str,
        name: str,
        body: Body,
        *,
        seconds: float,
        absent: tuple[str, str] | None = None,
        until_error: bool = True,
    ) -> dict[int, Body]:
        """Everybody's word, at the coordinator; elsewhere only this one's.

        Args:
            place: where it is said.
            name: its name before the rank, used once.
            body: this contributor's word.
            seconds: how long the coordinator waits.
            absent: place and name under which a contributor says that it does not take part, and why.
            until_error: end when a word carries an error, without waiting for the others.

        Raises:
            ContributorMissing: a word did not come in time; the message names who did not speak.
        """
        self.publish(place, f"{name}.{self.rank}", body)
        heard = {self.rank: body}
        if self.rank != COORDINATOR:
            return heard
        gone: set[int] = set()

        def look() -> bool:
            for rank in range(self.world):
                if rank in heard:
                    continue
                if self.gone(rank):  # before its word: what it said last is heard all the same
                    gone.add(rank)
                word = self.look(place, f"{name}.{rank}")
                if word is None and absent is not None:
                    word = self.look(absent[0], f"{absent[1]}.{rank}")
                if word is not None:
                    heard[rank] = word
            if gone - heard.keys() or len(heard) == self.world:
                return True
            return until_error and any("error" in word for word in heard.values())

        reported = until(look, seconds=seconds)
        if ended := gone - heard.keys():
            raise missing(ended, f"ended and had not said {name!r}")
        if not reported:
            raise missing(set(range(self.world)) - heard.keys(), f"did not say {name!r} within {seconds:g} s")
        return heard


def missing(ranks: set[int], what: str) -> ContributorMissing:
    """The error about contributors that did not report."""
    listed = ", ".join(map(str, sorted(ranks)))
    return ContributorMissing(
        f"Contributor {listed} {what}. Nothing was published and the previous checkpoint stands; the others are "
        "released: look whether it still runs, then save again or start all again."
    )


def until(look: Callable[[], T], *, seconds: float) -> T:
    """Look until there is something, or until the deadline: then it is looked at once more."""
    end = time.monotonic() + seconds
    pause, waiting = _FIRST_PAUSE_SECONDS, threading.Event()
    while True:
        late = time.monotonic() >= end
        if (found := look()) or late:
            return found
        waiting.wait(min(pause, max(end - time.monotonic(), 0)))
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
