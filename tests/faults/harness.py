"""What the fault tests stand on: real parts, one deployment to a case, and the books that a case must end with.

- One Temporal server and one inventory serve the session. Each case has its own origin (hence its own task queue and
  Schedule), tenant with 10 FILTER-A, journal, and proxy between its workers and the inventory.
- Workers are real processes, forked where their program begins (`programs.py`). What is waited for is a condition,
  with a limit; nothing sleeps to meet a moment.
- `Case.books` reads both halves and what passed between them, and refuses books whose halves disagree (`books.py`).
"""

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import make_url
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType, ResetReapplyExcludeType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
)
from temporalio.service import RPCError
from temporalio.worker import Interceptor

from activities.contracts import SEND_DEADLINE_SECONDS
from activities.inventory_client import InventoryClient
from services.database import open_engine
from services.drill.copies import copy_of, put_back
from services.drill.network_faults import Armed, WithholdResponse
from services.drill.processes import Child, Processes, TemporalServer, wait_until
from services.drill.proxy import FaultProxy
from services.effects.keys import derive_key
from services.incident_desk import Started, start_incident
from services.incidents import Approval, Line, Reservation, Severity
from services.incidents import Incident as IncidentLine
from services.journal.operator import OperatorJournal
from services.temporal import add_search_attributes, ensure_schedule, schedule_id
from services.worker import Parts, build
from tests.faults.books import NAME, SKU, STOCK, WANTED, Books, read_books
from tests.faults.programs import Programs
from tests.faults.servers import COUNTERFOIL, LIMIT_SECONDS, Bench, Inventory, environment
from tests.faults.stores import Stores
from workflows.incident import Incident, IncidentResult

ROOT = Path(__file__).parents[2]

_numbers = itertools.count(1)


@dataclass(kw_only=True)
class Case:
    """One deployment: its origin, tenant, journal, proxy and workers."""

    origin: str
    token: str
    folder: Path
    processes: Processes
    programs: Programs
    temporal_address: str
    client: Client
    proxy: FaultProxy
    stores: Stores
    journal_url: str
    journal: OperatorJournal  # for a look from outside
    http: httpx.AsyncClient  # to the inventory itself, past the proxy
    stock: int = STOCK  # units of FILTER-A that were brought in
    workers: list[Child] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @asynccontextmanager
    async def own_worker(
        self,
        *workflows: type,
        interceptors: Sequence[Interceptor] = (),
        send_deadline_seconds: float = SEND_DEADLINE_SECONDS,
    ) -> AsyncIterator[None]:
        """A worker in this process, for an author's workflows and for tests that stand at the seams."""
        provider = InventoryClient(self.proxy.url, self.token, deadline_seconds=send_deadline_seconds)
        parts = Parts(journal=self.journal, provider=provider, origin=self.origin)
        try:
            async with build(self.client, parts, workflows=workflows, interceptors=interceptors):
                yield
        finally:
            await provider.close()

    async def worker(self, *program: str, journal_url: str = "", **settings: str) -> Child:
        """A worker process, once it polls."""
        child = self.start_worker(*program, journal_url=journal_url, **settings)
        await self.ready(child)
        return child

    def start_worker(self, *program: str, journal_url: str = "", **settings: str) -> Child:
        """A worker process that has just been started.

        Args:
            program: by default this build's own.
            journal_url: by default the case's.
            settings: more variables of its environment.
        """
        number = next(self._numbers)
        child = self.programs.child(
            program or [COUNTERFOIL, "worker"],
            name=f"Worker {number} of {self.origin}",
            log=self.folder / f"worker-{number}.log",
            env=environment(
                TEMPORAL_ADDRESS=self.temporal_address,
                COUNTERFOIL_ORIGIN=self.origin,
                COUNTERFOIL_JOURNAL_DATABASE_URL=journal_url or self.journal_url,
                COUNTERFOIL_INVENTORY_URL=self.proxy.url,
                COUNTERFOIL_INVENTORY_TOKEN=self.token,
                PYTHONPATH=str(ROOT),  # for the programs that are part of the tests
                **settings,
            ),
        )
        self.workers.append(child)
        return self.processes.add(child).start()

    async def ready(self, *workers: Child) -> None:
        """Wait until they poll."""

        def polling() -> bool:
            for child in workers:
                child.require_alive()
            return all("works for origin" in child.log.read_text() for child in workers)

        await wait_until(polling, timeout_seconds=LIMIT_SECONDS, what="the workers poll")

    def sender(self, key: str) -> Child:
        """The worker whose mark is the key's newest."""
        pid = self.journal.attempts(key)[-1].worker["pid"]
        return next(child for child in self.workers if child.pid == pid)

    def scope(self, number: int = 1) -> str:
        """An incident's id: its workflow's, and the scope of its effects."""
        return f"INC-{number}-{self.origin}"

    def key(self, name: str = NAME, *, number: int = 1) -> str:
        """The key of an effect, as anybody can derive it."""
        return derive_key(self.origin, self.scope(number), name, 1)

    def line(self, number: int = 1, *, quantity: int = WANTED, approval: Approval = Approval.AUTO) -> IncidentLine:
        """An incident that wants filters."""
        return IncidentLine(
            id=self.scope(number),
            title="Coolant filters are at end of life",
            site="FRA2/B/R14-CDU",
            severity=Severity.HIGH,
            reported_at=datetime(2026, 11, 25, 16, 5, 52, tzinfo=UTC),
            approval=approval,
            effects=(Reservation(name=NAME, lines=(Line(sku=SKU, quantity=quantity),)),),
        )

    async def start(self, line: IncidentLine | None = None, *, replay: bool = False) -> Started:
        """Hand an incident to Temporal as the command line does."""
        return await start_incident(self.client, self.origin, self.journal, line or self.line(), replay=replay)

    def handle(self, number: int = 1) -> WorkflowHandle[Incident, IncidentResult]:
        """An incident's newest run."""
        return self.client.get_workflow_handle_for(Incident.run, self.scope(number))

    async def result(self, number: int = 1) -> IncidentResult:
        """What the newest run answered."""
        result: IncidentResult = await within(self.handle(number).result())
        return result

    async def ends_cancelled(self, number: int = 1) -> None:
        """Wait until the newest run has ended, and ended Cancelled."""
        with pytest.raises(WorkflowFailureError):
            await self.result(number)
        assert (await self.describe(number)).status is WorkflowExecutionStatus.CANCELED

    async def describe(self, number: int = 1) -> WorkflowExecutionDescription:
        """The newest run as Temporal describes it."""
        return await self.handle(number).describe()

    async def move_to(self, server: TemporalServer) -> None:
        """Work with another Temporal server from now on, one that knows nothing of this deployment."""
        self.client = await Client.connect(server.address)
        self.temporal_address = server.address
        await add_search_attributes(self.client)
        await ensure_schedule(self.client, self.origin)

    async def reset(
        self, *, to_last: bool = False, forget_updates: bool = False, number: int = 1, workflow_id: str = ""
    ) -> None:
        """Reset an incident, or another workflow, to its first workflow task, or to its last."""
        handle = self.client.get_workflow_handle(workflow_id or self.scope(number))
        finished = [
            event.event_id
            async for event in handle.fetch_history_events()
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
        ]
        exclude = [ResetReapplyExcludeType.RESET_REAPPLY_EXCLUDE_TYPE_UPDATE] if forget_updates else []
        await self.client.workflow_service.reset_workflow_execution(
            ResetWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=handle.id),
                reason="a fault test",
                workflow_task_finish_event_id=finished[-1 if to_last else 0],
                request_id=f"{self.origin}-{next(self._numbers)}",
                reset_reapply_exclude_types=exclude,
            )
        )

    async def unheard(self) -> tuple[Child, Armed]:
        """A worker whose effect the inventory has committed, and which has not heard so; the answer in hand."""
        withheld = self.proxy.arm(self.key(), WithholdResponse())
        worker = await self.worker()
        await self.start()
        assert await reached(withheld) == 201
        return worker, withheld

    async def settled(self, key: str | None = None) -> str:
        """Wait until the journal has an effect in a terminal state; which one."""
        wanted = key or self.key()

        def terminal() -> str | None:
            row = self.journal.effect(wanted)
            return row.state.value if row is not None and row.state.terminal else None

        return str(await wait_until(terminal, timeout_seconds=LIMIT_SECONDS, what=f"{wanted} is settled"))

    async def receipt(self, key: str | None = None) -> dict[str, Any] | None:
        """The provider's half of a key, if there is one."""
        answer = await self.http.get(f"/v1/receipts/{key or self.key()}")
        return None if answer.status_code == httpx.codes.NOT_FOUND else dict(answer.json())

    async def books(self) -> Books:
        """Both halves as they stand."""
        return await read_books(self.http, self.journal, self.proxy, self.stock)

    def copy_journal(self) -> str:
        """An older copy in the making: the journal as it is now."""
        name = make_url(self.journal_url).database
        return copy_of(self.journal_url, f"{Path(str(name)).stem}_copy_{next(self._numbers)}")

    def put_back_journal(self, copy: str) -> None:
        """Put the journal back to an older copy."""
        put_back(self.journal_url, copy)


async def within(awaitable: Any, seconds: float = LIMIT_SECONDS) -> Any:
    """Await it, within a limit."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def reached(armed: Armed) -> int | None:
    """Wait until a fault took effect; the status of the response in hand, if there is one."""
    event = await within(armed.reached())
    status: int | None = event.status
    return status


def freeze(child: Child) -> None:
    """Stop a process where it is; it keeps its connections and hears nothing."""
    child.send_signal(signal.SIGSTOP)


def thaw(child: Child) -> None:
    """Let a frozen process go on."""
    child.send_signal(signal.SIGCONT)


@asynccontextmanager
async def open_case(
    bench: Bench, *, temporal: TemporalServer | None = None, inventory: Inventory | None = None, stock: int = STOCK
) -> AsyncIterator[Case]:
    """A deployment of its own, on the session's servers unless others are given."""
    number = next(_numbers)
    origin, token = f"fault-{number}", f"token-{number}"
    server, provider = temporal or bench.temporal, inventory or bench.inventory
    client = bench.client if temporal is None else await Client.connect(server.address)
    folder = bench.folder / origin
    folder.mkdir()
    journal_url = bench.stores.journal()
    engine = open_engine(journal_url)
    await add_search_attributes(client)
    await ensure_schedule(client, origin)
    async with (
        FaultProxy("127.0.0.1", provider.port) as proxy,
        httpx.AsyncClient(
            base_url=provider.url, headers={"Authorization": f"Bearer {token}"}, trust_env=False, timeout=LIMIT_SECONDS
        ) as http,
    ):
        headers = {"Idempotency-Key": f"delivery-{origin:-<16}", "Effect-Not-After": "2099-01-01T00:00:00Z"}
        delivery = {"sku": SKU, "quantity": stock}
        (await http.post("/v1/deliveries", json=delivery, headers=headers)).raise_for_status()
        with Processes(grace_seconds=0) as processes:  # nothing here needs a gentle end
            yield Case(
                origin=origin,
                token=token,
                folder=folder,
                processes=processes,
                programs=bench.programs,
                temporal_address=server.address,
                client=client,
                proxy=proxy,
                stores=bench.stores,
                journal_url=journal_url,
                journal=OperatorJournal(engine, recorded_by="a fault test"),
                http=http,
                stock=stock,
            )
            for fault in proxy.unfired:
                raise AssertionError(f"{fault.fault} was planned and never fired")
    engine.dispose()
    with suppress(RPCError):
        await client.get_schedule_handle(schedule_id(origin)).delete()
