"""The provider's half, whole, as HTTP gives it: receipts from the feed, stock, and the ledger.

The order of reading makes one reading free of contradictions while effects are being settled:

    feed -> per SKU: stock, then ledger -> the rest of the feed -> look-up of the keys that it does not show

- A receipt of the first feed (up to `covered`) has committed before its ledger was read: its movements are there.
- A movement in a ledger has committed before the rest of the feed was read: its receipt is there.
- A ledger reaches at least to the version of the stock that was read before it.
- Retention takes bodies at any moment, and the feed leaves out what has none. A look-up comes last: a receipt that was
  there before is in the feed that was read, or is said to be dropped.

SKUs are those of the receipts, the journal's where the feed has none: what moves under a SKU that no receipt names is
not seen from here.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote

import httpx

from services.certificates import trusted
from services.effects import keys
from services.effects.records import Receipt
from services.effects.states import TERMINAL, EffectState

ANSWER_SECONDS = 30.0
CONNECT_SECONDS = 3.0
# A page of receipts of a few lines each is some hundred kilobytes.
PAGE = 500
# Enough to hide the network, few enough to leave the provider to those who send.
SKUS_AT_ONCE = 8
# What the contract lets one look-up ask for.
KEYS_AT_ONCE = 500


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
class Remains:
    """What retention leaves of a receipt whose body it takes; nothing signs it."""

    receipt_id: str
    sequence: int
    outcome: EffectState
    reservation_id: str | None

    @classmethod
    def of(cls, receipt: Receipt) -> Self:
        """What would be left of a receipt."""
        return cls(
            receipt_id=receipt.receipt_id,
            sequence=sequence(receipt),
            outcome=receipt.outcome,
            reservation_id=receipt.reservation_id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderHalf:
    """What the provider has of one tenant.

    Attributes:
        receipts: all, in the order of the feed.
        covered: the ledgers were read after the receipts up to this sequence.
        stock: by SKU; a SKU that the provider does not know is not in it.
        ledgers: by SKU, in the order that they were answered in.
        dropped: by key, what is left of receipts that retention has taken: of the journal's keys, and of those in the
            ledgers.
    """

    receipts: tuple[Receipt, ...]
    covered: int
    stock: Mapping[str, Balance]
    ledgers: Mapping[str, tuple[Movement, ...]]
    dropped: Mapping[str, Remains] = field(default_factory=dict)


def sequence(receipt: Receipt) -> int:
    """A receipt's place in the feed."""
    value = receipt.body.get("sequence")
    return value if type(value) is int else 0


async def read(
    url: str,
    token: str,
    *,
    journaled: Mapping[str, str | None] | None = None,
    ca_file: str | None = None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> ProviderHalf:
    """Read a tenant's receipts, stock and ledgers.

    Args:
        url: where the provider is.
        token: the tenant's bearer token.
        journaled: the journal's keys, each with the text of the receipt that settled it, if one has.
        ca_file: whose certificates to trust instead of the public authorities'.
        transport: for tests that watch the wire.

    Raises:
        httpx.TransportError: the provider cannot be reached.
        ProviderUnreadable: it refuses the token, or its answers cannot be read.
    """
    async with _client(url, token, ca_file, transport) as client:
        journaled = journaled or {}
        before, covered = await _feed(client, 0)
        at_once = asyncio.Semaphore(SKUS_AT_ONCE)

        async def one(sku: str) -> tuple[Balance, tuple[Movement, ...]] | None:
            async with at_once:
                return await _sku(client, sku)

        shown = {receipt.key for receipt in before}
        unseen = (text for key, text in journaled.items() if key not in shown and text is not None)
        skus = sorted(_skus(itertools.chain(before, _readable(unseen))))
        read_skus = await asyncio.gather(*(one(sku) for sku in skus))
        since, _ = await _feed(client, covered)
        found = {sku: both for sku, both in zip(skus, read_skus, strict=True) if both is not None}
        moved = {movement.key for _, movements in found.values() for movement in movements}
        unshown = (journaled.keys() | moved) - shown - {receipt.key for receipt in since}
        # A key that no provider takes has no receipt, and would have its whole batch refused.
        asked = sorted(key for key in unshown if keys.PROVIDER_KEY.fullmatch(keys.expired_key(key) or key))
        dropped: dict[str, Remains] = {}
        for start in range(0, len(asked), KEYS_AT_ONCE):
            dropped |= await _dropped(client, asked[start : start + KEYS_AT_ONCE])
    return ProviderHalf(
        receipts=(*before, *since),
        covered=covered,
        stock={sku: balance for sku, (balance, _) in found.items()},
        ledgers={sku: movements for sku, (_, movements) in found.items()},
        dropped=dropped,
    )


async def read_remains(url: str, token: str, key: str, *, ca_file: str | None = None) -> Remains | None:
    """What retention has left of one key's receipt; None where it left all of it, or there is none.

    Raises:
        httpx.TransportError: the provider cannot be reached.
        ProviderUnreadable: its answer cannot be read.
    """
    async with _client(url, token, ca_file) as client:
        return (await _dropped(client, [key])).get(key)


async def read_reservation(
    url: str, token: str, reservation_id: str, *, ca_file: str | None = None
) -> Mapping[str, Any] | None:
    """Where a reservation's units are now, as the provider says it; None where it knows none of that id.

    Raises:
        httpx.TransportError: the provider cannot be reached.
        ProviderUnreadable: its answer cannot be read.
    """
    async with _client(url, token, ca_file) as client:
        return await _get(client, f"/v1/reservations/{quote(reservation_id, safe='')}")


def _client(
    url: str, token: str, ca_file: str | None, transport: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {token}", "Accept": "application/json", "Accept-Encoding": "identity"},
        timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
        verify=trusted(ca_file),
        trust_env=False,  # HTTP_PROXY would capture a call to the loopback address
        follow_redirects=False,
        transport=transport,
    )


def _skus(receipts: Iterable[Receipt]) -> set[str]:
    return {sku for receipt in receipts for sku in receipt.totals("granted") or {}}


def _readable(texts: Iterable[str]) -> Iterator[Receipt]:
    """The journal's receipts; one that cannot be read is for the checker to say."""
    for text in texts:
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            yield Receipt(json.loads(text))


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


async def _dropped(client: httpx.AsyncClient, asked: Sequence[str]) -> dict[str, Remains]:
    """What retention has left of keys that the feed did not show.

    A receipt that is shown here in full counts as little as none: it came after the feed was read, or the feed left it
    out, which is a fault.
    """
    answer = await _get(client, "/v1/receipts/lookup", {"keys": asked})
    try:
        if answer is None:
            raise ValueError("it knows no such SKU")  # noqa: TRY301 - one way to say it
        found = ((key, answer["receipts"][key]) for key in asked)
        return {key: left for key, about in found if (left := _remains(about)) is not None}
    except (KeyError, TypeError, ValueError) as error:
        raise ProviderUnreadable(f"its look-up of {len(asked)} keys cannot be read: {error}") from error


def _remains(about: Mapping[str, Any] | None) -> Remains | None:
    """What is left of a receipt; None where it has its body, or where there is none."""
    if about is None or "receipt_id" in about:
        return None
    if about["type"] != "/problems/key-expired":
        raise ValueError(f"it answers {about['type']!r:.80} for a key")
    body = about["expired"]
    outcome, reservation = EffectState(body["outcome"]), body["reservation_id"]
    if outcome not in TERMINAL:
        raise ValueError(f"outcome {outcome} is no outcome")
    return Remains(
        receipt_id=str(body["receipt_id"]),
        sequence=_integer(body, "sequence"),
        outcome=outcome,
        reservation_id=None if reservation is None else str(reservation),
    )


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


# Problems that say that there is no such thing; a path that is not there says something else.
_UNKNOWN = frozenset({"/problems/sku-not-found", "/problems/reservation-not-found"})


async def _get(client: httpx.AsyncClient, url: str, question: object = None) -> dict[str, Any] | None:
    """The JSON object at a path, or what it answers to a question; None where the provider has no such thing."""
    response = await (client.get(url) if question is None else client.post(url, json=question))
    if response.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        raise ProviderUnreadable(f"it refused the token ({response.status_code})", refused=True)
    try:
        body = response.json()
    except ValueError:
        body = None
    if response.status_code == httpx.codes.NOT_FOUND:
        if isinstance(body, dict) and body.get("type") in _UNKNOWN:
            return None
    elif response.status_code == httpx.codes.OK and isinstance(body, dict):
        return body
    raise ProviderUnreadable(f"status {response.status_code} for {response.request.url.path}")
