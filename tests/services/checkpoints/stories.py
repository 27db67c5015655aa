"""What contributors do in tests, each in a process of its own: `python -m <this module> NAME JSON`."""

import json
import sys
from collections.abc import Callable
from typing import Any

from services.checkpoints.errors import CheckpointError
from tests.services.checkpoints import capture_stories, meeting_stories, session_stories

STORIES: dict[str, Callable[..., None]] = {
    **capture_stories.STORIES,
    **meeting_stories.STORIES,
    **session_stories.STORIES,
}


def say(**words: Any) -> None:
    """One line to the test."""
    sys.stdout.write(json.dumps(words) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Play one story; a named error is its last word."""
    name, told = sys.argv[1], json.loads(sys.argv[2])
    try:
        STORIES[name](say, **told)
    except CheckpointError as error:
        say(error=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
