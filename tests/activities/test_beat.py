"""What stands around every effect activity: heartbeats, cancellation, typed errors, the origin."""

import asyncio
from datetime import timedelta

import pytest
import sqlalchemy as sa
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.beat import beating, check_origin, crossing
from activities.contracts import HEARTBEAT_EVERY_SECONDS
from services.database import DatabaseUnreachable
from services.effects import errors
from services.effects.errors import HeldBack, OriginMismatch, OutcomeUnknown, Retryable, Terminal
from workflows import policies


def environment() -> tuple[ActivityEnvironment, asyncio.Queue[None]]:
    """Temporal's activity environment, and the heartbeats as they come."""
    beats: asyncio.Queue[None] = asyncio.Queue()
    found = ActivityEnvironment()
    found.on_heartbeat = lambda *_details: beats.put_nowait(None)
    return found, beats


async def test_heartbeats_come_beside_the_work() -> None:
    """As long as the work takes, and none afterwards."""
    found, beats = environment()
    enough = asyncio.Event()

    async def work() -> str:
        await enough.wait()
        return "done"

    running = asyncio.create_task(found.run(beating, work()))
    for _ in range(3):
        await beats.get()
    assert not running.done()
    enough.set()
    assert await running == "done"
    while not beats.empty():
        beats.get_nowait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(beats.get(), 2 * HEARTBEAT_EVERY_SECONDS)


def test_a_heartbeat_comes_more_often_than_its_time_out_twice_over() -> None:
    """One late beat of a busy worker is not a death."""
    assert policies.HEARTBEAT.total_seconds() > 2 * HEARTBEAT_EVERY_SECONDS


async def test_a_cancellation_does_not_cut_the_work() -> None:
    """A send that is cut is an unknown outcome: the work comes to its end, and its result is the activity's."""
    found, beats = environment()
    going, enough, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work() -> str:
        going.set()
        await enough.wait()
        ended.set()
        return "committed"

    running = asyncio.create_task(found.run(beating, work()))
    await going.wait()
    for _ in range(3):
        found.cancel()
        await beats.get()
    await beats.get()
    assert not running.done()
    enough.set()
    assert await running == "committed"
    assert ended.is_set()


async def test_after_work_that_failed_a_cancellation_goes_on() -> None:
    """Nobody wants another try of what was cancelled."""
    found, _ = environment()
    going, enough = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        going.set()
        await enough.wait()
        raise OutcomeUnknown("not heard")

    running = asyncio.create_task(found.run(beating, work()))
    await going.wait()
    found.cancel()
    enough.set()
    await asyncio.wait({running})
    assert running.cancelled()


async def crossed(error: Exception) -> ApplicationError:
    """What of an error arrives on the other side."""
    with pytest.raises(ApplicationError) as raised, crossing():
        raise error
    return raised.value


FAMILIES = [
    one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, (Retryable, Terminal))
    if one not in {Retryable, Terminal}
]  # fmt: skip


@pytest.mark.parametrize("kind", FAMILIES, ids=lambda kind: kind.__name__)
async def test_every_error_of_the_protocol_crosses_by_its_name(kind: type[Exception]) -> None:
    """Terminal ones are not tried again; the others are."""
    error = await crossed(kind("what happened"))
    assert (error.type, error.non_retryable) == (kind.__name__, issubclass(kind, Terminal))
    assert error.message == "what happened"
    assert error.next_retry_delay is None


async def test_a_pause_crosses_as_the_next_retrys_delay() -> None:
    """HeldBack carries what the provider asked for."""
    error = await crossed(HeldBack("later", retry_after_seconds=7.5))
    assert error.next_retry_delay == timedelta(seconds=7.5)


@pytest.mark.parametrize(
    "error",
    [
        DatabaseUnreachable("The database is away."),
        sa.exc.OperationalError("INSERT INTO effects", {"request": "s3cret"}, Exception("database is locked")),
        sa.exc.TimeoutError("QueuePool limit s3cret"),
    ],
)
async def test_a_journal_that_cannot_be_reached_is_tried_again_and_shows_no_statement(error: Exception) -> None:
    """One type for all of it; no statement, no parameter and no cause with them reaches Temporal's history."""
    raised = await crossed(error)
    assert (raised.type, raised.non_retryable) == ("JournalUnreachable", False)
    failure = await _as_temporal_keeps_it(raised)
    assert "s3cret" not in failure
    assert "INSERT" not in failure


async def _as_temporal_keeps_it(error: ApplicationError) -> str:

    failure = Failure()
    await DataConverter.default.encode_failure(error, failure)
    return str(failure)


def test_what_passes_is_left_alone() -> None:
    """No error, no crossing; an error of the code itself stays what it is."""
    with crossing():
        pass
    with pytest.raises(ZeroDivisionError), crossing():
        raise ZeroDivisionError


def test_the_origin_is_checked_word_for_word() -> None:
    """The message names both, and says that nothing happened."""
    check_origin("demo", "demo")
    with pytest.raises(OriginMismatch, match=r"'demo'.*'Demo'.*Nothing was recorded or sent"):
        check_origin("demo", "Demo")
