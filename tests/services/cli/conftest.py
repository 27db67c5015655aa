"""The command line as a real process, and a tiny inventory for it to talk to."""

import asyncio
import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import rfc8785
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from services.drill.processes import Processes
from services.drill.stack import Stack, running_stack

COUNTERFOIL = str(Path(sys.executable).with_name("counterfoil"))
TOKEN = "token-a"  # noqa: S105 - of the tiny inventory below
# Nobody listens there, now or later: of a port that was free a moment ago another test's server may be told.
NOBODY = "127.0.0.1:1"
# How long a command may take is not what its test is about: one that hangs is ended before the test's own limit.
PATIENCE_SECONDS = 100
# A line of `incident start`, of an incident that waits for nobody.
INCIDENT: dict[str, Any] = {
    "id": "INC-1",
    "title": "Two filters",
    "site": "FRA2/B/R04",
    "severity": "high",
    "reported_at": "2026-11-23T05:12:40Z",
    "approval": "auto",
    "effects": [{"name": "reserve-filter", "lines": [{"sku": "FILTER-A", "quantity": 2}]}],
}

Run = Callable[..., subprocess.CompletedProcess[str]]


def environment(settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment with exactly these COUNTERFOIL_* variables."""
    kept: dict[str, str] = {
        name: value for name, value in os.environ.items() if not name.startswith(("COUNTERFOIL_", "TEMPORAL_"))
    }
    return kept | dict(settings)


@pytest.fixture
def counterfoil() -> Run:
    """Run the installed program to its end."""

    def run(*arguments: str, stdin: str = "", **settings: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COUNTERFOIL, *arguments],
            env=environment(settings),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    return run


class TinyInventory:
    """Deliveries and stock as the contract says, in memory; the answer itself can be replaced."""

    def __init__(self) -> None:
        self.receipts: dict[str, dict[str, Any]] = {}
        self.headers: list[Mapping[str, str]] = []
        self.stock: dict[str, int] = {}
        self.instead: Response | None = None
        self.url = ""

    @property
    def settings(self) -> dict[str, str]:
        """What a client of this inventory has in its environment."""
        return {"COUNTERFOIL_INVENTORY_URL": self.url, "COUNTERFOIL_INVENTORY_TOKEN": TOKEN}

    def app(self) -> Starlette:
        """The service."""
        return Starlette(
            routes=[
                Route("/v1/deliveries", self._deliver, methods=["POST"]),
                Route("/v1/stock/{sku}", self._show),
            ]
        )

    async def _deliver(self, request: Request) -> Response:
        self.headers.append(request.headers)
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return problem(401, "unauthorized")
        if self.instead is not None:
            return self.instead
        key = request.headers["Idempotency-Key"].strip('"')
        order: dict[str, Any] = json.loads(await request.body())
        material: Any = ["cf-fp1", "inventory.deliver", {}, order]
        fingerprint = hashlib.sha256(rfc8785.dumps(material)).hexdigest()
        known = self.receipts.get(key)
        if known is not None:
            if known["fingerprint"] != fingerprint:
                return problem(422, "idempotency-key-reused")
            return JSONResponse(known, 201, headers={"Idempotency-Replayed": "true"})
        self.stock[order["sku"]] = self.stock.get(order["sku"], 0) + order["quantity"]
        self.receipts[key] = {
            "receipt_id": f"receipt-{len(self.receipts) + 1}",
            "key": key,
            "kind": "inventory.deliver",
            "outcome": "committed",
            "fingerprint": fingerprint,
        }
        return JSONResponse(self.receipts[key], 201, headers={"Idempotency-Replayed": "false"})

    async def _show(self, request: Request) -> Response:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return problem(401, "unauthorized")
        if self.instead is not None:
            return self.instead
        sku = request.path_params["sku"]
        if sku not in self.stock:
            return problem(404, "sku-not-found")
        count = self.stock[sku]
        return JSONResponse({"sku": sku, "received": count, "available": count, "held": 0, "consumed": 0, "version": 1})


def problem(status: int, name: str) -> Response:
    """An RFC 9457 problem document."""
    return JSONResponse({"type": f"/problems/{name}", "status": status}, status)


@pytest.fixture
def inventory() -> Iterator[TinyInventory]:
    """A tiny inventory behind a real server."""
    tiny = TinyInventory()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        tiny.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        server = uvicorn.Server(uvicorn.Config(tiny.app(), ws="none", lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield tiny
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def silent() -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """A peer that accepts connections and says nothing of itself, with a client's environment for it."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield listening, {"COUNTERFOIL_INVENTORY_URL": url, "COUNTERFOIL_INVENTORY_TOKEN": TOKEN}


@pytest.fixture(scope="package")
async def deployment(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """A whole deployment of real processes, with ten FILTER-A and one worker behind the proxy."""
    folder = tmp_path_factory.mktemp("deployment")
    with Processes() as processes:
        async with running_stack(processes, folder, stock={"FILTER-A": 10}, origin="workshop", workers=1) as stack:
            yield stack


Ask = Callable[..., Awaitable[subprocess.CompletedProcess[str]]]


@pytest.fixture
async def ask(deployment: Stack) -> AsyncIterator[Ask]:
    """Run the installed program against the deployment, beside its proxy; the next test finds it up."""

    async def run(*arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(
            subprocess.run,
            [COUNTERFOIL, *arguments],
            env=deployment.environment() | settings,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )

    yield run
    await deployment.proxy.up()
    await deployment.start_workers()
