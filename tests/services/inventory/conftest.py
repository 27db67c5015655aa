"""A real service on a localhost port, and callers of it."""

import functools
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from services.database import migrate, open_engine, writing
from services.inventory.app import create_app
from services.inventory.serve import Server, bind, url_of
from services.inventory.tables import RESERVATIONS
from services.inventory.tokens import Grant
from tests.postgres import Databases

TENANTS = 400
NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
_names = itertools.count(1)


@dataclass
class Clock:
    """The service's clock, which a test may turn."""

    now: datetime = NOW

    def __call__(self) -> datetime:
        """What time it is."""
        return self.now


@dataclass
class Caller:
    """One tenant's caller: every keyed request gets a key and a deadline unless it brings its own."""

    http: httpx.Client
    tenant: str = "acme"
    not_after: str = "2026-06-02T12:00:00Z"
    _keys: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def reading(self) -> dict[str, str]:
        """The header of the tenant's token that may only read."""
        return {"Authorization": self.http.headers["authorization"].replace("token-", "read-")}

    def new_key(self) -> str:
        """A key that was never used."""
        return f"test-key-{next(self._keys):08d}-g1"

    def post(
        self, path: str, body: Any, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """A keyed POST."""
        sent = {"Idempotency-Key": key or self.new_key(), "Effect-Not-After": self.not_after, **(headers or {})}
        return self.http.post(path, json=body, headers=sent)

    def deliver(self, quantity: int = 10, sku: str = "FILTER-A", key: str | None = None) -> httpx.Response:
        """Bring units in."""
        return self.post("/v1/deliveries", {"sku": sku, "quantity": quantity}, key)

    def reserve(
        self, quantity: int = 2, sku: str = "FILTER-A", key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Take units of one SKU."""
        return self.post("/v1/reservations", {"lines": [{"sku": sku, "quantity": quantity}]}, key, headers)

    def hold(self, quantity: int = 2, seconds: int = 60, key: str | None = None) -> httpx.Response:
        """Hold units of FILTER-A."""
        body = {"lines": [{"sku": "FILTER-A", "quantity": quantity}], "hold_seconds": seconds}
        return self.post("/v1/reservations", body, key)

    def confirm(self, reservation_id: str, key: str | None = None) -> httpx.Response:
        """Take what is held."""
        return self.post(f"/v1/reservations/{reservation_id}/confirm", {}, key)

    def release(
        self, reservation_id: str, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Give a reservation back."""
        return self.post(f"/v1/reservations/{reservation_id}/release", {}, key, headers)

    def void(self, key: str) -> httpx.Response:
        """Close a key."""
        return self.http.put(f"/v1/receipts/{key}/void")

    def receipt(self, key: str) -> httpx.Response:
        """Read a key's receipt."""
        return self.http.get(f"/v1/receipts/{key}")

    def stock(self, sku: str = "FILTER-A") -> dict[str, Any]:
        """Balances, which always add up."""
        stock: dict[str, Any] = self.http.get(f"/v1/stock/{sku}").raise_for_status().json()
        assert stock["received"] == stock["available"] + stock["held"] + stock["consumed"]
        return stock

    def available(self, sku: str = "FILTER-A") -> int:
        """Units that could be taken."""
        return int(self.stock(sku)["available"])

    def ledger(self, sku: str = "FILTER-A") -> list[dict[str, Any]]:
        """All movements of a SKU."""
        page = self.http.get(f"/v1/ledger/{sku}").raise_for_status().json()
        movements: list[dict[str, Any]] = page["movements"]
        return movements


@dataclass
class Service:
    """A running service."""

    url: str
    clock: Clock
    engine: sa.Engine
    database_url: str
    housekeeping: Callable[[], None]

    def end_hold(self, caller: Caller, receipt: Mapping[str, Any]) -> None:
        """Let the time of a hold be over: by its end, since PostgreSQL's clock is nobody's to turn."""
        of = (RESERVATIONS.c.tenant == caller.tenant, RESERVATIONS.c.reservation_id == receipt["reservation_id"])
        with writing(self.engine) as connection:
            connection.execute(RESERVATIONS.update().where(*of).values(expires_at=datetime(2026, 1, 1, tzinfo=UTC)))


@contextmanager
def running(database_url: str, tokens: Mapping[str, str | Grant], **options: Any) -> Iterator[Service]:
    """Run the service in a thread, under uvicorn, on a free port; the options are `create_app`'s.

    A token's tenant alone means all that one may do.
    """
    engine = open_engine(database_url)
    clock = Clock()
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    grants = {token: each if isinstance(each, Grant) else Grant(tenant=each) for token, each in tokens.items()}
    app = create_app(engine, grants, clock, **options)
    server = Server(app, url_of(listener), lambda _url: ready.set())
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert ready.wait(60)
        yield Service(url_of(listener), clock, engine, database_url, app.state.housekeeping)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
        engine.dispose()


def connect(url: str, token: str) -> httpx.Client:
    """A client that takes no advice from the environment."""
    limits = httpx.Limits(max_connections=64, max_keepalive_connections=64)
    return httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, limits=limits, timeout=30
    )


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty database."""
    path = tmp_path_factory.mktemp("template") / "inventory.db"
    migrate("inventory", f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def _new_database(template: Path, request: pytest.FixtureRequest) -> Callable[[str, Path], str]:
    """Makes a migrated database of the dialect, on SQLite in the folder; PostgreSQL starts when it is asked for."""

    def make(dialect: str, folder: Path) -> str:
        if dialect == "sqlite":
            return f"sqlite:///{shutil.copy(template, folder / 'inventory.db')}"
        postgres: Databases = request.getfixturevalue("postgres")
        return postgres.migrated("inventory")

    return make


@pytest.fixture
def database_url(dialect: str, _new_database: Callable[[str, Path], str], tmp_path: Path) -> str:
    """A migrated database of the test's own."""
    return _new_database(dialect, tmp_path)


@pytest.fixture(scope="session")
def _shared(
    _new_database: Callable[[str, Path], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Service]]:
    tokens: dict[str, str | Grant] = {}
    for number in range(1, TENANTS + 1):
        tokens[f"token-{number}"] = f"tenant-{number}"
        tokens[f"read-{number}"] = Grant(tenant=f"tenant-{number}", may_write=False)
    with ExitStack() as stack:
        yield functools.cache(
            lambda dialect: stack.enter_context(
                running(_new_database(dialect, tmp_path_factory.mktemp("shared")), tokens)
            )
        )


@pytest.fixture
def service(dialect: str, _shared: Callable[[str], Service]) -> Service:
    """The service on a database that tests share, each as a tenant of its own; its clock starts at NOW."""
    service = _shared(dialect)
    service.clock.now = NOW
    return service


@pytest.fixture
def callers(service: Service) -> Iterator[Iterator[Caller]]:
    """Callers of tenants that nobody has used, as many as are asked for."""
    with ExitStack() as stack:
        yield (
            Caller(stack.enter_context(connect(service.url, f"token-{number}")), f"tenant-{number}")
            for number in _names
        )


@pytest.fixture
def caller(callers: Iterator[Caller]) -> Caller:
    """A caller whose tenant has 10 FILTER-A."""
    first = next(callers)
    assert first.deliver().status_code == 201
    return first


def hours(number: int) -> timedelta:
    """So many hours."""
    return timedelta(hours=number)
