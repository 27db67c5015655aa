"""Calls of a run: patience with a busy provider, none with a silent one, and books that are added up."""

import itertools
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.conformance.bench import PREFIX, Bench, Unreachable, connect
from services.conformance.expectations import Broken
from tests.ports import nobody_listening
from tests.services.conformance.conftest import TOKEN, listening


def answering(*answers: Response) -> tuple[Starlette, list[Request]]:
    """An application that gives these answers in turn, the last one for ever; and what it was asked."""
    asked: list[Request] = []
    turns = itertools.chain(answers, itertools.repeat(answers[-1]))

    async def answer(request: Request) -> Response:
        await request.body()
        asked.append(request)
        return next(turns)

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST", "PUT"])]), asked


def busy(status: int, name: str) -> Response:
    """A problem after which the same request may be sent again."""
    return JSONResponse({"type": f"/problems/{name}", "status": status}, status, headers={"Retry-After": "0"})


async def test_a_busy_provider_is_asked_again_under_the_same_key() -> None:
    """Until it answers otherwise; every answer is kept."""
    app, asked = answering(busy(503, "overloaded"), busy(409, "request-in-progress"), JSONResponse({"a": 1}, 201))
    with listening(app) as url:
        async with connect(url, TOKEN) as http:
            bench = Bench(http, rounds=2)
            answer = await bench.deliver("FILTER-A", 1)
    assert answer.status == 201
    assert [one.status for one in bench.heard] == [503, 409, 201]
    assert len({one.headers["idempotency-key"] for one in asked}) == 1
    assert {one.headers["authorization"] for one in asked} == {f"Bearer {TOKEN}"}


async def test_a_provider_that_stays_busy_is_a_finding_in_the_end() -> None:
    """The last answer is what is judged."""
    app, asked = answering(busy(503, "overloaded"))
    with listening(app) as url:
        async with connect(url, TOKEN) as http:
            answer = await Bench(http, rounds=2).get("/v1/stock/A")
    assert answer.problem == "overloaded"
    assert len(asked) > 10


@contextmanager
def hanging_up() -> Iterator[str]:
    """A peer that takes one connection, reads, and closes it without a word."""

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


async def test_no_answer_is_a_finding_and_nobody_there_is_not() -> None:
    """A check waits for an answer; without a connection nothing is known of the provider."""
    with hanging_up() as url:
        async with connect(url, TOKEN) as http:
            with pytest.raises(Broken, match="GET /livez was not answered"):
                await Bench(http, rounds=2).get("/livez")
    with nobody_listening() as port:
        async with connect(f"http://127.0.0.1:{port}", TOKEN) as http:
            with pytest.raises(Unreachable):
                await Bench(http, rounds=2).get("/livez")


async def test_names_are_the_runs_own_and_each_is_new() -> None:
    """Two runs share nothing, and a key is long enough to be one."""
    async with connect("http://127.0.0.1", TOKEN) as http:
        first, second = Bench(http, rounds=2), Bench(http, rounds=2)
        names = [
            make() for bench in (first, first.for_one_check(), second) for make in (bench.sku, bench.key, bench.name)
        ]
    assert len(set(names)) == len(names)
    assert all(name.startswith(PREFIX) for name in names)
    assert first.run != second.run
    assert len(first.key()) >= 16


def stock(**changes: Any) -> Response:
    """Balances after 10 came and 3 were consumed."""
    return JSONResponse({"received": 10, "available": 7, "held": 0, "consumed": 3, "version": 2} | changes)


def ledger(*versions: int, available: int = -3, only: int = 0) -> Response:
    """The movements that make those balances, the first ones left out."""
    arrival = {"version": versions[0], "received": 10, "available": 10, "held": 0, "consumed": 0}
    taking = {"version": versions[-1], "received": 0, "available": available, "held": 0, "consumed": 3}
    return JSONResponse({"movements": [arrival, taking][only : len(versions)]})


@pytest.mark.parametrize(
    ("answers", "finding"),
    [
        ([stock(), ledger(1, 2)], None),
        ([stock(), ledger(1), ledger(0, 2, only=1)], None),
        ([stock(available=8), ledger(1, 2)], "received = available"),
        ([stock(available=-3, held=10), ledger(1, 2)], "whole numbers from 0"),
        ([stock(available="7"), ledger(1, 2)], "whole numbers from 0"),
        ([stock(), ledger(1, 3)], "movement versions"),
        ([stock(), ledger(1, 2, available=-4)], "sums of movements"),
        ([stock(version=3), ledger(1, 2), JSONResponse({"movements": []})], "ledger ends"),
        ([JSONResponse({}, 404)], "should be 200"),
    ],
)
async def test_balances_are_believed_only_with_their_ledger(answers: list[Response], finding: str | None) -> None:
    """Not negative, in balance, numbered without a gap, and summed up."""
    app, _ = answering(*answers)
    with listening(app) as url:
        async with connect(url, TOKEN) as http:
            bench = Bench(http, rounds=2)
            if finding is None:
                assert await bench.balances("A") == (10, 7, 0, 3)
            else:
                with pytest.raises(Broken, match=finding):
                    await bench.balances("A")
    assert 0 < len(bench.heard) <= len(answers)
