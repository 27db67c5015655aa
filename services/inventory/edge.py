"""The outermost layer: what holds for every request, whatever its route.

- Under /v1 the bearer token is looked at first, and decides the tenant; what needs no token shows no tenant's data.
- A body is read to its end, or to 1 MiB, before it is answered: a caller that is still sending hears the refusal
  instead of a broken connection. One that breaks off is not executed.
- Every response says Receipt-Outcome, Idempotency-Replayed, Cache-Control and X-Request-Id.
- Whatever goes wrong ends as a problem document, and the details stay in the log.
"""

import hashlib
import hmac
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.inventory.contract import to_json
from services.inventory.problems import (
    RETRIABLE,
    RETRY_AFTER_SECONDS,
    STATUS,
    Problem,
    Refused,
    document,
)

MAX_BODY_BYTES = 64 * 1024
MAX_DRAINED_BYTES = 1024 * 1024
INBOUND = "counterfoil.inbound"

_LOG = logging.getLogger(__name__)
_JSON = "application/problem+json"


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


def new_request_id() -> str:
    """An id that no other request has."""
    return uuid.uuid4().hex


class Tokens:
    """Bearer tokens and whose they are, compared in constant time."""

    def __init__(self, tokens: Mapping[str, str]) -> None:
        self._tenants = [(_digest(token.encode()), tenant) for token, tenant in tokens.items()]

    def tenant(self, authorization: list[str]) -> str | None:
        """The tenant of the one Authorization header, if it is a token that is known."""
        if len(authorization) != 1:
            return None
        scheme, _, token = authorization[0].partition(" ")
        presented = _digest(token.strip(" ").encode())
        found = None
        for known, tenant in self._tenants:  # all of them, always: the time taken says nothing
            if hmac.compare_digest(known, presented):
                found = tenant
        return found if scheme.lower() == "bearer" else None


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


class Edge:
    """Pure ASGI middleware around the routes."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request from its first check to its headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        started = False

        async def send_out(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in standard_headers(request_id).items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self._handle(scope, receive, send_out)
        except Exception:
            _LOG.exception("request %s failed", request_id)
            if started:
                raise
            detail = "The service failed. Whether the request was executed is not known: read the key's receipt."
            await problem_response(Refused(Problem.INTERNAL, detail))(scope, receive, send_out)

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        private = _is_private(scope["path"])
        tenant = self._tokens.tenant(Headers(scope=scope).getlist("authorization")) if private else None
        body = await _read(receive)
        if body.broken_off:
            return
        refused = None
        if private and tenant is None:
            refused = unauthorized()
        elif body.size > MAX_BODY_BYTES:
            detail = f"A body may have {MAX_BODY_BYTES} bytes. Nothing was executed."
            refused = Refused(Problem.PAYLOAD_TOO_LARGE, detail)
        if refused is not None:
            headers = {} if body.complete else {"Connection": "close"}
            await problem_response(refused, headers)(scope, receive, send)
            return
        scope[INBOUND] = Inbound(body=body.data, tenant=tenant)
        await self._app(scope, receive, send)


def unauthorized() -> Refused:
    """No token, or none that is known: which of them is nobody's business."""
    return Refused(Problem.UNAUTHORIZED, "This needs a bearer token that the service knows. Nothing was executed.")


def inbound(scope: Mapping[str, Any]) -> Inbound:
    """What the edge found out about this request."""
    found: Inbound = scope[INBOUND]
    return found


def _is_private(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Body:
    data: bytes  # no more than may be used
    size: int
    complete: bool
    broken_off: bool = False


async def _read(receive: Receive) -> _Body:
    data = bytearray()
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return _Body(data=b"", size=size, complete=False, broken_off=True)
        chunk = message.get("body", b"")
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            data += chunk
        complete = not message.get("more_body", False)
        if complete or size > MAX_DRAINED_BYTES:
            return _Body(data=bytes(data), size=size, complete=complete)
