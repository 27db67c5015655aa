"""A proxy between workers and the inventory that injects network faults by idempotency key.

What this module guarantees:

- A fault hits the one request it was armed for, once. Everything else passes unchanged, one upstream connection each,
  so that no request meets a connection that another fault has hurt.
- A response is read whole before a fault acts on it: when `WithholdResponse` or `LoseResponse` is reached, the upstream
  has done what it was asked. A request held by `DelayRequest` has not reached the upstream by a byte.
- `Armed.reached` tells when the fault took effect, `events` and `fired` what happened, so that a run whose planned
  faults did not all fire is noticed. No sleeping is needed to meet a moment.
- When the block is left, every connection is closed and every task has ended; what was still held is not delivered.

An upstream that cannot be reached looks to the client like a lost response: the connection closes without a byte.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, assert_never

import h11

from services.drill.network_faults import (
    Armed,
    Call,
    DelayRequest,
    DropRequest,
    DuplicateRequest,
    Fault,
    LoseResponse,
    Moment,
    ProxyEvent,
    WithholdResponse,
)

_READ_BYTES = 65_536
# Far above any request head of ours; h11's own limit of 16 kB would refuse a long Effect-Supersedes.
_HEAD_BYTES = 262_144
_TURNS_TO_ACCEPT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    call: Call
    head: h11.Request
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    head: h11.Response
    body: bytes


class _Undelivered(Exception):
    """The upstream cannot be reached, or hung up before its response was complete."""


class _Client:
    """The client's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD_BYTES)

    async def receive(self) -> _Request | None:
        """The next request with its body; None when the client is done."""
        head: h11.Request | None = None
        body = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(_READ_BYTES))
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                return _Request(call=_call(head), head=head, body=bytes(body))
            else:
                return None

    async def answer(self, response: _Response) -> bool:
        """Give it the response; whether the connection goes on."""
        parts = (response.head, h11.Data(data=response.body), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(part) or b"" for part in parts))
        await self._writer.drain()
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def gone(self) -> None:
        """Wait until the client hangs up; what it may send before is kept."""
        with suppress(ConnectionError):
            while data := await self._reader.read(_READ_BYTES):
                self._http.receive_data(data)

    async def gone_before(self, other: Coroutine[Any, Any, object] | asyncio.Task[Any]) -> bool:
        """Whether the client hangs up before the other is there; a coroutine is given up then, a task goes on."""
        task = other if isinstance(other, asyncio.Task) else asyncio.create_task(other)
        gone = asyncio.create_task(self.gone())
        ours = [gone] if task is other else [gone, task]
        try:
            await asyncio.wait({gone, task}, return_when=asyncio.FIRST_COMPLETED)
            return not task.done()
        finally:
            for each in ours:
                each.cancel()
            await asyncio.gather(*ours, return_exceptions=True)

    async def close(self, *, reset: bool = False) -> None:
        """Close without another byte."""
        if reset:
            linger = struct.pack("ii", 1, 0)
            with suppress(OSError):
                self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._writer.transport.abort()
        await _close(self._writer)


class FaultProxy:
    """The proxy: `async with FaultProxy(host, port) as proxy`, then point the client at `proxy.url`."""

    def __init__(self, upstream_host: str, upstream_port: int) -> None:
        self._upstream = (upstream_host, upstream_port)
        self._port = 0
        self._reserved: socket.socket | None = None  # holds the port while the proxy is down
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[Any]] = set()
        self._late: set[asyncio.Task[Any]] = set()
        self._waiting: list[Armed] = []
        self.armed: list[Armed] = []  # every fault ever armed
        self.events: list[ProxyEvent] = []
        self.requests: Counter[tuple[str | None, str]] = Counter()  # by key and method; what came, not what was passed

    @property
    def url(self) -> str:
        """Where clients send to."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def fired(self) -> Counter[str]:
        """How many faults took effect, by the name of their kind."""
        return Counter(type(armed.fault).__name__ for armed in self.armed if armed.has_fired)

    @property
    def unfired(self) -> list[Armed]:
        """The faults that were armed and have not taken effect."""
        return [armed for armed in self.armed if not armed.has_fired]

    def arm(self, key: str, fault: Fault) -> Armed:
        """Let the next POST with this key meet a fault. Armed twice, the next two meet one each, in that order."""
        return self.arm_next(lambda call: call.method == "POST" and call.key == _bare(key), fault)

    def arm_next(self, matches: Callable[[Call], bool], fault: Fault) -> Armed:
        """Let the next request for which the predicate holds meet a fault."""
        armed = Armed(fault, matches)
        self.armed.append(armed)
        self._waiting.append(armed)
        return armed

    async def up(self) -> None:
        """Accept connections again."""
        if self._reserved is not None:
            listening, self._reserved = self._reserved, None
            self._server = await asyncio.start_server(self._accept, sock=listening)

    async def down(self) -> None:
        """Refuse connections and cut those there are, as if the provider had gone; requests held are still held."""
        if self._server is not None:
            server, self._server = self._server, None
            # A server that is closed loses a connection that it has accepted and not yet made a transport of (asyncio):
            # so first nothing more is accepted, then what was gets its few turns of the loop.
            for listening in server.sockets:
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(_TURNS_TO_ACCEPT):
                await asyncio.sleep(0)
            server.close()
            self._reserved = _bound(self._port)
            await _end(self._connections)
            await server.wait_closed()

    async def __aenter__(self) -> Self:
        self._reserved = _bound(0)
        self._port = self._reserved.getsockname()[1]
        await self.up()
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.down()
        await _end(self._late)
        for armed in self.armed:
            armed.finish("the proxy has closed")
        if self._reserved is not None:
            self._reserved.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # accepted before the proxy went down, and told of afterwards
            writer.transport.abort()
            return
        serving = asyncio.create_task(self._serve(_Client(reader, writer)))
        # A task that is cancelled before its first step runs no `finally`.
        serving.add_done_callback(lambda _: writer.transport.abort())
        _keep(self._connections, serving)

    async def _serve(self, client: _Client) -> None:
        try:
            # A client that breaks off or speaks no HTTP is answered by closing.
            with suppress(ConnectionError, h11.ProtocolError):
                while (request := await client.receive()) is not None:
                    self.requests[request.call.key, request.call.method] += 1
                    if not await self._handle(request, client):
                        return
        finally:
            await client.close()

    async def _handle(self, request: _Request, client: _Client) -> bool:
        """Whether the connection goes on."""
        armed = next((each for each in self._waiting if each.matches(request.call)), None)
        try:
            if armed is None:
                return await client.answer(await self._forward(request))
            self._waiting.remove(armed)
            return await self._inject(armed, request, client)
        except _Undelivered:
            return False

    async def _inject(self, armed: Armed, request: _Request, client: _Client) -> bool:
        reason: str | None = "its connection was cut or the upstream did not answer"
        late = isinstance(armed.fault, DelayRequest)
        try:
            response = await self._meet(armed, request, client)
            goes_on = response is not None and await client.answer(response)
            if response is not None:
                self._note(request, armed, Moment.ANSWERED, response)
            reason = None
            return goes_on
        finally:
            if not late:  # the late delivery says itself when it is done
                armed.finish(reason)

    async def _meet(self, armed: Armed, request: _Request, client: _Client) -> _Response | None:
        """Do what the fault says; the response if the client is to be given one."""
        match armed.fault:
            case WithholdResponse():
                return await self._withhold(armed, request, client)
            case LoseResponse(reset=reset):
                response = await self._forward(request, armed)
                await client.close(reset=reset)
                armed.reach(self._note(request, armed, Moment.CLOSED, response))
                return None
            case DelayRequest():
                return await self._hold(armed, request, client)
            case DropRequest(reset=reset):
                await client.close(reset=reset)
                armed.reach(self._note(request, armed, Moment.CLOSED))
                return None
            case DuplicateRequest():
                await self._forward(request, armed)
                response = await self._forward(request, armed)
                armed.reach(self.events[-1])
                return response
            case _:
                assert_never(armed.fault)

    async def _withhold(self, armed: Armed, request: _Request, client: _Client) -> _Response | None:
        response = await self._forward(request, armed)
        armed.reach(self._note(request, armed, Moment.WITHHELD, response))
        if await client.gone_before(armed.released.wait()):
            self._note(request, armed, Moment.CLIENT_GONE)
            return None
        self._note(request, armed, Moment.RELEASED)
        return response

    async def _hold(self, armed: Armed, request: _Request, client: _Client) -> _Response | None:
        delivery = asyncio.create_task(self._deliver_late(armed, request))
        _keep(self._late, delivery)
        armed.reach(self._note(request, armed, Moment.HELD))
        if await client.gone_before(delivery):
            self._note(request, armed, Moment.CLIENT_GONE)
            return None
        return delivery.result()

    async def _deliver_late(self, armed: Armed, request: _Request) -> _Response:
        reason: str | None = "the proxy closed or the upstream did not answer before the delivery"
        try:
            await armed.released.wait()
            self._note(request, armed, Moment.RELEASED)
            response = await self._forward(request, armed)
            reason = None
            return response
        finally:
            armed.finish(reason)

    async def _forward(self, request: _Request, armed: Armed | None = None) -> _Response:
        """Deliver the request on a connection of its own and read the whole response."""
        try:
            reader, writer = await asyncio.open_connection(*self._upstream)
            try:
                response = await _exchange(request, reader, writer)
            finally:
                await _close(writer)
        except (OSError, h11.ProtocolError) as error:
            self._note(request, armed, Moment.UNDELIVERED)
            raise _Undelivered from error
        if armed is not None:
            self._note(request, armed, Moment.FORWARDED, response)
        return response

    def _note(
        self, request: _Request, armed: Armed | None, moment: Moment, response: _Response | None = None
    ) -> ProxyEvent:
        status = None if response is None else response.head.status_code
        fault = None if armed is None else armed.fault
        event = ProxyEvent(call=request.call, fault=fault, moment=moment, status=status)
        self.events.append(event)
        return event


async def _exchange(request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> _Response:
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_HEAD_BYTES)
    parts = (request.head, h11.Data(data=request.body), h11.EndOfMessage())
    writer.write(b"".join(http.send(part) or b"" for part in parts))
    await writer.drain()
    head: h11.Response | None = None
    body = bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(_READ_BYTES))
        elif isinstance(event, h11.Response):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            return _Response(head=head, body=bytes(body))
        elif not isinstance(event, h11.InformationalResponse):
            raise ConnectionResetError("the upstream hung up")


def _call(head: h11.Request) -> Call:
    key = next((value for name, value in head.headers if name == b"idempotency-key"), None)
    return Call(
        method=head.method.decode(),
        path=head.target.decode(),
        key=None if key is None else _bare(key.decode("latin-1")),
    )


def _bare(key: str) -> str:
    return key.strip().strip('"')


def _bound(port: int) -> socket.socket:
    """A socket that has the port but does not listen: connections are refused, and nobody else is given the port."""
    # asyncio switches Nagle's algorithm off only for sockets that say they are TCP: else 40 ms for each response.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(("127.0.0.1", port))
    except OSError:
        bound.close()
        raise
    return bound


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def _keep(tasks: set[asyncio.Task[Any]], task: asyncio.Task[Any]) -> None:
    """Hold on to a task until it ends; asyncio itself holds tasks weakly."""

    def ended(task: asyncio.Task[Any]) -> None:
        tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        # An undelivered late request is told to its client, if there is one, and to whoever waits for the fault.
        if error is not None and not isinstance(error, _Undelivered):
            task.get_loop().call_exception_handler(
                {"message": "the fault proxy failed over a request", "exception": error, "task": task}
            )

    tasks.add(task)
    task.add_done_callback(ended)


async def _end(tasks: set[asyncio.Task[Any]]) -> None:
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
