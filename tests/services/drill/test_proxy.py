"""The fault proxy between a real HTTP client and a real HTTP server."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx
import pytest
import uvicorn
from anyio.lowlevel import checkpoint
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from services.drill.network_faults import (
    DelayRequest,
    DropRequest,
    DuplicateRequest,
    FaultNotReached,
    LoseResponse,
    Moment,
    WithholdResponse,
)
from services.drill.proxy import FaultProxy
from tests.ports import nobody_listening

KEY = "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1"
OTHER = "cf1-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-g1"


class Provider:
    """Counts what reaches it, by key."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, bytes]] = []
        self.port = 0

    async def reserve(self, request: Request) -> Response:
        """One effect per request: this provider dedupes nothing, so that doubles are seen."""
        self.effects.append((request.headers["idempotency-key"].strip('"'), await request.body()))
        return JSONResponse({"effects": len(self.effects)}, 201, {"X-Mixed-Case": "kept"})

    async def stream(self, _request: Request) -> Response:
        """A chunked body."""

        async def parts() -> AsyncIterator[bytes]:
            for part in (b"one ", b"two ", b"three"):
                yield part

        return StreamingResponse(parts())


@asynccontextmanager
async def serving(provider: Provider) -> AsyncIterator[Provider]:
    """A uvicorn server in this loop; its socket listens before it runs, so nobody has to wait for it."""
    app = Starlette(
        routes=[
            Route("/v1/reservations", provider.reserve, methods=["POST"]),
            Route("/stream", provider.stream),
            Route("/nothing", lambda _request: Response(status_code=204), methods=["GET", "PUT"]),
        ]
    )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        provider.port = listening.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, http="h11", ws="none", lifespan="off", log_level="error"))
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            yield provider
        finally:
            server.should_exit = True
            await task


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """A provider that runs."""
    async with serving(Provider()) as running:
        yield running


@pytest.fixture
async def proxy(provider: Provider) -> AsyncIterator[FaultProxy]:
    """A proxy in front of the provider."""
    async with FaultProxy("127.0.0.1", provider.port) as running:
        yield running


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[httpx.AsyncClient]:
    """A keep-alive client of the proxy."""
    async with httpx.AsyncClient(base_url=proxy.url, trust_env=False, timeout=30) as running:
        yield running


async def reserve(client: httpx.AsyncClient, key: str = KEY, body: bytes = b"{}") -> httpx.Response:
    """One keyed effect."""
    return await client.post("/v1/reservations", content=body, headers={"Idempotency-Key": f'"{key}"'})


async def test_without_faults_everything_passes_unchanged(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """Methods, large bodies, chunked and empty responses, header names, on one kept connection."""
    body = bytes(300_000)
    for _ in range(3):
        response = await reserve(client, body=body)
        assert response.status_code == 201
        assert (b"X-Mixed-Case", b"kept") in [(name.title(), value) for name, value in response.headers.raw]
        assert (await client.get("/stream")).text == "one two three"
        assert (await client.put("/nothing", headers={"Idempotency-Key": KEY})).status_code == 204
        assert (await client.head("/stream")).status_code == 200
    assert provider.effects == [(KEY, body)] * 3
    assert proxy.requests == {(KEY, "POST"): 3, (KEY, "PUT"): 3, (None, "GET"): 3, (None, "HEAD"): 3}
    assert proxy.events == []


async def test_many_clients_pass_side_by_side(proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient) -> None:
    """No request waits for another's."""
    withheld = proxy.arm(OTHER, WithholdResponse())
    stuck = asyncio.create_task(reserve(client, OTHER))
    await withheld.reached()
    answers = await asyncio.gather(*(reserve(client) for _ in range(50)))
    assert {answer.status_code for answer in answers} == {201}
    assert len(provider.effects) == 51
    withheld.release()
    assert (await stuck).status_code == 201


async def test_a_withheld_response_means_the_effect_is_done_and_the_client_waits(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """The fault is reached with the status in hand; after the release the client gets its answer."""
    armed = proxy.arm(f'"{KEY}"', WithholdResponse())
    task = asyncio.create_task(reserve(client))
    event = await armed.reached()
    assert (event.key, event.moment, event.status) == (KEY, Moment.WITHHELD, 201)
    assert len(provider.effects) == 1
    assert not task.done()
    armed.release()
    assert (await task).status_code == 201
    await armed.done()
    assert (await reserve(client)).json() == {"effects": 2}, "one-shot"


async def test_a_withheld_response_ends_when_the_client_goes_away(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """As when its worker is killed: the proxy notices."""
    armed = proxy.arm(KEY, WithholdResponse())
    task = asyncio.create_task(reserve(client))
    await armed.reached()
    task.cancel()
    await armed.done()
    assert [event.moment for event in proxy.events] == [Moment.FORWARDED, Moment.WITHHELD, Moment.CLIENT_GONE]
    assert len(provider.effects) == 1


@pytest.mark.parametrize(("reset", "error"), [(False, httpx.RemoteProtocolError), (True, httpx.ReadError)])
async def test_a_lost_response_means_the_effect_is_done_and_the_client_hears_nothing(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient, reset: bool, error: type[Exception]
) -> None:
    """By FIN or by RST."""
    armed = proxy.arm(KEY, LoseResponse(reset=reset))
    with pytest.raises(error):
        await reserve(client)
    assert (await armed.reached()).status == 201
    await armed.done()
    assert len(provider.effects) == 1


async def test_a_delayed_request_is_not_delivered_before_its_release(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """Others pass it meanwhile; then its client gets the answer."""
    armed = proxy.arm(KEY, DelayRequest())
    task = asyncio.create_task(reserve(client))
    assert (await armed.reached()).moment is Moment.HELD
    await reserve(client, OTHER)
    assert [key for key, _ in provider.effects] == [OTHER]
    armed.release()
    assert (await task).json() == {"effects": 2}
    await armed.done()


async def test_a_delayed_request_is_delivered_though_its_client_has_gone(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """The late packet: the effect happens and nobody hears of it but the log, which says how it was answered."""
    armed = proxy.arm(KEY, DelayRequest())
    task = asyncio.create_task(reserve(client))
    await armed.reached()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert provider.effects == []
    armed.release()
    await armed.done()
    assert [key for key, _ in provider.effects] == [KEY]
    assert Moment.ANSWERED not in [event.moment for event in proxy.events]
    assert [event.status for event in proxy.events if event.moment is Moment.FORWARDED] == [201]


async def test_a_delayed_request_outlives_an_outage(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """What is on its way arrives when the way is open again."""
    armed = proxy.arm(KEY, DelayRequest())
    task = asyncio.create_task(reserve(client))
    await armed.reached()
    await proxy.down()
    with pytest.raises(httpx.RemoteProtocolError):
        await task
    await proxy.up()
    armed.release()
    await armed.done()
    assert len(provider.effects) == 1


async def test_a_dropped_request_never_arrives(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """The client cannot tell it from a lost response."""
    armed = proxy.arm(KEY, DropRequest())
    with pytest.raises(httpx.RemoteProtocolError):
        await reserve(client)
    await armed.done()
    assert armed.has_fired
    assert provider.effects == []


async def test_a_duplicated_request_arrives_twice_and_is_answered_once(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """The client gets the second answer."""
    armed = proxy.arm(KEY, DuplicateRequest())
    assert (await reserve(client, body=b"same")).json() == {"effects": 2}
    await armed.done()
    assert provider.effects == [(KEY, b"same")] * 2


async def test_a_fault_meets_only_a_post_with_its_key(
    proxy: FaultProxy, provider: Provider, client: httpx.AsyncClient
) -> None:
    """Another key and another method pass; two faults for one key meet the next two requests in order."""
    first, second = proxy.arm(KEY, DropRequest()), proxy.arm(KEY, LoseResponse())
    assert (await reserve(client, OTHER)).status_code == 201
    assert (await client.put("/nothing", headers={"Idempotency-Key": KEY})).status_code == 204
    assert proxy.unfired == [first, second]
    for _ in range(2):
        with pytest.raises(httpx.RemoteProtocolError):
            await reserve(client)
    assert proxy.unfired == []
    assert proxy.fired == {"DropRequest": 1, "LoseResponse": 1}
    assert len(provider.effects) == 2


async def test_a_fault_can_be_armed_by_path_and_method(proxy: FaultProxy, client: httpx.AsyncClient) -> None:
    """A look-up is lost like anything else."""
    armed = proxy.arm_next(lambda call: (call.method, call.path) == ("GET", "/stream?x=1"), LoseResponse())
    assert (await client.get("/stream")).status_code == 200
    with pytest.raises(httpx.RemoteProtocolError):
        await client.get("/stream?x=1")
    assert (await armed.reached()).call.path == "/stream?x=1"


async def test_an_outage_refuses_connections_and_ends(proxy: FaultProxy, client: httpx.AsyncClient) -> None:
    """Kept connections are cut, new ones refused; afterwards the same address works again."""
    for _ in range(3):
        assert (await reserve(client)).status_code == 201
        await proxy.down()
        with pytest.raises(httpx.ConnectError):
            await reserve(client)
        await proxy.up()


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_that_comes_as_the_proxy_goes_down_is_closed_too(proxy: FaultProxy, turns: int) -> None:
    """At every turn of the loop on the way to being served: none stays open with nobody behind it."""
    host, port = proxy.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        for _ in range(turns):
            await checkpoint()
        await proxy.down()
        with suppress(ConnectionResetError):
            assert await asyncio.to_thread(connection.recv, 1) == b""


async def test_an_unreachable_upstream_is_seen_and_fails_the_fault_that_needed_it() -> None:
    """No wait without end, and no fault counted that did not happen."""
    with nobody_listening() as port:
        await _every_request_is_undelivered(port)


async def _every_request_is_undelivered(port: int) -> None:
    async with (
        FaultProxy("127.0.0.1", port) as proxy,
        httpx.AsyncClient(base_url=proxy.url, trust_env=False, timeout=30) as client,
    ):
        for _ in range(2):
            armed = proxy.arm(KEY, WithholdResponse())
            with pytest.raises(httpx.RemoteProtocolError):
                await reserve(client)
            with pytest.raises(FaultNotReached):
                await armed.reached()
        late = proxy.arm(KEY, DelayRequest())
        late.release()
        with pytest.raises(httpx.RemoteProtocolError):
            await reserve(client)
        with pytest.raises(FaultNotReached):
            await late.done()
        assert {event.moment for event in proxy.events} >= {Moment.UNDELIVERED}
        assert proxy.fired == {"DelayRequest": 1}


async def test_what_is_not_http_is_closed(proxy: FaultProxy) -> None:
    """And the proxy goes on."""
    for garbage in (b"\x00\x01\x02\r\n\r\n", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.rpartition(":")[2]))
        writer.write(garbage)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    assert proxy.requests == {}


async def test_closing_ends_everything_that_was_held(provider: Provider) -> None:
    """No task is left, nothing held is delivered, whoever waits is told."""
    before = asyncio.all_tasks()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        async with FaultProxy("127.0.0.1", provider.port) as proxy:
            client.base_url = httpx.URL(proxy.url)
            withheld, held = proxy.arm(KEY, WithholdResponse()), proxy.arm(OTHER, DelayRequest())
            never = proxy.arm(KEY, DropRequest())
            tasks = [asyncio.create_task(reserve(client)), asyncio.create_task(reserve(client, OTHER))]
            await withheld.reached()
            await held.reached()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in results] == [httpx.RemoteProtocolError] * 2
    for armed in (withheld, held, never):
        with pytest.raises(FaultNotReached):
            await armed.done()
    assert [key for key, _ in provider.effects] == [KEY]
    assert {task for task in asyncio.all_tasks() - before if "uvicorn" not in repr(task)} == set()


async def test_a_predicate_that_fails_is_reported(proxy: FaultProxy, client: httpx.AsyncClient) -> None:
    """Not mistaken for a fault of the network."""
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reports.append(repr(context["exception"])))
    try:
        proxy.arm_next(lambda call: bool(1 / len(call.path[1:])), DropRequest())
        with pytest.raises(httpx.RemoteProtocolError):
            await client.get("/")
        await proxy.down()
    finally:
        asyncio.get_running_loop().set_exception_handler(None)
    assert "ZeroDivisionError" in reports[0]
