"""P7: the inventory service under callers: a reservation, and the look-up of a receipt.

Three questions, answered by one matrix of measurements, each of its rounds going through every cell once:

- What is left of the framework's own speed? The same calls against the same server with handlers that do nothing.
- What is left of the database's? Bare commits of one row, on the same server or disk.
- Does it stay so? The same with a thousand receipts and with as many as are asked for.

The service is `counterfoil inventory` in a process of its own, and so are its callers.
"""

import asyncio
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import httpx

from benchmarks import callers, inserts, preload
from benchmarks.figures import Spread, ratios, spread
from benchmarks.machine import Meter
from services.database import migrate
from services.drill.postgres import PostgresServer
from services.drill.processes import Child, ProcessError, Processes, free_port, wait_until
from services.drill.stack import START_SECONDS

EMPTY, SQLITE, POSTGRES = "nothing", "SQLite", "PostgreSQL"
POST, GET = "POST", "GET"
CLIENTS = (1, 32)
FEW = 1_000
_TOKEN = "bench-token"  # noqa: S105 - of a server that lives for minutes, on this machine alone
_DELIVERED = 1_000_000_000
_ROOT = Path(__file__).parents[1]
_HEADERS = f"Host: 127.0.0.1\r\nAuthorization: Bearer {_TOKEN}\r\n"
_BODY = '{"lines":[{"quantity":1,"sku":"%(sku)s"}]}'
_REQUESTS = {
    POST: (
        f"POST /v1/reservations HTTP/1.1\r\n{_HEADERS}Idempotency-Key: %(key)s\r\n"
        "Effect-Not-After: 2999-01-01T00:00:00Z\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(_BODY % callers.names(0))}\r\n\r\n{_BODY}"
    ),
    GET: f"GET /v1/receipts/%(key)s HTTP/1.1\r\n{_HEADERS}\r\n",
}
_STATUS = {POST: 201, GET: 200}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much of it."""

    rounds: int
    seconds: float  # of each measurement
    receipts: int  # how many it grows to


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one measurement is of."""

    database: str
    receipts: int
    call: str
    clients: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement of a cell."""

    told: callers.Told
    cpu_seconds: dict[str, float]
    others: float

    @property
    def per_second(self) -> float:
        """Answers a second."""
        return self.told.answers / self.told.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A cell in figures; the ratio is to the handler that does nothing, in the same round."""

    cell: Cell
    per_second: Spread
    to_empty: Spread
    p50_ms: Spread
    p99_ms: Spread
    cpu_ms_by_part: dict[str, float]  # per request, medians


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """Reservations beside bare commits, at the most clients."""

    database: str
    bare_by: str  # threads or tasks: whichever was the faster, by the medians
    bare_per_second: Spread
    reservations_per_second: Spread
    to_bare: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The slowest hundredth with the most receipts, to that with few, within each round."""

    database: str
    call: str
    clients: int
    few_p99_ms: Spread
    many_p99_ms: Spread
    p99_ratio: Spread
    per_second_ratio: Spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The whole benchmark."""

    settings: Settings
    rows: list[Row] = field(default_factory=list)
    commits: list[Commits] = field(default_factory=list)
    growth: list[Growth] = field(default_factory=list)
    others: Spread


@dataclass(slots=True, kw_only=True)
class _Service:
    """A service that is measured, with the numbers of keys that are free in it."""

    child: Child
    port: int
    database: str
    receipts: int
    next_number: int


def measure(processes: Processes, folder: Path, settings: Settings, tell: Callable[[str], None]) -> Result:
    """Fill the databases, start the services and run the rounds.

    Raises:
        ProcessError: a part did not start, or an answer was not the right one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    postgres = PostgresServer(processes, folder / "postgres")
    try:
        postgres.start()
        services = [_empty(processes, folder)]
        for database, receipts in product((SQLITE, POSTGRES), (FEW, settings.receipts)):
            tell(f"inventory, {receipts:,} receipts on {database}")
            name = f"inventory_{receipts}"
            url = f"sqlite:///{folder / name}.db" if database == SQLITE else postgres.create_database(name)
            services.append(_filled(processes, folder, database, url, receipts))
        bare = {
            (SQLITE, "threads"): _threads(inserts.of_sqlite(folder / "bare.db"), settings.seconds),
            (POSTGRES, "threads"): _threads(
                inserts.of_postgres(url := postgres.create_database("bare")), settings.seconds
            ),
            (POSTGRES, "tasks"): lambda: inserts.by_tasks(url, CLIENTS[-1], settings.seconds),
        }
        return _rounds(settings, services, bare, postgres, tell)
    finally:
        postgres.remove()


def _threads(opened: inserts.Opened, seconds: float) -> Callable[[], int]:
    return lambda: inserts.together(opened, CLIENTS[-1], seconds)


def _rounds(
    settings: Settings,
    services: list[_Service],
    bare: Mapping[tuple[str, str], Callable[[], int]],
    postgres: PostgresServer,
    tell: Callable[[str], None],
) -> Result:
    runs: dict[Cell, list[Run]] = {}
    rates: dict[tuple[str, str], list[float]] = {each: [] for each in bare}
    for number in range(-1, settings.rounds):  # the first one warms up
        tell("inventory, warm-up" if number < 0 else f"inventory, round {number + 1} of {settings.rounds}")
        first = number % len(services)
        for call, clients in product((POST, GET), CLIENTS):
            for service in services[first:] + services[:first]:
                cell = Cell(database=service.database, receipts=service.receipts, call=call, clients=clients)
                run = _run(service, cell, settings, postgres)
                if number >= 0:
                    runs.setdefault(cell, []).append(run)
        for each, work in bare.items():
            meter = Meter({})
            done = work()
            if number >= 0:
                rates[each].append(done / meter.usage().seconds)
    return summary(settings, runs, rates)


def _run(service: _Service, cell: Cell, settings: Settings, postgres: PostgresServer) -> Run:
    reads = cell.call == GET
    empty = service.database == EMPTY
    plan = callers.Plan(
        port=service.port,
        clients=cell.clients,
        seconds=settings.seconds,
        request=_REQUESTS[cell.call],
        first=0 if reads else service.next_number,
        drawn_from=service.receipts if reads else 0,
        status=_STATUS[cell.call],
        holds=('"outcome":"committed"',) if empty else ('"outcome":"committed"', '"key":"%(key)s"', '"sku":"%(sku)s"'),
    )
    parts = {"service": service.child.pid}
    if service.database == POSTGRES:
        parts["PostgreSQL"] = postgres.child.pid
    meter = Meter(parts)
    done = subprocess.run(callers.arguments(plan), env=_environment(), capture_output=True, text=True, check=False)  # noqa: S603 - ours
    usage = meter.usage()
    if done.returncode != 0:
        raise ProcessError(f"{service.child.name} did not answer as it should:\n{done.stderr[-3000:]}")
    told = callers.told(done.stdout)
    service.next_number += 0 if reads else told.answers
    cpu_seconds = {name: seconds for name, seconds in usage.cpu_seconds.items() if name in parts}
    return Run(told=told, cpu_seconds=cpu_seconds | {"callers": told.cpu_seconds}, others=usage.others)


def summary(settings: Settings, runs: Mapping[Cell, list[Run]], bare: Mapping[tuple[str, str], list[float]]) -> Result:
    """The figures of all rounds."""
    rates = {cell: [run.per_second for run in of] for cell, of in runs.items()}
    p99 = {cell: [run.told.p99_ms for run in of] for cell, of in runs.items()}

    def cell(database: str, receipts: int, call: str, clients: int) -> Cell:
        return Cell(database=database, receipts=receipts, call=call, clients=clients)

    rows = [
        Row(
            cell=each,
            per_second=spread(rates[each]),
            to_empty=ratios(rates[each], rates[cell(EMPTY, 0, each.call, each.clients)]),
            p50_ms=spread([run.told.p50_ms for run in of]),
            p99_ms=spread(p99[each]),
            cpu_ms_by_part={
                part: spread([1000 * run.cpu_seconds[part] / run.told.answers for run in of]).median
                for part in of[0].cpu_seconds
            },
        )
        for each, of in runs.items()
    ]
    commits = []
    for database in (SQLITE, POSTGRES):
        by, bare_rates = max(
            ((by, rates_) for (of, by), rates_ in bare.items() if of == database),
            key=lambda found: spread(found[1]).median,
        )
        reservations = rates[cell(database, FEW, POST, CLIENTS[-1])]
        commits.append(
            Commits(
                database=database,
                bare_by=by,
                bare_per_second=spread(bare_rates),
                reservations_per_second=spread(reservations),
                to_bare=ratios(reservations, bare_rates),
            )
        )
    growth = [
        Growth(
            database=database,
            call=call,
            clients=clients,
            few_p99_ms=spread(p99[few]),
            many_p99_ms=spread(p99[many]),
            p99_ratio=ratios(p99[many], p99[few]),
            per_second_ratio=ratios(rates[many], rates[few]),
        )
        for database, call, clients in product((SQLITE, POSTGRES), (POST, GET), CLIENTS)
        for few, many in [
            (cell(database, FEW, call, clients), cell(database, settings.receipts, call, clients)),
        ]
    ]
    others = spread([run.others for of in runs.values() for run in of])
    return Result(settings=settings, rows=rows, commits=commits, growth=growth, others=others)


def _empty(processes: Processes, folder: Path) -> _Service:
    port = free_port()
    child = processes.add(
        Child(
            [sys.executable, "-m", "benchmarks.empty_service", str(port)],
            name="The empty service",
            log=folder / "empty.log",
            env=_environment(),
        )
    )
    service = _Service(child=child, port=port, database=EMPTY, receipts=0, next_number=0)
    _start(service)
    return service


def _filled(processes: Processes, folder: Path, database: str, url: str, receipts: int) -> _Service:
    """A service with so many receipts: the first of each SKU is its own."""
    migrate("inventory", url)
    port = free_port()
    child = processes.add(
        Child(
            [str(Path(sysconfig.get_path("scripts")) / "counterfoil"), "inventory", "--port", str(port)],
            name=f"The inventory with {receipts} receipts on {database}",
            log=folder / f"inventory-{database}-{receipts}.log",
            env=_environment()
            | {
                "COUNTERFOIL_INVENTORY_TOKENS": f"{preload.TENANT}={_TOKEN}",
                "COUNTERFOIL_INVENTORY_DATABASE_URL": url,
            },
        )
    )
    service = _Service(child=child, port=port, database=database, receipts=receipts, next_number=receipts)
    _start(service)
    with _client(service) as http:
        for number in range(callers.SKUS):
            delivery = {"sku": callers.names(number)["sku"], "quantity": _DELIVERED}
            _post(http, "/v1/deliveries", f"bench-delivery-{number:03d}", delivery)
        for number in range(callers.SKUS):
            lines = [{"sku": callers.names(number)["sku"], "quantity": 1}]
            _post(http, "/v1/reservations", callers.names(number)["key"], {"lines": lines})
    child.terminate()
    preload.fill(url, receipts)
    _start(service)
    return service


@contextmanager
def _client(service: _Service) -> Iterator[httpx.Client]:
    url, token = f"http://127.0.0.1:{service.port}", {"Authorization": f"Bearer {_TOKEN}"}
    with httpx.Client(base_url=url, headers=token, trust_env=False, timeout=START_SECONDS) as http:
        yield http


def _post(http: httpx.Client, path: str, key: str, body: object) -> None:
    headers = {"Idempotency-Key": key, "Effect-Not-After": "2999-01-01T00:00:00Z"}
    answer = http.post(path, json=body, headers=headers)
    if answer.status_code != _STATUS[POST]:
        raise ProcessError(f"{path} was answered with {answer.status_code}: {answer.text}")


def _start(service: _Service) -> None:
    service.child.start()

    async def answers() -> bool:
        service.child.require_alive()
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", service.port)
        except OSError:
            return False
        writer.close()
        return True

    asyncio.run(wait_until(answers, timeout_seconds=START_SECONDS, what=f"{service.child.name} answers"))


def _environment() -> dict[str, str]:
    """A person's own settings reach none of the parts."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("COUNTERFOIL_")}
    return env | {"PYTHONPATH": os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))}
