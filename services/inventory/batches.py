"""Calls that come while a tenant's last batch is being committed are its next batch.

Nobody waits for company: a call that finds its tenant idle goes at once, alone. A tenant's batches follow each other,
so its calls never wait for each other's locks; other tenants' batches run beside it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

import anyio
import anyio.to_thread

from services.inventory.contract import Answer, Call
from services.inventory.loading import NotTogether
from services.inventory.problems import Refused

# Enough that a commit is worth it; a batch of them is a few milliseconds of work.
MAX_BATCH = 64

Execute = Callable[[str, Sequence[Call]], list[Answer | Refused]]
_Waiting = deque[tuple[Call, "asyncio.Future[Answer]"]]


class Batches:
    """The queues of all tenants.

    Args:
        execute: executes one tenant's calls together; it blocks, and runs in a thread.
        threads: how many batches may be executed at once.
        told: called with the size of every batch that was executed.
    """

    def __init__(self, execute: Execute, threads: int, told: Callable[[int], None]) -> None:
        self._execute = execute
        self._limiter = anyio.CapacityLimiter(threads)
        self._told = told
        self._waiting: dict[str, _Waiting] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def perform(self, call: Call) -> Answer:
        """Execute a call, in its turn.

        Raises:
            Refused: nothing was executed by this delivery, and nothing stored.
        """
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.get(call.tenant)
        if waiting is None:
            waiting = self._waiting[call.tenant] = deque()
            self._begin(self._work_off(call.tenant, waiting))
        waiting.append((call, answer))
        return await answer

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _work_off(self, tenant: str, waiting: _Waiting) -> None:
        while waiting:
            batch = [waiting.popleft() for _ in range(min(len(waiting), MAX_BATCH))]
            await self._together(tenant, batch)
        del self._waiting[tenant]

    async def _together(self, tenant: str, batch: Sequence[tuple[Call, "asyncio.Future[Answer]"]]) -> None:
        calls = [call for call, _ in batch]
        try:
            answers = await anyio.to_thread.run_sync(lambda: self._execute(tenant, calls), limiter=self._limiter)
        except Exception as error:  # noqa: BLE001 - it is the answer of all who wait
            for one in batch:
                if isinstance(error, NotTogether) and len(batch) > 1:
                    # Beside the next batch, which need not wait for what holds these up.
                    self._begin(self._together(tenant, [one]))
                else:
                    _settle(one[1], error)
        else:
            self._told(len(batch))
            for (_, answer), settled in zip(batch, answers, strict=True):
                _settle(answer, settled)


def _settle(answer: "asyncio.Future[Answer]", settled: Answer | Exception) -> None:
    if answer.done():  # nobody waits any more
        return
    if isinstance(settled, Exception):
        answer.set_exception(settled)
    else:
        answer.set_result(settled)
