"""The OpenAPI document, composed from the types that the service itself uses.

It is of version 3.0 because there an integer is a number without a fraction, as it is here; since 3.1 `2.0` is one too.
"""

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


# What can be said of a parameter by its form alone.
_HEADER_KEY = f'({contract.KEY_PATTERN}|"{contract.KEY_PATTERN}")'
_DAY = "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_YEAR = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_UTC_TIME = (
    f"({_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)[Tt]([01][0-9]|2[0-3])(:[0-5][0-9]){{2}}"
    r"(\.[0-9]{1,9})?([Zz]|\+00:00)"
)
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1, "default": 0}
_TEXT = {"type": "string", "minLength": 1, "maxLength": contract.MAX_TEXT_BYTES, "pattern": contract.TEXT_PATTERN}


def openapi() -> dict[str, Any]:
    """The whole document."""
    document: dict[str, Any] = _as_3_0(_document())
    return document


def _as_3_0(part: Any) -> Any:
    """Pydantic's JSON Schema in the words of OpenAPI 3.0: what may be null is `nullable`, a constant a list of one."""
    if isinstance(part, list):
        return [_as_3_0(each) for each in part]
    if not isinstance(part, dict):
        return part
    members = {name: _as_3_0(value) for name, value in part.items()}
    if "const" in members:
        members["enum"] = [members.pop("const")]
    choices = members.get("anyOf", [])
    if {"type": "null"} in choices:
        rest = [choice for choice in choices if choice != {"type": "null"}]
        del members["anyOf"]
        one = rest[0] if len(rest) == 1 and "$ref" not in rest[0] else {"anyOf": rest}
        members = {**one, **members, "nullable": True}
    return members


def _document() -> dict[str, Any]:
    return {
        "openapi": "3.0.3",
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
    key, read_key = _path("key", contract.KEY_PATTERN), _path("key", contract.READ_KEY_PATTERN)
    reservation, sku = _path("id"), _path("sku")
    prefix = _query("prefix", {"type": "string", "pattern": "^([0-9a-f]{2}){0,2}$", "default": ""})
    page = [
        _query("after", _NUMBER),
        _query("limit", {"type": "integer", "minimum": 1, "maximum": feed.MAX_PAGE, "default": feed.DEFAULT_PAGE}),
        _query("reference", _TEXT),
        _query("sku", _TEXT),
    ]
    after_version = _query("after_version", _NUMBER)
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
        _header("Idempotency-Key", {"type": "string", "pattern": f"^{_HEADER_KEY}$"}, required=True),
        _header("Effect-Not-After", {"type": "string", "pattern": f"^{_UTC_TIME}$"}, required=True),
        _header(
            "Effect-Supersedes",
            {"type": "string", "pattern": f"^{_HEADER_KEY}( *, *{_HEADER_KEY}){{0,{contract.MAX_SUPERSEDED - 1}}}$"},
            required=False,
        ),
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


# What an answer names, and where it leads.
_LEADS = {
    "key": ("$response.body#/key", "key", ("receipt", "void")),
    "reservation": ("$response.body#/reservation_id", "id", ("reservation", "confirm", "release")),
    "sku": ("$request.body#/sku", "sku", ("stock", "ledger")),
}
_LINKS = {"reserve": ("key", "reservation"), "confirm": ("key",), "release": ("key",), "deliver": ("key", "sku")}


def _links(name: str) -> dict[str, Any]:
    """Where the answer to a keyed call leads: to its receipt, its reservation, its SKU."""
    return {
        operation: {"operationId": operation, "parameters": {parameter: value}}
        for value, parameter, operations in (_LEADS[lead] for lead in _LINKS.get(name, ()))
        for operation in operations
    }


def _operation(
    name: str, schema: str | None, problems: Iterable[Problem], parameters: Iterable[Any] = (), success: int = 200
) -> dict[str, Any]:
    done = _response("Done.", _content("application/json", schema))
    links = _links(name)
    responses = {str(success): done | {"links": links} if links else done}
    by_status: dict[int, list[Problem]] = {}
    for problem in problems:
        by_status.setdefault(STATUS[problem], []).append(problem)
    for status, named in sorted(by_status.items()):
        names = ", ".join(f"/problems/{problem}" for problem in named)
        response = _response(names, _content("application/problem+json", "Problem"))
        if not RETRIABLE.isdisjoint(named):
            response["headers"]["Retry-After"] = {
                "required": RETRIABLE.issuperset(named),
                "schema": {"type": "string", "pattern": "^[0-9]+$"},
            }
        responses[str(status)] = response
    return {
        "operationId": name,
        "security": [{"bearer": []}],
        "parameters": list(parameters),
        "responses": responses,
    }


def _response(description: str, content: Mapping[str, Any]) -> dict[str, Any]:
    headers: dict[str, Any] = {name: {"$ref": f"#/components/headers/{name}"} for name in _HEADERS}
    return {"description": description, "headers": headers, "content": content}


def _content(media_type: str, schema: str | None) -> dict[str, Any]:
    return {media_type: {"schema": {"type": "object"} if schema is None else {"$ref": _REF.format(model=schema)}}}


def _path(name: str, pattern: str | None = None) -> dict[str, Any]:
    schema = {"type": "string"} if pattern is None else {"type": "string", "pattern": f"^{pattern}$"}
    return {"name": name, "in": "path", "required": True, "schema": schema}


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
                "reservation_id": {"anyOf": [{"type": "string"}, {"type": "null"}]},
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
}
