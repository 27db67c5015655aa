"""The end of the process, told by SIGTERM while callers wait: what has begun is answered, and nothing else is taken."""

import signal
import socket
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import httpx
import psycopg
import pytest
import sqlalchemy as sa

from tests.services.inventory.conftest import Caller, connect
from tests.services.inventory.test_metrics import sample
from tests.services.inventory.test_serve import DEADLINE, process
from tests.services.inventory.wire import Answered, Peer, peer

DELIVERY = b'{"sku":"FILTER-A","quantity":1}'


def begin(wire: Peer, line: str, size: int, key: str = "") -> None:
    """Begin a request whose body is to come; it has begun when the service asks for the body."""
    keyed = [f"Idempotency-Key: {key}", f"Effect-Not-After: {DEADLINE}"] if key else []
    head = [f"{line} HTTP/1.1", "Host: x", "Authorization: Bearer token-a", f"Content-Length: {size}", *keyed]
    wire.send(*head, "Expect: 100-continue")
    asked = wire.answer()
    assert asked is not None
    assert asked.status == 100


def idle(wire: Peer) -> None:
    """Make it a connection that waits for its next request."""
    wire.send("GET /livez HTTP/1.1", "Host: x")
    assert wire.answer() is not None


def last(wire: Peer) -> Answered:
    """The answer with which the connection ends."""
    answered = wire.answer()
    assert answered is not None
    assert answered.headers["connection"] == "close"
    assert wire.answer() is None
    return answered


@contextmanager
def stock_held(database_url: str) -> Iterator[None]:
    """Another connection holds what every delivery needs, until the block ends."""
    url = sa.make_url(database_url)
    if url.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(url.database), isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")
        return
    with psycopg.connect(database_url) as other:
        other.execute("LOCK TABLE stock IN EXCLUSIVE MODE")
        yield
        other.rollback()


def wait_until_begun(url: str, requests: int) -> None:
    """Ask until so many requests are being answered, beside this one."""
    with httpx.Client(base_url=url, trust_env=False) as http:
        while sample(http.get("/metrics").text, "requests_in_flight") < requests + 1:
            pass


def test_who_is_sending_may_finish_and_is_answered(database_url: str) -> None:
    """Idle connections are closed and new ones refused; /readyz says so to whoever still asks; then exit code 0."""
    with process(database_url) as (running, url), peer(url) as waiting, peer(url) as sending, peer(url) as asking:
        idle(waiting)
        begin(sending, "POST /v1/deliveries", len(DELIVERY), "half-sent-key-00001")
        sending.raw(DELIVERY[:10])
        begin(asking, "GET /readyz", 1)
        running.send_signal(signal.SIGTERM)
        assert waiting.answer() is None
        address = httpx.URL(url)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address.host, address.port), timeout=20)
        asking.raw(b" ")
        not_ready = last(asking)
        assert (not_ready.status, not_ready.problem) == (503, "overloaded")
        sending.raw(DELIVERY[10:])
        assert last(sending).status == 201
        assert running.communicate(timeout=60)[0] == "ended\n"
        assert running.returncode == 0


def test_who_waits_for_a_lock_is_answered(database_url: str) -> None:
    """The lock is let go of after the signal; the delivery is done, and said."""
    with (
        process(database_url) as (running, url),
        peer(url) as waiting,
        connect(url, "token-a") as http,
        ThreadPoolExecutor(3) as pool,
    ):
        idle(waiting)
        caller = Caller(http, not_after=DEADLINE)
        with stock_held(database_url):
            deliveries = [pool.submit(caller.deliver, 1) for _ in range(3)]
            wait_until_begun(url, 3)
            running.send_signal(signal.SIGTERM)
            assert waiting.answer() is None
        for delivery in deliveries:
            answered = delivery.result()
            assert (answered.status_code, answered.headers["connection"]) == (201, "close")
        assert running.communicate(timeout=60)[0] == "ended\n"
        assert running.returncode == 0


def test_who_is_not_done_at_the_limit_is_told_what_is_known(database_url: str) -> None:
    """Half a request was not executed, and may be sent again; of one that waits inside nobody can tell."""
    with process(database_url, shutdown_seconds=1) as (running, url), peer(url) as sending, peer(url) as waiting:
        begin(sending, "POST /v1/deliveries", len(DELIVERY), "half-sent-key-00001")
        with stock_held(database_url):
            begin(waiting, "POST /v1/deliveries", len(DELIVERY), "waiting-key-0000001")
            waiting.raw(DELIVERY)
            running.send_signal(signal.SIGTERM)
            cut, unknown = last(sending), last(waiting)
        assert (cut.status, cut.problem) == (503, "overloaded")
        assert (unknown.status, unknown.problem) == (500, "internal")
        assert running.communicate(timeout=60)[0] == "ended\n"
        assert running.returncode == 0


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_it_at_once(database_url: str, second: signal.Signals, code: int) -> None:
    """Nobody is waited for, and what was not answered may be asked for again: nothing of it was executed."""
    with process(database_url) as (running, url), peer(url) as waiting, peer(url) as sending:
        idle(waiting)
        begin(sending, "POST /v1/deliveries", len(DELIVERY), "half-sent-key-00001")
        running.send_signal(signal.SIGTERM)
        assert waiting.answer() is None
        running.send_signal(second)
        assert sending.answer() is None
        running.communicate(timeout=60)
        assert running.returncode == code
    with process(database_url) as (_, url), connect(url, "token-a") as http:
        assert Caller(http).receipt("half-sent-key-00001").status_code == 404
