"""The benchmark's worker process: a deployment's worker, with the benchmark's workflows beside its own.

python -m benchmarks.worker [--profile FILE]
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import click

from activities.inventory_client import InventoryClient
from benchmarks import profile, workflows
from benchmarks.bare import BareActivities
from services import worker as process
from services.settings import WorkerSettings
from services.temporal import connect

WORKS = "works"


async def work() -> None:
    """Work until SIGTERM."""
    settings = WorkerSettings.read()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    client = await connect()
    provider = InventoryClient(
        settings.inventory_url,
        settings.inventory_token.get_secret_value(),
        connections=2 * process.ACTIVITIES_AT_ONCE,  # as `process.run` gives to the journaled calls
    )
    bare = BareActivities(provider)
    try:
        await process.run(
            settings,
            client,
            stop,
            started=lambda: click.echo(WORKS),
            workflows=workflows.ALL,
            activities=[bare.reserve, bare.reserve_beating],
        )
    finally:
        await provider.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", type=Path)
    file: Path | None = parser.parse_args().profile
    if file is None:
        asyncio.run(work())
    else:
        with profile.written_to(file):
            asyncio.run(work())
    sys.stdout.flush()
    os._exit(0)  # a thread of Temporal's client may abort an interpreter that is being taken down
