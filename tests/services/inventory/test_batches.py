"""The queues: who comes while a batch is under way is the next one."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from services.inventory.batches import MAX_BATCH, Batches
from services.inventory.contract import Answer, Call, Outcome, VoidCall
from services.inventory.loading import NotTogether
from services.inventory.problems import Refused, overloaded


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
        assert self.may_go.wait(20)
        return [answer_of(call) for call in calls]


async def test_what_comes_while_a_batch_is_under_way_is_the_next_batch_in_order() -> None:
    """The first goes at once and alone; each caller gets its own answer."""
    executed = Executed()
    sizes: list[int] = []
    batches = Batches(executed, 1, sizes.append)
    first = asyncio.create_task(batches.answer("acme", void(0)))
    await asyncio.to_thread(executed.begun.wait, 20)
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
    await asyncio.to_thread(executed.begun.wait, 20)
    executed.begun.clear()
    other = asyncio.create_task(batches.answer("globex", void(1, "globex")))
    assert await asyncio.to_thread(executed.begun.wait, 20)
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
