"""I32: every route, asked wrongly in every way there is: a problem document, its headers, and nothing of the inside."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from starlette.routing import Route

from services.database import writing
from services.inventory.app import create_app
from services.inventory.books import MAX_UNITS
from services.inventory.edge import LOOKUP
from services.inventory.problems import RETRIABLE, STATUS, Problem
from services.inventory.tables import STOCK
from services.inventory.tokens import Grant
from tests.services.inventory.conftest import Caller, Service, connect, running
from tests.services.inventory.test_edge import assert_problem
from tests.services.inventory.wire import ALWAYS, peer

TOKEN, READ = "s3cret-token-a", "s3cret-token-b"
KEY = "error-path-key-00001"
DEADLINE = "2026-06-02T12:00:00Z"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/reservations": {"lines": [{"sku": "FILTER-A", "quantity": 1}]},
    "/v1/deliveries": {"sku": "FILTER-A", "quantity": 1},
    LOOKUP: {"keys": [KEY]},
}
# What could only have come from the inside.
INSIDE = re.compile(
    r"Traceback|File \"|\.py\b|/work|/site-packages|sqlite|psycopg|SELECT |INSERT |UPDATE |DETAIL|Error\b"
)

MISSING = (
    Problem.SKU_NOT_FOUND,
    Problem.RESERVATION_NOT_FOUND,
    Problem.RECEIPT_NOT_FOUND,
    Problem.IDEMPOTENCY_KEY_INVALID,
)


def routes() -> list[tuple[str, str]]:
    """Every method of every route."""
    app = create_app(sa.create_engine("sqlite://"), {})
    return [
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in sorted(route.methods or ())
        if method != "HEAD"
    ]


PRIVATE = [(method, path) for method, path in routes() if path.startswith("/v1/")]
WRITING = [(method, path) for method, path in PRIVATE if method != "GET" and path != LOOKUP]
KEYED = [(method, path) for method, path in WRITING if method == "POST"]


@pytest.fixture
def alone(database_url: str) -> Iterator[Service]:
    """A service whose database a test may break."""
    tokens: dict[str, str | Grant] = {TOKEN: "acme", READ: Grant(tenant="acme", may_write=False)}
    with running(database_url, tokens) as service:
        yield service


@pytest.fixture
def http(alone: Service) -> Iterator[httpx.Client]:
    """Its caller."""
    with connect(alone.url, TOKEN) as http:
        yield http


def filled(path: str) -> str:
    """A path that its route could answer."""
    return path.format(key=KEY, id="reservation-1", sku="FILTER-A")


def send(http: httpx.Client, method: str, path: str, **changes: Any) -> httpx.Response:
    """A request with nothing wrong in it but the changes."""
    headers = {"Idempotency-Key": KEY, "Effect-Not-After": DEADLINE, **changes.pop("headers", {})}
    headers = {name: value for name, value in headers.items() if value is not None}
    if method != "GET" and "content" not in changes:
        changes["json"] = BODIES.get(path, {})
    return http.request(method, filled(path), headers=headers, **changes)


def check(response: httpx.Response, *problems: Problem) -> None:
    """One of these problems, in its whole form, and nothing else."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    document = response.json()
    assert list(document)[:4] == ["type", "title", "status", "detail"]
    assert document["type"].removeprefix("/problems/") in set(problems)
    problem = Problem(document["type"].removeprefix("/problems/"))
    assert response.status_code == document["status"] == STATUS[problem]
    assert set(response.headers) >= ALWAYS
    assert response.headers["cache-control"] == "no-store"
    assert (response.headers["receipt-outcome"], response.headers["idempotency-replayed"]) == ("none", "false")
    assert ("retry-after" in response.headers) == (problem in RETRIABLE)
    assert ("www-authenticate" in response.headers) == (problem is Problem.UNAUTHORIZED)
    assert "location" not in response.headers
    said = response.text + str(response.headers)
    assert not INSIDE.search(said), said
    assert "s3cret" not in said


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_whoever_asks_wrongly_is_told_so_and_no_more(http: httpx.Client) -> None:
    """Tokens, keys, headers, bodies, methods and paths, each wrong in turn, at every route."""
    for method, path in PRIVATE:
        for authorization in ("", "Bearer", "Bearer s3cret", "Basic s3cret", f"Bearer {TOKEN} x", "Bearer \x7f"):
            check(send(http, method, path, headers={"Authorization": authorization}), Problem.UNAUTHORIZED)
    for method, path in WRITING:
        check(send(http, method, path, headers={"Authorization": f"Bearer {READ}"}), Problem.FORBIDDEN)
        check(send(http, method, path, content=b" " * 70_000), Problem.PAYLOAD_TOO_LARGE)
        for content in (
            b"s3cret",
            b"{",
            b'{"x":"s3cret"}',
            b"\xff",
            b"[" * 60_000,
            b'{"a":1,"a":2}',
            b"null",
            b"[]",
            b"1",
        ):
            check(send(http, method, path, content=content), Problem.VALIDATION_FAILED)
    for method, path in KEYED:
        check(send(http, method, path, headers={"Idempotency-Key": None}), Problem.IDEMPOTENCY_KEY_MISSING)
        for key in ("", "s3cret", "s3cret," * 4, "s3cret" * 30, '"s3crets3crets3cret', "s3crets3crets3cre\xe9"):
            check(
                send(http, method, path, headers={"Idempotency-Key": key.encode("latin-1")}),
                Problem.IDEMPOTENCY_KEY_INVALID,
            )
        for deadline in (
            None,
            "",
            "s3cret",
            "2026-06-02",
            "2026-13-02T12:00:00Z",
            "2026-06-02T12:00:00+02:00",
            "9" * 400,
        ):
            check(send(http, method, path, headers={"Effect-Not-After": deadline}), Problem.VALIDATION_FAILED)
        for older in ("s3cret", KEY, ", ".join(["s3crets3crets3cret"] * 17), ","):
            check(send(http, method, path, headers={"Effect-Supersedes": older}), Problem.VALIDATION_FAILED)


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_what_is_not_there_is_said_so(http: httpx.Client) -> None:
    """A wrong method, another path, a slash too many, one that is encoded, NUL, and paths without end."""
    for _, path in routes():
        allowed = {method for method, each in routes() if each == path}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "S3CRET"} - allowed:
            response = send(http, method, path)
            check(response, Problem.METHOD_NOT_ALLOWED, Problem.RECEIPT_NOT_FOUND, Problem.IDEMPOTENCY_KEY_INVALID)
        for wrong in ("/", "/s3cret", "%2F", "%00", "%0d%0aSet-Cookie:%20s3cret", "//", "/..%2f..%2fetc", ";s3cret"):
            response = http.request(next(iter(allowed)), filled(path) + wrong, json={})
            if response.is_error:
                check(response, *set(Problem) - {Problem.INTERNAL, Problem.OVERLOADED, Problem.UNAUTHORIZED})
            assert "set-cookie" not in response.headers
    for path in ("/", "//", "/v1", "/v1/", "/v1//receipts", "/V1/receipts", "/v1/%72eceipts/", "/s3cret" * 2000):
        check(http.get(path), Problem.NOT_FOUND)
    for path in ("/v1/stock/{}", "/v1/ledger/{}", "/v1/reservations/{}", "/v1/receipts/{}"):
        for name in (
            "%00",
            "a%00b",
            "%ff%fe",
            "%F0%9F%93%A6",
            "x" * 9000,
            "reservation-" + "9" * 40,
            "'%20OR%20'1'='1",
        ):
            check(http.get(path.format(name)), *MISSING)
    for query in (
        "limit=0",
        "limit=s3cret",
        "after=-1",
        "after=1&after=2",
        "s3cret=1",
        "sku=%00",
        "after=" + "9" * 999,
    ):
        check(http.get(f"/v1/receipts?{query}"), Problem.VALIDATION_FAILED)
    check(http.get("/v1/ledger/FILTER-A?after_version=s3cret"), Problem.VALIDATION_FAILED)


def test_names_that_no_database_takes_are_not_found(http: httpx.Client) -> None:
    """NUL and what is not UTF-8 are nobody's name, on either database."""
    for path in (
        "/v1/stock/{}",
        "/v1/ledger/{}",
        "/v1/reservations/{}",
        "/v1/receipts/{}",
        "/v1/reservations/{}/release",
    ):
        for name in ("a%00b", "%ff%fe", "%ED%A0%80", "x" * 5000):
            method = "POST" if path.endswith("release") else "GET"
            response = send(http, method, path.format(name))
            check(response, *MISSING)


@contextmanager
def away(service: Service) -> Iterator[None]:
    """No connection can be made."""
    service.engine.dispose()

    def refuse(*_: object) -> None:
        raise service.engine.dialect.loaded_dbapi.OperationalError("s3cret: unable to open database file")

    sa.event.listen(service.engine, "do_connect", refuse)
    yield
    sa.event.remove(service.engine, "do_connect", refuse)


@contextmanager
def broken(service: Service) -> Iterator[None]:
    """Every statement is a defect of ours."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError("s3cret: SELECT x FROM y")

    sa.event.listen(service.engine, "before_cursor_execute", fail)
    yield
    sa.event.remove(service.engine, "before_cursor_execute", fail)


@contextmanager
def locked(service: Service) -> Iterator[None]:
    """Every statement meets somebody's lock, as the driver says it."""
    driver: Any = service.engine.dialect.loaded_dbapi
    kind = type("LockNotAvailable", (driver.OperationalError,), {"sqlstate": "55P03"})

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith(("INSERT", "UPDATE", "SELECT")):
            raise sa.exc.OperationalError(statement, None, kind("s3cret: database is locked"))

    sa.event.listen(service.engine, "before_cursor_execute", fail)
    yield
    sa.event.remove(service.engine, "before_cursor_execute", fail)


@pytest.mark.parametrize(
    ("state", "problems"),
    [
        (away, {Problem.OVERLOADED}),
        (broken, {Problem.INTERNAL}),
        (locked, {Problem.REQUEST_IN_PROGRESS, Problem.OVERLOADED, Problem.INTERNAL}),
    ],
)
def test_whatever_happens_inside_stays_inside(
    alone: Service, http: httpx.Client, state: Callable[[Service], Any], problems: set[Problem]
) -> None:
    """A database that is away, a defect and a lock, at every route that needs the database; then all is well again."""
    with state(alone):
        for method, path in PRIVATE:
            check(send(http, method, path), *problems)
        assert http.get("/livez").status_code == 200
        assert http.get("/metrics").status_code == 200
    assert send(http, "POST", "/v1/deliveries").status_code == 201
    assert http.get("/readyz").status_code == 200


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_no_header_of_a_caller_comes_back(alone: Service) -> None:
    """But its well-formed request id: not even where a line's end is smuggled in."""
    with peer(alone.url) as wire:
        wire.send(
            "GET /v1/receipts HTTP/1.1",
            "Host: s3cret",
            "X-Request-Id: s3cret\x0bSet-Cookie: a",
            "Authorization: s3cret",
        )
        answered = wire.answer()
    assert answered is not None
    assert answered.problem in {"unauthorized", "validation-failed"}
    assert "s3cret" not in str(answered)


def test_a_delivery_beyond_what_a_sku_can_have_is_refused_and_its_key_stays_free(
    service: Service, caller: Caller
) -> None:
    """Not 500, and nothing stored: beyond 2^53 - 1 a reader of JSON may see another number than was written."""
    with writing(service.engine) as connection:
        of = (STOCK.c.tenant == caller.tenant, STOCK.c.sku == "FILTER-A")
        connection.execute(STOCK.update().where(*of).values(received=MAX_UNITS - 1, available=MAX_UNITS - 1))
    key = caller.new_key()
    for _ in range(2):
        refused = caller.deliver(2, key=key)
        assert_problem(refused, "validation-failed")
        assert [error["at"] for error in refused.json()["errors"]] == ["/quantity"]
    assert caller.receipt(key).status_code == 404
    assert caller.deliver(1, key=key).status_code == 201
    assert caller.stock()["received"] == MAX_UNITS
    assert_problem(caller.deliver(1), "validation-failed")
    together = [partial(caller.deliver, 1), caller.reserve, partial(caller.deliver, 1, sku="HOSE-B")]
    with ThreadPoolExecutor(len(together)) as pool:
        answers = list(pool.map(lambda call: call(), together))
    assert [answer.status_code for answer in answers] == [400, 201, 201]
