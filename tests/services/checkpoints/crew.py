"""Real processes that play contributors: started together, listened to, killed, and gone when the test is over.

A story is a function of `tests.services.checkpoints.stories`, named by what it plays. Each rank runs it in a process of
its own and says lines of JSON; what it says last is its end, and a named error is said, never a traceback.

The processes are forked by one that has imported everything and does nothing else: a start costs milliseconds.
"""

import atexit
import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from services.checkpoints.delays import wait_for
from services.checkpoints.group import until
from services.checkpoints.meeting import new_launch

TREE = Path(__file__).parents[3]
# Three processes on two cores which others use as well.
PATIENCE_SECONDS = 60.0


class Nursery:
    """The process that forks all others, and waits for them."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.services.checkpoints.stories"],
            cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **words: Any) -> dict[str, Any]:
        """One request and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it: it kills whatever it still has."""
        self._process.communicate()


@functools.cache
def nursery() -> Nursery:
    """One for all tests of this process."""
    made = Nursery()
    atexit.register(made.close)
    return made


class Player:
    """One process.

    Attributes:
        pid: its process id.
        returncode: how it ended; minus the signal that killed it.
        said: every line it said, once it has ended.
        errors: what it wrote to stderr.
    """

    def __init__(self, story: str, told: dict[str, Any], output: Path) -> None:
        self._output = output
        for suffix in (".out", ".err"):  # who is killed before it has begun has said nothing
            output.with_suffix(suffix).touch()
        self.pid: int = nursery().ask(story=story, told=told, output=str(output))["pid"]
        self.returncode: int | None = None
        self.said: list[dict[str, Any]] = []
        self.errors = ""

    def end(self) -> Self:
        """Wait for its end and take what it said."""
        if self.returncode is None:
            self.returncode = nursery().ask(wait=self.pid, seconds=PATIENCE_SECONDS)["returncode"]
            self.said = [json.loads(line) for line in self._output.with_suffix(".out").read_text().splitlines()]
            self.errors = self._output.with_suffix(".err").read_text()
        return self

    def kill(self) -> Self:
        """SIGKILL, and take what it had said by then."""
        os.kill(self.pid, signal.SIGKILL)
        self.end()
        assert self.returncode == -signal.SIGKILL
        return self

    def stop(self) -> Self:
        """End it if it has not ended by itself."""
        os.kill(self.pid, signal.SIGKILL)
        return self.end()

    @property
    def last(self) -> dict[str, Any]:
        """What it said last."""
        assert self.said, self.errors
        return self.said[-1]


class Crew:
    """The processes of one test.

    Args:
        folder: where the store's root and the files of held processes are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self._players: list[Player] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for player in self._players:
            if player.returncode is None:
                os.kill(player.pid, signal.SIGKILL)
                player.end()

    def start(self, story: str, world: int, *, ranks: Sequence[int] | None = None, **given: Any) -> list[Player]:
        """Start a story on all ranks, or on some; what is given is the same for all, but for what `by_rank` says."""
        by_rank = given.pop("by_rank", {})
        launch = given.pop("launch", None) or new_launch()
        started: list[Player] = []
        for rank in range(world) if ranks is None else ranks:
            told = {
                "root": str(self.root), "folder": str(self.folder), "rank": rank, "world": world, "launch": launch,
                **given, **by_rank.get(rank, {}),
            }  # fmt: skip
            started.append(Player(story, told, self.folder / f"player-{len(self._players) + len(started)}"))
        self._players += started
        return started

    def play(self, story: str, world: int, **given: Any) -> list[Player]:
        """Start a story and wait for everybody's end."""
        return [player.end() for player in self.start(story, world, **given)]

    def held(self, point: str, rank: int) -> None:
        """Wait until a contributor is held at a point; a point that is not reached fails the test."""
        assert wait_for(self.folder / f"{point}.{rank}.held", longest_seconds=PATIENCE_SECONDS), f"{point} not reached"

    def there(self, pattern: str) -> None:
        """Wait until a file of the store is there."""
        found = until(lambda: list(self.root.glob(pattern)), seconds=PATIENCE_SECONDS)
        assert found, f"{pattern} did not come"

    def let_go(self, point: str, rank: int) -> None:
        """Let a held contributor go on."""
        self.folder.joinpath(f"{point}.{rank}.go").touch()
