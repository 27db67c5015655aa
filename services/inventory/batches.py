"""Requests that come while a tenant's last batch is under way are its next batch: one transaction for all of them.

- Nobody waits for company: a request that finds its tenant idle goes at once, alone. A tenant's batches follow each
  other, so its calls never wait for each other's locks; other tenants' batches run beside it.
- What cannot go together goes alone, beside the next batch, on no more than half of the threads (or the only one): the
  rest is for other tenants, however long these wait for their locks.
- A tenant may have so many requests waiting; who comes then is told so at once, and nothing is executed for it.
"""

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from services.inventory.contract import Answer
from services.inventory.loading import NotTogether
from services.inventory.problems import Refused, overloaded

# Enough that a commit is worth it; a batch of them is a few milliseconds of work.
MAX_BATCH = 64
# Work for seconds: who waited behind it would give up before its turn, and come again.
MAX_WAITING = 1000

Asked = TypeVar("Asked")


class Batches(Generic[Asked]):
    """The queues of all tenants, of one kind of request.

    Args:
        execute: answers one tenant's requests together, in their order; it blocks, and runs in a thread.
        threads: how many batches may be executed at once.
        told: called with the size of every batch that was executed.
    """

    def __init__(
        self,
        execute: Callable[[str, Sequence[Asked]], list[Answer | Refused]],
        threads: int,
        told: Callable[[int], None] = lambda _size: None,
    ) -> None:
        self._execute = execute
        self._limiter = anyio.CapacityLimiter(threads)
        self._told = told
        self._asking: Counter[str] = Counter()
        self._waiting: dict[str, deque[tuple[Asked, asyncio.Future[Answer]]]] = {}
        self._alone: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(max(threads // 2, 1)))
        self._running: set[asyncio.Task[None]] = set()

    async def answer(self, tenant: str, asked: Asked) -> Answer:
        """Answer a request, in its turn.

        Raises:
            Refused: it was refused, and nothing was stored for it.
        """
        if self._asking[tenant] >= MAX_WAITING:
            raise overloaded()
        self._asking[tenant] += 1
        try:
            return await self._in_turn(tenant, asked)
        finally:
            self._asking[tenant] -= 1

    async def _in_turn(self, tenant: str, asked: Asked) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(tenant)
        if waiting is None:
            waiting = self._waiting[tenant] = deque()
            self._begin(self._work_off(tenant, waiting))
        waiting.append((asked, answer))
        return await answer

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work_off(self, tenant: str, waiting: "deque[tuple[Asked, asyncio.Future[Answer]]]") -> None:
        while waiting:
            batch = [waiting.popleft() for _ in range(min(len(waiting), MAX_BATCH))]
            await self._together(tenant, batch)
        del self._waiting[tenant]

    async def _together(self, tenant: str, batch: "Sequence[tuple[Asked, asyncio.Future[Answer]]]") -> None:
        asked = [one for one, _ in batch]
        try:
            answers = await anyio.to_thread.run_sync(lambda: self._execute(tenant, asked), limiter=self._limiter)
        except Exception as error:  # noqa: BLE001 - it is the answer of all who wait
            for one in batch:
                if isinstance(error, NotTogether) and len(batch) > 1:
                    # Beside the next batch, which need not wait for what holds these up.
                    self._begin(self._by_itself(tenant, one))
                else:
                    _settle(one[1], error)
        else:
            self._told(len(batch))
            for (_, answer), settled in zip(batch, answers, strict=True):
                _settle(answer, settled)

    async def _by_itself(self, tenant: str, one: "tuple[Asked, asyncio.Future[Answer]]") -> None:
        async with self._alone[tenant]:
            await self._together(tenant, [one])


def _settle(answer: "asyncio.Future[Answer]", settled: Answer | Exception) -> None:
    if answer.done():  # nobody waits any more
        return
    if isinstance(settled, Exception):
        answer.set_exception(settled)
    else:
        answer.set_result(settled)
