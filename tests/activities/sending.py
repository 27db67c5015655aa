"""What the client's tests send, over which line, and what is made of the answer."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from activities.inventory_client import InventoryClient
from services.effects.records import Answer, Attempt, EffectRow, Seen
from services.effects.settle import Next, settle
from services.effects.states import EffectState
from tests.activities.peer import Peer, Script, Wire, http, problem
from tests.certificates import Authority
from tests.services.effects.halves import DECIDED_AT, WINDOW, make_intent, make_receipt, make_row

INTENT = make_intent()
ROW = make_row(INTENT)
COMMITTED = make_receipt(INTENT).body
REJECTED = make_receipt(INTENT, EffectState.REJECTED).body
VOIDED = make_receipt(INTENT, EffectState.VOIDED).body
OK = http(201, COMMITTED)
NOW = DECIDED_AT + timedelta(minutes=1)


def mark(row: EffectRow = ROW, **changes: Any) -> Attempt:
    """The journal's mark of an attempt that may be sent now."""
    attempt = Attempt(
        attempt_id="attempt-1", number=1, not_after=row.decided_at + WINDOW, marked_at=NOW, worker={"pid": 7}
    )
    return replace(attempt, **changes)


@asynccontextmanager
async def client_of(
    url: str,
    *,
    ca_file: str | None = None,
    deadline_seconds: float = 5.0,
    connections: int = 4,
    clock: Callable[[], datetime] = lambda: NOW,
    signing_keys: Sequence[bytes] = (),
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[InventoryClient]:
    """A client, closed when the block ends."""
    client = InventoryClient(
        url, "token-a", ca_file=ca_file, deadline_seconds=deadline_seconds, connections=connections, clock=clock,
        signing_keys=signing_keys, transport=transport,
    )  # fmt: skip
    try:
        yield client
    finally:
        await client.close()


@dataclass(frozen=True, kw_only=True)
class Line:
    """How a client and a peer speak: TCP alone, or TLS with the peer's certificate and who vouches for it."""

    tls: ssl.SSLContext | None = None
    ca_file: str | None = None

    def peer(self, script: Script, **options: Any) -> Peer:
        """A peer on this line."""
        return Peer(script, tls=self.tls, **options)

    @asynccontextmanager
    async def both(self, script: Script, **options: Any) -> AsyncIterator[tuple[Peer, InventoryClient]]:
        """A peer that plays a script, and a client of it."""
        async with self.peer(script) as peer, client_of(peer.url, ca_file=self.ca_file, **options) as client:
            yield peer, client

    async def sent(self, script: Script, row: EffectRow = ROW, **options: Any) -> tuple[Answer, Peer]:
        """What a client concludes from one send to such a peer."""
        async with self.both(script, **options) as (peer, client):
            return await client.send(row, mark(row)), peer


@pytest.fixture(params=["tcp", "tls"])
def line(request: pytest.FixtureRequest, authority: Authority) -> Line:
    """Each test on TCP alone and over TLS."""
    if request.param == "tcp":
        return Line()
    return Line(tls=authority.server("IP:127.0.0.1"), ca_file=str(authority.ca_file))


def after(answer: Answer, row: EffectRow = ROW) -> tuple[EffectState, Next]:
    """What `settle` makes of it, for a row with this one attempt."""
    settlement = settle(row, (mark(row, seen=answer.seen),), answer)
    return settlement.state, settlement.next


def refused(name: str, receipt: Mapping[str, Any], **members: Any) -> bytes:
    """A refusal that carries a receipt."""
    return problem(410 if name == "key-voided" else 409, name, receipt=dict(receipt), **members)


@dataclass(frozen=True)
class Case:
    """A response, what is seen in it, and what follows."""

    what: str
    response: bytes
    seen: Seen
    state: EffectState = EffectState.PENDING
    then: Next = Next.LOOK_UP


def cut(response: bytes) -> Script:
    """Answer with this and close."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.say(response)

    return script


async def silence(wire: Wire) -> None:
    """Take the request and never answer."""
    await wire.request()
    await wire.hung_up()


def drip(response: bytes) -> Script:
    """A byte now and then, each sooner than any read time-out."""

    async def script(wire: Wire) -> None:
        await wire.request()
        for place in range(len(response)):
            await wire.say(response[place : place + 1])
            await wire.idle(0.05)

    return script
