"""The inventory's callers, as a process of their own that costs little: one thread, kept connections, bytes.

Each client has one request at a time. Every answer is looked at: its status, and what its body must hold. Python starts
before anything is measured, and every connection is made.
"""

import json
import random
import selectors
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any

from benchmarks.figures import percentile

SKUS = 16


class Unexpected(Exception):
    """An answer is not what it should be: what was measured is of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to send for how long.

    Attributes:
        request: the whole of it, with `%(key)s` and `%(sku)s`.
        first: the number of the first key.
        drawn_from: how many numbers keys are drawn from at random; 0 for one number after another.
        holds: what the body of each answer holds, with the same two.
    """

    port: int
    clients: int
    seconds: float
    request: str
    first: int
    drawn_from: int
    status: int
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What came of it; `cpu_seconds` is what the callers themselves used meanwhile."""

    answers: int
    seconds: float
    cpu_seconds: float
    p50_ms: float
    p99_ms: float


def names(number: int) -> dict[str, str]:
    """The key of a number, always as long, and the SKU it is about."""
    return {"key": f"bench-{number:010d}-g1", "sku": f"FILTER-{number % SKUS:02d}"}


@dataclass(slots=True, kw_only=True)
class _Client:
    socket: socket.socket
    began: float = 0.0
    names: dict[str, str]
    received: bytes = b""


def call(plan: Plan) -> Told:
    """Send until the time is over, and wait for the last answer.

    Raises:
        Unexpected: an answer is not what the plan says.
    """
    drawn = random.Random(plan.first)  # noqa: S311 - which key is read next
    numbers: Iterator[int] = (
        iter(lambda: plan.first + drawn.randrange(plan.drawn_from), -1) if plan.drawn_from else count(plan.first)
    )
    seconds: list[float] = []
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(plan.clients):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", plan.port)))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(peer, selectors.EVENT_READ, _Client(socket=peer, names={}))
        cpu_seconds, began = time.process_time(), time.perf_counter()
        clients = [key.data for key in selector.get_map().values()]
        for client in clients:
            _send(plan, client, next(numbers))
        waiting, end = plan.clients, began + plan.seconds
        while waiting:
            for ready, _ in selector.select():
                client = ready.data
                client.received += client.socket.recv(65536)
                now = time.perf_counter()
                if not _whole(plan, client):
                    continue
                seconds.append(now - client.began)
                if now < end:
                    _send(plan, client, next(numbers))
                else:
                    waiting -= 1
        took, used = time.perf_counter() - began, time.process_time() - cpu_seconds
    return Told(
        answers=len(seconds),
        seconds=took,
        cpu_seconds=used,
        p50_ms=1000 * percentile(seconds, 50),
        p99_ms=1000 * percentile(seconds, 99),
    )


def _send(plan: Plan, client: _Client, number: int) -> None:
    client.names, client.received = names(number), b""
    client.began = time.perf_counter()
    client.socket.sendall((plan.request % client.names).encode())


def _whole(plan: Plan, client: _Client) -> bool:
    """Whether the answer is whole; then it is the right one."""
    head, found, body = client.received.partition(b"\r\n\r\n")
    if not found:
        if not client.received:
            raise Unexpected("the service closed a connection")
        return False
    fields = head.lower()
    length = int(fields.partition(b"content-length:")[2].partition(b"\r\n")[0])
    if len(body) < length:
        return False
    wanted = [(text % client.names).encode() for text in plan.holds]
    if int(head[9:12]) != plan.status or not all(text in body for text in wanted) or b"connection: close" in fields:
        raise Unexpected(f"{plan.status} with {wanted} was due, and this came: {client.received!r}")
    return True


def told(text: str) -> Told:
    """What a process of this module has printed."""
    return Told(**json.loads(text))


def arguments(plan: Plan) -> list[str]:
    """What such a process is started with."""
    return [sys.executable, "-m", "benchmarks.callers", json.dumps(asdict(plan))]


def main(text: str) -> None:
    """Call as a plan says, and print what came of it."""
    fields: dict[str, Any] = json.loads(text)
    print(json.dumps(asdict(call(Plan(**fields)))))  # noqa: T201 - this is its answer


if __name__ == "__main__":
    main(sys.argv[1])
