"""What holds for every request: tokens, sizes, headers, and the end of everything that goes wrong."""

import json
import socket

import httpx
import pytest
import sqlalchemy as sa

from services.inventory.edge import LOOKUP, MAX_BODY_BYTES, MAX_DRAINED_BYTES
from tests.services.inventory.conftest import Caller, Service, connect, running

ALWAYS = {"receipt-outcome", "idempotency-replayed", "cache-control", "x-request-id"}


def assert_problem(response: httpx.Response, name: str) -> None:
    """A problem document of that type, with its headers."""
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert (document["type"], document["status"]) == (f"/problems/{name}", response.status_code)
    assert document["title"]
    assert document["detail"]
    assert set(response.headers) >= ALWAYS
    assert response.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "authorization",
    [[], ["Bearer wrong"], ["Bearer"], ["token-1"], ["Basic token-1"], ["Bearer token-1, x"]],
)
def test_without_a_known_token_nothing_is_said_or_done(service: Service, authorization: list[str]) -> None:
    """401 goes before every other check, and repeats no token."""
    with httpx.Client(base_url=service.url, trust_env=False) as http:
        headers = [("Authorization", value) for value in authorization]
        for method, path in (
            ("POST", "/v1/reservations"),
            ("GET", "/v1/nothing"),
            ("PATCH", "/v1/receipts"),
            ("GET", "/v1"),
        ):
            response = http.request(method, path, headers=headers, content=b"x" * (MAX_BODY_BYTES + 1))
            assert response.status_code == 401
            assert_problem(response, "unauthorized")
            assert response.headers["www-authenticate"] == "Bearer"
            assert "token-1" not in response.text


def test_what_needs_no_token_is_there_without_one(service: Service) -> None:
    """Health and the description are public; an unknown path outside /v1 is just not there."""
    with httpx.Client(base_url=service.url, trust_env=False) as http:
        for path in ("/livez", "/readyz", "/metrics", "/openapi.json"):
            response = http.get(path)
            assert response.status_code == 200
            assert set(response.headers) >= ALWAYS
        assert_problem(http.get("/nothing"), "not-found")
        assert_problem(http.post("/livez"), "method-not-allowed")
        assert_problem(http.get("//v1/receipts"), "not-found")


def test_every_response_has_its_own_request_id(caller: Caller) -> None:
    """The id is per request, also of a replay, and never in the body."""
    key = caller.new_key()
    responses = [caller.reserve(key=key), caller.reserve(key=key), caller.receipt(key), caller.http.get("/v1/nothing")]
    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == 4
    assert all(set(response.headers) >= ALWAYS for response in responses)
    assert not any(number in response.text for number in ids for response in responses)


@pytest.mark.parametrize("given", ["a", "Trace.7_~-" * 12, "x" * 128])
def test_a_callers_own_request_id_is_kept(caller: Caller, given: str) -> None:
    """So that its log and the service's are about the same request."""
    assert caller.reserve(headers={"X-Request-Id": given}).headers["x-request-id"] == given
    assert caller.http.get("/v1/nothing", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", [[""], ["x" * 129], ["a b"], ["a,b"], ['"a"'], ["a", "a"]])
def test_what_is_no_request_id_is_replaced(caller: Caller, given: list[str]) -> None:
    """It would have to be escaped wherever it is read."""
    answered = caller.http.get("/livez", headers=[("X-Request-Id", value) for value in given])
    assert answered.headers["x-request-id"] not in [*given, ", ".join(given)]
    assert len(answered.headers["x-request-id"]) == 32


def test_a_token_for_reading_reads_and_does_nothing_else(caller: Caller) -> None:
    """403 goes before the size and the key, and nothing is executed or closed."""
    key, reading = caller.new_key(), caller.reading
    for path in ("/v1/stock/FILTER-A", "/v1/ledger/FILTER-A", "/v1/receipts"):
        assert caller.http.get(path, headers=reading).json() == caller.http.get(path).json()
        assert caller.http.head(path, headers=reading).status_code == 200
    assert_problem(caller.http.get(f"/v1/receipts/{key}", headers=reading), "receipt-not-found")
    refused = [
        caller.deliver(),
        caller.reserve(key=key, headers=reading),
        caller.release("reservation-1", headers=reading),
        caller.http.put(f"/v1/receipts/{key}/void", headers=reading),
        caller.http.post("/v1/deliveries", content=b"x" * (MAX_BODY_BYTES + 1), headers=reading),
        caller.http.post("/v1/reservations", headers=reading),
        caller.http.delete("/v1/receipts", headers=reading),
    ]
    assert refused.pop(0).status_code == 201
    for response in refused:
        assert response.status_code == 403
        assert_problem(response, "forbidden")
    # A look-up is a read that has a body.
    assert caller.http.post(LOOKUP, json={}, headers=reading).status_code != 403
    assert caller.receipt(key).status_code == 404
    assert caller.available() == 20


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, MAX_DRAINED_BYTES])
def test_an_oversized_body_is_heard_out_and_refused(caller: Caller, size: int) -> None:
    """413 goes before the key is looked at; the caller hears it, whole or in pieces, and its connection lives on."""
    for content in (b" " * size, iter([b" " * (size // 2), b" " * (size - size // 2)])):
        response = caller.http.post("/v1/reservations", content=content)
        assert response.status_code == 413
        assert_problem(response, "payload-too-large")
    assert caller.available() == 10


def test_a_body_that_never_ends_is_cut_off(service: Service) -> None:
    """After 1 MiB the answer comes and the connection goes."""
    host, port = httpx.URL(service.url).host, httpx.URL(service.url).port
    assert port is not None
    with socket.create_connection((host, port), timeout=60) as peer:
        head = "POST /v1/deliveries HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer token-1\r\n"
        peer.sendall(f"{head}Content-Length: 9999999999\r\n\r\n".encode())
        # One byte more than is drained, so that nothing is left unread when the connection goes.
        peer.sendall(b" " * (MAX_DRAINED_BYTES + 1))
        answer = b""
        while data := peer.recv(65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"connection: close" in answer.lower()


@pytest.mark.parametrize(("size", "is_too_large"), [(128 * 1024, False), (128 * 1024 + 1, True)])
def test_a_look_up_may_name_more_than_a_call(caller: Caller, size: int, is_too_large: bool) -> None:
    """500 keys of 128 characters fit."""
    assert (caller.http.post(LOOKUP, content=b" " * size).status_code == 413) == is_too_large


def test_a_body_of_the_largest_size_is_read(caller: Caller) -> None:
    """64 KiB are allowed to the byte."""
    body = json.dumps({"sku": "FILTER-A", "quantity": 1}).encode()
    headers = {"Idempotency-Key": caller.new_key(), "Effect-Not-After": caller.not_after}
    response = caller.http.post("/v1/deliveries", content=body.ljust(MAX_BODY_BYTES), headers=headers)
    assert response.status_code == 201


@pytest.mark.parametrize(
    ("line", "body"),
    [("POST /v1/deliveries", b'{"sku":"FILTER-A","quantity":1}'), ("PUT /v1/receipts/{key}/void", b"")],
)
def test_half_a_request_is_no_request(service: Service, caller: Caller, line: str, body: bytes) -> None:
    """A caller that breaks off has executed nothing, even if what came could be read as a whole."""
    key = caller.new_key()
    url = httpx.URL(service.url)
    assert url.port is not None
    head = (
        f"{line.format(key=key)} HTTP/1.1\r\nHost: x\r\nAuthorization: {caller.http.headers['authorization']}\r\n"
        f"Idempotency-Key: {key}\r\nEffect-Not-After: {caller.not_after}\r\nContent-Length: {len(body) + 1}\r\n\r\n"
    )
    with socket.create_connection((url.host, url.port), timeout=60) as peer:
        peer.sendall(head.encode() + body)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):
            pass
    assert caller.deliver().status_code == 201  # writers queue in order: what came before it has been done by now
    assert caller.receipt(key).status_code == 404


def test_a_failure_inside_shows_nothing_of_the_inside(database_url: str) -> None:
    """500 is a problem document without the table, the statement or the exception; the log has them."""
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        assert caller.deliver().status_code == 201
        with service.engine.begin() as connection:
            connection.execute(sa.text("ALTER TABLE movements RENAME TO elsewhere"))
        key = caller.new_key()
        response = caller.reserve(key=key)
        assert response.status_code == 500
        assert_problem(response, "internal")
        assert "retry-after" not in response.headers
        assert not any(word in response.text for word in ("movements", "sqlite", "Error", "SELECT", "INSERT"))
        assert caller.receipt(key).status_code == 404
        assert caller.available() == 10


def test_a_database_that_cannot_be_had_is_said_before_anything_is_done(database_url: str) -> None:
    """503 with Retry-After: this delivery did nothing; alive and not ready are two things."""
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        service.engine.dispose()

        @sa.event.listens_for(service.engine, "do_connect")
        def refuse(*_: object) -> None:
            raise service.engine.dialect.loaded_dbapi.OperationalError("unable to open database file")

        responses = [caller.deliver(), caller.void(caller.new_key()), caller.receipt(caller.new_key())]
        for response in [*responses, http.get("/readyz"), http.get("/v1/stock/FILTER-A")]:
            assert response.status_code == 503
            assert_problem(response, "overloaded")
            assert response.headers["retry-after"] == "1"
            assert "unable" not in response.text
        assert http.get("/livez").status_code == 200
        sa.event.remove(service.engine, "do_connect", refuse)
        assert caller.deliver().status_code == 201
