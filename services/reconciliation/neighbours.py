"""The other workers of this host, known by their marks: who of them has died is known at once, without a heartbeat.

Watching costs one small indexed read and a look at /proc for each of them. What it finds is a reason to sweep, never a
conclusion: whatever it misses, heartbeats and the sweep's Schedule find later.
"""

from collections.abc import Callable

from services.journal.reads import JournalReads

# Marks of before this worker started name those who worked then.
_ENTRIES_LOOKED_BACK = 1000

Worker = dict[str, str | int]


class Neighbours:
    """Who marks attempts in a journal, and lives.

    Args:
        journal: where the marks are.
        host: where this process runs, as marks name it: of other hosts nothing is ever proven.
        provably_dead: whether the process of a mark is gone for certain.
    """

    def __init__(self, journal: JournalReads, *, host: str, provably_dead: Callable[[Worker], bool]) -> None:
        self._journal = journal
        self._host = host
        self._provably_dead = provably_dead
        self._known: dict[tuple[tuple[str, str | int], ...], Worker] = {}
        self._read = 0

    def newly_dead(self) -> list[Worker]:
        """Those who have died since they were last asked for, each once. Blocks: call it from a thread.

        Raises:
            SQLAlchemyError: the journal cannot be read.
        """
        workers, self._read = self._journal.marking_workers(after_id=self._read, limit=_ENTRIES_LOOKED_BACK)
        for worker in workers:
            if worker.get("host") == self._host:
                self._known[tuple(sorted(worker.items()))] = worker
        dead = {identity: worker for identity, worker in self._known.items() if self._provably_dead(worker)}
        for identity in dead:
            del self._known[identity]
        return list(dead.values())
