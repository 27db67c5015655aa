"""What the provider answers is read whole, or not taken for an answer at all."""

import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from services.reconciliation.provider_half import ProviderHalf, ProviderUnreadable, read
from tests.services.effects.halves import make_intent, make_receipt

pytestmark = pytest.mark.anyio

RECEIPT = make_receipt(make_intent()).body | {"sequence": 1}
FEED = {"receipts": [RECEIPT], "next_after": 1, "watermark": 1}
STOCK = {"sku": "FILTER-A", "version": 0, "received": 0, "available": 0, "held": 0, "consumed": 0}
LEDGER: dict[str, Any] = {"sku": "FILTER-A", "movements": [], "next_after_version": 0, "version": 0}


@dataclass(frozen=True)
class Raw:
    """An answer that is no 200 with a document."""

    status: int
    body: str = "{}"


# What a provider answers, by what kind of thing was asked for and what is asked after.
Answers = Callable[[str, int], Any]
Ask = Callable[[Answers], Awaitable[ProviderHalf]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Read a real server that answers whatever a function says."""
    answers: list[Answers] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            after = parse_qs(url.query).get("after") or parse_qs(url.query).get("after_version") or ["0"]
            document = answers[0](url.path.split("/")[2], int(after[0]))
            answer = document if isinstance(document, Raw) else Raw(200, json.dumps(document))
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body.encode())

        def log_message(self, *_arguments: object) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        async def asking(answer: Answers) -> ProviderHalf:
            answers.append(answer)
            return await read(f"http://127.0.0.1:{server.server_address[1]}", "t")

        yield asking
        server.shutdown()
        thread.join()


def _documents(**changed: Any) -> Answers:
    documents = {"receipts": FEED, "stock": STOCK, "ledger": LEDGER} | changed

    def answer(what: str, after: int) -> Any:
        if (what, after) == ("receipts", 1):
            return {"receipts": [], "next_after": 1, "watermark": 1}
        return documents[what]

    return answer


async def test_a_sku_that_the_provider_does_not_know_has_no_stock(ask: Ask) -> None:
    """That its receipts then moved nothing is for the checker to say."""
    unknown = Raw(404, '{"type": "/problems/sku-not-found"}')
    half = await ask(_documents(stock=unknown))
    assert (len(half.receipts), half.covered, half.stock, half.ledgers) == (1, 1, {}, {})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"receipts": {}}, "cannot be read"),
        ({"receipts": FEED | {"next_after": "1"}}, "next_after is no integer"),
        ({"receipts": FEED | {"next_after": 0, "watermark": 2}}, "stands still at 0"),
        ({"receipts": FEED | {"receipts": [{"key": "x"}]}}, "receipt_id is missing"),
        ({"receipts": FEED | {"receipts": [1]}}, "cannot be read"),
        ({"receipts": Raw(503)}, "status 503"),
        ({"receipts": Raw(200, "<html>")}, "status 200"),
        ({"receipts": Raw(404, '{"type": "/problems/not-found"}')}, "status 404"),
        ({"stock": STOCK | {"held": True}}, "held is no integer"),
        ({"ledger": LEDGER | {"movements": [{}]}}, "stock of FILTER-A cannot be read"),
        ({"ledger": Raw(404, '{"type": "/problems/sku-not-found"}')}, "has stock and no ledger"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_said(ask: Ask, changed: dict[str, Any], words: str) -> None:
    """Nothing is concluded from half an answer."""
    with pytest.raises(ProviderUnreadable, match=words):
        await ask(_documents(**changed))


async def test_a_feed_that_ends_before_it_did_is_said(ask: Ask) -> None:
    """The provider was put back to an older copy while it was read."""

    def answer(what: str, after: int) -> Any:
        if (what, after) == ("receipts", 1):
            return {"receipts": [], "next_after": 1, "watermark": 0}
        return _documents()(what, after)

    with pytest.raises(ProviderUnreadable, match="it was put back"):
        await ask(answer)


async def test_a_ledger_is_read_page_by_page(ask: Ask) -> None:
    """Until its version is reached."""

    def answer(what: str, after: int) -> Any:
        if what != "ledger":
            return _documents()(what, after)
        version = after + 1
        names = ("received", "available", "held", "consumed")
        line = {"sku": "FILTER-A", "kind": "deliver", "key": "k", "receipt_id": "r", "reservation_id": None}
        movement = line | {"version": version} | dict.fromkeys(names, 0)
        return {"movements": [movement], "next_after_version": version, "version": 3}

    half = await ask(answer)
    assert [movement.version for movement in half.ledgers["FILTER-A"]] == [1, 2, 3]
