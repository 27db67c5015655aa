"""I32: what comes over one connection, in bytes. Whatever it is, it is answered in a problem document or closed."""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from services.inventory import heads, protocol
from services.inventory.edge import MAX_BODY_BYTES
from tests.services.inventory.conftest import Caller, Service
from tests.services.inventory.wire import Peer, peer

# No database is asked for most of it, and none answers otherwise than the other.
pytestmark = pytest.mark.parametrize("dialect", ["sqlite"])

GET = "GET /v1/stock/FILTER-A HTTP/1.1"
DELIVERY = b'{"sku":"FILTER-A","quantity":1}'


@pytest.fixture(autouse=True)
def _nothing_fails_inside(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.fixture
def wire(service: Service) -> Iterator[Peer]:
    """A connection to the service."""
    with peer(service.url) as connected:
        yield connected


def token(caller: Caller) -> str:
    """The caller's header."""
    return f"Authorization: {caller.http.headers['authorization']}"


def delivery(caller: Caller, key: str, *more: str) -> list[str]:
    """The head of a delivery, but for its body's length."""
    keyed = [f"Idempotency-Key: {key}", f"Effect-Not-After: {caller.not_after}"]
    return ["POST /v1/deliveries HTTP/1.1", "Host: x", token(caller), *keyed, *more]


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /livez\r\n\r\n",
        b"GET  /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /li vez HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /liv\xc3\xa9 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nSpaced : y\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nName: a\x00b\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 2\r\n\r\nab",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\na",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot hex\r\n",
        b"GET /" + b"l" * 17_000,
        b"GET /livez HTTP/1.1\r\nHost: x\r\nIdempotency-Key: " + b"k" * 17_000,
        # What h11 itself lets pass.
        b"PRI * HTTP/2.0\r\n\r\n",
        b"GET /" + b"l" * 17_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez?" + b"l" * 17_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\nIdempotency-Key: " + b"k" * 17_000 + b"\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * heads.MAX_HEADERS + b"\r\n",
        b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /livez HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=lambda sent: repr(sent[:70]),
)
def test_what_is_not_http_is_refused_in_a_problem_document(wire: Peer, sent: bytes) -> None:
    """No error path leaves the form, not even the one below the application; then the connection is closed."""
    wire.raw(sent)
    assert wire.refused() == "validation-failed"


def test_a_body_that_turns_into_nonsense_has_executed_nothing(wire: Peer, caller: Caller) -> None:
    """A chunk that is none, after one that was all there is to know."""
    key = caller.new_key()
    wire.send(*delivery(caller, key, "Transfer-Encoding: chunked"), body=b"1f\r\n" + DELIVERY + b"\r\nnonsense\r\n")
    assert wire.refused() == "validation-failed"
    assert caller.receipt(key).status_code == 404


def test_as_many_headers_as_are_allowed_are_taken(wire: Peer) -> None:
    """To the one."""
    wire.send("GET /livez HTTP/1.1", "Host: x", *["a: b"] * (heads.MAX_HEADERS - 1))
    answered = wire.answer()
    assert answered is not None
    assert answered.status == 200


def test_http_1_0_is_answered_and_closed(wire: Peer, caller: Caller) -> None:
    """It knows no other end."""
    wire.send("GET /v1/stock/FILTER-A HTTP/1.0", token(caller))
    answered = wire.answer()
    assert answered is not None
    assert (answered.status, json.loads(answered.body)["available"]) == (200, 10)
    assert answered.headers["connection"] == "close"
    assert wire.answer() is None


@pytest.mark.parametrize("origin", ["http://x", "HTTPS://somewhere.else:8443"])
def test_a_target_with_scheme_and_host_is_the_same_target(wire: Peer, caller: Caller, origin: str) -> None:
    """With the token that it needs: /v1 is /v1 in any form."""
    wire.send(f"GET {origin}/v1/stock/FILTER-A?x=y HTTP/1.1", "Host: x", token(caller))
    wire.send(f"GET {origin}/v1/stock/FILTER-A HTTP/1.1", "Host: x")
    wire.send(f"GET {origin} HTTP/1.1", "Host: x")
    answers = [wire.answer() for _ in range(3)]
    assert [answered.status for answered in answers if answered] == [200, 401, 404]


@pytest.mark.parametrize(
    ("line", "status"),
    [("OPTIONS * HTTP/1.1", 404), ("CONNECT x:443 HTTP/1.1", 404), ("TRACE /livez HTTP/1.1", 405)],
)
def test_no_form_of_a_target_hangs(wire: Peer, line: str, status: int) -> None:
    """It is answered like any other that is not there."""
    wire.send(line, "Host: x", "Connection: close")
    answered = wire.answer()
    assert answered is not None
    assert (answered.status, bool(answered.problem)) == (status, True)
    assert wire.answer() is None


def test_an_offer_to_upgrade_is_passed_over(wire: Peer) -> None:
    """There is nothing but HTTP/1.1 here."""
    wire.send("GET /livez HTTP/1.1", "Host: x", "Connection: Upgrade", "Upgrade: websocket")
    wire.send("GET /livez HTTP/1.1", "Host: x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
    answers = [wire.answer(), wire.answer()]
    assert [answered.status for answered in answers if answered] == [200, 200]


def test_the_same_length_twice_is_one_length(wire: Peer, caller: Caller) -> None:
    """RFC 9112 lets it pass, and there is nothing to misread."""
    length = f"Content-Length: {len(DELIVERY)}"
    wire.send(*delivery(caller, caller.new_key(), length, length), body=DELIVERY)
    answered = wire.answer()
    assert answered is not None
    assert answered.status == 201


def test_a_body_in_chunks_is_one_body(wire: Peer, caller: Caller) -> None:
    """With chunk extensions and a trailer, which nobody reads."""
    chunks = b"".join(b"1;x=y\r\n%c\r\n" % byte for byte in DELIVERY) + b"0\r\nTrailer: x\r\n\r\n"
    wire.send(*delivery(caller, caller.new_key(), "Transfer-Encoding: chunked"), body=chunks)
    answered = wire.answer()
    assert answered is not None
    assert answered.status == 201
    assert caller.available() == 11


def test_requests_sent_without_waiting_are_answered_in_order(wire: Peer, caller: Caller) -> None:
    """Each once, and a refusal between them ends nothing."""
    keys = [caller.new_key() for _ in range(8)]
    heads_ = [delivery(caller, key, f"Content-Length: {len(DELIVERY)}") for key in keys]
    heads_[3] = ["POST /v1/deliveries HTTP/1.1", "Host: x", token(caller), f"Content-Length: {len(DELIVERY)}"]
    wire.raw(b"".join("\r\n".join([*head, "", ""]).encode() + DELIVERY for head in heads_))
    answers = [wire.answer() for _ in keys]
    assert [answered.status for answered in answers if answered] == [201, 201, 201, 400, 201, 201, 201, 201]
    found = [json.loads(answered.body).get("key") for answered in answers if answered]
    assert found == [*keys[:3], None, *keys[4:]]
    assert caller.available() == 17


class TestExpect:
    """`Expect: 100-continue`: the caller waits to hear whether its body is wanted."""

    def test_a_body_that_is_wanted_is_asked_for(self, wire: Peer, caller: Caller) -> None:
        """100, the body, then the answer."""
        length = f"Content-Length: {len(DELIVERY)}"
        wire.send(*delivery(caller, caller.new_key(), length, "Expect: 100-continue"))
        asked = wire.answer()
        wire.raw(DELIVERY)
        answered = wire.answer()
        assert asked is not None
        assert answered is not None
        assert (asked.status, answered.status) == (100, 201)

    @pytest.mark.parametrize(
        ("authorization", "size", "problem"),
        [
            ("Authorization: Bearer wrong", 5, "unauthorized"),
            ("", MAX_BODY_BYTES + 1, "payload-too-large"),
            ("", 10**15, "payload-too-large"),
        ],
    )
    def test_a_body_that_is_not_wanted_is_not_asked_for(
        self, wire: Peer, caller: Caller, authorization: str, size: int, problem: str
    ) -> None:
        """The refusal comes at once; where the next request would begin is then uncertain, so it is the last."""
        said = [authorization or token(caller), f"Content-Length: {size}", "Expect: 100-Continue"]
        wire.send("POST /v1/deliveries HTTP/1.1", "Host: x", *said)
        assert wire.refused() == problem


HALVES = [
    b"G",
    b"GET /livez HTTP/1.1\r\nHost: x\r\n",
    b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\na",
    b"POST /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na",
]


# No busy machine takes so long between a connection and its first request.
_ARRIVAL_SECONDS = 0.6


class TestSlowCallers:
    """What is not sent, or not taken, within its time."""

    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(protocol, "ARRIVAL_SECONDS", _ARRIVAL_SECONDS)
        monkeypatch.setattr(protocol, "TAKING_SECONDS", 0.2)

    @pytest.mark.parametrize("sent", [b"", *HALVES], ids=repr)
    def test_a_first_request_that_does_not_come_is_not_waited_for(self, wire: Peer, sent: bytes) -> None:
        """Nothing is said."""
        wire.raw(sent)
        assert wire.answer() is None

    @pytest.mark.parametrize("sent", HALVES, ids=repr)
    def test_nor_is_one_after_others(self, wire: Peer, sent: bytes) -> None:
        """Whether it began with the one before it, or after its answer."""
        for _ in range(2):
            wire.send("GET /livez HTTP/1.1", "Host: x")
            assert wire.answer() is not None
        wire.raw(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + sent)
        assert wire.answer() is not None
        assert wire.answer() is None

    def test_a_drop_now_and_then_does_not_keep_a_request_alive(self, wire: Peer, caller: Caller) -> None:
        """The time is counted from the first byte, not from the last; nothing is executed."""
        key = caller.new_key()
        wire.send(*delivery(caller, key, "Content-Length: 60000"), body=DELIVERY)
        wire.socket.settimeout(0.02)
        while True:
            with suppress(TimeoutError):
                if wire.socket.recv(1) == b"":
                    break
            wire.raw(b" ")
        assert caller.receipt(key).status_code == 404

    def test_an_answer_that_is_not_taken_is_not_kept(
        self, service: Service, wire: Peer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Whoever asks on and on without reading is cut off."""
        asked = 2000
        with suppress(ConnectionError):
            wire.raw(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * asked)
        with httpx.Client(base_url=service.url, trust_env=False) as http:
            while "cut" not in caplog.messages:
                assert http.get("/livez").status_code == 200  # the others are served meanwhile
        taken = 0
        while wire.answer() is not None:
            taken += 1
        assert taken < asked

    def test_an_honest_request_has_all_the_time_that_it_needs_inside(self, wire: Peer) -> None:
        """The time is for what comes in: one request after another, and none is cut."""
        over = time.monotonic() + 2 * _ARRIVAL_SECONDS
        while time.monotonic() < over:
            wire.send("GET /livez HTTP/1.1", "Host: x")
            assert wire.answer() is not None
