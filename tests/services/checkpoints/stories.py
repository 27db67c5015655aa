"""What contributors do in tests, each in a process of its own: forked here, on request, and waited for."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from services.checkpoints.errors import CheckpointError
from services.checkpoints.group import until
from tests.services.checkpoints import capture_stories, meeting_stories, session_stories, writer

STORIES: dict[str, Callable[..., None]] = {
    **capture_stories.STORIES,
    **meeting_stories.STORIES,
    **session_stories.STORIES,
    **writer.STORIES,
}


def say(**words: Any) -> None:
    """One line to the test."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def play(name: str, told: dict[str, Any], output: Path) -> None:
    """Become a contributor: play one story, with a named error as its last word, and end."""
    code = 1
    try:
        for stream, suffix in ((1, ".out"), (2, ".err")):
            os.dup2(os.open(output.with_suffix(suffix), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            STORIES[name](say, **told)
        except CheckpointError as error:
            say(error=type(error).__name__, message=str(error))
        code = 0
    except BaseException:  # noqa: BLE001 - whatever it was, this process may not go on as the one that forks
        traceback.print_exc()
    finally:
        with suppress(OSError):  # nobody may be there to read it
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def ended(pid: int, seconds: float) -> int | None:
    """How a process ended; one that does not is killed."""

    def look() -> tuple[int, int] | None:
        found = os.waitpid(pid, os.WNOHANG)
        return found if found[0] else None

    found = until(look, seconds=seconds)
    if found is None:
        os.kill(pid, signal.SIGKILL)
        found = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(found[1])


def main() -> None:
    """Fork and wait on request, until nobody asks any more; then nothing is left."""
    alive: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if "story" in asked:
            pid = os.fork()
            if pid == 0:
                play(asked["story"], asked["told"], Path(asked["output"]))
            alive.add(pid)
            say(pid=pid)
        else:
            alive.discard(asked["wait"])
            say(returncode=ended(asked["wait"], asked["seconds"]))
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
