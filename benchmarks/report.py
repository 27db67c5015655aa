"""What a person reads: one table to each benchmark, the goal beside it, and where the CPU time goes."""

import os
import platform
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import commits, inventory, perform, recovery
from benchmarks.figures import shown

# PERFORMANCE: the first mark to reach, and the goal.
CPU_FIRST_MARK, CPU_GOAL, THROUGHPUT_GOAL = 1.10, 1.05, 0.95
POST_GOAL, GET_GOAL = 0.5, 0.6
SETTLED_MEDIAN_GOAL_SECONDS, SETTLED_P99_GOAL_SECONDS = 1.5, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A heading, what was done, the figures, and what they come to."""

    title: str
    method: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    verdicts: tuple[str, ...] = ()


def machine() -> str:
    """What it was measured on, in a line."""
    return f"{os.cpu_count()} processors, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def of_perform(result: perform.Result) -> list[Table]:
    """P1, and where its CPU time goes."""
    settings = result.settings
    parts = list(result.rows[0].cpu_ms_by_part)
    goals = [_goal_of_perform(row) for row in result.rows if row.name.startswith("perform")]
    slower = ("A profiler ran in the workers: only its output is of use.",) if settings.profile else ()
    return [
        Table(
            title="P1  One workflow with one effect",
            method=f"{settings.at_once} workflows at a time, {settings.workflows} in each of {settings.rounds} rounds; "
            f"ratios are to the bare activity of the same round. {_others(result.others.median, result.others.high)}",
            columns=("", "effects/s", "of bare", "CPU ms/effect", "of bare"),
            rows=tuple(
                (
                    row.name,
                    str(row.effects_per_second),
                    str(row.throughput_ratio),
                    str(row.cpu_ms),
                    str(row.cpu_ratio),
                )
                for row in result.rows
            ),
            verdicts=(*goals, *slower),
        ),
        Table(
            title="    Where the CPU time goes",
            method="Milliseconds per effect by process, medians. The rows go from the bare activity to `perform` step "
            "by step, so what a step costs is the difference between two rows.",
            columns=("", *parts),
            rows=tuple((row.name, *(shown(row.cpu_ms_by_part[part]) for part in parts)) for row in result.rows),
        ),
    ]


def _goal_of_perform(row: perform.Row) -> str:
    cpu, throughput = row.cpu_ratio.median, row.throughput_ratio.median
    if cpu <= CPU_GOAL:
        reached = f"goal {CPU_GOAL:.2f} reached"
    elif cpu <= CPU_FIRST_MARK:
        reached = f"first mark {CPU_FIRST_MARK:.2f} reached, goal {CPU_GOAL:.2f} not"
    else:
        reached = f"first mark {CPU_FIRST_MARK:.2f} not reached"
    return (
        f"{row.name}: {shown(cpu)} times the CPU ({reached}), {shown(throughput)} times the throughput (goal "
        f"{THROUGHPUT_GOAL:.2f} {_reached(reached=throughput >= THROUGHPUT_GOAL)})"
    )


def of_recovery(result: recovery.Result) -> list[Table]:
    """P3."""
    standby = result.rows[0]
    median_reached = standby.median <= SETTLED_MEDIAN_GOAL_SECONDS
    p99_reached = standby.p99 <= SETTLED_P99_GOAL_SECONDS
    return [
        Table(
            title="P3  SIGKILL to settled, in seconds",
            method="The worker is killed after the inventory has committed and before it hears so. With fewer than 100 "
            f"kills, p99 is the slowest. {_others(result.others, result.others)}",
            columns=("", "kills", "median", "p99", "fastest", "slowest"),
            rows=tuple(
                (
                    row.name,
                    str(row.kills),
                    *(shown(value) for value in (row.median, row.p99, row.fastest, row.slowest)),
                )
                for row in result.rows
            ),
            verdicts=(
                f"{standby.name}: median goal {SETTLED_MEDIAN_GOAL_SECONDS} s {_reached(reached=median_reached)}",
                f"{standby.name}: p99 goal {SETTLED_P99_GOAL_SECONDS} s {_reached(reached=p99_reached)}",
            ),
        )
    ]


def of_commits(result: commits.Result) -> list[Table]:
    """Journal commits."""
    settings = result.settings
    return [
        Table(
            title="Journal commits",
            method="A pair is `begin` with decision, intent and mark, then `observe` with the receipt: two commits, "
            f"six rows. A bare commit is one INSERT. Threads of one process, {settings.rounds} rounds of "
            f"{settings.seconds} s. {_others(result.others.median, result.others.high)}",
            columns=("", "callers", "bare/s", "CPU ms/bare", "pairs/s", "CPU ms/pair", "pairs to bare"),
            rows=tuple(
                (
                    row.database,
                    str(row.callers),
                    str(row.bare_per_second),
                    str(row.bare_cpu_ms),
                    str(row.pairs_per_second),
                    str(row.pair_cpu_ms),
                    str(row.pairs_to_bare),
                )
                for row in result.rows
            ),
        )
    ]


def of_inventory(result: inventory.Result) -> list[Table]:
    """P7, and whether it stays so as receipts grow."""
    settings = result.settings
    parts = list(dict.fromkeys(part for row in result.rows for part in row.cpu_ms_by_part))
    lookups = [row for row in result.rows if _is_measured_lookup(row.cell)]
    return [
        Table(
            title="P7  The inventory: a reservation (POST), and the look-up of a receipt (GET)",
            method=f"{settings.rounds} rounds of {settings.seconds} s each; ratios are to the same server and protocol "
            "with handlers that do nothing, in the same round. "
            f"{_others(result.others.median, result.others.high)}",
            columns=("", "receipts", "clients", "requests/s", "of nothing", "p50 ms", "p99 ms"),
            rows=tuple(
                (
                    f"{row.cell.call}, {row.cell.database}",
                    f"{row.cell.receipts:,}",
                    str(row.cell.clients),
                    str(row.per_second),
                    str(row.to_empty),
                    str(row.p50_ms),
                    str(row.p99_ms),
                )
                for row in result.rows
            ),
            verdicts=tuple(
                f"GET, {row.cell.database}, {row.cell.clients} clients: {shown(row.to_empty.median)} of an empty "
                f"handler (goal {GET_GOAL} {_reached(reached=row.to_empty.median >= GET_GOAL)})"
                for row in lookups
            ),
        ),
        Table(
            title="    Where the CPU time goes",
            method="Milliseconds per request by process, medians.",
            columns=("", "receipts", "clients", *parts),
            rows=tuple(
                (
                    f"{row.cell.call}, {row.cell.database}",
                    f"{row.cell.receipts:,}",
                    str(row.cell.clients),
                    *(shown(row.cpu_ms_by_part[part]) if part in row.cpu_ms_by_part else "" for part in parts),
                )
                for row in result.rows
            ),
        ),
        Table(
            title="    Reservations beside bare commits",
            method=f"Both with {inventory.CLIENTS[-1]} at a time. A bare commit is one INSERT of one row by the driver "
            "alone; on PostgreSQL by threads or by tasks, whichever is the faster.",
            columns=("", "bare by", "bare/s", "reservations/s", "to bare"),
            rows=tuple(
                (
                    row.database,
                    row.bare_by,
                    str(row.bare_per_second),
                    str(row.reservations_per_second),
                    str(row.to_bare),
                )
                for row in result.commits
            ),
            verdicts=tuple(
                f"POST, {row.database}: {shown(row.to_bare.median)} of bare commits (goal {POST_GOAL} "
                f"{_reached(reached=row.to_bare.median >= POST_GOAL)})"
                for row in result.commits
            ),
        ),
        Table(
            title=f"    From {inventory.FEW:,} receipts to {settings.receipts:,}",
            method="The slowest hundredth, in milliseconds, and the ratios within each round.",
            columns=("", "clients", "p99 few", "p99 many", "many to few", "requests/s, many to few"),
            rows=tuple(
                (
                    f"{row.call}, {row.database}",
                    str(row.clients),
                    str(row.few_p99_ms),
                    str(row.many_p99_ms),
                    str(row.p99_ratio),
                    str(row.per_second_ratio),
                )
                for row in result.growth
            ),
        ),
    ]


def _is_measured_lookup(cell: inventory.Cell) -> bool:
    return cell.call == inventory.GET and cell.database != inventory.EMPTY and cell.receipts == inventory.FEW


def lines(tables: Sequence[Table]) -> list[str]:
    """The report as plain text: columns aligned, figures right."""
    told = [f"Counterfoil's benchmarks on {machine()}. fsync is on. Medians (lowest-highest)."]
    for table in tables:
        told += ["", table.title, *_wrapped(table.method), ""]
        grid = [table.columns, *table.rows]
        widths = [max(len(row[column]) for row in grid) for column in range(len(table.columns))]
        for row in grid:
            cells = [
                row[0].ljust(widths[0]),
                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
            ]
            told.append("    " + "  ".join(cells).rstrip())
        if table.verdicts:
            told += ["", *(f"    {verdict}" for verdict in table.verdicts)]
    return told


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, width=116, initial_indent="    ", subsequent_indent="    ")


def _reached(*, reached: bool) -> str:
    return "reached" if reached else "not reached"


def _others(median: float, most: float) -> str:
    if median == most:
        return f"Others used {median:.0%} of the machine."
    return f"Others used {median:.0%} of the machine, {most:.0%} at most."
