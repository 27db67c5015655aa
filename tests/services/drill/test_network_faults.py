"""The handle of an armed fault: each wait has an end."""

import asyncio

import pytest

from services.drill.network_faults import (
    Armed,
    Call,
    DropRequest,
    FaultNotReached,
    LoseResponse,
    Moment,
    ProxyEvent,
)

CALL = Call(method="POST", path="/", key="k")
EVENT = ProxyEvent(call=CALL, fault=DropRequest(), moment=Moment.CLOSED)


def test_faults_are_data() -> None:
    """Equal when they say the same."""
    assert LoseResponse(reset=True) == LoseResponse(reset=True)
    assert len({LoseResponse(), LoseResponse(reset=True), DropRequest()}) == 3


async def test_a_wait_that_is_given_up_disarms_nothing() -> None:
    """A time limit around it cancels the wait alone."""
    armed = Armed(DropRequest(), lambda _call: True)
    waiting = asyncio.create_task(armed.reached())
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    armed.reach(EVENT)
    armed.finish()
    assert await armed.reached() == EVENT
    await armed.done()
    assert armed.has_fired


async def test_a_fault_cut_short_tells_whoever_waits() -> None:
    """And one that was reached stays reached."""
    never, cut = (Armed(DropRequest(), lambda _call: True) for _ in range(2))
    cut.reach(EVENT)
    for armed in (never, cut):
        assert not armed.has_fired or armed is cut
        armed.finish("the proxy has closed")
        with pytest.raises(FaultNotReached, match="the proxy has closed"):
            await armed.done()
    assert (never.has_fired, cut.has_fired) == (False, True)
    with pytest.raises(FaultNotReached):
        await never.reached()
