"""HTTP/1.1 on one connection: what uvicorn leaves open is bounded here.

- What cannot be read as HTTP is answered with a problem document, like everything else, and closed.
- A request has 30 seconds from its first byte to its last, and a fresh connection as long for its first byte; a caller
  that takes longer is closed without a word. It has executed nothing. No answer would be right: after a 400 or a 408 a
  caller may believe that trying again is useless, after silence it asks for the receipt and sends the same again.
- A caller that does not take its answer within 30 seconds is cut off.
"""

import asyncio
import logging
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.inventory import logs
from services.inventory.edge import problem_response, standard_headers
from services.inventory.exchanges import UNREADABLE, Exchange
from services.inventory.heads import new_request_id
from services.inventory.problems import STATUS, Fault, Invalid, Problem

# Many times what 64 KiB need on the slowest line; also far above the pause between two bytes of any honest caller.
ARRIVAL_SECONDS = 30.0
TAKING_SECONDS = 30.0


class Protocol(H11Protocol):
    """One connection."""

    _arrival: asyncio.TimerHandle | None = None
    _taking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; the first request has to come now."""
        super().connection_made(transport)  # type: ignore[arg-type]  # uvicorn narrows it
        self._expect_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """End: nothing is waited for any more."""
        self._request_came()
        self._answer_taken()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Handle what has come, and wait for the rest of a request for so long and no longer."""
        super().handle_events()
        state = self.conn.their_state
        # Between two requests uvicorn waits for the next one, until its first byte.
        between = self.timeout_keep_alive_task is not None and not self.conn.trailing_data[0]
        missing = state is h11.SEND_BODY or (state is h11.IDLE and not between)
        if not missing:
            self._request_came()
        elif self._arrival is None:
            self._expect_request()

    def pause_writing(self) -> None:
        """The caller takes its answer slowly: it may do so for a while."""
        super().pause_writing()
        self._taking = self.loop.call_later(TAKING_SECONDS, self._cut, "answer not taken")

    def resume_writing(self) -> None:
        """The caller has taken what there was."""
        self._answer_taken()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or has a head beyond 16 KiB: no application ever sees it."""
        del msg  # always the same
        request_id = new_request_id()
        fault = Fault(at="", message="It is not an HTTP request that can be read, or its head is too large.")
        response = problem_response(Invalid([fault]), {**standard_headers(request_id), "Connection": "close"})
        head = h11.Response(status_code=response.status_code, headers=response.raw_headers, reason=b"Bad Request")
        for event in (head, h11.Data(data=bytes(response.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        problem = Problem.VALIDATION_FAILED
        exchange = Exchange(
            request_id=request_id, method="other", route=UNREADABLE, seconds=0, status=STATUS[problem], problem=problem
        )
        app: Any = self.config.app
        app.state.metrics.answered(exchange)
        logs.request(exchange)
        self.transport.close()

    def _should_upgrade(self) -> bool:
        """Never: an Upgrade is an offer, and a server may leave it."""
        return False

    def _expect_request(self) -> None:
        self._arrival = self.loop.call_later(ARRIVAL_SECONDS, self._cut_arrival)

    def _request_came(self) -> None:
        if self._arrival is not None:
            self._arrival.cancel()
            self._arrival = None

    def _answer_taken(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None

    def _cut_arrival(self) -> None:
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.abort()  # nobody has begun anything: that is no event
        else:
            self._cut("request not sent")

    def _cut(self, why: str) -> None:
        logs.event("cut", {"why": why}, level=logging.WARNING)
        self.transport.abort()
