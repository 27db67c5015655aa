"""The inventory as a process: how it starts, how it ends, and what a kill leaves behind."""

import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from threading import Event, Semaphore

import httpx
import pytest
import sqlalchemy as sa

from services.database import DatabaseError, SchemaMismatch, migrate, open_engine, reading
from services.inventory.app import create_app
from services.inventory.serve import SHUTDOWN_SECONDS, AddressError, Server, bind, serve, url_of
from services.inventory.tables import KEYS, MOVEMENTS, RECEIPTS, STOCK
from tests.services.inventory.conftest import Caller, connect

PROGRAM = """
import sys
import services.database, services.inventory.stock
import services.inventory.serve as server
from services.inventory.tokens import parse_tokens
server.SHUTDOWN_SECONDS = float(sys.argv[2])
# Who waits for a lock waits until the test lets go of it, however long that takes on a busy machine.
services.database.LOCK_TIMEOUT_SECONDS = services.inventory.stock.LOCK_TIMEOUT_SECONDS = 60
server.serve("127.0.0.1", 0, sys.argv[1], parse_tokens("acme=token-a"), ready=lambda url: print(url, flush=True))
print("ended", flush=True)
"""
DEADLINE = "2100-01-01T00:00:00Z"


@contextmanager
def process(
    database_url: str, shutdown_seconds: float = SHUTDOWN_SECONDS
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The service in a process of its own, and its URL."""
    argv = [sys.executable, "-c", PROGRAM, database_url, str(shutdown_seconds)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            yield running, running.stdout.readline().strip()
        finally:
            running.kill()


def test_a_taken_address_is_said_so() -> None:
    """The error names the address and what to do."""
    listener = bind("127.0.0.1", 0)
    listener.listen()
    assert listener.proto == socket.IPPROTO_TCP  # what asyncio asks before it sets TCP_NODELAY
    port = listener.getsockname()[1]
    assert url_of(listener) == f"http://127.0.0.1:{port}"
    with pytest.raises(AddressError, match=f"127.0.0.1:{port} cannot be listened on"):
        bind("127.0.0.1", port)
    listener.close()


def test_no_service_starts_on_another_schema(database_url: str) -> None:
    """The schema is checked before the first request, and the message names the command."""
    migrate("inventory", database_url, "base")
    with pytest.raises(SchemaMismatch, match="counterfoil migrate inventory"):
        serve("127.0.0.1", 0, database_url, {})
    with pytest.raises(DatabaseError):
        serve("127.0.0.1", 0, "mysql://x", {})


def test_what_is_due_is_looked_after_again_and_again(
    dialect: str, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a thread, so that nobody's answer waits for it; a failure is said once and ends nothing."""
    del dialect
    monkeypatch.setattr("services.inventory.serve.HOUSEKEEPING_SECONDS", 0.01)
    done: list[int] = []
    enough = Event()

    def housekeeping() -> None:
        done.append(threading.get_ident())
        if len(done) > 3:
            enough.set()
        if len(done) < 3:
            raise OSError("the database is away")

    engine = open_engine(database_url)
    with closing(bind("127.0.0.1", 0)) as listener:
        app = create_app(engine, {})
        server = Server(app, url_of(listener), lambda _url: None, housekeeping)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            assert enough.wait(60)
        finally:
            server.should_exit = True
            thread.join()
    engine.dispose()
    assert thread.ident not in done
    assert caplog.messages.count("housekeeping failed") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_clean_end(database_url: str, number: signal.Signals) -> None:
    """Exit code 0, after `serve` has returned."""
    with process(database_url) as (running, url):
        with connect(url, "token-a") as http:
            assert Caller(http, not_after=DEADLINE).deliver().status_code == 201
        running.send_signal(number)
        output, _ = running.communicate(timeout=60)
        assert (running.returncode, output) == (0, "ended\n")


def test_a_hold_ends_though_nobody_asks_for_its_units(database_url: str) -> None:
    """By what the service does beside its answers."""
    with process(database_url) as (_, url), connect(url, "token-a") as http:
        caller = Caller(http, not_after=DEADLINE)
        caller.deliver(1)
        hold = {"lines": [{"sku": "FILTER-A", "quantity": 1}], "hold_seconds": 1}
        name = caller.post("/v1/reservations", hold).json()["reservation_id"]
        while http.get(f"/v1/reservations/{name}").json()["state"] != "expired":
            pass
        assert caller.available() == 1


def test_what_is_under_way_at_a_signal_is_answered(database_url: str) -> None:
    """A clean end leaves nobody without an answer: every request that was sent gets one, or was never taken."""
    with process(database_url) as (running, url), connect(url, "token-a") as http, ThreadPoolExecutor(8) as pool:
        caller = Caller(http, not_after=DEADLINE)
        first = pool.submit(caller.deliver, 1)
        rest = [pool.submit(caller.deliver, 1) for _ in range(7)]
        first.result()
        running.send_signal(signal.SIGTERM)
        # One that had not come whole when the time was up is told that nothing was executed.
        answered = 1 + sum(future.exception() is None and future.result().status_code == 201 for future in rest)
        running.communicate(timeout=60)
        assert running.returncode == 0
    engine = open_engine(database_url)
    with reading(engine) as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(RECEIPTS)).scalar_one() == answered
    engine.dispose()


def test_a_kill_under_load_leaves_one_effect_for_every_key(database_url: str) -> None:
    """I01, I02, I37: SIGKILL amid commits, twice; then the same keys again: all land, none twice, none is locked."""
    keys = [f"killed-key-{number:06d}" for number in range(90)]

    def send(caller: Caller, key: str, answered: Semaphore) -> httpx.Response:
        try:
            return caller.reserve(1, key=key)
        finally:
            answered.release()

    known: dict[str, bytes] = {}
    for kill in (True, True, False):
        with process(database_url) as (running, url), connect(url, "token-a") as http, ThreadPoolExecutor(8) as pool:
            caller = Caller(http, not_after=DEADLINE)
            caller.deliver(len(keys), key="delivery-key-00000001")
            answered = Semaphore(0)
            futures: dict[str, Future[httpx.Response]] = {key: pool.submit(send, caller, key, answered) for key in keys}
            if kill:
                for _ in range(len(known) + 20):
                    answered.acquire()
                running.kill()
            for key, future in futures.items():
                with suppress(httpx.TransportError):
                    response = future.result()
                    assert response.status_code == 201
                    assert known.setdefault(key, response.content) == response.content
    assert set(known) == set(keys)
    check_invariants(database_url, keys)


def check_invariants(database_url: str, keys: list[str]) -> None:
    """What holds in every database of the service, at any moment."""
    engine = open_engine(database_url)
    with reading(engine) as connection:
        stock = connection.execute(sa.select(STOCK)).one()
        movements = connection.execute(sa.select(MOVEMENTS).order_by(MOVEMENTS.c.version)).all()
        receipts = connection.execute(sa.select(RECEIPTS).order_by(RECEIPTS.c.sequence)).all()
        claimed = connection.execute(sa.select(KEYS.c.key)).scalars().all()
        if engine.dialect.name == "sqlite":
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar_one() == "ok"
            assert connection.exec_driver_sql("PRAGMA foreign_key_check").all() == []
    engine.dispose()
    assert (stock.received, stock.available, stock.consumed) == (len(keys), 0, len(keys))
    assert [movement.version for movement in movements] == list(range(1, stock.version + 1))
    assert [receipt.sequence for receipt in receipts] == list(range(1, len(receipts) + 1))
    assert sorted(claimed) == sorted(receipt.key for receipt in receipts)
    per_key = Counter(movement.key for movement in movements)
    assert all(per_key[key] == 1 for key in keys)
    assert per_key.total() == len(keys) + 1
    for bucket in ("received", "available", "held", "consumed"):
        assert sum(getattr(movement, bucket) for movement in movements) == getattr(stock, bucket)
