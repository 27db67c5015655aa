"""An operator's worst day in three acts: what a person has to do, done on the same stack as the rest.

terminated   a workflow is terminated over an effect that nobody has heard of: the sweep finds its receipt and lists it,
             and a person gives it back
zombie       a worker is frozen over its request; the effect is given up and redone; then the zombie wakes, and its
             packet comes
cancelled    an incident is cancelled: what it had reserved is given back, and a start again answers so

Every act is judged by what both halves have on record, and by what is available before and after.
"""

import asyncio
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from services.drill.network_faults import DelayRequest, Moment, WithholdResponse
from services.drill.processes import ProcessError, wait_until
from services.drill.stack import Stack
from services.effect_commands import start_effect_command, wake
from services.effect_desk import EffectDesk
from services.effects.commands import Ruling, What
from services.effects.keys import derive_key, release_name
from services.effects.records import EffectRow, OutcomeState
from services.effects.states import EffectState
from services.incident_desk import start_incident
from services.incidents import Approval, Incident, Line, Reservation, Severity
from services.temporal import sweep_now
from workflows.incident import Incident as IncidentWorkflow

# Any step, on a busy machine.
STEP_SECONDS = 60.0
BY = "Grace"
_WANTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act.

    Attributes:
        told: what happened, in order, with what was available of the SKU then; empty where it did not change.
        unfulfilled: what did not come as it should; empty when the act went as it is told.
        late_packets: the status that each delayed request met when it came at last, by key.
    """

    name: str
    key: str
    told: tuple[tuple[str, str], ...]
    unfulfilled: tuple[str, ...]
    late_packets: dict[str, int | None]


class WorstDay:
    """The acts, one after the other."""

    def __init__(self, stack: Stack, sku: str) -> None:
        """Nothing is started yet.

        Args:
            stack: with two workers behind its proxy.
            sku: what the acts' incidents want; there must be six of it.
        """
        self._stack = stack
        self._sku = sku
        self._desk = EffectDesk(stack.journal, stack.provider, origin=stack.origin)

    async def run(self) -> list[Act]:
        """All three.

        Raises:
            ProcessError: a step did not come to its end.
            FaultNotReached: a fault can no longer be carried through.
        """
        return [await self._terminated(), await self._zombie(), await self._cancelled()]

    async def _terminated(self) -> Act:
        stack, incident = self._stack, self._incident("INC-9001", "reserve-filter")
        key = self._key(incident)
        before = await self._available()
        armed = stack.proxy.arm(key, WithholdResponse())
        await self._start(incident)
        await armed.reached()
        await stack.client.get_workflow_handle(incident.id).terminate("an operator's worst day")
        taken = await self._available()

        async def listed() -> bool:
            await sweep_now(stack.client, stack.origin)
            return any(row.key == key for row in await asyncio.to_thread(stack.journal.left_standing))

        await wait_until(listed, timeout_seconds=STEP_SECONDS, what=f"{key} is listed as left standing")
        armed.release()
        found = await self._row(key)
        ruling = await self._desk.release(key, by=BY, reason="its incident was terminated")
        await self._sent(ruling)
        after = await self._available()
        release = await self._row(derive_key(stack.origin, incident.id, release_name("reserve-filter", 1), 1))
        return self._act(
            "terminated",
            key,
            [
                (f"{incident.id} is terminated while nobody has heard of its effect", f"{before} -> {taken}"),
                (f"the sweep finds {_receipt(found)}: {found.state}, its workflow {found.closed_as}", ""),
                (f"{BY} releases it, by a keyed effect of its own: {_receipt(release)}", f"{taken} -> {after}"),
            ],
            {
                "its effect was not found committed": found.state is EffectState.COMMITTED,
                "its workflow was not seen terminated": found.closed_as == "terminated",
                "its release was refused": ruling.what is What.DONE and release.state is EffectState.COMMITTED,
                "its units are not back": (taken, after) == (before - _WANTED, before),
            },
        )

    async def _zombie(self) -> Act:
        stack, incident = self._stack, self._incident("INC-9002", "reserve-filter")
        key = self._key(incident)
        before = await self._available()
        held = stack.proxy.arm(key, DelayRequest())
        await self._start(incident)
        await held.reached()
        (mark,) = await asyncio.to_thread(stack.journal.attempts, key)
        zombie = stack.worker(int(mark.worker["pid"]))
        if zombie is None:
            raise ProcessError(f"The worker that sent {key} is gone before it could be frozen.")
        zombie.send_signal(signal.SIGSTOP)
        try:
            given_up = await self._desk.give_up(key, by=BY, reason="its worker hears nothing")
            redo = await self._desk.redo(key, by=BY, reason="the filters are still wanted")
            await self._sent(redo)
        finally:
            zombie.send_signal(signal.SIGCONT)
        taken = await self._available()
        held.release()
        await held.done()
        met = next(
            event.status
            for event in stack.proxy.events
            if event.key == key and event.fault == held.fault and event.moment is Moment.FORWARDED
        )
        await self._ended(incident)
        first, second = await self._row(key), await self._row(str(redo.new_key))
        after = await self._available()
        return self._act(
            "zombie",
            key,
            [
                (f"worker {zombie.pid} is frozen over its request of {incident.id}", f"{before}"),
                (f"{BY} gives it up: {first.state} by {_receipt(first)}", ""),
                (f"and redoes it: generation 2, {second.state}, {_receipt(second)}", f"{before} -> {taken}"),
                (f"the zombie wakes, and its packet of generation 1 meets {met}", f"{after}"),
            ],
            {
                "giving up did not close the key": given_up.what is What.DONE and first.state is EffectState.VOIDED,
                "the redo is not committed": second.state is EffectState.COMMITTED,
                "the zombie's packet was not refused": met == 410,  # noqa: PLR2004 - gone
                "units moved twice": (taken, after) == (before - _WANTED, before - _WANTED),
            },
            late_packets={key: met},
        )

    async def _cancelled(self) -> Act:
        stack = self._stack
        incident = self._incident("INC-9003", "reserve-filter", "reserve-spare")
        key, other = self._key(incident), derive_key(stack.origin, incident.id, "reserve-spare", 1)
        before = await self._available()
        armed = stack.proxy.arm(other, WithholdResponse())
        await self._start(incident)
        await armed.reached()
        taken = await self._available()
        handle = stack.client.get_workflow_handle(incident.id)
        await handle.cancel()
        status = await self._ended(incident)
        armed.release()
        after = await self._available()
        await start_incident(stack.client, stack.origin, stack.journal, incident, replay=True)
        again = await stack.client.get_workflow_handle_for(IncidentWorkflow.run, incident.id).result()
        states = [outcome.state for outcome in again.outcomes]
        return self._act(
            "cancelled",
            key,
            [
                (f"{incident.id} has one reservation, and is cancelled over its second", f"{before} -> {taken}"),
                (f"both are settled, then given back; its workflow ends {status}", f"{taken} -> {after}"),
                (f"started again, it is answered: {', '.join(states)}", f"{await self._available()}"),
            ],
            {
                "it did not end cancelled": status == "canceled",
                "its units are not back": (taken, after) == (before - 2 * _WANTED, before),
                "a start again was not answered released": set(states) == {OutcomeState.RELEASED},
                "a start again moved units": await self._available() == before,
            },
        )

    def _incident(self, incident_id: str, *names: str) -> Incident:
        lines = (Line(sku=self._sku, quantity=_WANTED),)
        return Incident(
            id=incident_id,
            title="An operator's worst day",
            site="FRA2/B",
            severity=Severity.HIGH,
            reported_at=datetime(2026, 11, 25, 16, tzinfo=UTC),
            approval=Approval.AUTO,
            effects=tuple(Reservation(name=name, lines=lines) for name in names),
        )

    def _act(
        self,
        name: str,
        key: str,
        told: list[tuple[str, str]],
        wanted: dict[str, bool],
        late_packets: dict[str, int | None] | None = None,
    ) -> Act:
        unfulfilled = tuple(what for what, holds in wanted.items() if not holds)
        return Act(name=name, key=key, told=tuple(told), unfulfilled=unfulfilled, late_packets=late_packets or {})

    def _key(self, incident: Incident) -> str:
        return derive_key(self._stack.origin, incident.id, incident.effects[0].name, 1)

    async def _start(self, incident: Incident) -> None:
        await start_incident(self._stack.client, self._stack.origin, self._stack.journal, incident)

    async def _sent(self, ruling: Ruling) -> None:
        """Do what the command line does with a ruling: start what has to send, wake who waits, and wait for the end."""
        if ruling.workflow_id is not None:
            await wake(self._stack.client, ruling.workflow_id)
        if ruling.send is not None:
            await (await start_effect_command(self._stack.client, ruling.send)).result()

    async def _ended(self, incident: Incident) -> str:
        """Wait until a workflow has ended; how."""
        handle = self._stack.client.get_workflow_handle_for(IncidentWorkflow.run, incident.id)
        try:
            await asyncio.wait_for(handle.result(), STEP_SECONDS)
        except WorkflowFailureError:
            pass
        except TimeoutError as error:
            raise ProcessError(f"Waited {STEP_SECONDS:g} s in vain for the end of {incident.id}.") from error
        status = (await handle.describe()).status
        return "unknown" if status is None else WorkflowExecutionStatus(status).name.lower()

    async def _row(self, key: str) -> EffectRow:
        row = await asyncio.to_thread(self._stack.journal.effect, key)
        if row is None:
            raise ProcessError(f"The journal has lost {key}.")
        return row

    async def _available(self) -> int:
        return int((await self._stack.get(f"/v1/stock/{self._sku}"))["available"])


def _receipt(row: EffectRow) -> str:
    return row.receipt.receipt_id if row.receipt else "no receipt"


def tell_acts(acts: Sequence[Act]) -> list[str]:
    """The acts in lines of at most 80 columns; on the right what was available then."""
    lines = ["An operator's worst day", ""]
    for act in acts:
        lines += [f"{text:<66}  {units:>12}".rstrip() for text, units in act.told]
    return lines
