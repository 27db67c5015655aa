"""The description, held against the service that it describes."""

import re
from typing import Any

import httpx
import jsonschema
import pytest
from starlette.routing import Route

from services.inventory.app import create_app
from services.inventory.openapi import openapi
from services.inventory.problems import Problem
from tests.services.inventory.conftest import Caller, Service

PUBLIC = {"/livez", "/readyz", "/metrics", "/openapi.json"}
DOCUMENT = openapi()


def operations() -> list[tuple[str, str, dict[str, Any]]]:
    """Every operation that is described."""
    return [
        (method, path, operation)
        for path, methods in DOCUMENT["paths"].items()
        for method, operation in methods.items()
    ]


def nullable(part: Any) -> Any:
    """OpenAPI 3.0's word for what may be null, in JSON Schema's."""
    if isinstance(part, list):
        return [nullable(each) for each in part]
    if not isinstance(part, dict):
        return part
    members = {name: nullable(value) for name, value in part.items()}
    return {"anyOf": [members, {"type": "null"}]} if members.pop("nullable", False) is True else members


def check(response: httpx.Response, path: str) -> None:
    """The response is one that its operation describes, with that body and those headers."""
    method = response.request.method.lower()
    described = DOCUMENT["paths"][path][method]["responses"][str(response.status_code)]
    for name, header in described["headers"].items():
        assert name in response.headers or header.get("required") is False
    schema = described["content"][response.headers["content-type"]]["schema"]
    whole = nullable({**schema, "components": DOCUMENT["components"]})
    jsonschema.Draft4Validator(whole).validate(
        response.json() if "json" in response.headers["content-type"] else response.text
    )
    if response.is_error:
        assert response.json()["type"] in described["description"]


def test_every_route_is_described_and_nothing_else_is(service: Service) -> None:
    """The routes of the application and the paths of the document are the same."""
    app = create_app(service.engine, {})
    routes = {
        (method.lower(), route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert {(method, path) for method, path, _ in operations()} == routes
    identifiers = [operation["operationId"] for _, _, operation in operations()]
    assert len(set(identifiers)) == len(identifiers)


@pytest.mark.parametrize(("method", "path"), [(method, path) for method, path, _ in operations()])
def test_every_route_but_the_public_ones_needs_a_token(service: Service, method: str, path: str) -> None:
    """And the document says so."""
    with httpx.Client(base_url=service.url, trust_env=False) as http:
        response = http.request(method, re.sub("{.*}", "x", path))
    assert response.status_code == (200 if path in PUBLIC else 401)
    assert (DOCUMENT["paths"][path][method]["security"] == []) == (path in PUBLIC)
    check(response, path)


def test_the_document_is_served_as_it_is_composed(service: Service) -> None:
    """One document, and every reference in it leads somewhere."""
    with httpx.Client(base_url=service.url, trust_env=False) as http:
        response = http.get("/openapi.json")
    assert response.json() == DOCUMENT
    for reference in re.findall(r'"\$ref":\s*"#/components/(\w+)/([\w-]+)"', response.text):
        assert reference[1] in DOCUMENT["components"][reference[0]]


def test_every_answer_is_as_described(caller: Caller) -> None:
    """Successes, stored refusals and plain ones, each against its schema."""
    reserve, release = "/v1/reservations", "/v1/reservations/{id}/release"
    key = caller.new_key()
    check(caller.reserve(key=key), reserve)
    check(caller.reserve(3, key=key), reserve)
    check(caller.reserve(100), reserve)
    check(caller.reserve(1, "UNKNOWN"), reserve)
    check(caller.reserve(headers={"Effect-Supersedes": key}), reserve)
    check(caller.reserve(headers={"Effect-Not-After": "2026-05-01T00:00:00Z"}), reserve)
    check(caller.post(reserve, {}), reserve)
    check(caller.http.post(reserve, json={}), reserve)
    check(caller.http.post(reserve, content=b" " * 70_000), reserve)
    check(caller.deliver(), "/v1/deliveries")
    check(caller.reserve(headers=caller.reading), reserve)
    check(caller.release("reservation-1"), release)
    check(caller.release("reservation-1"), release)
    check(caller.release("reservation-9"), release)
    for voided in (caller.void(key), caller.void("closed-key-00000001"), caller.void("short")):
        check(voided, "/v1/receipts/{key}/void")
    check(caller.reserve(key="closed-key-00000001"), reserve)
    for name in (key, "closed-key-00000001", "unknown-key-0000001", "short"):
        check(caller.receipt(name), "/v1/receipts/{key}")
    for path, pattern in (
        ("/v1/receipts", "/v1/receipts"),
        ("/v1/receipts?limit=0", "/v1/receipts"),
        ("/v1/stock/FILTER-A", "/v1/stock/{sku}"),
        ("/v1/stock/UNKNOWN", "/v1/stock/{sku}"),
        ("/v1/ledger/FILTER-A", "/v1/ledger/{sku}"),
        ("/v1/ledger/UNKNOWN", "/v1/ledger/{sku}"),
        ("/v1/ledger/FILTER-A?after_version=x", "/v1/ledger/{sku}"),
        ("/v1/reservations/reservation-1", "/v1/reservations/{id}"),
        ("/v1/reservations/reservation-9", "/v1/reservations/{id}"),
    ):
        check(caller.http.get(path), pattern)


def test_every_problem_is_named_by_an_operation() -> None:
    """All but those that belong to no operation."""
    named = {
        name
        for _, _, operation in operations()
        for response in operation["responses"].values()
        for name in re.findall("/problems/([a-z-]+)", response["description"])
    }
    assert named | {Problem.NOT_FOUND, Problem.METHOD_NOT_ALLOWED} == set(Problem)
