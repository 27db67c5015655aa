"""What a person reads."""

from pathlib import Path

import pytest

from benchmarks import commits, inventory, perform, recovery, report
from benchmarks.figures import Spread
from benchmarks.report import Table
from tests.benchmarks import test_inventory


def around(value: float) -> Spread:
    """A spread about a median."""
    return Spread(median=value, low=value * 0.9, high=value * 1.1)


def performed(*, cpu: float, throughput: float = 1.0, profile: Path | None = None) -> perform.Result:
    """A run of P1 in which `perform` took so many times the CPU."""
    rows = [
        perform.Row(
            name=name,
            effects_per_second=around(60.0),
            throughput_ratio=around(throughput_ratio),
            cpu_ms=around(24.0),
            cpu_ratio=around(cpu_ratio),
            cpu_ms_by_part={"Temporal": 20.0, "starter": 4.0},
        )
        for name, cpu_ratio, throughput_ratio in (("bare activity", 1.0, 1.0), ("perform, SQLite", cpu, throughput))
    ]
    settings = perform.Settings(rounds=5, workflows=160, at_once=16, profile=profile)
    return perform.Result(settings=settings, rows=rows, others=around(0.2))


@pytest.mark.parametrize(
    ("cpu", "said"),
    [
        (1.04, "goal 1.05 reached"),
        (1.05, "goal 1.05 reached"),
        (1.08, "first mark 1.10 reached, goal 1.05 not"),
        (1.3, "first mark 1.10 not reached"),
    ],
)
def test_the_goal_is_printed_beside_what_was_measured(cpu: float, said: str) -> None:
    """Reached or not: nobody has to look it up."""
    text = "\n".join(report.lines(report.of_perform(performed(cpu=cpu, throughput=0.94))))
    assert f"perform, SQLite: {cpu:.2f} times the CPU ({said})" in text
    assert "0.94 times the throughput (goal 0.95 not reached)" in text


def test_the_share_of_others_stands_with_the_figures() -> None:
    """Figures of a busy machine are read as such."""
    (table, _) = report.of_perform(performed(cpu=1.0))
    assert "Others used 20% of the machine, 22% at most." in table.method


def test_figures_of_a_profiled_run_say_that_they_are_of_no_use() -> None:
    """A profiler makes Python several times slower."""
    (table, _) = report.of_perform(performed(cpu=1.0, profile=Path("profiles")))
    assert "A profiler ran in the workers: only its output is of use." in table.verdicts


def test_a_slow_kill_is_a_goal_not_reached() -> None:
    """Median and p99 are told apart."""
    row = recovery.Row(name="standby worker", kills=15, median=1.2, p99=3.4, fastest=1.0, slowest=3.4)
    (table,) = report.of_recovery(recovery.Result(settings=recovery.Settings(kills=15), rows=[row], others=0.1))
    assert table.verdicts == (
        "standby worker: median goal 1.5 s reached",
        "standby worker: p99 goal 3.0 s not reached",
    )
    assert table.rows == (("standby worker", "15", "1.20", "3.40", "1.00", "3.40"),)


def test_the_inventorys_goals_are_printed_beside_what_was_measured() -> None:
    """Half of the bare commits, six tenths of an empty handler; more receipts have no goal but to be seen."""
    result = inventory.summary(test_inventory.SETTINGS, test_inventory.measured(), test_inventory.BARE)
    text = "\n".join(report.lines(report.of_inventory(result)))
    assert "GET, SQLite, 32 clients: 0.60 of an empty handler (goal 0.6 reached)" in text
    assert "POST, SQLite: 0.50 of bare commits (goal 0.5 reached)" in text
    assert "POST, PostgreSQL: 0.25 of bare commits (goal 0.5 not reached)" in text
    assert "From 1,000 receipts to 1,000,000" in text


def test_the_columns_of_a_table_stand_under_their_headings() -> None:
    """Names left, figures right, whatever their width."""
    table = Table(
        title="T",
        method="How.",
        columns=("", "callers", "bare/s"),
        rows=(("SQLite", "1", "1,234 (1-2)"), ("PG", "32", "9")),
    )
    told = report.lines([table])
    assert told[1:] == [
        "",
        "T",
        "    How.",
        "",
        "            callers       bare/s",
        "    SQLite        1  1,234 (1-2)",
        "    PG           32            9",
    ]


def test_commits_are_shown_by_database_and_callers() -> None:
    """With the ratio to bare commits of the same run."""
    row = commits.Row(
        database="SQLite",
        callers=32,
        bare_per_second=around(1000.0),
        bare_cpu_ms=around(0.1),
        pairs_per_second=around(500.0),
        pair_cpu_ms=around(1.0),
        pairs_to_bare=around(0.5),
    )
    settings = commits.Settings(rounds=5, seconds=1.0)
    (table,) = report.of_commits(commits.Result(settings=settings, rows=[row], others=around(0.1)))
    assert table.rows[0][:3] == ("SQLite", "32", "1,000 (900-1,100)")
    assert table.rows[0][-1] == "0.50 (0.45-0.55)"
