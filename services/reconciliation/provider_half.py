"""The provider's half, whole, as HTTP gives it: receipts from the feed, stock, and the ledger.

The order of reading makes one reading free of contradictions while effects are being settled:

    feed -> per SKU: stock, then ledger -> the rest of the feed

- A receipt of the first feed (up to `covered`) has committed before its ledger was read: its movements are there.
- A movement in a ledger has committed before the rest of the feed was read: its receipt is there.
- A ledger reaches at least to the version of the stock that was read before it.

SKUs are those of the receipts: what moves under a SKU that no receipt names is not seen from here.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httpx

from services.certificates import trusted
from services.effects.records import Receipt

ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 3.0
# A page of receipts of a few lines each is some hundred kilobytes.
PAGE = 500
# Enough to hide the network, few enough to leave the provider to those who send.
SKUS_AT_ONCE = 8


class ProviderUnreadable(Exception):
    """The provider answered, and not with what an audit can stand on.

    Attributes:
        refused: it refused our credentials.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Movement:
    """One line of a SKU's ledger: signed changes."""

    sku: str
    version: int
    kind: str
    key: str
    receipt_id: str
    reservation_id: str | None
    received: int
    available: int
    held: int
    consumed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The stock of one SKU; `version` counts its movements."""

    sku: str
    version: int
    received: int
    available: int
    held: int
    consumed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderHalf:
    """What the provider has of one tenant.

    Attributes:
        receipts: all, in the order of the feed.
        covered: the ledgers were read after the receipts up to this sequence.
        stock: by SKU; a SKU that the provider does not know is not in it.
        ledgers: by SKU, in the order that they were answered in.
    """

    receipts: tuple[Receipt, ...]
    covered: int
    stock: Mapping[str, Balance]
    ledgers: Mapping[str, tuple[Movement, ...]]


def sequence(receipt: Receipt) -> int:
    """A receipt's place in the feed."""
    value = receipt.body.get("sequence")
    return value if type(value) is int else 0


async def read(
    url: str, token: str, *, ca_file: str | None = None, transport: httpx.AsyncBaseTransport | None = None
) -> ProviderHalf:
    """Read a tenant's receipts, stock and ledgers.

    Args:
        url: where the provider is.
        token: the tenant's bearer token.
        ca_file: whose certificates to trust instead of the public authorities'.
        transport: for tests that watch the wire.

    Raises:
        httpx.TransportError: the provider cannot be reached.
        ProviderUnreadable: it refuses the token, or its answers cannot be read.
    """
    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}", "Accept": "application/json", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
        verify=trusted(ca_file),
        trust_env=False,  # HTTP_PROXY would capture a call to the loopback address
        follow_redirects=False,
        transport=transport,
    ) as client:
        before, covered = await _feed(client, 0)
        at_once = asyncio.Semaphore(SKUS_AT_ONCE)

        async def one(sku: str) -> tuple[Balance, tuple[Movement, ...]] | None:
            async with at_once:
                return await _sku(client, sku)

        skus = sorted(_skus(before))
        read_skus = await asyncio.gather(*(one(sku) for sku in skus))
        since, _ = await _feed(client, covered)
    found = {sku: both for sku, both in zip(skus, read_skus, strict=True) if both is not None}
    return ProviderHalf(
        receipts=(*before, *since),
        covered=covered,
        stock={sku: balance for sku, (balance, _) in found.items()},
        ledgers={sku: movements for sku, (_, movements) in found.items()},
    )


def _skus(receipts: Iterable[Receipt]) -> set[str]:
    return {sku for receipt in receipts for sku in receipt.totals("granted") or {}}


async def _feed(client: httpx.AsyncClient, after: int) -> tuple[list[Receipt], int]:
    """All receipts after a sequence, and up to which the feed has been read."""
    receipts: list[Receipt] = []
    while True:
        page = await _get(client, f"/v1/receipts?after={after}&limit={PAGE}")
        if page is None:
            raise ProviderUnreadable("it has no feed of receipts")
        try:
            watermark, next_after = _integer(page, "watermark"), _integer(page, "next_after")
            receipts += [Receipt(body) for body in page["receipts"]]
        except (KeyError, TypeError, ValueError) as error:
            raise ProviderUnreadable(f"the feed after {after} cannot be read: {error}") from error
        if watermark < after:
            raise ProviderUnreadable(f"its feed ends at {watermark} and was at {after} before: it was put back")
        if next_after >= watermark:
            return receipts, next_after
        if next_after <= after:
            raise ProviderUnreadable(f"its feed stands still at {after}")
        after = next_after


async def _sku(client: httpx.AsyncClient, sku: str) -> tuple[Balance, tuple[Movement, ...]] | None:
    stock = await _get(client, f"/v1/stock/{quote(sku, safe='')}")
    if stock is None:
        return None
    try:
        balance = _balance(stock)
        movements: list[Movement] = []
        after = 0
        while True:
            page = await _get(client, f"/v1/ledger/{quote(sku, safe='')}?after_version={after}")
            if page is None:
                raise ProviderUnreadable(f"{sku} has stock and no ledger")
            movements += [_movement(line) for line in page["movements"]]
            next_after = _integer(page, "next_after_version")
            if next_after >= _integer(page, "version") or next_after <= after:
                return balance, tuple(movements)
            after = next_after
    except (KeyError, TypeError, ValueError) as error:
        raise ProviderUnreadable(f"the stock of {sku} cannot be read: {error}") from error


def _balance(body: Mapping[str, Any]) -> Balance:
    names = ("version", "received", "available", "held", "consumed")
    return Balance(sku=str(body["sku"]), **{name: _integer(body, name) for name in names})


def _movement(body: Mapping[str, Any]) -> Movement:
    reservation = body["reservation_id"]
    return Movement(
        sku=str(body["sku"]),
        version=_integer(body, "version"),
        kind=str(body["kind"]),
        key=str(body["key"]),
        receipt_id=str(body["receipt_id"]),
        received=_integer(body, "received"),
        available=_integer(body, "available"),
        held=_integer(body, "held"),
        consumed=_integer(body, "consumed"),
        reservation_id=None if reservation is None else str(reservation),
    )


def _integer(body: Mapping[str, Any], name: str) -> int:
    value = body[name]
    if type(value) is not int:
        raise ValueError(f"{name} is no integer")
    return value


async def _get(client: httpx.AsyncClient, url: str) -> dict[str, Any] | None:
    """The JSON object at a path; None where the provider says that there is no such thing."""
    response = await client.get(url)
    if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        raise ProviderUnreadable(f"it refused the token ({response.status_code})", refused=True)
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code == httpx.codes.NOT_FOUND:
        if isinstance(body, dict) and body.get("type") == "/problems/sku-not-found":
            return None
    elif response.status_code == httpx.codes.OK and isinstance(body, dict):
        return body
    raise ProviderUnreadable(f"status {response.status_code} for {response.request.url.path}")
