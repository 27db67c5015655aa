"""What a session does under `checkpoint delay-test`: it comes late at one point, and leaves what its boundaries were.

Off unless the environment says otherwise: COUNTERFOIL_CHECKPOINT_DELAY holds a JSON object that the test writes. A
session then

- is late at the named point of each save, if it is the named contributor's;
- leaves the digest of every live array at each boundary: when the trainer asks `agree_stop`, on its own thread;
- leaves the name of each error that a save ended with.
"""

import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from .delays import At
from .dtypes import Array
from .errors import Incompatible
from .records import digest_of
from .state import State

VARIABLE: Final = "COUNTERFOIL_CHECKPOINT_DELAY"
ENTERED: Final = "entered"  # where a save begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """What a run under test is told.

    Attributes:
        folder: where sessions leave what they saw.
        point: of a save, at which the contributor is late; None: nobody is.
        rank: of the contributor.
        seconds: how late it is.
    """

    folder: str
    point: str | None = None
    rank: int = 0
    seconds: float = 0.0

    def told(self) -> str:
        """As the environment has it."""
        return json.dumps(asdict(self))

    @classmethod
    def hear(cls, text: str) -> Self:
        """What the environment says.

        Raises:
            Incompatible: it is not what a test writes; a session that ignored it would pass untested.
        """
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError) as error:
            raise Incompatible(
                f"{VARIABLE} is set and is not what `checkpoint delay-test` writes: unset it. Nothing was opened."
            ) from error


class Probe:
    """One session under test.

    Args:
        delay: what the test wants.
        rank: the session's contributor.
        at: what the session would be held by otherwise; it is asked, too.
    """

    def __init__(self, delay: Delay, rank: int, at: At) -> None:
        self._delay = delay
        self._rank = rank
        self._at = at
        self._state: State | None = None
        self._thread = threading.get_ident()
        self._looks = 0
        self._late = False

    @classmethod
    def asked_for(cls, rank: int, at: At) -> Self | None:
        """The probe, where the environment asks for one."""
        text = os.environ.get(VARIABLE)
        return None if not text else cls(Delay.hear(text), rank, at)

    def __call__(self, point: str) -> None:
        """Be late here, once in each save."""
        self._at(point)
        if point == ENTERED:
            self._late = False
        if (point, self._rank) == (self._delay.point, self._delay.rank) and not self._late:
            self._late = True
            self._leave({"late": point})
            threading.Event().wait(self._delay.seconds)

    def knows(self, state: State) -> None:
        """This is the live state from now on."""
        self._state = state

    def boundary(self, updates: int) -> None:
        """The trainer stands at a boundary and nothing mutates: leave what is in the live arrays."""
        self._looks += 1
        if self._state is not None and threading.get_ident() == self._thread:
            told = {name: of(item.array) for name, item in self._state.items.items()}
            self._leave({"look": self._looks, "updates": updates, "items": told})

    def refused(self, error: BaseException) -> None:
        """A save ended so."""
        self._leave({"refused": type(error).__name__})

    def _leave(self, what: Mapping[str, Any]) -> None:
        line = json.dumps({"rank": self._rank, **what}) + "\n"
        with Path(self._delay.folder, f"{self._rank}.jsonl").open("a", encoding="utf-8") as file:
            file.write(line)


def of(array: Array) -> str:
    """The digest of an array's bytes, in C order, as a record has it."""
    return digest_of(memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data))
