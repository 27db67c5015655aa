"""The queues: who comes while a batch is under way is the next one."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from services.inventory.batches import MAX_BATCH, MAX_WAITING, Batches
from services.inventory.contract import Answer, Call, Outcome, VoidCall
from services.inventory.loading import NotTogether
from services.inventory.problems import Problem, Refused, overloaded


def void(number: int, tenant: str = "acme") -> VoidCall:
    """A call."""
    return VoidCall(tenant=tenant, key=f"key-{number:016d}")


def answer_of(call: Call) -> Answer:
    """Its answer, which names it."""
    assert isinstance(call, VoidCall)
    return Answer(http_status=200, body=call.key.encode(), outcome=Outcome.VOIDED, replayed=False)


class Executed:
    """Executes batches when it is let, and remembers them."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, int]] = []
        self.may_go = threading.Event()
        self.begun = threading.Event()

    def __call__(self, tenant: str, calls: Sequence[Call]) -> list[Answer | Refused]:
        """Wait for leave, then answer."""
        self.batches.append((tenant, len(calls)))
        self.begun.set()
        assert self.may_go.wait(60)
        return [answer_of(call) for call in calls]


async def test_what_comes_while_a_batch_is_under_way_is_the_next_batch_in_order() -> None:
    """The first goes at once and alone; each caller gets its own answer."""
    executed = Executed()
    sizes: list[int] = []
    batches = Batches(executed, 1, sizes.append)
    first = asyncio.create_task(batches.answer("acme", void(0)))
    await asyncio.to_thread(executed.begun.wait, 60)
    later = [asyncio.create_task(batches.answer("acme", void(number))) for number in range(1, MAX_BATCH + 11)]
    await asyncio.wait(later, timeout=0.01)  # all of them are in the queue
    executed.may_go.set()
    answers = await asyncio.gather(first, *later)
    assert [answer.body for answer in answers] == [void(number).key.encode() for number in range(MAX_BATCH + 11)]
    assert executed.batches == [("acme", 1), ("acme", MAX_BATCH), ("acme", 10)]
    assert sizes == [1, MAX_BATCH, 10]


async def test_one_tenants_batch_does_not_keep_anothers_waiting() -> None:
    """They run side by side, as many as there are threads."""
    executed = Executed()
    batches = Batches(executed, 2, lambda _size: None)
    one = asyncio.create_task(batches.answer("acme", void(1)))
    await asyncio.to_thread(executed.begun.wait, 60)
    executed.begun.clear()
    other = asyncio.create_task(batches.answer("globex", void(1, "globex")))
    assert await asyncio.to_thread(executed.begun.wait, 60)
    executed.may_go.set()
    await asyncio.gather(one, other)
    assert sorted(executed.batches) == [("acme", 1), ("globex", 1)]


async def test_calls_that_cannot_go_together_go_alone() -> None:
    """Each has its own end, and one that fails fails alone."""

    def execute(_tenant: str, calls: Sequence[Call]) -> list[Answer | Refused]:
        if len(calls) > 1:
            raise NotTogether
        if calls[0] == void(2):
            raise overloaded()
        if calls[0] == void(3):
            raise RuntimeError("a defect")
        return [answer_of(calls[0])]

    batches = Batches(execute, 1, lambda _size: None)
    one, two, three = await asyncio.gather(*(batches.answer("acme", void(number)) for number in (1, 2, 3)),
                                           return_exceptions=True)  # fmt: skip
    assert isinstance(one, Answer)
    assert isinstance(two, Refused)
    assert isinstance(three, RuntimeError)


async def test_what_nobody_can_tell_is_told_to_all_of_the_batch() -> None:
    """A commit without an answer is unknown to each of them."""

    def execute(_tenant: str, _calls: Sequence[Call]) -> list[Answer | Refused]:
        raise ConnectionError("no answer")

    batches = Batches(execute, 1, lambda _size: None)
    for outcome in await asyncio.gather(
        batches.answer("acme", void(1)), batches.answer("acme", void(2)), return_exceptions=True
    ):
        assert isinstance(outcome, ConnectionError)


async def test_a_refusal_is_raised_for_its_caller_alone() -> None:
    """The others of its batch are answered."""

    def execute(_tenant: str, calls: Sequence[Call]) -> list[Answer | Refused]:
        return [overloaded() if call == void(1) else answer_of(call) for call in calls]

    batches = Batches(execute, 1, lambda _size: None)
    refused, answer = await asyncio.gather(
        batches.answer("acme", void(1)), batches.answer("acme", void(2)), return_exceptions=True
    )
    assert isinstance(refused, Refused)
    assert isinstance(answer, Answer)
    with pytest.raises(Refused):
        await batches.answer("acme", void(1))


@pytest.mark.parametrize("threads", [1, 2, 10])
async def test_what_goes_alone_and_waits_leaves_threads_to_other_tenants(threads: int) -> None:
    """A batch that fell apart waits for its locks one by one; who comes then has at most a few of them before it."""
    order: list[str] = []
    may_go, apart = threading.Event(), threading.Event()

    def execute(tenant: str, calls: Sequence[Call]) -> list[Answer | Refused]:
        if len(calls) > 1:
            apart.set()
            raise NotTogether
        if calls[0] != void(0):
            if tenant == "acme":
                assert may_go.wait(60)
            order.append(tenant)
        return [answer_of(calls[0])]

    batches = Batches(execute, threads)
    slow = [asyncio.create_task(batches.answer("acme", void(number))) for number in range(MAX_BATCH)]
    await asyncio.to_thread(apart.wait, 60)
    other = asyncio.create_task(batches.answer("globex", void(1, "globex")))
    if threads > 1:  # there is one that nobody of the first tenant's is on
        await asyncio.wait_for(other, 60)
    may_go.set()
    await asyncio.gather(*slow, other)
    assert "globex" in order[:2]


async def test_a_tenant_with_too_many_waiting_is_told_so_and_no_other() -> None:
    """Nothing is executed for whoever comes then; when they are answered there is room again."""
    executed = Executed()
    batches = Batches(executed, 2)
    waiting = [asyncio.create_task(batches.answer("acme", void(number))) for number in range(MAX_WAITING)]
    await asyncio.to_thread(executed.begun.wait, 60)
    with pytest.raises(Refused) as refused:
        await batches.answer("acme", void(MAX_WAITING))
    assert refused.value.problem is Problem.OVERLOADED
    other = asyncio.create_task(batches.answer("globex", void(0, "globex")))
    executed.may_go.set()
    await asyncio.gather(*waiting, other)
    assert sum(size for tenant, size in executed.batches if tenant == "acme") == MAX_WAITING
    assert (await batches.answer("acme", void(0))).body == void(0).key.encode()


async def test_who_no_longer_waits_counts_no_longer_and_holds_up_nobody() -> None:
    """A caller that was cancelled leaves its batch to the others."""
    executed = Executed()
    batches = Batches(executed, 1)
    first = asyncio.create_task(batches.answer("acme", void(0)))
    await asyncio.to_thread(executed.begun.wait, 60)
    later = [asyncio.create_task(batches.answer("acme", void(number))) for number in range(1, MAX_WAITING)]
    await asyncio.wait(later, timeout=0.01)
    for task in later:
        task.cancel()
    await asyncio.wait(later)
    last = asyncio.create_task(batches.answer("acme", void(MAX_WAITING)))
    executed.may_go.set()
    assert (await last).body == void(MAX_WAITING).key.encode()
    await first
