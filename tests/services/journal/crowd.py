"""Callers that come while a group is being committed: the first is held in its transaction, the others queue."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa

from services.journal.group_commit import GroupCommit

# Longer than anything here takes; a test that needs it has failed.
PATIENCE = 60


class Waiting(list[Any]):
    """The queue of members, which says when somebody has joined it."""

    def __init__(self) -> None:
        super().__init__()
        self.joined = threading.Semaphore(0)
        self.next_told: threading.Event | None = None

    def append(self, member: Any) -> None:
        """Somebody joins."""
        super().append(member)
        if self.next_told is not None:
            member.told, self.next_told = self.next_told, None
        self.joined.release()


class Crowd:
    """Callers of one `GroupCommit`: the first is held inside its transaction until `go`, the others queue behind it."""

    def __init__(self, commits: GroupCommit, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._go = threading.Event()
        self.commits = commits
        self.queue = Waiting()

    def lead(self, work: Callable[[sa.Connection], Any]) -> "Future[Any]":
        """The first caller; returns once it is inside its transaction."""
        inside = threading.Event()

        def held(connection: sa.Connection) -> Any:
            inside.set()
            assert self._go.wait(PATIENCE)
            return work(connection)

        future = self._pool.submit(self.commits.run, held)
        assert inside.wait(PATIENCE)
        self.commits._waiting = self.queue
        return future

    def follow(self, *works: Callable[[sa.Connection], Any]) -> "list[Future[Any]]":
        """Further callers, in this order; returns once they queue."""
        return [self.queued(lambda work=work: self.commits.run(work)) for work in works]  # type: ignore[misc]

    def queued(self, call: Callable[[], Any]) -> "Future[Any]":
        """One further caller, by whatever way it comes."""
        future = self._pool.submit(call)
        assert self.queue.joined.acquire(timeout=PATIENCE)
        return future

    def go(self) -> None:
        """Let the first caller commit."""
        self._go.set()


@contextmanager
def crowd(commits: GroupCommit) -> Iterator[Crowd]:
    """Threads enough for everybody; all have ended when the block has."""
    with ThreadPoolExecutor(80) as pool:
        made = Crowd(commits, pool)
        try:
            yield made
        finally:
            made.go()
