"""P1: one workflow with one effect, against the same workflow with a bare activity.

Each round runs every variant once, one after the other, each time from another one on, so that none always has the
same neighbour. One inventory, one Temporal server, one request; the two workers differ in their journal alone.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks import workflows
from benchmarks.figures import Spread, ratios, spread
from benchmarks.machine import Meter, Usage
from benchmarks.worker import WORKS
from services.database import migrate
from services.drill.postgres import PostgresServer
from services.drill.processes import Child, ProcessError, Processes, wait_until
from services.drill.stack import START_SECONDS, Stack, running_stack
from services.temporal import ensure_schedule, schedule_id, task_queue
from workflows import policies

SQLITE, POSTGRES = "SQLite", "PostgreSQL"
ORIGINS = {SQLITE: "bench-sqlite", POSTGRES: "bench-postgres"}
_STOCK = 1_000_000
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to have one effect.

    Attributes:
        name: as the report says it.
        journal: whose worker runs it.
    """

    name: str
    workflow: type[Any]
    journal: str = SQLITE


VARIANTS = (
    Variant(name="bare activity", workflow=workflows.Bare),
    Variant(name="bare activity again (A/A)", workflow=workflows.BareAgain),
    Variant(name="bare activity + heartbeats", workflow=workflows.BareBeating),
    Variant(name="journaled activity, SQLite", workflow=workflows.Journaled),
    Variant(name="journaled activity, PostgreSQL", workflow=workflows.Journaled, journal=POSTGRES),
    Variant(name="perform, SQLite", workflow=workflows.Performed),
    Variant(name="perform, PostgreSQL", workflow=workflows.Performed, journal=POSTGRES),
)
BASELINE = VARIANTS[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much of it."""

    rounds: int
    workflows: int  # in each round, of each variant
    at_once: int
    profile: Path | None = None  # a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One variant, in figures; the ratios are to the bare activity of the same round."""

    name: str
    effects_per_second: Spread
    throughput_ratio: Spread
    cpu_ms: Spread
    cpu_ratio: Spread
    cpu_ms_by_part: dict[str, float]  # medians


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole benchmark."""

    settings: Settings
    rows: list[Row] = field(default_factory=list)
    others: Spread


async def measure(processes: Processes, folder: Path, settings: Settings, tell: Callable[[str], None]) -> Result:
    """Start the parts, warm them up and run the rounds.

    Raises:
        ProcessError: a part did not start, or an effect did not commit.
    """
    used: dict[str, list[Usage]] = {variant.name: [] for variant in VARIANTS}
    async with _parts(processes, folder, settings) as (stack, parts):
        for variant in VARIANTS:
            await _run(stack.client, variant, "warm-up", count=4 * settings.at_once, at_once=settings.at_once)
        meter = Meter(parts)
        for number in range(settings.rounds):
            tell(f"P1, round {number + 1} of {settings.rounds}")
            first = number % len(VARIANTS)
            for variant in VARIANTS[first:] + VARIANTS[:first]:
                meter.restart()
                await _run(stack.client, variant, str(number), count=settings.workflows, at_once=settings.at_once)
                used[variant.name].append(meter.usage())
    return summary(settings, used)


def summary(settings: Settings, used: dict[str, list[Usage]]) -> Result:
    """The figures of all rounds, by variant; the baseline is the bare activity."""
    rate = {name: [settings.workflows / usage.seconds for usage in usages] for name, usages in used.items()}
    cpu_ms = {
        name: [1000 * usage.total_cpu_seconds / settings.workflows for usage in usages] for name, usages in used.items()
    }
    rows = [
        Row(
            name=name,
            effects_per_second=spread(rate[name]),
            throughput_ratio=ratios(rate[name], rate[BASELINE.name]),
            cpu_ms=spread(cpu_ms[name]),
            cpu_ratio=ratios(cpu_ms[name], cpu_ms[BASELINE.name]),
            cpu_ms_by_part={
                part: spread([1000 * usage.cpu_seconds[part] / settings.workflows for usage in usages]).median
                for part in usages[0].cpu_seconds
            },
        )
        for name, usages in used.items()
    ]
    others = spread([usage.others for usages in used.values() for usage in usages])
    return Result(settings=settings, rows=rows, others=others)


async def _run(client: Client, variant: Variant, name: str, *, count: int, at_once: int) -> None:
    origin = ORIGINS[variant.journal]
    numbers = iter(range(count))

    async def caller() -> None:
        for number in numbers:
            outcome = await client.execute_workflow(
                variant.workflow.run,
                origin,
                id=f"{variant.workflow.__name__}-{origin}-{name}-{number}",
                task_queue=task_queue(origin),
                task_timeout=policies.TASK_TIMEOUT,
            )
            if outcome != "committed":
                raise ProcessError(f"An effect of {variant.name} ended {outcome}: nothing can be measured by that.")

    async with asyncio.TaskGroup() as callers:
        for _ in range(at_once):
            callers.create_task(caller())


@asynccontextmanager
async def _parts(processes: Processes, folder: Path, settings: Settings) -> AsyncIterator[tuple[Stack, dict[str, int]]]:
    """A stack with one worker for each journal, and the process ids of its parts."""
    postgres = PostgresServer(processes, folder / "postgres")
    try:
        postgres.start()
        journal_url = postgres.create_database("journal")
        stock = {workflows.SKU: _STOCK}
        async with running_stack(processes, folder / "stack", stock=stock, origin=ORIGINS[SQLITE], workers=0) as stack:
            await asyncio.to_thread(migrate, "journal", journal_url)
            await ensure_schedule(stack.client, ORIGINS[POSTGRES])
            for origin in ORIGINS.values():  # a sweep would be measured with whichever variant it meets
                await stack.client.get_schedule_handle(schedule_id(origin)).pause()
            urls = {SQLITE: f"sqlite:///{stack.journal_file}", POSTGRES: journal_url}
            running = [_worker(processes, stack, journal, url, settings) for journal, url in urls.items()]
            for worker in running:
                await _works(worker)
            parts = {f"worker, {journal}": worker.pid for journal, worker in zip(urls, running, strict=True)}
            yield (
                stack,
                {
                    "Temporal": stack.temporal.child.pid,
                    "inventory": stack.inventory.pid,
                    "PostgreSQL": postgres.child.pid,
                }
                | parts,
            )
            for worker in running:
                worker.terminate()  # a worker writes its profile then
    finally:
        postgres.remove()


def _worker(processes: Processes, stack: Stack, journal: str, url: str, settings: Settings) -> Child:
    argv = [sys.executable, "-m", "benchmarks.worker"]
    if settings.profile is not None:
        argv += ["--profile", str(settings.profile.resolve() / f"worker-{journal.lower()}.prof")]
    return processes.start(
        argv,
        name=f"The worker with its journal on {journal}",
        log=stack.folder / f"worker-{journal.lower()}.log",
        env=stack.environment()
        | {
            "COUNTERFOIL_ORIGIN": ORIGINS[journal],
            "COUNTERFOIL_JOURNAL_DATABASE_URL": url,
            "PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")])),
        },
    )


async def _works(worker: Child) -> None:
    def works() -> bool:
        worker.require_alive()
        return WORKS in worker.log.read_text(errors="replace")

    await wait_until(works, timeout_seconds=START_SECONDS, what=f"{worker.name} works")
