"""What can be done to a request on its way, and the handle by which a test or a demo follows it.

What this module guarantees:

- A fault is data: frozen, comparable, without behaviour. The proxy does what it says.
- An `Armed` fault is reached at most once and done at most once, and whoever waits for either gets an answer: when it
  can no longer happen, that is `FaultNotReached`, never a wait without end.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class WithholdResponse:
    """Forward, read the whole response, then let the client wait until it is released or the client goes away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoseResponse:
    """Forward, read the whole response, then close the client's connection without a byte."""

    reset: bool = False  # by RST instead of FIN


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayRequest:
    """Hold the request until it is released; then it is delivered, even if its client has gone: the late packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropRequest:
    """Close the client's connection; the upstream never hears of the request."""

    reset: bool = False  # by RST instead of FIN


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateRequest:
    """Deliver the request twice, on two connections, one after the other; answer with the second response."""


Fault = WithholdResponse | LoseResponse | DelayRequest | DropRequest | DuplicateRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request as the proxy saw it."""

    method: str
    path: str  # the request's target, with its query
    key: str | None  # the Idempotency-Key without quotes


class Moment(StrEnum):
    """What happened to a request that met a fault, or that could not be delivered."""

    HELD = "held"  # the request, before its delivery
    FORWARDED = "forwarded"  # to the upstream, with its response in hand
    WITHHELD = "withheld"  # the response, from the client
    RELEASED = "released"
    ANSWERED = "answered"  # the client has been given the response
    CLOSED = "closed"  # the client's connection, by the proxy, without a byte
    CLIENT_GONE = "client gone"
    UNDELIVERED = "undelivered"  # the upstream cannot be reached or does not answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyEvent:
    """One line of the proxy's log."""

    call: Call
    fault: Fault | None
    moment: Moment
    status: int | None = None  # of the response, when there is one in hand

    @property
    def key(self) -> str | None:
        """The idempotency key of the request."""
        return self.call.key


class FaultNotReached(Exception):
    """An armed fault can no longer take effect: its request could not be delivered, or the proxy has closed."""


class Armed:
    """A fault waiting for its request. Awaiting it may be given up at will; that disarms nothing."""

    def __init__(self, fault: Fault, matches: Callable[[Call], bool]) -> None:
        self.fault = fault
        self.matches = matches
        self.released = asyncio.Event()
        self._reached: asyncio.Future[ProxyEvent] = asyncio.get_running_loop().create_future()
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_fired(self) -> bool:
        """Whether the fault took effect."""
        return self._reached.done() and self._reached.exception() is None

    async def reached(self) -> ProxyEvent:
        """Wait until the fault took effect: the response in hand, with its status, or the request held or dropped.

        Raises:
            FaultNotReached: it never will.
        """
        return await asyncio.shield(self._reached)

    async def done(self) -> None:
        """Wait until nothing more comes of it: answered, closed, the client gone, the late request delivered.

        Raises:
            FaultNotReached: the proxy closed, or the upstream could not be reached, before that.
        """
        await asyncio.shield(self._done)

    def release(self) -> None:
        """Let go what is withheld or held; before the fault is reached: as soon as it is."""
        self.released.set()

    def reach(self, event: ProxyEvent) -> None:
        """The proxy's part: the fault took effect."""
        if not self._reached.done():
            self._reached.set_result(event)

    def finish(self, cut_short: str | None = None) -> None:
        """The proxy's part: nothing more comes of it, or it was cut short for a reason."""
        if cut_short is None and not self._done.done():
            self._done.set_result(None)
        future: asyncio.Future[Any]
        for future in (self._reached, self._done):
            if not future.done():
                future.set_exception(FaultNotReached(f"{self.fault} was not carried through: {cut_short}."))
                future.exception()  # nobody needs to ask
