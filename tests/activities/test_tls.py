"""The inventory over TLS: whom the client trusts, and what a handshake that fails has sent."""

import ssl
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from services.effects.records import Answer, Seen
from services.effects.settle import Next
from services.effects.states import EffectState
from tests.activities.peer import Peer, Script, Wire, answering
from tests.activities.sending import NOW, OK, ROW, Line, after, client_of, mark
from tests.certificates import Authority
from tests.services.inventory.conftest import Clock

SOME_SECONDS = 3.0


@pytest.fixture
def secure(authority: Authority) -> Line:
    """A peer with a certificate for its address, and a client that trusts who signed it."""
    return Line(tls=authority.server("IP:127.0.0.1"), ca_file=str(authority.ca_file))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority that nobody has told the client of."""
    return Authority(tmp_path_factory.mktemp("stranger"))


async def _nothing_sent(line: Line) -> Answer:
    """What a client concludes that cannot finish its handshake; the peer hears not one byte of a request."""
    answer, peer = await line.sent(answering(OK), deadline_seconds=SOME_SECONDS)
    assert peer.got == b""
    assert (answer.seen, *after(answer)) == (Seen.NOT_SENT, EffectState.PENDING, Next.LOOK_UP)
    return answer


async def test_a_private_authoritys_server_is_believed(secure: Line) -> None:
    """What COUNTERFOIL_INVENTORY_CA_FILE is for."""
    answer, peer = await secure.sent(answering(OK))
    assert (answer.seen, peer.got.count(b"POST ")) == (Seen.RECEIPT, 1)


async def test_a_server_whom_nobody_vouches_for_gets_nothing(secure: Line, stranger: Authority) -> None:
    """Signed by another authority, or by one that the public ones do not know: the handshake ends it."""
    for line in (replace(secure, tls=stranger.server("IP:127.0.0.1")), replace(secure, ca_file=None)):
        assert (await _nothing_sent(line)).reason == "ConnectError"


async def test_a_server_with_another_hosts_certificate_gets_nothing(secure: Line, authority: Authority) -> None:
    """The right authority, the wrong name."""
    other = replace(secure, tls=authority.server("DNS:inventory.example"))
    assert (await _nothing_sent(other)).reason == "ConnectError"


async def test_a_server_that_speaks_no_tls_of_ours_gets_nothing(secure: Line, authority: Authority) -> None:
    """No cipher in common: the server ends the handshake with an alert."""
    context = authority.new_server("IP:127.0.0.1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256")
    assert (await _nothing_sent(replace(secure, tls=context))).reason == "ConnectError"


async def test_a_server_that_wants_our_certificate_after_the_handshake_is_unknown(
    secure: Line, authority: Authority
) -> None:
    """In TLS 1.3 its refusal comes when the request may have left already."""
    context = authority.new_server("IP:127.0.0.1")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(authority.ca_file)
    answer, peer = await replace(secure, tls=context).sent(answering(OK))
    assert (answer.seen, *after(answer)) == (Seen.UNKNOWN, EffectState.PENDING, Next.LOOK_UP)
    assert peer.got == b""


async def silent(wire: Wire) -> None:
    """Never answer the handshake."""
    await wire.hung_up()


async def refusing(_wire: Wire) -> None:
    """Close in the handshake."""


async def resetting(wire: Wire) -> None:
    """Reset in the handshake."""
    wire.reset()


async def in_clear(wire: Wire) -> None:
    """Answer the handshake in plain HTTP."""
    await wire.say(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")


def dripping(tls: ssl.SSLContext) -> Script:
    """Answer the handshake truly, a byte now and then."""

    async def script(wire: Wire) -> None:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = tls.wrap_bio(incoming, outgoing, server_side=True)
        incoming.write(await wire.some())
        with pytest.raises(ssl.SSLWantReadError):
            server.do_handshake()
        for byte in outgoing.read():
            await wire.say(bytes([byte]))
            await wire.idle(0.05)

    return script


@pytest.mark.parametrize(
    ("script", "reason"),
    [(silent, "ConnectTimeout"), (refusing, "ConnectError"), (resetting, "ConnectError"), (in_clear, "ConnectError")],
    ids=["silent", "refusing", "resetting", "in clear"],
)
async def test_a_handshake_that_does_not_end_has_sent_nothing(secure: Line, script: Script, reason: str) -> None:
    """Whatever the other side does to it: not a byte of the request is in it."""
    async with Peer(script) as peer:
        url = peer.url.replace("http:", "https:")
        async with client_of(url, ca_file=secure.ca_file, deadline_seconds=SOME_SECONDS) as client:
            answer = await client.send(ROW, mark())
    assert (answer.seen, answer.reason) == (Seen.NOT_SENT, reason)
    assert after(answer) == (EffectState.PENDING, Next.LOOK_UP)


async def test_a_handshake_that_drips_ends_in_time_and_has_sent_nothing(authority: Authority) -> None:
    """Each byte comes sooner than any time-out; the handshake as a whole has one."""
    async with Peer(dripping(authority.server("IP:127.0.0.1"))) as peer:
        url = peer.url.replace("http:", "https:")
        async with client_of(url, ca_file=str(authority.ca_file), deadline_seconds=SOME_SECONDS) as client:
            answer = await client.send(ROW, mark())
    assert (answer.seen, answer.reason) == (Seen.NOT_SENT, "ConnectTimeout")


async def test_a_handshake_that_takes_until_the_deadline_lets_no_byte_through(
    secure: Line, authority: Authority
) -> None:
    """The gate stands behind the handshake: what was early enough before it is too late after it."""
    clock = Clock(NOW)

    def in_the_handshake(*_: object) -> None:
        clock.now += timedelta(hours=24)

    context = authority.new_server("IP:127.0.0.1")
    context.sni_callback = in_the_handshake
    answer, peer = await replace(secure, tls=context).sent(answering(OK), clock=clock)
    assert clock.now > NOW
    assert (answer.seen, peer.got) == (Seen.NOT_SENT, b"")
    assert "send window ended" in answer.reason


async def test_plain_http_needs_no_authority_and_no_file(tmp_path: Path) -> None:
    """A CA file that is not there stops the start, not a send."""
    with pytest.raises(OSError, match="No such file"):
        async with client_of("http://127.0.0.1:9", ca_file=str(tmp_path / "none.pem")):
            pass
