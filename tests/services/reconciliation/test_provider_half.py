"""What the provider answers is read whole, or not taken for an answer at all."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from services.reconciliation.provider_half import ProviderUnreadable, read
from tests.services.effects.halves import make_intent, make_receipt

pytestmark = pytest.mark.anyio

RECEIPT = make_receipt(make_intent()).body | {"sequence": 1}
FEED = {"receipts": [RECEIPT], "next_after": 1, "watermark": 1}
STOCK = {"sku": "FILTER-A", "version": 0, "received": 0, "available": 0, "held": 0, "consumed": 0}
LEDGER: dict[str, Any] = {"sku": "FILTER-A", "movements": [], "next_after_version": 0, "version": 0}


def _answering(answer: Callable[[httpx.Request], Any]) -> httpx.MockTransport:
    """A provider made of one function from request to document."""

    def handle(request: httpx.Request) -> httpx.Response:
        document = answer(request)
        return document if isinstance(document, httpx.Response) else httpx.Response(200, json=document)

    return httpx.MockTransport(handle)


def _documents(**changed: Any) -> Callable[[httpx.Request], Any]:
    documents = {"receipts": FEED, "stock": STOCK, "ledger": LEDGER} | changed

    def answer(request: httpx.Request) -> Any:
        after = request.url.params.get("after")
        if after == "1":
            return {"receipts": [], "next_after": 1, "watermark": 1}
        return documents[request.url.path.split("/")[2]]

    return answer


async def test_a_sku_that_the_provider_does_not_know_has_no_stock() -> None:
    """That its receipts then moved nothing is for the checker to say."""
    unknown = httpx.Response(404, json={"type": "/problems/sku-not-found"})
    half = await read("http://provider", "t", transport=_answering(_documents(stock=unknown)))
    assert (len(half.receipts), half.covered, half.stock, half.ledgers) == (1, 1, {}, {})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"receipts": {}}, "cannot be read"),
        ({"receipts": FEED | {"next_after": "1"}}, "next_after is no integer"),
        ({"receipts": FEED | {"next_after": 0, "watermark": 2}}, "stands still at 0"),
        ({"receipts": FEED | {"receipts": [{"key": "x"}]}}, "receipt_id is missing"),
        ({"receipts": FEED | {"receipts": [1]}}, "cannot be read"),
        ({"receipts": httpx.Response(503, json={})}, "status 503"),
        ({"receipts": httpx.Response(200, text="<html>")}, "status 200"),
        ({"receipts": httpx.Response(404, json={"type": "/problems/not-found"})}, "status 404"),
        ({"stock": STOCK | {"held": True}}, "held is no integer"),
        ({"ledger": LEDGER | {"movements": [{}]}}, "stock of FILTER-A cannot be read"),
        ({"ledger": httpx.Response(404, json={"type": "/problems/sku-not-found"})}, "has stock and no ledger"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_said(changed: dict[str, Any], words: str) -> None:
    """Nothing is concluded from half an answer."""
    with pytest.raises(ProviderUnreadable, match=words):
        await read("http://provider", "t", transport=_answering(_documents(**changed)))


async def test_a_feed_that_ends_before_it_did_is_said() -> None:
    """The provider was put back to an older copy while it was read."""

    def answer(request: httpx.Request) -> Any:
        if request.url.params.get("after") == "1":
            return {"receipts": [], "next_after": 1, "watermark": 0}
        return _documents()(request)

    with pytest.raises(ProviderUnreadable, match="it was put back"):
        await read("http://provider", "t", transport=_answering(answer))


async def test_a_ledger_is_read_page_by_page() -> None:
    """Until its version is reached."""

    def answer(request: httpx.Request) -> Any:
        if "ledger" not in request.url.path:
            return _documents()(request)
        version = int(request.url.params["after_version"]) + 1
        names = ("received", "available", "held", "consumed")
        line = {"sku": "FILTER-A", "kind": "deliver", "key": "k", "receipt_id": "r", "reservation_id": None}
        movement = line | {"version": version} | dict.fromkeys(names, 0)
        return {"movements": [movement], "next_after_version": version, "version": 3}

    half = await read("http://provider", "t", transport=_answering(answer))
    assert [movement.version for movement in half.ledgers["FILTER-A"]] == [1, 2, 3]
