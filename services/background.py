"""Work that a process does again and again beside its main one, and that no failure of its own may stop."""

import asyncio
from collections.abc import Awaitable, Callable


async def again_and_again(
    work: Callable[[], Awaitable[object]], *, every_seconds: float, say: Callable[[Exception], None]
) -> None:
    """Do it until this is cancelled.

    Args:
        work: what is done.
        every_seconds: the pause between two times.
        say: told of a failure, once until it has succeeded again.
    """
    failing = False
    while True:
        try:
            await work()
            failing = False
        except Exception as error:  # noqa: BLE001 - what is done beside is not worth what is done
            if not failing:
                say(error)
            failing = True
        await asyncio.sleep(every_seconds)
