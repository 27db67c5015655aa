"""What the provider answers is read whole, or not taken for an answer at all."""

import json
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from services.effects.states import EffectState
from services.reconciliation.provider_half import ProviderHalf, ProviderUnreadable, Remains, read
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
Ask = Callable[..., Awaitable[ProviderHalf]]


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Read a real server that answers whatever a function says."""
    answers: list[Answers] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            after = parse_qs(url.query).get("after") or parse_qs(url.query).get("after_version") or ["0"]
            document = answers[0](url.path.split("/")[2], int(after[0]))
            self._say(document)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._say(answers[0](urlsplit(self.path).path.split("/")[3], 0))

        def _say(self, document: Any) -> None:
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

        async def asking(answer: Answers, journaled: Mapping[str, str | None] | None = None) -> ProviderHalf:
            answers.append(answer)
            return await read(f"http://127.0.0.1:{server.server_address[1]}", "t", journaled=journaled)

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


OLD = "a-key-that-the-feed-does-not-show"
LEFT = {"receipt_id": "receipt-7", "sequence": 7, "outcome": "voided", "reservation_id": None}


def _looked_up(about: Any) -> dict[str, Any]:
    return {"receipts": {OLD: about}, "observed_at": "2026-03-01T12:00:00Z", "watermark": 1}


def _dropped(**changed: Any) -> dict[str, Any]:
    return {"type": "/problems/key-expired", "status": 410, "expired": LEFT | changed}


async def test_a_key_that_the_feed_does_not_show_is_looked_up(ask: Ask) -> None:
    """What is left of its receipt is taken; none, or one that came meanwhile, is not; what the feed shows is known."""
    journaled = {OLD: None, RECEIPT["key"]: None}
    half = await ask(_documents(lookup=_looked_up(_dropped())), journaled)
    left = Remains(receipt_id="receipt-7", sequence=7, outcome=EffectState.VOIDED, reservation_id=None)
    assert half.dropped == {OLD: left}


@pytest.mark.parametrize("about", [None, RECEIPT | {"key": OLD}])
async def test_a_key_without_a_receipt_and_one_that_came_meanwhile_have_nothing_dropped(ask: Ask, about: Any) -> None:
    """Both are what the feed does not show."""
    assert (await ask(_documents(lookup=_looked_up(about)), {OLD: None})).dropped == {}


async def test_the_skus_of_what_the_feed_does_not_show_are_the_journals(ask: Ask) -> None:
    """What was granted then is in a ledger still; a receipt of the journal that cannot be read names none."""
    asked: list[str] = []

    def answer(what: str, after: int) -> Any:
        asked.append(what)
        if what == "receipts":
            return {"receipts": [], "next_after": 1, "watermark": 1}
        return _documents(lookup={"receipts": dict.fromkeys(journaled)})(what, after)

    journaled: dict[str, str | None] = {OLD: json.dumps(RECEIPT), f"{OLD}-2": "[]", f"{OLD}-3": "{", f"{OLD}-4": None}
    half = await ask(answer, journaled)
    assert half.stock.keys() == {"FILTER-A"}
    assert asked == ["receipts", "stock", "ledger", "receipts", "lookup"]


@pytest.mark.parametrize(
    ("lookup", "words"),
    [
        (Raw(404, '{"type": "/problems/not-found"}'), "status 404 for /v1/receipts/lookup"),
        (Raw(404, '{"type": "/problems/sku-not-found"}'), "look-up of 1 keys cannot be read"),
        (Raw(413), "status 413"),
        ({}, "cannot be read"),
        ({"receipts": {}}, "cannot be read"),
        (_looked_up("receipt-7"), "cannot be read"),
        (_looked_up(_dropped(outcome="pending")), "pending is no outcome"),
        (_looked_up(_dropped(outcome="done")), "cannot be read"),
        (_looked_up(_dropped(sequence="7")), "sequence is no integer"),
        (_looked_up({"type": "/problems/key-expired"}), "expired"),
        (_looked_up({"type": "/problems/overloaded"}), "cannot be read"),
    ],
)
async def test_a_look_up_that_cannot_be_read_is_said(ask: Ask, lookup: Any, words: str) -> None:
    """It is not taken for a loss."""
    with pytest.raises(ProviderUnreadable, match=words):
        await ask(_documents(lookup=lookup), {OLD: None})


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
