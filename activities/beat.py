"""What every effect activity does around its work: the origin's check, heartbeats beside it, typed errors across it."""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.contracts import HEARTBEAT_EVERY_SECONDS
from services.database import DatabaseError
from services.effects.errors import HeldBack, OriginMismatch, Retryable, Terminal

T = TypeVar("T")


async def beating(work: Coroutine[Any, Any, T]) -> T:
    """Do the work to its end, with heartbeats beside it.

    A cancellation of the activity does not cut the work: a send that is cut is an unknown outcome. The work has limits
    of its own, and when it is done the cancellation goes on. Most work is done before the first heartbeat is due: each
    one costs the server as much as a task.
    """
    task = asyncio.create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=HEARTBEAT_EVERY_SECONDS)
        except asyncio.CancelledError as error:
            cancellation = error
        if not task.done():
            activity.heartbeat()
    if cancellation is not None and task.exception() is not None:
        raise cancellation
    return task.result()


@contextmanager
def crossing() -> Iterator[None]:
    """Let the protocol's errors cross into workflows by type: some with a pause, some for good."""
    try:
        yield
    except Terminal as error:
        raise ApplicationError(str(error), type=type(error).__name__, non_retryable=True) from error
    except Retryable as error:
        activity.logger.warning("%s", error)
        pause = error.retry_after_seconds if isinstance(error, HeldBack) else None
        raise ApplicationError(
            str(error),
            type=type(error).__name__,
            next_retry_delay=None if pause is None else timedelta(seconds=pause),
            # The SDK would log a trace for each try of an outage; the journal and one line here say as much.
            category=ApplicationErrorCategory.BENIGN,
        ) from error
    except DatabaseError as error:
        raise ApplicationError(str(error), type="JournalUnreachable") from None
    except sa.exc.SQLAlchemyError as error:
        # Its text and its causes hold the statement with its parameters: none of that belongs into a history.
        activity.logger.exception("the journal failed")
        raise ApplicationError(
            f"The journal failed ({type(error).__name__}). No send goes without its mark; the same is tried again.",
            type="JournalUnreachable",
        ) from None


def check_origin(intended: str, own: str) -> None:
    """Refuse what belongs to another deployment.

    Raises:
        OriginMismatch: nothing was recorded or sent.
    """
    if intended != own:
        raise OriginMismatch(
            f"This is of origin {intended!r} and came to a worker of {own!r}. Nothing was recorded or sent. "
            "Start it with a worker whose COUNTERFOIL_ORIGIN is the same."
        )
