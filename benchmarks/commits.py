"""Journal commits: what one process's threads get through `Journal`, against bare one-row commits on the same database.

A pair is what one effect costs the journal: `begin` with decision, intent and mark, then `observe` with the receipt. It
is two commits that follow each other. A bare commit is one INSERT of one row through the driver alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from benchmarks import inserts
from benchmarks.figures import Spread, ratios, spread
from benchmarks.inserts import Opened, Worker, together
from benchmarks.machine import Meter, Usage
from services.database import migrate, open_engine
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes
from services.effects.records import Answer, Effect, Intent, Mark, Receipt, Seen, Source, decide
from services.effects.states import EffectState
from services.journal.store import Journal


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much of it."""

    rounds: int
    seconds: float  # in each round, of each row
    callers: tuple[int, ...] = (1, 8, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One database with so many callers; the ratio is taken within each round."""

    database: str
    callers: int
    bare_per_second: Spread
    bare_cpu_ms: Spread
    pairs_per_second: Spread
    pair_cpu_ms: Spread
    pairs_to_bare: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole benchmark."""

    settings: Settings
    rows: list[Row] = field(default_factory=list)
    others: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """A database under test: how a thread opens each of the two kinds of work."""

    name: str
    bare: Opened
    pairs: Opened


def measure(processes: Processes, folder: Path, settings: Settings, tell: Callable[[str], None]) -> Result:
    """Run every number of callers on both databases.

    Raises:
        ProcessError: PostgreSQL did not start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    postgres = PostgresServer(processes, folder / "postgres")
    try:
        postgres.start()
        meter = Meter({"PostgreSQL": postgres.child.pid})
        with _sqlite(folder / "journal.db") as one, _postgres(postgres.create_database("journal")) as other:
            return _rounds(settings, (one, other), meter, tell)
    finally:
        postgres.remove()


def _rounds(settings: Settings, databases: Sequence[Database], meter: Meter, tell: Callable[[str], None]) -> Result:
    cases = [(database, callers) for database in databases for callers in settings.callers]
    bare: dict[tuple[str, int], list[tuple[int, Usage]]] = {}
    pairs: dict[tuple[str, int], list[tuple[int, Usage]]] = {}
    for number in range(-1, settings.rounds):  # the first one warms up
        tell("commits, warm-up" if number < 0 else f"commits, round {number + 1} of {settings.rounds}")
        for database, callers in cases:
            for kind, kept in ((database.bare, bare), (database.pairs, pairs)):
                meter.restart()
                done = together(kind, callers, settings.seconds)
                if number >= 0:
                    kept.setdefault((database.name, callers), []).append((done, meter.usage()))
    rows = [
        Row(
            database=name,
            callers=callers,
            bare_per_second=spread(_rates(bare[name, callers])),
            bare_cpu_ms=spread(_cpu_ms(bare[name, callers])),
            pairs_per_second=spread(_rates(pairs[name, callers])),
            pair_cpu_ms=spread(_cpu_ms(pairs[name, callers])),
            pairs_to_bare=ratios(_rates(pairs[name, callers]), _rates(bare[name, callers])),
        )
        for name, callers in bare
    ]
    others = [usage.others for kept in (bare, pairs) for runs in kept.values() for _, usage in runs]
    return Result(settings=settings, rows=rows, others=spread(others))


def _rates(runs: list[tuple[int, Usage]]) -> list[float]:
    return [done / usage.seconds for done, usage in runs]


def _cpu_ms(runs: list[tuple[int, Usage]]) -> list[float]:
    return [1000 * usage.total_cpu_seconds / done for done, usage in runs]


@contextmanager
def _sqlite(file: Path) -> Iterator[Database]:
    url = f"sqlite:///{file}"
    migrate("journal", url)
    with _journal("SQLite", url, inserts.of_sqlite(file)) as database:
        yield database


@contextmanager
def _postgres(url: str) -> Iterator[Database]:
    migrate("journal", url)
    with _journal("PostgreSQL", url, inserts.of_postgres(url)) as database:
        yield database


@contextmanager
def _journal(name: str, url: str, bare: Opened) -> Iterator[Database]:
    engine = open_engine(url)
    journal = Journal(engine, recorded_by="a benchmark")
    numbers = count(1)

    def pairs() -> Iterator[Worker]:
        yield lambda: _pair(journal, next(numbers))

    try:
        yield Database(name=name, bare=bare, pairs=pairs)
    finally:
        engine.dispose()


def _pair(journal: Journal, number: int) -> None:
    intent = replace(_INTENT, scope=f"INC-{number}")
    begun = journal.begin(intent, Mark(attempt_id=f"attempt-{number}", task_token="", worker={"pid": 1}))
    if begun.attempt is None:
        raise RuntimeError(f"The journal refused the mark of {intent.key} ({begun.refused}): nothing is measured.")
    answer = Answer(seen=Seen.RECEIPT, source=Source.SEND, reason="status 201", receipt=_receipt(intent, number))
    observed = journal.observe(intent.key, answer, attempt_id=begun.attempt.attempt_id)
    if observed.row.state is not EffectState.COMMITTED:
        raise RuntimeError(f"{intent.key} is {observed.row.state} after its receipt: nothing is measured.")


_LINE = {"sku": "FILTER-A", "quantity": 2}
_INTENT = decide(
    Effect(name="reserve-filter", kind="inventory.reserve", request={"lines": [_LINE]}),
    origin="bench",
    scope="INC-0",
    decided_at=datetime.now(UTC),
    why={"approved_by": "ada"},
    workflow_id="INC-0",
    workflow_type="Incident",
    first_run_id="run-1",
)


def _receipt(intent: Intent, number: int) -> Receipt:
    return Receipt(
        {
            "schema_version": 1,
            "receipt_id": f"receipt-{number}",
            "key": intent.key,
            "kind": intent.kind,
            "outcome": "committed",
            "reason": None,
            "fingerprint": intent.fingerprint,
            "reservation_id": f"reservation-{number}",
            "lines": [{"sku": "FILTER-A", "requested": 2, "granted": 2}],
            "created_at": "2026-03-01T12:00:01.000000Z",
        }
    )
