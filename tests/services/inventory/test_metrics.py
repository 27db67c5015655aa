"""What Prometheus reads: every request counted, and nothing of any tenant."""

import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.inventory.metrics import Metrics
from tests.services.inventory.conftest import Caller, Service, connect, running
from tests.services.inventory.wire import peer

PREFIX = "counterfoil_inventory"


@pytest.fixture
def alone(database_url: str) -> Iterator[Service]:
    """A service whose numbers nobody else moves."""
    with running(database_url, {"s3cret-token": "acme-tenant"}) as service:
        yield service


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def sample(text: str, name: str, **labels: str) -> float:
    """One sample; 0 where there is none."""
    return read(text).get((f"{PREFIX}_{name}", frozenset(labels.items())), 0)


def test_requests_problems_and_receipts_are_counted(alone: Service) -> None:
    """By template, status, type, outcome and replay; without a token, and without a word about whose they are."""
    with connect(alone.url, "s3cret-token") as http:
        caller = Caller(http)
        key = caller.new_key()
        assert [caller.deliver().status_code for _ in range(3)] == [201] * 3
        assert [caller.reserve(key=key).status_code for _ in range(2)] == [201, 201]
        assert caller.reserve(1000).status_code == 409
        assert caller.void("closed-key-00000001").status_code == 200
        assert caller.reserve(key="closed-key-00000001").status_code == 410
        assert caller.receipt(key).status_code == 200
        assert caller.receipt("unknown-key-0000001").status_code == 404
        assert http.get("/v1/secret-path").status_code == 404
        assert http.request("M-SEARCH", "/v1/receipts").status_code == 405
        assert http.get("/v1/stock/SECRET-SKU", headers={"Authorization": "Bearer wrong"}).status_code == 401
    with peer(alone.url) as wire:
        wire.raw(b"nonsense\r\n\r\n")
        assert wire.refused() == "validation-failed"
    response = httpx.get(f"{alone.url}/metrics", trust_env=False)
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    text = response.text
    for route, method, status, count in (
        ("/v1/deliveries", "POST", "201", 3),
        ("/v1/reservations", "POST", "201", 2),
        ("/v1/reservations", "POST", "409", 1),
        ("/v1/receipts/{key}", "GET", "404", 1),
        ("/v1/stock/{sku}", "GET", "401", 1),
        ("/v1/receipts", "other", "405", 1),
        ("unmatched", "GET", "404", 1),
        ("unreadable", "other", "400", 1),
    ):
        assert sample(text, "requests_total", route=route, method=method, status=status) == count, route
    assert sample(text, "request_seconds_count", route="/v1/deliveries", method="POST") == 3
    assert sample(text, "request_seconds_sum", route="/v1/deliveries", method="POST") > 0
    for problem in ("insufficient-stock", "key-voided", "receipt-not-found", "not-found", "unauthorized"):
        assert sample(text, "problems_total", problem=problem) == 1, problem
    assert ("counterfoil_inventory_problems_total", frozenset({("problem", "internal")})) in read(text)
    assert sample(text, "receipts_total", outcome="committed", replayed="false") == 4
    assert sample(text, "receipts_total", outcome="committed", replayed="true") == 1
    assert sample(text, "receipts_total", outcome="rejected", replayed="false") == 1
    assert sample(text, "receipts_total", outcome="voided", replayed="false") == 1
    assert sample(text, "receipts_total", outcome="voided", replayed="true") == 1
    assert sample(text, "requests_in_flight") == 1  # this one
    assert not any(word in text for word in ("tenant", "acme", "s3cret", key, "secret-path", "SECRET", "M-SEARCH"))


def test_a_caller_that_breaks_off_is_counted_too(alone: Service) -> None:
    """Nobody was left to answer, and nothing stays in flight."""
    with peer(alone.url) as wire:
        wire.send("POST /v1/deliveries HTTP/1.1", "Host: x", "Content-Length: 5")
        while sample(httpx.get(f"{alone.url}/metrics", trust_env=False).text, "requests_in_flight") < 2:
            pass  # until the head was read
    labels = {"route": "/v1/deliveries", "method": "POST", "status": "none"}
    while sample(text := httpx.get(f"{alone.url}/metrics", trust_env=False).text, "requests_total", **labels) == 0:
        pass
    assert sample(text, "requests_in_flight") == 1


def test_batches_are_counted_by_their_size() -> None:
    """The number of commits, and of the calls that they served."""
    metrics = Metrics()
    for calls in (1, 3, 40):
        metrics.batch(calls)
    text = metrics.text().decode()
    assert (sample(text, "batch_calls_count"), sample(text, "batch_calls_sum")) == (3, 44)
    assert [sample(text, "batch_calls_bucket", le=le) for le in ("1.0", "4.0", "32.0", "64.0")] == [1, 2, 2, 3]


def test_two_applications_do_not_add_up() -> None:
    """Nothing is global."""
    one, other = Metrics(), Metrics()
    one.batch(1)
    assert sample(other.text().decode(), "batch_calls_count") == 0


def test_the_text_has_no_series_that_nobody_reads() -> None:
    """A time of making beside each count would double them."""
    assert "_created" not in Metrics().text().decode()


def test_no_worker_pays_for_it() -> None:
    """Its import is a tenth of a second, and a worker's start is a part of every recovery."""
    program = "import sys, services.worker, services.cli.worker; sys.exit('prometheus_client' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
