"""A worker process with an author's workflows: of this build, or of another one.

    python -m tests.faults.author_worker [another-build]

The other build makes its fingerprints in another way and knows another default; keys stay what they are.
"""

import asyncio
import os
import sys

from services import worker
from services.effects import keys
from services.settings import WorkerSettings
from services.temporal import connect
from tests.faults.workflows import AbandonedOrder, ContinuedOrder, WaitingOrder

THIS_BUILD = (sys.executable, "-m", "tests.faults.author_worker")
ANOTHER_BUILD = (*THIS_BUILD, "another-build")


async def _work() -> None:
    settings = WorkerSettings.read()

    def started() -> None:
        print(f"Worker {os.getpid()} works for origin {settings.origin}.", flush=True)  # noqa: T201 - the log

    orders = (AbandonedOrder, ContinuedOrder, WaitingOrder)
    await worker.run(settings, await connect(), asyncio.Event(), started=started, workflows=orders)


if __name__ == "__main__":
    if sys.argv[1:]:
        keys.FINGERPRINT_VERSION = "cf-fp2"
        keys.DEFAULTS = {kind: {**members, "priority": "normal"} for kind, members in keys.DEFAULTS.items()}
    asyncio.run(_work())
