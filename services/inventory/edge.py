"""The outermost layer: what holds for every request, whatever its route.

- A head that two readers could read differently is refused before anything else.
- Under /v1 the bearer token is looked at next: it decides the tenant, and whether more than reading is allowed. What
  needs no token shows no tenant's data.
- A body is read to its end, or to 1 MiB, before it is answered: a caller that is still sending hears the refusal
  instead of a broken connection. One that breaks off is not executed. One that asks before it sends (Expect) is refused
  without its body.
- Every response says Receipt-Outcome, Idempotency-Replayed, Cache-Control and X-Request-Id, and while the service ends
  also Connection: close.
- Whatever goes wrong ends as a problem document; the details are in the log, under the same request id.
"""

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.inventory import heads, logs
from services.inventory.contract import parse_key, parse_read_key, to_json
from services.inventory.exchanges import UNMATCHED, Exchange, known_method
from services.inventory.metrics import Metrics
from services.inventory.problems import (
    RETRIABLE,
    RETRY_AFTER_SECONDS,
    STATUS,
    Invalid,
    Problem,
    Refused,
    document,
    forbidden,
    overloaded,
    unauthorized,
)
from services.inventory.tokens import Grant, Tokens

MAX_BODY_BYTES = 64 * 1024
MAX_DRAINED_BYTES = 1024 * 1024
LOOKUP = "/v1/receipts/lookup"
# A look-up names up to 500 keys of 128 characters.
_MAX_BYTES: Mapping[str, int] = {LOOKUP: 128 * 1024}
INBOUND = "counterfoil.inbound"

_JSON = "application/problem+json"
_READING = frozenset({"GET", "HEAD"})
_CLOSE = {"Connection": "close"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """What the edge found out about a request: its whole body, and whose it is (None outside /v1)."""

    body: bytes
    tenant: str | None


def problem_response(refused: Refused, headers: Mapping[str, str] | None = None) -> Response:
    """A problem document as a response."""
    extra = dict(headers or {})
    if refused.problem in RETRIABLE:
        extra["Retry-After"] = str(RETRY_AFTER_SECONDS)
    if refused.problem is Problem.UNAUTHORIZED:
        extra["WWW-Authenticate"] = "Bearer"
    body = to_json(document(refused.problem, refused.detail, **refused.members))
    return Response(body, status_code=STATUS[refused.problem], headers=extra, media_type=_JSON)


def standard_headers(request_id: str) -> dict[str, str]:
    """What every response says; an answer made of a receipt says the first two itself."""
    return {
        "Receipt-Outcome": "none",
        "Idempotency-Replayed": "false",
        "Cache-Control": "no-store",
        "X-Request-Id": request_id,
    }


class Edge:
    """Pure ASGI middleware around the routes. The application's state says whether the service is `draining`."""

    def __init__(self, app: ASGIApp, tokens: Tokens, metrics: Metrics) -> None:
        self._app = app
        self._tokens = tokens
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request from its first check to its line in the log."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = time.perf_counter()
        request_id = heads.request_id(Headers(scope=scope))
        reply = _Reply(scope, send, request_id)
        with self._metrics.in_flight():
            try:
                await self._handle(scope, receive, reply)
            except asyncio.CancelledError:  # the drain's limit: what is known is said, instead of nothing
                if reply.started:
                    raise
                refused = _unknown("The service ended.") if INBOUND in scope else overloaded()
                await problem_response(refused, _CLOSE)(scope, receive, reply.send)
            except Exception:
                logs.event("failed", {"request_id": request_id}, level=logging.ERROR)
                if reply.started:
                    raise
                await problem_response(_unknown("The service failed."))(scope, receive, reply.send)
            finally:
                exchange = reply.exchange(time.perf_counter() - begun)
                self._metrics.answered(exchange)
                logs.request(exchange)

    async def _handle(self, scope: Scope, receive: Receive, reply: "_Reply") -> None:
        heads.to_origin_form(scope)
        fault = heads.fault(scope)
        if fault is not None:  # where its body ends is not certain
            await problem_response(Invalid([fault]), _CLOSE)(scope, receive, reply.send)
            return
        headers, limit = Headers(scope=scope), _MAX_BYTES.get(scope["path"], MAX_BODY_BYTES)
        refused = self._refuse(scope, headers, reply)
        if heads.waits_to_send(headers):
            if refused is None and heads.declared_bytes(headers) > limit:
                refused = _too_large(limit)
            if refused is not None:
                await problem_response(refused, _CLOSE)(scope, receive, reply.send)
                return
        body = await _read(receive, limit)
        if body.broken_off:
            return
        if refused is None and body.size > limit:
            refused = _too_large(limit)
        if refused is not None:
            await problem_response(refused, {} if body.complete else _CLOSE)(scope, receive, reply.send)
            return
        scope[INBOUND] = Inbound(body=body.data, tenant=reply.tenant)
        await self._app(scope, receive, reply.send)

    def _refuse(self, scope: Scope, headers: Headers, reply: "_Reply") -> Refused | None:
        """Why this caller may not do this, if it may not; else whose it is, is known."""
        if not _is_private(scope["path"]):
            return None
        grant = self._tokens.grant(headers.getlist("authorization"))
        if grant is None:
            return unauthorized()
        reply.tenant = grant.tenant
        return None if _allows(grant, scope) else forbidden()


class _Reply:
    """What is sent for one request, and what was seen of it."""

    def __init__(self, scope: Scope, send: Send, request_id: str) -> None:
        self.started = False
        self.tenant: str | None = None
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._status: int | None = None
        self._headers = MutableHeaders()
        self._problem: str | None = None

    async def send(self, message: Message) -> None:
        """Pass a message on, with what every response says."""
        if message["type"] == "http.response.start":
            self.started = True
            self._status = message["status"]
            self._headers = MutableHeaders(scope=message)
            for name, value in standard_headers(self._request_id).items():
                self._headers.setdefault(name, value)
            if self._scope["app"].state.draining:
                self._headers["Connection"] = "close"
        elif self._headers.get("content-type") == _JSON:
            # Also of a stored answer, which nobody has looked into since it was written.
            self._problem = json.loads(message["body"])["type"].rpartition("/")[2]
        await self._send(message)

    def exchange(self, seconds: float) -> Exchange:
        """The request and its answer, as they are logged and counted."""
        return Exchange(
            request_id=self._request_id,
            method=known_method(self._scope["method"]),
            route=_template(self._scope),
            seconds=seconds,
            status=self._status,
            outcome=self._headers.get("receipt-outcome", "none"),
            replayed=self._headers.get("idempotency-replayed") == "true",
            problem=self._problem,
            tenant=self.tenant,
            key=_key(self._scope),
        )


def _allows(grant: Grant, scope: Scope) -> bool:
    return grant.may_write or scope["method"] in _READING or (scope["method"], scope["path"]) == ("POST", LOOKUP)


def _unknown(what: str) -> Refused:
    detail = f"{what} Whether the request was executed is not known: read the key's receipt."
    return Refused(Problem.INTERNAL, detail)


def _too_large(limit: int) -> Refused:
    return Refused(Problem.PAYLOAD_TOO_LARGE, f"A body may have {limit} bytes here. Nothing was executed.")


def inbound(scope: Mapping[str, Any]) -> Inbound:
    """What the edge found out about this request."""
    found: Inbound = scope[INBOUND]
    return found


def _is_private(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")


def _template(scope: Scope) -> str:
    """The route, also where the request was refused before it was looked for."""
    route = scope.get("route")
    if route is None:
        matching = (each for each in scope["app"].routes if each.matches(scope)[0] is not Match.NONE)
        route = next(matching, None)
    return route.path if isinstance(route, Route) else UNMATCHED


def _key(scope: Scope) -> str | None:
    named = Headers(scope=scope).getlist("idempotency-key")
    try:
        return parse_key(named) if named else parse_read_key(scope.get("path_params", {}).get("key", ""))
    except Refused:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    data: bytes  # no more than may be used
    size: int
    complete: bool
    broken_off: bool = False


async def _read(receive: Receive, limit: int) -> _Body:
    data = bytearray()
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return _Body(data=b"", size=size, complete=False, broken_off=True)
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= limit:
            data += chunk
        complete = not message.get("more_body", False)
        if complete or size > MAX_DRAINED_BYTES:
            return _Body(data=bytes(data), size=size, complete=complete)
