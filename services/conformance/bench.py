"""What a check works with: calls under keys and SKUs of its own, every exchange kept.

- Nothing but SKUs and keys that begin with the run's own name is ever written, so no other stock is touched.
- A provider that is busy (request-in-progress, overloaded) is asked again under the same key, as a client would.
- No answer at all is a finding of the check that waited for it, unless nothing can be connected to: `Unreachable`.
"""

import asyncio
import copy
import itertools
import json
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from services.conformance.exchanges import Exchange
from services.conformance.expectations import RETRIABLE, Broken, expect, expect_answer

PREFIX = "CONFORMANCE-"
PAST = "2000-01-01T00:00:00Z"
# A busy provider is asked again this often, a second apart at most.
_PATIENCE = 20
_LONGEST_PAUSE_SECONDS = 1.0
# Longer than any answer of a provider that waits two seconds for a rival, also on a slow machine.
TIMEOUT_SECONDS = 30.0
_CONNECTIONS = 64

Headers = Sequence[tuple[str, str]]


class Unreachable(Exception):
    """Nothing answers at the address."""


def connect(url: str, token: str) -> httpx.AsyncClient:
    """A client that takes no advice from the environment and follows nobody elsewhere."""
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}", "Accept-Encoding": "identity"},
        trust_env=False,
        follow_redirects=False,
        timeout=TIMEOUT_SECONDS,
        limits=httpx.Limits(max_connections=_CONNECTIONS, max_keepalive_connections=_CONNECTIONS),
    )


class Bench:
    """One run's calls.

    Args:
        http: a client with the token.
        rounds: how often each race is run.
    """

    def __init__(self, http: httpx.AsyncClient, *, rounds: int) -> None:
        self._http = http
        self._numbers = itertools.count(1)
        self.run = f"{PREFIX}{secrets.token_hex(6)}"
        self.rounds = rounds
        self.everything: list[Exchange] = []  # of the run
        self.heard: list[Exchange] = []  # by one check

    def for_one_check(self) -> "Bench":
        """The same run, with a list of its own of what is heard: checks run side by side."""
        one = copy.copy(self)
        one.heard = []
        return one

    def sku(self) -> str:
        """A SKU that nobody has used."""
        return f"{self.run}-S{next(self._numbers)}"

    def name(self) -> str:
        """What the keys of one matter begin with."""
        return f"{self.run}-K{next(self._numbers)}"

    def key(self) -> str:
        """A key that nobody has used, of a first generation."""
        return f"{self.name()}-g1"

    async def call(self, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Exchange:
        """One request, repeated while the provider is busy.

        Raises:
            Broken: nothing that HTTP knows came back.
            Unreachable: nothing was connected to.
        """
        for _ in range(_PATIENCE):
            exchange = await self._once(method, path, headers, body)
            if exchange.problem not in RETRIABLE:
                return exchange
            pause = exchange.headers.get("retry-after", "1")
            await asyncio.sleep(min(float(pause) if pause.isdigit() else 1.0, _LONGEST_PAUSE_SECONDS))
        return await self._once(method, path, headers, body)

    async def _once(self, method: str, path: str, headers: Headers, body: bytes) -> Exchange:
        sent = [(name.encode(), value.encode("latin-1")) for name, value in headers]
        try:
            response = await self._http.request(method, path, headers=sent, content=body or None)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Unreachable(str(error)) from error
        except httpx.HTTPError as error:
            raise Broken(f"{method} {path} was not answered ({type(error).__name__})") from error
        exchange = Exchange(
            method=method,
            path=path,
            sent_headers=tuple(headers),
            sent=body,
            status=response.status_code,
            headers={name.lower(): value for name, value in response.headers.items()},
            body=response.content,
        )
        self.heard.append(exchange)
        self.everything.append(exchange)
        return exchange

    async def get(self, path: str) -> Exchange:
        """A read."""
        return await self.call("GET", path)

    async def post(
        self,
        path: str,
        request: Mapping[str, Any] | bytes,
        key: str | None = None,
        *,
        not_after: str | None = None,
        supersedes: Iterable[str] = (),
    ) -> Exchange:
        """A keyed POST; without a key under a fresh one, without a deadline until tomorrow."""
        older = ", ".join(supersedes)
        headers = [
            ("Idempotency-Key", f'"{key or self.key()}"'),
            ("Effect-Not-After", not_after or tomorrow()),
            *([("Effect-Supersedes", older)] if older else []),
        ]
        return await self.call("POST", path, headers, request if isinstance(request, bytes) else to_json(request))

    async def void(self, key: str) -> Exchange:
        """Close a key."""
        return await self.call("PUT", f"/v1/receipts/{key}/void")

    async def receipt(self, key: str) -> Exchange:
        """Read a key's receipt."""
        return await self.get(f"/v1/receipts/{key}")

    async def delivered(self, quantity: int) -> str:
        """A new SKU with so many units.

        Raises:
            Broken: the delivery was not committed.
        """
        sku = self.sku()
        expect_answer(await self.deliver(sku, quantity), 201)
        return sku

    async def deliver(self, sku: str, quantity: int, key: str | None = None) -> Exchange:
        """Bring units in."""
        return await self.post("/v1/deliveries", {"sku": sku, "quantity": quantity}, key)

    async def reserve(
        self,
        sku: str,
        quantity: int,
        key: str | None = None,
        *,
        not_after: str | None = None,
        supersedes: Iterable[str] = (),
        **members: Any,
    ) -> Exchange:
        """Take units of one SKU."""
        request = {"lines": [{"sku": sku, "quantity": quantity}], **members}
        return await self.post("/v1/reservations", request, key, not_after=not_after, supersedes=supersedes)

    async def reserved(self, sku: str, quantity: int, key: str | None = None, **members: Any) -> dict[str, Any]:
        """The receipt of a reserve that has to be committed.

        Raises:
            Broken: it was not.
        """
        return expect_answer(await self.reserve(sku, quantity, key, **members), 201).receipt

    async def move(self, reservation_id: object, move: str, key: str | None = None, **more: Any) -> Exchange:
        """Confirm or release a reservation."""
        return await self.post(f"/v1/reservations/{reservation_id}/{move}", {}, key, **more)

    async def together(self, *calls: Callable[[], Awaitable[Exchange]]) -> list[Exchange]:
        """Make calls at the same time; their exchanges in the order of the calls."""
        answers = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
        exchanges = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            exchanges.append(answer)
        return exchanges

    async def balances(self, sku: str) -> tuple[int, int, int, int]:
        """received, available, held and consumed of a SKU, once its ledger has been found to sum up to them.

        Raises:
            Broken: the balances, their sum, or the ledger are not right.
        """
        stock = expect_answer(await self.get(f"/v1/stock/{sku}"), 200)
        names = ("received", "available", "held", "consumed")
        have = stock.document
        values = [have.get(name) for name in names]
        expect(all(type(value) is int and value >= 0 for value in values), "balances are whole numbers from 0", stock)
        received, available, held, consumed = (int(value or 0) for value in values)
        expect(received == available + held + consumed, "received = available + held + consumed", stock)
        movements: list[dict[str, Any]] = []
        version = have.get("version")
        while len(movements) < int(version or 0):
            page = expect_answer(await self.get(f"/v1/ledger/{sku}?after_version={len(movements)}"), 200)
            movements += page.document.get("movements", [])
            versions = [movement.get("version") for movement in movements]
            expect(bool(page.document.get("movements")), "the ledger ends before the stock's version", stock, page)
            expect(versions == list(range(1, len(movements) + 1)), "movement versions are 1..n without a gap", page)
            sums = [sum(movement[name] for movement in movements) for name in names]
            expect(
                len(movements) < int(version or 0) or sums == values,
                "the sums of movements are the balances",
                stock,
                page,
            )
        return received, available, held, consumed


def tomorrow() -> str:
    """A deadline that no check reaches."""
    return (datetime.now(UTC) + timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


def to_json(document: Any) -> bytes:
    """A request's bytes."""
    return json.dumps(document, separators=(",", ":")).encode()
