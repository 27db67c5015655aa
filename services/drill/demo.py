"""The demo: a fleet of incidents on real parts, with workers killed in the one window that matters.

Wave by wave, incidents are started while faults wait for them in the proxy, by key. In each wave one worker is killed
after the inventory has committed and before the worker hears so. The proof of that moment is taken from outside: the
response is in the proxy's hand, the inventory shows the receipt, the journal shows the intent as pending.

Then the Temporal server itself is killed with effects in flight, and started again on its file. The order of things is
data (`services.drill.plan`).
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace

from temporalio.service import RPCError

from services.drill.network_faults import Armed, DelayRequest, FaultNotReached, LoseResponse, Moment, WithholdResponse
from services.drill.plan import Plan, key_of
from services.drill.processes import Child, ProcessError
from services.drill.report import Happened, Kill, Report, Story, TemporalKill, kill_line, report, temporal_kill_lines
from services.drill.stack import START_SECONDS, Stack
from services.drill.worst_day import WorstDay
from services.effects.records import Attempt, EffectRow
from services.effects.states import EffectState
from services.incident_desk import NotConfirmed, approve_incident, start_incident
from services.incidents import Approval as ApprovalRule
from services.incidents import Incident
from services.journal.rows import Entry
from services.temporal import sweep_now
from workflows.incident import APPROVAL, Approval
from workflows.incident import Incident as IncidentWorkflow

APPROVED_BY = "Ada"

# Any step of the demo, on a busy machine; the whole of it takes under a minute.
STEP_SECONDS = 60.0
_POLL_SECONDS = 0.01


class DemoFailed(Exception):
    """The demo could not go on: the message says where it stood."""


class Demo:
    """One run of the plan on a stack that runs."""

    def __init__(self, stack: Stack, what: Plan, tell: Callable[[str], None]) -> None:
        """Nothing is started yet.

        Args:
            stack: with the plan's stock and two workers.
            what: the plan.
            tell: what people watch, line by line.
        """
        self._stack = stack
        self._plan = what
        self._tell = tell
        self._kills: list[Kill] = []
        self._late: dict[str, int | None] = {}
        self._seconds: dict[str, float] = {}
        self._ended = 0

    async def run(self) -> tuple[Report, Story]:
        """All of it.

        Raises:
            DemoFailed: a step did not come to its end.
            ProcessError: a process did not.
            FaultNotReached: a fault can no longer be carried through.
        """
        began = time.monotonic()
        with self._phase("incidents"):
            await self._fleet()
        with self._phase("temporal"):
            temporal_kill = await self._kill_temporal()
        with self._phase("worst_day"):
            acts = await WorstDay(self._stack, self._plan.worst_day_sku).run()
        with self._phase("story"):
            story = await self._story()
        with self._phase("reconcile"):
            async with _in_time("the sweep"):
                await sweep_now(self._stack.client, self._stack.origin)
        with self._phase("audit"):
            found = await self._stack.audit()
            effects = await asyncio.to_thread(self._rows)
            entries = await asyncio.to_thread(self._entries)
        self._seconds["total"] = round(time.monotonic() - began, 2)
        happened = Happened(
            ended=self._ended,
            kills=self._kills,
            temporal_kills=(temporal_kill,),
            lost_responses=self._stack.proxy.fired[LoseResponse.__name__],
            delayed_requests=self._stack.proxy.fired[DelayRequest.__name__],
            late_packets=self._late | {key: met for act in acts for key, met in act.late_packets.items()},
            story=story,
            worst_day=acts,
            seconds=self._seconds,
        )
        return report(self._plan.planned, happened, effects, entries, found), story

    async def _fleet(self) -> None:
        proxy, waves = self._stack.proxy, self._plan.waves
        victims = {wave.kill: proxy.arm(wave.kill, WithholdResponse()) for wave in waves}
        for wave in waves:
            for number, key in enumerate(wave.lose):
                proxy.arm(key, LoseResponse(reset=number % 2 == 1))
        delayed = {key: proxy.arm(key, DelayRequest()) for wave in waves for key in wave.delay}
        await self._begin(self._plan.story)
        try:
            async with asyncio.TaskGroup() as running:
                for key, armed in delayed.items():
                    running.create_task(self._deliver_late(key, armed))
                for wave in waves:
                    await self._stack.all_working()  # so that one stands by whichever is killed
                    for incident in wave.incidents:
                        running.create_task(self._incident(incident))
                    await self._kill(wave.kill, victims[wave.kill])
                await self._stack.all_working()
        except* (DemoFailed, ProcessError, FaultNotReached, RPCError) as failed:
            raise failed.exceptions[0] from failed

    async def _begin(self, incident: Incident) -> None:
        await start_incident(self._stack.client, self._stack.origin, self._stack.journal, incident)

    async def _incident(self, incident: Incident) -> None:
        await self._begin(incident)
        if incident.approval is ApprovalRule.REQUIRED:
            await self._approve(incident)
        await self._end(incident)

    async def _approve(self, incident: Incident) -> None:
        while True:
            try:
                await approve_incident(self._stack.client, incident.id, Approval(approved=True, by=APPROVED_BY))
            except NotConfirmed:
                continue  # the same Update again, which takes effect once
            return

    async def _end(self, incident: Incident) -> str:
        """Wait for a workflow's end; how its first effect ended, as the workflow says."""
        async with _in_time(f"the end of {incident.id}"):
            result = await self._stack.client.get_workflow_handle_for(IncidentWorkflow.run, incident.id).result()
        self._ended += 1
        return result.outcomes[0].state

    async def _kill(self, key: str, armed: Armed) -> None:
        proof, worker, killed_at = await self._caught(key, armed)
        worker.start()
        armed.release()
        self._note(proof, await self._settled(key) - killed_at)

    async def _caught(self, key: str, armed: Armed) -> tuple[Kill, Child, float]:
        """Wait for the window, take its proof, and kill the worker in it: the proof, the worker and the time."""
        async with _in_time(f"the inventory's answer to {key}"):
            await armed.reached()
        answer = await self._stack.provider.look_up(key)
        row, mark = await asyncio.to_thread(self._row_and_mark, key)
        worker = self._stack.worker(int(mark.worker["pid"]))
        if answer.receipt is None or row.state is not EffectState.PENDING or worker is None:
            raise DemoFailed(
                f"The window of {key} was missed: the inventory answers {answer.reason}, the journal says {row.state}, "
                f"and the worker is {'gone' if worker is None else 'there'}. Nothing is lost. Run the demo again."
            )
        proof = Kill(
            key=key,
            pid=worker.pid,
            receipt_id=answer.receipt.receipt_id,
            journal_state=row.state,
            settled_seconds=0.0,
        )
        killed_at = time.monotonic()
        worker.kill()
        return proof, worker, killed_at

    async def _kill_temporal(self) -> TemporalKill:
        """Kill the Temporal server while the inventory has committed and nobody has heard so; start it on its file.

        The workers are never touched, and the answers on the wire are lost with it: each must be looked up afterwards.
        """
        stack, incidents = self._stack, self._plan.in_flight
        keys = [key_of(incident, origin=stack.origin) for incident in incidents]
        armed = [stack.proxy.arm(key, WithholdResponse()) for key in keys]
        async with _in_time("the effects in flight"):
            await asyncio.gather(*(self._begin(incident) for incident in incidents))
            await asyncio.gather(*(one.reached() for one in armed))
        pid = stack.temporal.child.pid
        killed_at = time.monotonic()
        stack.temporal.kill()
        rows = [await self._row(key) for key in keys]
        pending = [row.key for row in rows if row.state is EffectState.PENDING]
        answers = [await stack.provider.look_up(key) for key in pending]
        await stack.temporal.start(START_SECONDS)
        back = time.monotonic() - killed_at
        settled = [await self._settled(key) - killed_at for key in keys]
        for one in armed:
            one.release()
        for incident in incidents:
            await self._end(incident)
        killed = TemporalKill(
            pid=pid,
            receipts=sum(answer.receipt is not None for answer in answers),
            pending=len(pending),
            answers_seconds=round(back, 3),
            settled_seconds=round(max(settled), 3),
        )
        for line in temporal_kill_lines(killed):
            self._tell(line)
        return killed

    def _note(self, proof: Kill, seconds: float) -> None:
        kill = replace(proof, settled_seconds=round(seconds, 3))
        self._kills.append(kill)
        self._tell(kill_line(kill))

    async def _deliver_late(self, key: str, armed: Armed) -> None:
        """Let a delayed request go when its effect is settled: it must meet its own first answer and move nothing."""
        await armed.reached()
        await self._settled(key)
        armed.release()
        await armed.done()
        self._late[key] = next(
            event.status
            for event in self._stack.proxy.events
            if event.key == key and event.fault == armed.fault and event.moment is Moment.FORWARDED
        )

    async def _settled(self, key: str) -> float:
        """Wait until the journal's row is terminal; when that was seen."""
        async with _in_time(f"the settlement of {key}"):
            while True:
                row = await asyncio.to_thread(self._stack.journal.effect, key)
                if row is not None and row.state.terminal:
                    return time.monotonic()
                await asyncio.sleep(_POLL_SECONDS)

    async def _story(self) -> Story:
        stack, incident = self._stack, self._plan.story
        effect = incident.effects[0]
        key, sku = key_of(incident, origin=stack.origin), effect.lines[0].sku
        before = await self._available(sku)
        armed = stack.proxy.arm(key, WithholdResponse())
        approving = asyncio.create_task(self._approve(incident))
        proof, _, killed_at = await self._caught(key, armed)
        for other in stack.workers:
            other.kill()
        copy = await asyncio.to_thread(stack.copy_journal, "journal-pending")
        approval = await asyncio.to_thread(
            stack.journal.decision, origin=stack.origin, scope=incident.id, name=APPROVAL
        )
        while_dead = await self._available(sku)
        for worker in stack.workers:
            worker.start()
        armed.release()
        self._note(proof, await self._settled(key) - killed_at)
        await approving
        answer = await self._end(incident)
        after_restart = await self._available(sku)
        matched = await self._row(key)

        await stack.all_working()
        await stack.stop_workers()
        await asyncio.to_thread(stack.put_journal_back, copy)
        rewound = await self._row(key)
        await stack.start_workers()
        await self._settled(key)
        found = await self._row(key)
        return Story(
            incident_id=incident.id,
            approved_by=approval.body["by"] if approval and approval.body["approved"] == "yes" else "",
            key=key,
            sku=sku,
            quantity=effect.lines[0].quantity,
            reservation_id=matched.receipt.reservation_id or "" if matched.receipt else "",
            pid=proof.pid,
            units_before=before,
            units_while_dead=while_dead,
            units_after_restart=after_restart,
            answer=answer,
            matched_receipt_id=matched.receipt.receipt_id if matched.receipt else "",
            rewound_state=rewound.state,
            found_receipt_id=found.receipt.receipt_id if found.receipt else "",
            units_after_rewind=await self._available(sku),
            attempts=found.attempts,
        )

    def _row_and_mark(self, key: str) -> tuple[EffectRow, Attempt]:
        row = self._stack.journal.effect(key)
        marks = self._stack.journal.attempts(key)
        if row is None or not marks:
            raise DemoFailed(f"A request of {key} came to the inventory, and the journal has no mark of it.")
        return row, marks[-1]

    async def _row(self, key: str) -> EffectRow:
        row = await asyncio.to_thread(self._stack.journal.effect, key)
        if row is None:
            raise DemoFailed(f"The journal has lost {key}.")
        return row

    async def _available(self, sku: str) -> int:
        return int((await self._stack.get(f"/v1/stock/{sku}"))["available"])

    def _rows(self) -> list[EffectRow]:
        rows: list[EffectRow] = []
        while page := self._stack.journal.effects(after_key=rows[-1].key if rows else ""):
            rows += page
        return rows

    def _entries(self) -> dict[str, list[Entry]]:
        entries: dict[str, list[Entry]] = {}
        last = 0
        while page := self._stack.journal.all_entries(after_id=last):
            for entry in page:
                entries.setdefault(entry.key, []).append(entry)
            last = page[-1].id
        return entries

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._seconds[name] = round(time.monotonic() - began, 2)


@asynccontextmanager
async def _in_time(what: str) -> AsyncIterator[None]:
    """Raise instead of waiting without end.

    Raises:
        DemoFailed: the step took longer than any honest one.
    """
    limit = asyncio.timeout(STEP_SECONDS)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise DemoFailed(f"Waited {STEP_SECONDS:g} s in vain for {what}.") from None
