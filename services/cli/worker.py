"""`counterfoil worker`: a worker process, until SIGTERM or Ctrl-C."""

import asyncio
import os
import signal

import click
from temporalio.common import MetricMeter

from services import worker as process
from services.cli.output import Command, Output, pass_output
from services.settings import WorkerSettings
from services.telemetry import runtime
from services.temporal import connect, task_queue


@click.command(cls=Command)
@pass_output
def worker(output: Output) -> None:
    """Run workflows and activities until SIGTERM or Ctrl-C; sends under way are let come to their end first.

    Needs COUNTERFOIL_ORIGIN, COUNTERFOIL_JOURNAL_DATABASE_URL, COUNTERFOIL_INVENTORY_URL, COUNTERFOIL_INVENTORY_TOKEN
    and Temporal's own environment (TEMPORAL_ADDRESS, ...). With COUNTERFOIL_METRICS_ADDRESS, an IP address and a port,
    it serves figures for Prometheus at /metrics there; what a person has to look at is a line of its log, too, that
    begins with "alarm=". Exit codes: 0 stopped, 2 something must be set up or
    migrated first, 3 a dependency is unreachable.
    """
    settings = WorkerSettings.read()
    asyncio.run(_work(settings, output))
    output.result({"stopped": os.getpid()}, people="The worker has stopped; nothing was cut off.")


async def _work(settings: WorkerSettings, output: Output) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = runtime(settings.metrics_address)
    client = await connect(serving)

    def started() -> None:
        output.note(f"Worker {os.getpid()} works for origin {settings.origin} on task queue "
                    f"{task_queue(settings.origin)}. Ctrl-C stops it.")  # fmt: skip

    meter = MetricMeter.noop if serving is None else serving.metric_meter
    await process.run(settings, client, stop, started=started, meter=meter)
