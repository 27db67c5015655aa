"""A worker dies, or freezes, between its mark and its observation."""

import asyncio
import logging
import signal
from datetime import UTC, datetime

import pytest
from temporalio.api.enums.v1 import EventType, TimeoutType

from activities.reconciliation import WORKER_DIED
from services.drill.network_faults import DelayRequest, WithholdResponse
from services.drill.processes import wait_until
from services.effects.states import EffectState
from tests.faults.books import NAME, committed
from tests.faults.harness import Case, freeze, reached, thaw, within
from tests.faults.servers import LIMIT_SECONDS
from workflows.policies import START_TO_CLOSE

pytestmark = pytest.mark.temporal

LOG = logging.getLogger(__name__)


async def _die_after_the_commit(case: Case) -> datetime:
    """Run until the inventory has committed, and kill the worker before it hears so."""
    withheld = case.proxy.arm(case.key(), WithholdResponse())
    await case.start()
    assert await reached(withheld) == 201
    receipt = await case.receipt()
    row = case.journal.effect(case.key())
    assert receipt is not None
    assert (receipt["outcome"], receipt["reservation_id"]) == ("committed", "reservation-1")
    assert row is not None
    assert (row.state, row.attempts) == (EffectState.PENDING, 1)
    case.sender(case.key()).kill()
    return datetime.now(UTC)


async def _ends_matched(case: Case, killed_at: datetime) -> float:
    """The pending intent is matched to its receipt; the seconds since the kill."""
    result = await case.result()
    outcome = result.outcomes[0]
    assert (result.status, outcome.state, outcome.reservation_id) == ("done", "committed", "reservation-1")
    assert await case.books() == committed(posts=1, attempts=1)
    row = case.journal.effect(case.key())
    assert row is not None
    assert row.settled_at is not None
    observed = [entry.body for entry in case.journal.entries(case.key()) if entry.kind == "observation"]
    sources = [body["source"] for body in observed if "closed_as" not in body]
    assert sources == ["look_up"]  # the send itself was never heard of
    assert await _noticed_by(case) <= {"no heartbeat", WORKER_DIED}
    return (row.settled_at - killed_at).total_seconds()


async def _noticed_by(case: Case) -> set[str]:
    """What ended the attempts before the one that answered: by this, not by a clock, a dead worker is noticed soon."""
    history = await case.handle().fetch_history()
    (last,) = (one for one in history.events if one.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED)
    failure = last.activity_task_started_event_attributes.last_failure
    if failure.HasField("application_failure_info"):
        return {failure.application_failure_info.type}
    kind = failure.timeout_failure_info.timeout_type
    return {"no heartbeat" if kind == TimeoutType.TIMEOUT_TYPE_HEARTBEAT else TimeoutType.Name(kind)}


async def test_a_worker_killed_after_the_commit_is_followed_by_a_look_up_and_no_second_send(
    case: Case,
) -> None:
    """The story (E10, E28, E31, E64): ten units become eight, not six."""
    await case.worker()
    killed_at = await _die_after_the_commit(case)
    restarted_at = datetime.now(UTC)
    await case.worker()
    started_seconds = (datetime.now(UTC) - restarted_at).total_seconds()
    seconds = await _ends_matched(case, killed_at)
    LOG.info("killed to settled: %.2f s, of which %.2f s to start a worker", seconds, started_seconds)


async def test_a_standby_worker_settles_what_the_killed_one_had_committed(case: Case) -> None:
    """E10, E11, E64: nobody starts anything; the other worker finds the receipt."""
    one, other = case.start_worker(), case.start_worker()
    await case.ready(one, other)
    killed_at = await _die_after_the_commit(case)
    assert sorted([one.alive, other.alive]) == [False, True]
    seconds = await _ends_matched(case, killed_at)
    LOG.info("killed to settled by a standby: %.2f s", seconds)


async def test_a_worker_killed_before_its_request_arrives_leaves_one_effect(case: Case) -> None:
    """E10, E13: the second worker sends the same key; the first one's packet comes late and meets a replay."""
    held = case.proxy.arm(case.key(), DelayRequest())
    await case.worker()
    await case.start()
    await reached(held)
    case.sender(case.key()).kill()
    await case.worker()
    assert (await case.result()).status == "done"
    held.release()
    await held.done()
    assert await case.books() == committed(posts=2, attempts=2)
    assert {key for key, method in case.proxy.requests if method == "POST"} == {case.key()}
    assert [outcome.name for outcome in (await case.result()).outcomes] == [NAME]


async def test_a_frozen_worker_that_wakes_after_everything_was_settled_changes_nothing(case: Case) -> None:
    """E11, E19, E62, A23: alive and silent; the other one sends the same key, and the sleeper's own packet is late.

    It wakes when every time-out of its attempt has passed: the heartbeat's, and start-to-close too.
    """
    held = case.proxy.arm(case.key(), DelayRequest())
    one, other = case.start_worker(), case.start_worker()
    await case.ready(one, other)
    await case.start()
    await reached(held)
    frozen = case.sender(case.key())
    freeze(frozen)
    assert await case.settled() == "committed"
    assert case.sender(case.key()) is not frozen
    books = await case.books()
    assert books == committed(posts=2, attempts=2)
    result = await case.result()
    assert (result.status, result.outcomes[0].receipt) == ("done", await case.receipt())
    entries = len(case.journal.entries(case.key()))
    over = case.journal.attempts(case.key())[0].marked_at + START_TO_CLOSE
    await wait_until(lambda: datetime.now(UTC) > over, timeout_seconds=LIMIT_SECONDS, what="its attempt's time is over")
    held.release()
    await within(held.done())
    thaw(frozen)
    frozen.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(frozen.wait, LIMIT_SECONDS) == 0  # it has said all that it had to say
    assert await case.books() == books
    late = [entry.kind for entry in case.journal.entries(case.key())[entries:] if "closed_as" not in entry.body]
    assert late in ([], ["observation"])  # it agrees with what is settled
    row = case.journal.effect(case.key())
    assert row is not None
    assert row.alarmed is False
