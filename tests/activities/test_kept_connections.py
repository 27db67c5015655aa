"""Connections that are used again: one request after the other, each with its own answer, and never a second try."""

import asyncio
from dataclasses import replace

from services.effects.records import Receipt, Seen
from services.effects.settle import Next, settle
from services.effects.states import EffectState
from tests.activities.peer import Script, Wire, http
from tests.activities.sending import COMMITTED, OK, ROW, Line, after, mark
from tests.services.effects.halves import make_intent, make_receipt, make_row

OTHER = make_intent(scope="INC-2042")
OTHER_ROW = make_row(OTHER)
OTHER_RECEIPT = make_receipt(OTHER)
OTHER_OK = http(201, OTHER_RECEIPT.body)


async def test_a_kept_connection_that_the_peer_closed_is_not_used(line: Line) -> None:
    """It is seen to be closed before the first byte: a new one is made, and one request arrives."""

    async def one_each(wire: Wire) -> None:
        await wire.request()
        await wire.say(OK)
        wire.vanish()

    async with line.both(one_each) as (peer, client):
        for number in (1, 2, 3):
            assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
            assert [bytes(wire.got).count(b"POST ") for wire in peer.wires] == [1] * number


async def test_a_kept_connection_that_closes_over_the_request_is_unknown_and_not_tried_again(line: Line) -> None:
    """The transport makes no second try of its own: that needs a look-up first."""

    async def second_unheard(wire: Wire) -> None:
        await wire.request()
        await wire.say(OK)
        await wire.request()

    async with line.both(second_unheard) as (peer, client):
        assert (await client.send(ROW, mark())).seen is Seen.RECEIPT
        assert (await client.send(ROW, mark())).seen is Seen.UNKNOWN
        assert (len(peer.wires), peer.got.count(b"POST ")) == (1, 2)


def follows(after_the_first: bytes) -> Script:
    """Answer each key with its own receipt, and say something more after the first answer, in one breath."""

    async def script(wire: Wire) -> None:
        start, more = 0, after_the_first
        while await wire.request():
            asked, start = bytes(wire.got[start:]), len(wire.got)
            await wire.say((OK if ROW.key.encode() in asked else OTHER_OK) + more)
            more = b""

    return script


async def test_garbage_after_an_answer_makes_the_next_one_unknown_until_it_is_looked_up(line: Line) -> None:
    """What followed the first answer is no beginning of the second: the connection is left, and the receipt found."""
    async with line.both(follows(b"garbage")) as (peer, client):
        assert (await client.send(ROW, mark())).receipt == Receipt(COMMITTED)
        answer = await client.send(OTHER_ROW, mark(OTHER_ROW))
        assert (answer.seen, *after(answer, OTHER_ROW)) == (Seen.UNKNOWN, EffectState.PENDING, Next.LOOK_UP)
        assert (await client.look_up(OTHER_ROW.key)).receipt == OTHER_RECEIPT
        assert len(peer.wires) == 2


async def test_an_answer_to_the_earlier_request_settles_nothing_and_the_look_up_does(line: Line) -> None:
    """A peer that answers twice: its second answer is of another key, so nobody believes it (I46)."""
    async with line.both(follows(OK)) as (_, client):
        assert (await client.send(ROW, mark())).receipt == Receipt(COMMITTED)
        answer = await client.send(OTHER_ROW, mark(OTHER_ROW))
        assert answer.receipt == Receipt(COMMITTED)
        assert after(answer, OTHER_ROW) == (EffectState.IN_DOUBT, Next.WAIT)
        found = await client.look_up(OTHER_ROW.key)
        in_doubt = replace(OTHER_ROW, state=EffectState.IN_DOUBT)
        assert settle(in_doubt, (), found).state is EffectState.COMMITTED


async def test_what_comes_on_an_idle_connection_ends_it() -> None:
    """A second answer that comes later: the next request goes over another connection, and gets its own answer.

    On TCP alone: TLS may have read it before anybody looks, and then it is an answer to the earlier request, as above.
    """
    heard, said = asyncio.Event(), asyncio.Event()

    async def late(wire: Wire) -> None:
        await wire.request()
        if ROW.key.encode() in wire.got:
            await wire.say(OK)
            await heard.wait()
            await wire.say(OK)
            said.set()
        else:
            await wire.say(OTHER_OK)
        await wire.hung_up()

    async with Line().both(late) as (peer, client):
        assert (await client.send(ROW, mark())).receipt == Receipt(COMMITTED)
        heard.set()
        await said.wait()
        assert (await client.send(OTHER_ROW, mark(OTHER_ROW))).receipt == OTHER_RECEIPT
        assert len(peer.wires) == 2
