"""What Prometheus reads at /metrics: text format 0.0.4, without a token, and so without any tenant's data.

- A registry of the application's own: nothing is registered at import, and two applications never add up.
- No label comes from a caller: routes are templates, methods and problems are known words. No tenant, no key.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    ProcessCollector,
    generate_latest,
)

from services.inventory.contract import Outcome
from services.inventory.exchanges import Exchange
from services.inventory.problems import Problem

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

# From a read out of the page cache to the longest that a request may wait for a lock.
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_CALLS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PREFIX = "counterfoil_inventory"
_WRITING = frozenset({"POST", "PUT"})


class Metrics:
    """The counts of one application."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            f"{_PREFIX}_requests",
            "Requests by route, method and status; status none: the caller was gone.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            f"{_PREFIX}_request_seconds",
            "Seconds from a request's head to the end of its answer.",
            ("route", "method"),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self._problems = Counter(
            f"{_PREFIX}_problems", "Problem documents by type.", ("problem",), registry=self._registry
        )
        self._receipts = Counter(
            f"{_PREFIX}_receipts",
            "Receipts that keyed calls and voids were answered with, new or replayed.",
            ("outcome", "replayed"),
            registry=self._registry,
        )
        self._in_flight = Gauge(
            f"{_PREFIX}_requests_in_flight", "Requests that are being answered.", registry=self._registry
        )
        self._batches = Histogram(
            f"{_PREFIX}_batch_calls", "Calls that one transaction served.", buckets=_CALLS, registry=self._registry
        )
        for problem in Problem:  # from the start, so that a rate has a first value to be counted from
            self._problems.labels(problem.value)
        for outcome in Outcome:
            for replayed in ("false", "true"):
                self._receipts.labels(outcome.value, replayed)

    def in_flight(self) -> AbstractContextManager[None]:
        """Count a request as being answered until the block ends."""
        return self._in_flight.track_inprogress()

    def answered(self, exchange: Exchange) -> None:
        """Count a request and its answer."""
        status = "none" if exchange.status is None else str(exchange.status)
        self._requests.labels(exchange.route, exchange.method, status).inc()
        self._seconds.labels(exchange.route, exchange.method).observe(exchange.seconds)
        if exchange.problem is not None:
            self._problems.labels(exchange.problem).inc()
        if exchange.method in _WRITING and exchange.outcome != "none":
            self._receipts.labels(exchange.outcome, "true" if exchange.replayed else "false").inc()

    def batch(self, calls: int) -> None:
        """Count a transaction that has committed, by the calls that it served. Any thread may call it."""
        self._batches.observe(calls)

    def text(self) -> bytes:
        """All of it, as Prometheus reads it."""
        return generate_latest(_WithoutCreated(self._registry))


class _WithoutCreated:
    """A registry without the time at which each series was made: twice the series, for nothing that anyone reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self._registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
