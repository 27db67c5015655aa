"""P3: from SIGKILL to settled.

A worker is killed when the inventory has committed and the worker has not heard so: the response is in the fault
proxy's hand. Settled is the journal's own time of settlement. `standby`: another worker is running. `restarted`: it was
the only one, and is started again at once, so that Python's start is in the figure.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.figures import percentile, spread
from benchmarks.machine import Meter
from services.drill.network_faults import WithholdResponse
from services.drill.processes import ProcessError, Processes, wait_until
from services.drill.stack import Stack, running_stack
from services.effects.keys import derive_key
from services.effects.records import EffectRow
from services.incident_desk import start_incident
from services.incidents import Approval, Incident, Line, Reservation, Severity

_ORIGIN = "bench"
_SKU = "FILTER-A"
_NAME = "reserve-filter"
_LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much of it."""

    kills: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to come back, in seconds from the kill."""

    name: str
    kills: int
    median: float
    p99: float
    fastest: float
    slowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole benchmark; `others` is the share of the machine that others used."""

    settings: Settings
    rows: list[Row]
    others: float


async def measure(processes: Processes, folder: Path, settings: Settings, tell: Callable[[str], None]) -> Result:
    """Kill workers with a standby, then without.

    Raises:
        ProcessError: a part did not start, or an effect was not settled in time.
    """
    stock = {_SKU: 10 * settings.kills}
    async with running_stack(processes, folder / "stack", stock=stock, origin=_ORIGIN, workers=2) as stack:
        meter = Meter({})
        standby = [await _killed(stack, f"standby-{number}", tell) for number in range(settings.kills)]
        await asyncio.to_thread(stack.workers.pop().terminate)
        restarted = [await _killed(stack, f"restarted-{number}", tell) for number in range(settings.kills)]
        others = meter.usage().others
    rows = [_row("standby worker", standby), _row("the only worker, restarted", restarted)]
    return Result(settings=settings, rows=rows, others=others)


def _row(name: str, seconds: list[float]) -> Row:
    found = spread(seconds)
    return Row(
        name=name,
        kills=len(seconds),
        median=found.median,
        p99=percentile(seconds, 99),
        fastest=found.low,
        slowest=found.high,
    )


async def _killed(stack: Stack, scope: str, tell: Callable[[str], None]) -> float:
    """Kill the worker that waits for its answer, start it again, and wait for the settlement: the seconds between."""
    key = derive_key(_ORIGIN, scope, _NAME, 1)
    withheld = stack.proxy.arm(key, WithholdResponse())
    await start_incident(stack.client, _ORIGIN, stack.journal, _incident(scope))
    async with asyncio.timeout(_LIMIT_SECONDS):
        await withheld.reached()
    marks = await asyncio.to_thread(stack.journal.attempts, key)
    worker = stack.worker(int(marks[-1].worker["pid"]))
    if worker is None:
        raise ProcessError(f"The worker that sent {key} has ended by itself; nothing is measured.")
    killed_at = datetime.now(UTC)
    worker.kill()
    worker.start()
    withheld.release()

    def settled() -> EffectRow | None:
        row = stack.journal.effect(key)
        return row if row is not None and row.state.terminal else None

    row = await wait_until(settled, timeout_seconds=_LIMIT_SECONDS, what=f"{key} is settled")
    if row is None or row.settled_at is None:
        raise ProcessError(f"{key} has no time of settlement; nothing is measured.")
    await stack.all_working()  # so that one stands by at the next kill
    seconds = (row.settled_at - killed_at).total_seconds()
    tell(f"P3, {scope}: {seconds:.2f} s")
    return seconds


def _incident(scope: str) -> Incident:
    return Incident(
        id=scope,
        title="Coolant filters are at end of life",
        site="FRA2/B/R14-CDU",
        severity=Severity.HIGH,
        reported_at=datetime(2026, 3, 1, 12, tzinfo=UTC),
        approval=Approval.AUTO,
        effects=(Reservation(name=_NAME, lines=(Line(sku=_SKU, quantity=1),)),),
    )
