"""What the network may do to one request, and a worker that is told to stop while it waits."""

import asyncio
import signal

import pytest
from temporalio.api.enums.v1 import EventType

from activities.contracts import SEND_DEADLINE_SECONDS
from services.drill.network_faults import DropRequest, DuplicateRequest, LoseResponse, Moment
from services.effects.records import Seen
from tests.faults.books import committed
from tests.faults.harness import Case, reached
from tests.faults.servers import LIMIT_SECONDS
from workflows.policies import DRAIN

pytestmark = pytest.mark.temporal


async def _ends_done(case: Case) -> None:
    result = await case.result()
    assert (result.status, result.outcomes[0].key) == ("done", case.key())


async def test_a_lost_response_is_found_by_look_up_and_never_sent_again(case: Case) -> None:
    """E10, E28: the connection closes over a committed reservation, without a byte."""
    lost = case.proxy.arm(case.key(), LoseResponse())
    await case.start()
    await case.worker()
    assert await reached(lost) == 201
    await _ends_done(case)
    assert await case.books() == committed(posts=1, attempts=1)
    observed = [e.body for e in case.journal.entries(case.key()) if e.kind == "observation"]
    seen = [(body["source"], body["seen"]) for body in observed if "closed_as" not in body]
    assert seen == [("send", "unknown"), ("look_up", "receipt")]


async def test_a_reset_connection_is_no_different_from_a_closed_one(case: Case) -> None:
    """E28: RST instead of FIN."""
    lost = case.proxy.arm(case.key(), LoseResponse(reset=True))
    await case.start()
    await case.worker()
    assert await reached(lost) == 201
    await _ends_done(case)
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_request_delivered_twice_moves_stock_once(case: Case) -> None:
    """E14, E43: the second delivery gets the first one's receipt."""
    doubled = case.proxy.arm(case.key(), DuplicateRequest())
    await case.start()
    await case.worker()
    assert await reached(doubled) == 201
    await _ends_done(case)
    assert await case.books() == committed(posts=1, attempts=1)
    assert [event.moment for event in case.proxy.events].count(Moment.FORWARDED) == 2


async def test_a_request_that_never_arrived_is_sent_again_under_the_same_key(case: Case) -> None:
    """E10, E13, E58: two attempts, one key on the wire, one receipt."""
    dropped = case.proxy.arm(case.key(), DropRequest())
    await case.start()
    await case.worker()
    await reached(dropped)
    await _ends_done(case)
    assert await case.books() == committed(posts=2, attempts=2)
    assert [attempt.seen for attempt in case.journal.attempts(case.key())] == [Seen.UNKNOWN, Seen.RECEIPT]
    assert {key for key, method in case.proxy.requests if method == "POST"} == {case.key()}


async def test_a_worker_told_to_stop_ends_its_send_and_loses_nothing(case: Case) -> None:
    """E05, E19: SIGTERM over a withheld response; the send, its observation and its completion all come through."""
    worker, withheld = await case.unheard()
    worker.send_signal(signal.SIGTERM)
    withheld.release()
    assert await asyncio.to_thread(worker.wait, LIMIT_SECONDS) == 0
    assert await case.settled() == "committed"
    attempts = case.journal.attempts(case.key())
    assert [attempt.seen for attempt in attempts] == [Seen.RECEIPT]  # heard by the send itself, not looked up
    await case.worker()
    await _ends_done(case)
    assert await case.books() == committed(posts=1, attempts=1)
    started = [
        event.activity_task_started_event_attributes.attempt
        async for event in case.handle().fetch_history_events()
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED
    ]
    assert started == [1]


async def test_a_drain_ends_though_the_response_never_comes(case: Case) -> None:
    """E05, E61: a send has a total deadline below the drain time, so that the worker's end is no cut either."""
    worker, _ = await case.unheard()
    worker.send_signal(signal.SIGTERM)
    assert DRAIN.total_seconds() > SEND_DEADLINE_SECONDS
    assert await asyncio.to_thread(worker.wait, LIMIT_SECONDS) == 0
    assert [attempt.seen for attempt in case.journal.attempts(case.key())] == [Seen.UNKNOWN]
    await case.worker()
    await _ends_done(case)
    assert await case.books() == committed(posts=1, attempts=1)
