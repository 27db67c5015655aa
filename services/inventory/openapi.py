"""The OpenAPI document, composed from the types that the service itself uses."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import TypeAdapter

from services.inventory import contract, feed
from services.inventory.metrics import CONTENT_TYPE
from services.inventory.problems import RETRIABLE, STATUS, Problem

_REF = "#/components/schemas/{model}"

# The problems a request may end in, whatever its route, and those of a keyed POST.
_ANY = (Problem.INTERNAL,)
_PRIVATE = (*_ANY, Problem.UNAUTHORIZED, Problem.PAYLOAD_TOO_LARGE)
_STORED = (Problem.PREDECESSOR_COMMITTED, Problem.KEY_VOIDED)
_KEYED = (
    *_PRIVATE,
    Problem.FORBIDDEN,
    Problem.IDEMPOTENCY_KEY_MISSING,
    Problem.IDEMPOTENCY_KEY_INVALID,
    Problem.VALIDATION_FAILED,
    Problem.REQUEST_IN_PROGRESS,
    Problem.NOT_AFTER_PASSED,
    Problem.IDEMPOTENCY_KEY_REUSED,
    Problem.KEY_EXPIRED,
    Problem.OVERLOADED,
    *_STORED,
)
_READ = (*_PRIVATE, Problem.OVERLOADED)


def openapi() -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Inventory",
            "version": "1",
            "description": "Keyed stock calls: one receipt per key, replayed word for word.",
        },
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "headers": _HEADERS,
        },
    }


def _paths() -> dict[str, Any]:
    rejected = (Problem.INSUFFICIENT_STOCK, Problem.UNKNOWN_SKU)
    moved = (Problem.HOLD_EXPIRED, Problem.INVALID_TRANSITION, Problem.RESERVATION_NOT_FOUND)
    key, read_key, reservation, sku = _path("key"), _path("key"), _path("id"), _path("sku")
    prefix = _query("prefix", {"type": "string", "pattern": "^([0-9a-f]{2}){0,2}$", "default": ""})
    page = [
        _query("after", {"type": "integer", "minimum": 0, "default": 0}),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": feed.MAX_PAGE, "default": feed.DEFAULT_PAGE}),
        _query("reference", {"type": "string"}),
        _query("sku", {"type": "string"}),
    ]
    after_version = _query("after_version", {"type": "integer", "minimum": 0, "default": 0})
    invalid = (Problem.VALIDATION_FAILED,)
    bad_key = (Problem.IDEMPOTENCY_KEY_INVALID,)
    return {
        "/v1/reservations": {"post": _keyed("reserve", 201, "ReservationRequest", rejected)},
        "/v1/reservations/{id}": {
            "get": _operation("reservation", "Reservation", (*_READ, Problem.RESERVATION_NOT_FOUND), [reservation])
        },
        "/v1/reservations/{id}/confirm": {"post": _keyed("confirm", 200, "ConfirmRequest", moved, [reservation])},
        "/v1/reservations/{id}/release": {"post": _keyed("release", 200, "ReleaseRequest", moved, [reservation])},
        "/v1/deliveries": {"post": _keyed("deliver", 201, "DeliveryRequest", ())},
        "/v1/receipts": {"get": _operation("feed", "FeedPage", (*_READ, *invalid), page)},
        "/v1/receipts/lookup": {
            "post": {
                **_operation("lookup", "LookupAnswer", (*_READ, *invalid)),
                "requestBody": {"required": True, "content": _content("application/json", "LookupRequest")},
            }
        },
        "/v1/receipts/digests": {"get": _operation("digests", "DigestPage", (*_READ, *invalid), [prefix])},
        "/v1/receipts/{key}": {
            "get": _operation(
                "receipt", "Receipt", (*_READ, *bad_key, Problem.RECEIPT_NOT_FOUND, Problem.KEY_EXPIRED), [read_key]
            )
        },
        "/v1/receipts/{key}/void": {
            "put": {
                **_operation(
                    "void",
                    "Receipt",
                    (*_READ, *bad_key, *invalid, Problem.FORBIDDEN, Problem.REQUEST_IN_PROGRESS, Problem.KEY_EXPIRED),
                    [key],
                ),
                "requestBody": {"required": False, "content": _content("application/json", "VoidRequest")},
            }
        },
        "/v1/stock/{sku}": {"get": _operation("stock", "Stock", (*_READ, Problem.SKU_NOT_FOUND), [sku])},
        "/v1/ledger/{sku}": {
            "get": _operation("ledger", "LedgerPage", (*_READ, *invalid, Problem.SKU_NOT_FOUND), [sku, after_version])
        },
        "/livez": {"get": _public("livez", "Status", _ANY)},
        "/readyz": {"get": _public("readyz", "Status", (*_ANY, Problem.OVERLOADED))},
        "/metrics": {"get": _metrics()},
        "/openapi.json": {"get": _public("openapi", None, _ANY)},
    }


def _keyed(
    name: str, success: int, request: str, problems: Iterable[Problem], parameters: Iterable[Any] = ()
) -> dict[str, Any]:
    headers = [
        _header("Idempotency-Key", {"type": "string"}, required=True),
        _header("Effect-Not-After", {"type": "string", "format": "date-time"}, required=True),
        _header("Effect-Supersedes", {"type": "string"}, required=False),
    ]
    return {
        **_operation(name, "Receipt", (*_KEYED, *problems), [*parameters, *headers], success),
        "requestBody": {"required": True, "content": _content("application/json", request)},
    }


def _public(name: str, schema: str | None, problems: Iterable[Problem]) -> dict[str, Any]:
    return {**_operation(name, schema, (*problems, Problem.PAYLOAD_TOO_LARGE)), "security": []}


def _metrics() -> dict[str, Any]:
    described = _public("metrics", None, _ANY)
    content = {CONTENT_TYPE: {"schema": {"type": "string"}}}
    described["responses"]["200"] = _response("Prometheus text format 0.0.4.", content)
    return described


def _operation(
    name: str, schema: str | None, problems: Iterable[Problem], parameters: Iterable[Any] = (), success: int = 200
) -> dict[str, Any]:
    responses = {str(success): _response("Done.", _content("application/json", schema))}
    by_status: dict[int, list[Problem]] = {}
    for problem in problems:
        by_status.setdefault(STATUS[problem], []).append(problem)
    for status, named in sorted(by_status.items()):
        names = ", ".join(f"/problems/{problem}" for problem in named)
        retry = any(problem in RETRIABLE for problem in named)
        responses[str(status)] = _response(names, _content("application/problem+json", "Problem"), retry=retry)
    return {
        "operationId": name,
        "security": [{"bearer": []}],
        "parameters": list(parameters),
        "responses": responses,
    }


def _response(description: str, content: Mapping[str, Any], *, retry: bool = False) -> dict[str, Any]:
    names = [name for name in _HEADERS if retry or name != "Retry-After"]
    headers = {name: {"$ref": f"#/components/headers/{name}"} for name in names}
    return {"description": description, "headers": headers, "content": content}


def _content(media_type: str, schema: str | None) -> dict[str, Any]:
    return {media_type: {"schema": {"type": "object"} if schema is None else {"$ref": _REF.format(model=schema)}}}


def _path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _header(name: str, schema: dict[str, Any], *, required: bool) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": required, "schema": schema}


def _schemas() -> dict[str, Any]:
    schemas: dict[str, Any] = {}
    requests = (
        contract.ReservationRequest,
        contract.ConfirmRequest,
        contract.ReleaseRequest,
        contract.DeliveryRequest,
        contract.VoidRequest,
        contract.LookupRequest,
    )
    answers = (contract.Receipt, feed.Reservation, feed.Stock, feed.LedgerPage, feed.DigestPage)
    for kind in (*requests, *answers):
        mode: Any = "validation" if kind in requests else "serialization"
        schema = TypeAdapter[Any](kind).json_schema(ref_template=_REF, mode=mode)
        schemas.update(schema.pop("$defs", {}))
        schemas[kind.__name__] = schema
    for answer in answers:  # every member is always there
        schemas[answer.__name__] |= {
            "required": list(schemas[answer.__name__]["properties"]),
            "additionalProperties": False,
        }
    schemas["FeedPage"] = {
        "type": "object",
        "required": ["receipts", "next_after", "watermark"],
        "additionalProperties": False,
        "properties": {
            "receipts": {"type": "array", "items": {"$ref": _REF.format(model="Receipt")}},
            "next_after": {"type": "integer", "minimum": 0},
            "watermark": {"type": "integer", "minimum": 0},
        },
    }
    schemas["LookupAnswer"] = {
        "type": "object",
        "required": ["receipts", "observed_at", "watermark"],
        "additionalProperties": False,
        "properties": {
            "receipts": {
                "type": "object",
                "additionalProperties": {
                    "anyOf": [
                        {"$ref": _REF.format(model="Receipt")},
                        {"$ref": _REF.format(model="Problem")},
                        {"type": "null"},
                    ]
                },
            },
            "observed_at": {"type": "string", "format": "date-time"},
            "watermark": {"type": "integer", "minimum": 0},
        },
    }
    schemas["Status"] = {
        "type": "object",
        "required": ["status"],
        "additionalProperties": False,
        "properties": {"status": {"type": "string"}},
    }
    schemas["Problem"] = _PROBLEM
    return schemas


_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "additionalProperties": False,
    "properties": {
        "type": {"type": "string", "enum": [f"/problems/{problem.value}" for problem in Problem]},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["at", "message"],
                "additionalProperties": False,
                "properties": {"at": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "receipt": {"$ref": _REF.format(model="Receipt")},
        "predecessor": {"$ref": _REF.format(model="Receipt")},
        "observed_at": {"type": "string", "format": "date-time"},
        "watermark": {"type": "integer"},
        "expired": {
            "type": "object",
            "required": ["receipt_id", "sequence", "outcome", "reservation_id"],
            "additionalProperties": False,
            "properties": {
                "receipt_id": {"type": "string"},
                "sequence": {"type": "integer"},
                "outcome": {"type": "string", "enum": [outcome.value for outcome in contract.Outcome]},
                "reservation_id": {"type": ["string", "null"]},
            },
        },
    },
}

_HEADERS: dict[str, Any] = {
    "Receipt-Outcome": {
        "required": True,
        "schema": {"type": "string", "enum": [*(outcome.value for outcome in contract.Outcome), "none"]},
    },
    "Idempotency-Replayed": {"required": True, "schema": {"type": "string", "enum": ["true", "false"]}},
    "Cache-Control": {"required": True, "schema": {"type": "string", "const": "no-store"}},
    "X-Request-Id": {"required": True, "schema": {"type": "string"}},
    "Retry-After": {"required": True, "schema": {"type": "string"}},
}
