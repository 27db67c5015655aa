"""The inventory over HTTP: its routes, and nothing else.

Order of checks: token and size (the edge), key, body, Effect headers; then, in the transaction, the stored receipt, the
deadline, former generations, the effect. The database is used in threads of its own, so that a queue of writers holds
up neither a read nor a health check.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import sqlalchemy as sa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.database import DatabaseError, check_schema
from services.inventory import bodies, contract
from services.inventory.batches import Batches
from services.inventory.contract import Answer, KeyedCall, Kind
from services.inventory.edge import Edge, inbound, problem_response
from services.inventory.feed import DEFAULT_PAGE, MAX_PAGE, FeedQuery, Reader
from services.inventory.housekeeping import Housekeeping
from services.inventory.metrics import CONTENT_TYPE, Metrics
from services.inventory.openapi import openapi
from services.inventory.problems import Fault, Invalid, Problem, Refused, unauthorized
from services.inventory.stock import StockKeeper
from services.inventory.tokens import Grant, Tokens

# With the readers of receipts, all other readers and housekeeping fewer than the engine's pool gives out (15 on SQLite,
# 40 on PostgreSQL), so that no thread ever waits for a connection. SQLite has one writer: one thread makes the queue of
# writers first come, first served.
WRITERS = {"sqlite": 1, "postgresql": 10}
READERS = 4

_RANGE = re.compile("(?:[0-9a-f]{2}){0,2}")
_NUMBER = re.compile("0|[1-9][0-9]{0,17}")

T = TypeVar("T")


def utc_now() -> datetime:
    """The service's own clock."""
    return datetime.now(UTC)


def create_app(
    engine: sa.Engine,
    tokens: Mapping[str, Grant],
    clock: Callable[[], datetime] = utc_now,
    *,
    retention: timedelta | None = None,
    signing_keys: tuple[bytes, ...] = (),
) -> Starlette:
    """The service as an ASGI application.

    Its state has `housekeeping`, which is to be run beside it again and again, in a thread; `metrics`; and `draining`,
    which is set once the service ends.

    Args:
        engine: its database, from `services.database.open_engine`; the caller disposes of it.
        tokens: each bearer token and what it stands for.
        clock: the service's own clock, which judges Effect-Not-After.
        retention: for how long a receipt keeps its body; None: for ever.
        signing_keys: the first signs every receipt; none: they are not signed.
    """
    keeper = StockKeeper(engine, clock, signing_keys[0] if signing_keys else None)
    metrics = Metrics()
    service = _Service(engine, keeper, clock, metrics)
    app = Starlette(
        routes=[
            # Looked through in this order: what is asked for most comes first.
            Route("/v1/reservations", service.reserve, methods=["POST"]),
            Route("/v1/receipts/lookup", service.lookup, methods=["POST"]),
            Route("/v1/receipts/digests", service.digests, methods=["GET"]),
            Route("/v1/receipts/{key}", service.receipt, methods=["GET"]),
            Route("/v1/receipts/{key}/void", service.void, methods=["PUT"]),
            Route("/v1/receipts", service.feed, methods=["GET"]),
            Route("/v1/reservations/{id}", service.reservation, methods=["GET"]),
            Route("/v1/reservations/{id}/confirm", service.confirm, methods=["POST"]),
            Route("/v1/reservations/{id}/release", service.release, methods=["POST"]),
            Route("/v1/deliveries", service.deliver, methods=["POST"]),
            Route("/v1/stock/{sku}", service.stock, methods=["GET"]),
            Route("/v1/ledger/{sku}", service.ledger, methods=["GET"]),
            Route("/livez", service.livez, methods=["GET"]),
            Route("/readyz", service.readyz, methods=["GET"]),
            Route("/metrics", service.metrics, methods=["GET"]),
            Route("/openapi.json", service.openapi, methods=["GET"]),
        ],
        middleware=[Middleware(Edge, tokens=Tokens(tokens), metrics=metrics)],
        exception_handlers={Refused: _refused, HTTPException: _http_exception},
    )
    app.router.redirect_slashes = False  # a redirected POST may arrive as a GET, or twice
    app.state.housekeeping = Housekeeping(engine, keeper, clock, retention).run
    app.state.metrics = metrics
    app.state.draining = False
    return app


class _Service:
    def __init__(self, engine: sa.Engine, keeper: StockKeeper, clock: Callable[[], datetime], metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._reader = Reader(engine, clock)
        self._calls: Batches[contract.Call] = Batches(keeper.execute, WRITERS[engine.dialect.name], metrics.batch)
        self._receipts = Batches(self._reader.receipts, READERS)
        self._readers = anyio.CapacityLimiter(READERS)
        self._openapi = contract.to_json(openapi()).encode()

    async def reserve(self, request: Request) -> Response:
        key = _key(request)
        body = bodies.parse(inbound(request.scope).body, contract.ReservationRequest)
        return await self._perform(
            request,
            key,
            Kind.RESERVE,
            body,
            quantities=contract.total(body.lines),
            hold_seconds=body.hold_seconds,
            reference=body.reference,
        )

    async def confirm(self, request: Request) -> Response:
        key = _key(request)
        body = bodies.parse(inbound(request.scope).body, contract.ConfirmRequest)
        return await self._perform(
            request, key, Kind.CONFIRM, body, quantities={}, reservation_id=request.path_params["id"]
        )

    async def release(self, request: Request) -> Response:
        key = _key(request)
        body = bodies.parse(inbound(request.scope).body, contract.ReleaseRequest)
        return await self._perform(
            request, key, Kind.RELEASE, body, quantities={}, reservation_id=request.path_params["id"]
        )

    async def deliver(self, request: Request) -> Response:
        key = _key(request)
        body = bodies.parse(inbound(request.scope).body, contract.DeliveryRequest)
        return await self._perform(request, key, Kind.DELIVER, body, quantities={body.sku: body.quantity})

    async def _perform(
        self,
        request: Request,
        key: str,
        kind: Kind,
        body: contract.Request,
        *,
        quantities: Mapping[str, int],
        reservation_id: str | None = None,
        hold_seconds: int | None = None,
        reference: str | None = None,
    ) -> Response:
        headers = contract.effect_headers(
            key, request.headers.getlist("effect-not-after"), request.headers.getlist("effect-supersedes")
        )
        canonical = contract.canonical(body)
        call = KeyedCall(
            tenant=_tenant(request),
            key=key,
            kind=kind,
            request=canonical,
            fingerprint=contract.fingerprint(kind, request.path_params, canonical),
            not_after=headers.not_after,
            supersedes=headers.supersedes,
            quantities=quantities,
            reservation_id=reservation_id,
            hold_seconds=hold_seconds,
            reference=reference,
        )
        return _answer(await self._calls.answer(call.tenant, call))

    async def void(self, request: Request) -> Response:
        key = contract.parse_path_key(request.path_params["key"])
        body = inbound(request.scope).body
        if body:
            bodies.parse(body, contract.VoidRequest)
        tenant = _tenant(request)
        return _answer(await self._calls.answer(tenant, contract.VoidCall(tenant=tenant, key=key)))

    async def receipt(self, request: Request) -> Response:
        if (
            request.path_params["key"] == "lookup"
        ):  # no key is that short: it is the other route, which takes POST alone
            raise HTTPException(405, headers={"Allow": "POST"})
        key = contract.parse_read_key(request.path_params["key"])
        return _answer(await self._receipts.answer(_tenant(request), key))

    async def lookup(self, request: Request) -> Response:
        body = bodies.parse(inbound(request.scope).body, contract.LookupRequest)
        tenant = _tenant(request)
        return _json(await self._read(lambda: self._reader.lookup(tenant, body.keys)))

    async def digests(self, request: Request) -> Response:
        prefix = _parameters(request, {"prefix"}).get("prefix", "")
        if not _RANGE.fullmatch(prefix):
            raise Invalid([Fault(at="prefix", message="It must be empty, or 2 or 4 of the digits 0-9 a-f.")])
        tenant = _tenant(request)
        return _json(await self._read(lambda: self._reader.digests(tenant, prefix)))

    async def feed(self, request: Request) -> Response:
        parameters = _parameters(request, {"after", "limit", "reference", "sku"})
        limit = _number(parameters, "limit", DEFAULT_PAGE)
        if not 1 <= limit <= MAX_PAGE:
            raise Invalid([Fault(at="limit", message=f"It must be from 1 to {MAX_PAGE}.")])
        query = FeedQuery(
            after=_number(parameters, "after", 0),
            limit=limit,
            reference=_text(parameters, "reference"),
            sku=_text(parameters, "sku"),
        )
        tenant = _tenant(request)
        return _json(await self._read(lambda: self._reader.feed(tenant, query)))

    async def reservation(self, request: Request) -> Response:
        tenant, name = _tenant(request), request.path_params["id"]
        return _json(await self._read(lambda: self._reader.reservation(tenant, name)))

    async def stock(self, request: Request) -> Response:
        tenant, sku = _tenant(request), request.path_params["sku"]
        return _json(await self._read(lambda: self._reader.stock(tenant, sku)))

    async def ledger(self, request: Request) -> Response:
        after_version = _number(_parameters(request, {"after_version"}), "after_version", 0)
        tenant, sku = _tenant(request), request.path_params["sku"]
        return _json(await self._read(lambda: self._reader.ledger(tenant, sku, after_version)))

    async def livez(self, _request: Request) -> Response:
        return _json(b'{"status":"live"}')

    async def readyz(self, request: Request) -> Response:
        if request.app.state.draining:
            raise Refused(Problem.OVERLOADED, "The service is ending.")
        try:
            await self._read(lambda: check_schema("inventory", self._engine))
        except DatabaseError:
            detail = "The database cannot be reached, or its schema is not the one this build was written for."
            raise Refused(Problem.OVERLOADED, detail) from None
        return _json(b'{"status":"ready"}')

    async def metrics(self, _request: Request) -> Response:
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def openapi(self, _request: Request) -> Response:
        return _json(self._openapi)

    async def _read(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, limiter=self._readers)


def _tenant(request: Request) -> str:
    tenant = inbound(request.scope).tenant
    if tenant is None:
        raise unauthorized()
    return tenant


def _key(request: Request) -> str:
    return contract.parse_key(request.headers.getlist("idempotency-key"))


def _answer(answer: Answer) -> Response:
    headers = {
        "Receipt-Outcome": answer.outcome.value,
        "Idempotency-Replayed": "true" if answer.replayed else "false",
    }
    media_type = "application/json" if answer.http_status < 400 else "application/problem+json"  # noqa: PLR2004
    return Response(answer.body, status_code=answer.http_status, headers=headers, media_type=media_type)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, Refused):
        raise error
    return problem_response(error)


async def _http_exception(_request: Request, error: Exception) -> Response:
    """The router's own: no such route, or not with this method."""
    if not isinstance(error, HTTPException) or error.status_code not in {404, 405}:
        raise error
    if error.status_code == 405:  # noqa: PLR2004
        refused = Refused(Problem.METHOD_NOT_ALLOWED, "This path does not take this method. Nothing was executed.")
    else:
        refused = Refused(Problem.NOT_FOUND, "There is nothing at this path. Nothing was executed.")
    return problem_response(refused, error.headers)


def _parameters(request: Request, known: set[str]) -> dict[str, str]:
    """The query's parameters, each once and none that is not known: a misspelt filter would answer too much."""
    items: Sequence[tuple[str, str]] = request.query_params.multi_items()
    parameters = dict(items)
    if len(parameters) != len(items) or not known.issuperset(parameters):
        message = f"Known parameters, each at most once: {', '.join(sorted(known))}."
        raise Invalid([Fault(at="query", message=message)])
    return parameters


def _number(parameters: Mapping[str, Any], name: str, default: int) -> int:
    text = parameters.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text):
        raise Invalid([Fault(at=name, message="It must be a whole number, not negative, of at most 18 digits.")])
    return int(text)


def _text(parameters: Mapping[str, str], name: str) -> str | None:
    text = parameters.get(name)
    if text is not None and (not text or "\x00" in text or len(text.encode()) > contract.MAX_TEXT_BYTES):
        raise Invalid([Fault(at=name, message=f"It must be 1 to {contract.MAX_TEXT_BYTES} bytes, without NUL.")])
    return text
