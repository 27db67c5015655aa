"""Contributors that only speak with each other."""

import signal
from collections.abc import Callable
from typing import Any

from services.checkpoints.errors import CheckpointError, NonFinite
from services.checkpoints.group import MEET, error_body, error_of
from services.checkpoints.layout import Run
from services.checkpoints.meeting import Meeting

Say = Callable[..., None]


def meeting(root: str, launch: str, rank: int, world: int) -> Meeting:
    """This contributor's meeting."""
    return Meeting(Run.open(root, "r1", create=True), launch=launch, rank=rank, world=world)


def words(say: Say, *, root: str, launch: str, rank: int, world: int, seconds: float = 30.0, **_: Any) -> None:
    """Everybody says its rank, and the coordinator the sum; twice."""
    group = meeting(root, launch, rank, world)
    for turn in (1, 2):
        heard = group.gather(MEET, f"rank.{turn}", {"rank": rank}, seconds=seconds)
        total = {"sum": sum(word["rank"] for word in heard.values())} if rank == 0 else None
        say(sum=group.broadcast(MEET, f"sum.{turn}", total, seconds=seconds)["sum"])
        group.forget(MEET, f"rank.{turn}.{rank}")
    group.close()


def gone(say: Say, *, root: str, launch: str, rank: int, world: int, **_: Any) -> None:
    """Whether the coordinator is."""
    say(gone=meeting(root, launch, rank, world).gone(0))


def held(say: Say, *, root: str, launch: str, rank: int, world: int, **_: Any) -> None:
    """Be there and say nothing, until it is killed."""
    say(here=meeting(root, launch, rank, world).rank)
    signal.pause()


def failing(say: Say, *, root: str, launch: str, rank: int, world: int, **_: Any) -> None:
    """Contributor 1 says an error; 2 never comes: the coordinator does not wait for it, and passes the error on."""
    group = meeting(root, launch, rank, world)
    word = error_body(NonFinite("item w holds NaN"), who=f"contributor {rank}: ") if rank == 1 else {"rank": rank}
    heard = group.gather(MEET, "rank", word, seconds=300)
    told = None
    if rank == 0:
        (told,) = [each for each in heard.values() if "error" in each]
    error = error_of(group.broadcast(MEET, "told", told, seconds=300))
    say(heard=sorted(heard))
    assert isinstance(error, CheckpointError)
    raise error


STORIES = {"meeting-words": words, "meeting-failing": failing, "meeting-gone": gone, "meeting-held": held}
