"""P7's figures, of measurements that are made up."""

from itertools import product

import pytest

from benchmarks.callers import Told
from benchmarks.inventory import CLIENTS, EMPTY, FEW, GET, POST, POSTGRES, SQLITE, Cell, Run, Settings, summary

SETTINGS = Settings(rounds=2, seconds=1.0, receipts=1_000_000)


def run(answers: int, p99_ms: float) -> Run:
    """One second of a cell."""
    told = Told(answers=answers, seconds=1.0, cpu_seconds=0.1, p50_ms=1.0, p99_ms=p99_ms)
    return Run(told=told, cpu_seconds={"service": 0.5, "callers": 0.1}, others=0.2)


def rounds(speed: float, p99_ms: float) -> list[Run]:
    """A round of a quiet machine, and one in which everything is half as fast."""
    return [run(int(speed), p99_ms), run(int(speed / 2), 2 * p99_ms)]


def measured() -> dict[Cell, list[Run]]:
    """The empty service answers 1000 a second, few receipts make it 600, many 300 at three times the p99."""
    made = {}
    for call, clients in product((POST, GET), CLIENTS):
        made[Cell(database=EMPTY, receipts=0, call=call, clients=clients)] = rounds(1000, 1.0)
        for database in (SQLITE, POSTGRES):
            made[Cell(database=database, receipts=FEW, call=call, clients=clients)] = rounds(600, 2.0)
            made[Cell(database=database, receipts=1_000_000, call=call, clients=clients)] = rounds(300, 6.0)
    return made


BARE = {
    (SQLITE, "threads"): [1200.0, 600.0],
    (POSTGRES, "threads"): [1000.0, 500.0],
    (POSTGRES, "tasks"): [2400.0, 1200.0],
}


def test_each_ratio_is_taken_within_its_round() -> None:
    """A machine that became half as fast changes none of them."""
    result = summary(SETTINGS, measured(), BARE)
    few = next(row for row in result.rows if row.cell.receipts == FEW)
    assert (few.to_empty.low, few.to_empty.high) == pytest.approx((0.6, 0.6))
    assert few.cpu_ms_by_part == {"service": pytest.approx(1.25), "callers": pytest.approx(0.25)}
    for grown in result.growth:
        assert (grown.p99_ratio.low, grown.p99_ratio.high) == pytest.approx((3.0, 3.0))
        assert grown.per_second_ratio.median == pytest.approx(0.5)
    assert len(result.growth) == 8


def test_reservations_are_held_against_the_faster_kind_of_bare_commits() -> None:
    """A slow baseline would flatter."""
    sqlite, postgres = summary(SETTINGS, measured(), BARE).commits
    assert (sqlite.bare_by, postgres.bare_by) == ("threads", "tasks")
    assert (sqlite.to_bare.median, postgres.to_bare.median) == pytest.approx((0.5, 0.25))
