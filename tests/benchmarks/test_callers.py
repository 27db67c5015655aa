"""The callers, against the empty service and against peers that answer wrongly."""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import callers
from benchmarks.callers import Plan, Unexpected

ROOT = Path(__file__).parents[2]
PLAN = Plan(
    port=0,
    clients=2,
    seconds=0.0,
    request="GET /%(key)s/%(sku)s HTTP/1.1\r\n\r\n",
    first=7,
    drawn_from=0,
    status=200,
    holds=("%(key)s",),
)


@contextmanager
def peer(status: str, *, sent_in: int = 1, body: str = "{path}") -> Iterator[tuple[int, list[str]]]:
    """A server whose answers hold what was asked for; its port, and the paths that were asked for."""
    asked: list[str] = []

    def answer(client: socket.socket) -> None:
        with client, suppress(ConnectionError):
            while request := client.recv(65536):
                path = request.split()[1].decode()
                asked.append(path)
                text = body.format(path=path)
                reply = f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
                for part in range(sent_in):
                    client.sendall(reply[part * len(reply) // sent_in : (part + 1) * len(reply) // sent_in])

    def serve() -> None:
        for _ in range(PLAN.clients):
            client, _address = listener.accept()  # answer() closes it
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], asked
        thread.join()


@pytest.mark.parametrize("sent_in", [1, 5])
def test_each_client_calls_at_least_once_with_a_key_of_its_own(sent_in: int) -> None:
    """However an answer is cut into pieces on its way."""
    with peer("200 OK", sent_in=sent_in) as (port, asked):
        told = callers.call(replace(PLAN, port=port))
    assert sorted(asked) == ["/bench-0000000007-g1/FILTER-07", "/bench-0000000008-g1/FILTER-08"]
    assert told.answers == 2
    assert 0 < told.p50_ms <= told.p99_ms


def test_keys_are_drawn_from_those_that_are_there() -> None:
    """A look-up of a key that is not there would measure something else."""
    with peer("200 OK") as (port, asked):
        callers.call(replace(PLAN, port=port, drawn_from=3, seconds=0.05))
    assert {path.split("/")[1] for path in asked} <= {f"bench-000000000{number}-g1" for number in (7, 8, 9)}


@pytest.mark.parametrize(("status", "body"), [("503 Service Unavailable", "{path}"), ("200 OK", "another key")])
def test_an_answer_that_is_not_the_right_one_ends_the_measurement(status: str, body: str) -> None:
    """A service that refuses quickly would look like a fast one."""
    with peer(status, body=body) as (port, _asked), pytest.raises(Unexpected, match="was due"):
        callers.call(replace(PLAN, port=port))


def test_a_connection_that_is_closed_ends_the_measurement() -> None:
    """Nothing is waited for that cannot come."""

    def hang_up() -> None:
        for _ in range(PLAN.clients):
            listener.accept()[0].close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises((Unexpected, ConnectionError)):
            callers.call(replace(PLAN, port=listener.getsockname()[1]))
        thread.join()


def test_what_a_process_is_told_is_what_it_does() -> None:
    """Through its command line and back through its output."""
    with peer("200 OK") as (port, asked):
        command = callers.arguments(replace(PLAN, port=port))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert callers.told(done.stdout).answers == len(asked) == 2
