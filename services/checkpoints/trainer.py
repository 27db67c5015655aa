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
from typing import Any

from .errors import CheckpointError
from .learner import Learner, LearnerConfig, row_digests
from .wire import Closed, Line

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
            missing = getattr(error, "missing", ())
            line.tell(error={"type": type(error).__name__, "message": str(error), "missing": list(missing)})
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
    """The whole of a contributor's work."""
    learner = Learner(LearnerConfig(**task["config"]), task["contributor"], task["world"])
    if task["store"] is None:
        while learner.updates < task["until"]:
            attempt(learner, line)
        return
    raise NotImplementedError


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
