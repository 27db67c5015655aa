"""The embedded stack: everything that Counterfoil stands on, as real processes in one folder.

    workers --> (fault proxy) --> inventory
       |                              |
    Temporal, journal            its own database

What this module guarantees:

- The parts are started and set up by the commands that a deployment uses, through a deployment's environment.
- A person's own settings (COUNTERFOIL_*, TEMPORAL_*, a Temporal profile) reach none of them.
- Every process ends with the `Processes` block that it was started in.
- Started again on the same `Standing` it goes on where it was: same token, addresses and databases, and stock that is
  there already is not delivered again.
"""

import asyncio
import os
import secrets
import sysconfig
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from temporalio.client import Client

from activities.inventory_client import InventoryClient
from services.database import migrate, open_engine
from services.drill.copies import copy_of, put_back
from services.drill.processes import Child, ProcessError, Processes, TemporalServer, free_port, wait_until
from services.drill.proxy import FaultProxy
from services.journal.operator import OperatorJournal
from services.reconciliation.audit import audit
from services.reconciliation.findings import Report
from workflows import policies

# On two busy cores a worker takes several seconds to import Temporal and its sandbox.
START_SECONDS = 60.0
# Longer than a worker's own drain: it ends by itself.
DRAIN_SECONDS = 2 * policies.DRAIN.total_seconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a stack keeps from one start to the next.

    Attributes:
        token: the tenant's, at the inventory.
        temporal_port: where Temporal listens.
        ui_port: where its UI does.
        inventory_port: where the inventory does.
        journal_url: a migrated or new database; a SQLite file in the stack's folder by default.
        inventory_database_url: the same of the inventory.
    """

    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    temporal_port: int = field(default_factory=free_port)
    ui_port: int = field(default_factory=free_port)
    inventory_port: int = field(default_factory=free_port)
    journal_url: str | None = None
    inventory_database_url: str | None = None


class Stack:
    """The parts of one stack; `running_stack` starts them."""

    def __init__(
        self, processes: Processes, folder: Path, *, origin: str, ui: bool, standing: Standing, faults: bool
    ) -> None:
        """Nothing is started yet."""
        self.folder = folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "temporal.toml").touch()  # instead of a person's own profile
        self.origin = origin
        self.journal_file = folder / "journal.db"
        self.inventory_file = folder / "inventory.db"
        self.journal_url = standing.journal_url or f"sqlite:///{self.journal_file}"
        self.inventory_database_url = standing.inventory_database_url or f"sqlite:///{self.inventory_file}"
        self.inventory_url = f"http://127.0.0.1:{standing.inventory_port}"
        self.temporal = TemporalServer(
            processes,
            database=folder / "temporal.db",
            log=folder / "temporal.log",
            ui=ui,
            port=standing.temporal_port,
            ui_port=standing.ui_port,
        )
        self.proxy = FaultProxy("127.0.0.1", standing.inventory_port)
        self._faults = faults
        self.workers: list[Child] = []
        self._processes = processes
        self._token = standing.token
        self._engine = open_engine(self.journal_url)
        self.journal = OperatorJournal(self._engine, recorded_by=f"drill {os.getpid()}")
        self.provider = InventoryClient(self.inventory_url, self._token)
        self._reader = httpx.AsyncClient(
            base_url=self.inventory_url,
            headers={"Authorization": f"Bearer {self._token}"},
            trust_env=False,
            timeout=START_SECONDS,  # nobody's word on the inventory: only whoever looks waits for this
        )
        serving = ("--port", str(standing.inventory_port), "--database-url", self.inventory_database_url)
        self.inventory = self.command("inventory", "inventory", *serving)
        self._client: Client | None = None

    @property
    def client(self) -> Client:
        """Connected to Temporal.

        Raises:
            ProcessError: Temporal was not started.
        """
        if self._client is None:
            raise ProcessError("The Temporal server was not started.")
        return self._client

    def command(self, name: str, *arguments: str, inventory_url: str | None = None) -> Child:
        """A `counterfoil` command against this stack, not started.

        Args:
            name: what error messages and the log file call it.
            arguments: the command line.
            inventory_url: where it finds the inventory, if not at the inventory itself.
        """
        argv = (str(Path(sysconfig.get_path("scripts")) / "counterfoil"), *arguments)
        log = self.folder / f"{name.replace(' ', '-')}.log"
        env = self.environment(inventory_url=inventory_url)
        return self._processes.add(Child(argv, name=f"The {name}", log=log, env=env))

    def environment(self, *, inventory_url: str | None = None) -> dict[str, str]:
        """What a `counterfoil` command against this stack finds in its environment.

        Args:
            inventory_url: where it finds the inventory, if not at the inventory itself.
        """
        env = {name: value for name, value in os.environ.items() if not name.startswith(("COUNTERFOIL_", "TEMPORAL_"))}
        return env | {
            "COUNTERFOIL_ORIGIN": self.origin,
            "COUNTERFOIL_JOURNAL_DATABASE_URL": self.journal_url,
            "COUNTERFOIL_INVENTORY_TOKENS": f"{self.origin}={self._token}",
            "COUNTERFOIL_INVENTORY_TOKEN": self._token,
            "COUNTERFOIL_INVENTORY_URL": inventory_url or self.inventory_url,
            "COUNTERFOIL_TEMPORAL_UI_URL": self.temporal.ui_url or "",
            "TEMPORAL_ADDRESS": self.temporal.address,
            "TEMPORAL_CONFIG_FILE": str(self.folder / "temporal.toml"),
        }

    async def run(self, name: str, *arguments: str) -> None:
        """Run a `counterfoil` command to its end.

        Raises:
            ProcessError: it failed.
        """
        child = self.command(name, *arguments).start()
        await wait_until(lambda: not child.alive, timeout_seconds=START_SECONDS, what=f"the {name} has ended")
        if child.exit_code != 0:
            raise ProcessError(f"{child.name} ended with exit code {child.exit_code}:\n{child.log_tail()}")

    async def start(self, stock: Mapping[str, int], *, workers: int) -> None:
        """Start every part, deliver the stock, and wait until the workers work.

        Raises:
            ProcessError: a part did not start.
        """
        await asyncio.gather(self._start_temporal(), self._start_stores())
        for number in range(1, workers + 1):
            through = self.proxy.url if self._faults else None
            self.workers.append(self.command(f"worker {number}", "worker", inventory_url=through))

        async def set_up() -> None:
            await self.run("setup", "setup")
            await self.start_workers()

        async def deliver() -> None:
            missing = [sku for sku in stock if not await self._is_stocked(sku)]
            words = [word for sku in missing for word in ("--deliver", f"{sku}={stock[sku]}")]
            if words:
                await self.run("delivery", "inventory", "stock", *words)

        await asyncio.gather(set_up(), deliver())

    async def start_workers(self) -> None:
        """Start every worker that has ended, and wait until all of them work.

        Raises:
            ProcessError: one did not start.
        """
        for worker in self.workers:
            if not worker.alive:
                worker.start()
        await self.all_working()

    async def all_working(self) -> None:
        """Wait until all workers say that they work.

        Raises:
            ProcessError: one has ended.
        """
        await asyncio.gather(*(self._working(worker) for worker in self.workers))

    async def stop_workers(self) -> None:
        """SIGTERM to all workers, and wait for their end: what is under way is finished first."""
        await asyncio.gather(*(asyncio.to_thread(worker.terminate, DRAIN_SECONDS) for worker in self.workers))

    def worker(self, pid: int) -> Child | None:
        """The living worker with this process id."""
        return next((worker for worker in self.workers if worker.alive and worker.pid == pid), None)

    def copy_journal(self, name: str) -> str:
        """Copy the journal as it is at this moment, whoever writes to it; where the copy is."""
        return copy_of(self.journal_url, name)

    def put_journal_back(self, copy: str) -> None:
        """Put the journal, and nothing else, back to a copy.

        Raises:
            ProcessError: a worker is running.
        """
        running = [worker.pid for worker in self.workers if worker.alive]
        if running:
            raise ProcessError(f"The journal is put back only while no worker runs, and these do: {running}.")
        self._engine.dispose()
        put_back(self.journal_url, copy)

    def parts(self) -> list[Child]:
        """Everything that is to run while the stack does."""
        return [self.temporal.child, self.inventory, *self.workers]

    async def get(self, path: str) -> dict[str, Any]:
        """Read from the inventory itself, past the proxy.

        Raises:
            httpx.HTTPError: it gave no good answer.
        """
        answer = await self._reader.get(path)
        document: dict[str, Any] = answer.raise_for_status().json()
        return document

    async def audit(self) -> Report:
        """Compare journal and inventory, both ways, past the proxy."""
        return await audit(self.journal, self.inventory_url, self._token, origin=self.origin)

    async def close(self) -> None:
        """Close the connections; the processes end with their block."""
        await self.provider.close()
        await self._reader.aclose()
        self._engine.dispose()

    async def _start_temporal(self) -> None:
        await self.temporal.start(START_SECONDS)
        self._client = await Client.connect(self.temporal.address)

    async def _start_stores(self) -> None:
        await asyncio.to_thread(migrate, "inventory", self.inventory_database_url)
        self.inventory.start()
        # Not beside the other: Alembic keeps its context in a global.
        await asyncio.to_thread(migrate, "journal", self.journal_url)

        async def answers() -> bool:
            self.inventory.require_alive()
            try:
                return (await self._reader.get("/readyz")).is_success
            except httpx.TransportError:
                return False

        await wait_until(answers, timeout_seconds=START_SECONDS, what="the inventory answers")

    async def _is_stocked(self, sku: str) -> bool:
        """Whether the inventory knows it: delivered before, or by the start before this one."""
        return (await self._reader.get(f"/v1/stock/{sku}")).status_code != httpx.codes.NOT_FOUND

    async def _working(self, worker: Child) -> None:
        said = f"Worker {worker.pid} works"  # by its pid: the log holds what its former lives said, too

        def works() -> bool:
            worker.require_alive()
            return said in worker.log.read_text(errors="replace")

        await wait_until(works, timeout_seconds=START_SECONDS, what=f"{worker.name} works")


@asynccontextmanager
async def running_stack(
    processes: Processes,
    folder: Path,
    *,
    stock: Mapping[str, int],
    origin: str,
    workers: int = 2,
    ui: bool = False,
    standing: Standing | None = None,
    faults: bool = True,
) -> AsyncIterator[Stack]:
    """A stack that runs.

    Args:
        processes: the block that ends its processes.
        folder: gets the databases and the logs; must not hold another stack's.
        stock: what is delivered to the inventory first, by SKU, unless it is there.
        origin: the deployment's name, a part of every key.
        workers: how many worker processes.
        ui: whether Temporal serves its web UI.
        standing: of the stack that this folder held before; a new one by default.
        faults: whether the workers reach the inventory through the proxy.

    Raises:
        ProcessError: a part did not start.
    """
    stack = Stack(processes, folder, origin=origin, ui=ui, standing=standing or Standing(), faults=faults)
    try:
        async with stack.proxy if faults else nullcontext():
            await stack.start(stock, workers=workers)
            yield stack
    finally:
        await stack.close()
