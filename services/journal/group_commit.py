"""Group commit: the write transactions that the threads of one process ask for at the same time become one.

A commit costs a flush to disk, whoever is in it. So while one group is being committed the next callers queue, and the
first of them commits for all. What each caller may rely on:

- It gets its own result, and only after the transaction that it was in is on disk.
- One member's failure is its own: the group is rolled back, goes on without that member, and the member is tried again
  in a transaction of its own, in its own thread. So is a member whose row somebody else holds: in a group nobody waits
  for a lock longer than `GROUP_LOCK_TIMEOUT`, and behind it nobody else waits.
- A member may run more than once, each time on a transaction in which nothing of its former run is left: it must keep
  nothing outside of the transaction.
- When COMMIT gets no answer, every member gets `CommitUnknown`; when it is refused, each member tries alone.
- A member whose thread is interrupted is out of the queue, and nobody waits behind it.
"""

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from services.database import CommitUnknown, DatabaseUnreachable, writing

T = TypeVar("T")

# Above the 50 ms for which a sealer may queue before the writers; a rival's commit is over by then, too.
GROUP_LOCK_TIMEOUT = "100ms"
# Enough to make the flush cheap, few enough to roll back for one member.
GROUP_LIMIT = 64


class _Member(Generic[T]):
    """One caller's transaction: waiting, then told to lead a group, to go alone, or its result."""

    def __init__(self, work: Callable[[sa.Connection], T]) -> None:
        self.work = work
        self.told = threading.Event()
        self.alone = False
        self.error: BaseException | None = None
        self.result: T

    def take(self) -> T:
        if self.error is not None:
            raise self.error
        return self.result


class GroupCommit:
    """The write transactions of one process on one database."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._waiting: list[_Member[Any]] = []
        self._leader: _Member[Any] | None = None

    def run(self, work: Callable[[sa.Connection], T]) -> T:
        """Run `work` in a write transaction and return what it returned once that is on disk. Blocks.

        Raises:
            CommitUnknown: COMMIT got no answer.
            DatabaseUnreachable: nothing was written.
            Exception: whatever `work` raised; nothing of it was written.
        """
        member = _Member(work)
        try:
            with self._lock:
                self._waiting.append(member)
                self._leader = self._leader or member
            if self._leader is not member:
                member.told.wait()
            if self._leader is member:
                self._lead()
        except BaseException:  # a signal in this thread
            self._leave(member)
            raise
        if member.alone:
            with writing(self._engine) as connection:
                return work(connection)
        return member.take()

    def _leave(self, member: _Member[Any]) -> None:
        """Nobody waits behind a member that was interrupted; a leader's work is not begun again."""
        with self._lock:
            if member in self._waiting:
                self._waiting.remove(member)
            if self._leader is member:
                self._pass_on()

    def _pass_on(self) -> None:
        """Let the first one that waits lead. Under the lock."""
        self._leader = self._waiting[0] if self._waiting else None
        if self._leader is not None:
            self._leader.told.set()

    def _lead(self) -> None:
        """Commit the first members that wait, then let the next one lead."""
        with self._lock:
            group, self._waiting = self._waiting[:GROUP_LIMIT], self._waiting[GROUP_LIMIT:]
        try:
            self._commit(list(group))
        except BaseException:  # a signal in the leader's thread: no member may wait for ever
            for member in group:
                member.error = CommitUnknown("Whoever was committing this was interrupted; what it says is read again.")
            raise
        finally:
            with self._lock:
                self._pass_on()
            for member in group:
                member.told.set()

    def _commit(self, group: list[_Member[Any]]) -> None:
        """Commit as many as can go together; whoever cannot is told to go alone."""
        while group:
            at: _Member[Any] | None = None
            try:
                with writing(self._engine) as connection:
                    if connection.dialect.name == "postgresql":
                        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{GROUP_LOCK_TIMEOUT}'")
                    for at in group:
                        at.result = at.work(connection)
                    at = None
            except (CommitUnknown, DatabaseUnreachable) as error:
                for member in group:
                    member.error = error
                return
            except Exception:  # noqa: BLE001 - it is its member's, who meets it again in its own thread
                # What the COMMIT itself refuses is somebody's among them: each finds out alone.
                failed = [at] if at is not None else group[:]
                for member in failed:
                    member.alone = True
                    group.remove(member)
            else:
                return
