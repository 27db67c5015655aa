"""The training act: a training run and an incident share a site, a crash and a restore, and no store.

17 updates on three contributors and a checkpoint that keeps the journal's watermark; update 18 reserves two filters;
the contributors are killed at 19. Two new ones restore update 17: the weights repeat, bit for bit. The units do not
come back, the report names the reservation as not undone, and update 18, run again, meets its own key and gets the same
reservation.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from services.checkpoints.interruption import Comparison, Interruption, interrupt
from services.checkpoints.learner import LearnerConfig
from services.database import open_engine
from services.drill.processes import ProcessError
from services.drill.stack import Stack
from services.effects.keys import derive_key
from services.effects.states import EffectState
from services.incident_desk import start_incident
from services.incidents import Approval, Incident, Line, Reservation, Severity
from services.journal.seals import seal
from services.journal.since import since
from workflows.incident import Incident as IncidentWorkflow

SKU = "FILTER-A"
STOCK = {SKU: 10}
RUN = "reference"
UPDATES, CUT, RESERVES_AT = 40, 17, 18
RANKS, RESUME_RANKS = 3, 2
# Any step, on a busy machine.
STEP_SECONDS = 60.0
_WANTED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport:
    """What the act came to.

    Attributes:
        key: under which update 18 reserves.
        reservations: what it was answered, each time that it asked.
        available: of the SKU: before, after the reservation, after the restore, at the end.
        comparison: of the run with the uninterrupted one.
        findings: what the audit of journal and inventory found.
        unfulfilled: what did not come as it should; empty when all is as it is told.
    """

    key: str
    reservations: tuple[str | None, ...]
    available: tuple[int, ...]
    comparison: Comparison
    findings: int
    unfulfilled: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything is as it is told."""
        return not self.unfulfilled

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"act": "training", **asdict(self), "comparison": self.comparison.document()}


class TrainingAct:
    """The act, on a stack with one worker and the SKU in stock."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        """Nothing is started yet."""
        self._stack = stack
        self._folder = folder
        self._incident = Incident(
            id=f"train/{RUN}",
            title="A training run takes two filters at update 18",
            site="FRA2/B",
            severity=Severity.LOW,
            reported_at=datetime(2026, 11, 25, 16, tzinfo=UTC),
            approval=Approval.AUTO,
            effects=(Reservation(name=f"reserve-filter@{RESERVES_AT}", lines=(Line(sku=SKU, quantity=_WANTED),)),),
        )
        self._key = derive_key(stack.origin, self._incident.id, self._incident.effects[0].name, 1)
        self._reservations: list[str | None] = []
        self._available: list[int] = []

    async def run(self) -> TrainingReport:
        """All of it.

        Raises:
            ProcessError: a step did not come to its end.
        """
        loop = asyncio.get_running_loop()
        engine = open_engine(self._stack.journal_url)
        try:
            cut = await asyncio.to_thread(_watermark, engine, None)
            self._available.append(await self._stock())

            def applied(update: int) -> None:
                if update == RESERVES_AT:
                    asyncio.run_coroutine_threadsafe(self._reserve(), loop).result()

            def now() -> Mapping[str, Any]:
                self._available.append(asyncio.run_coroutine_threadsafe(self._stock(), loop).result())
                kept = cut["seal"]
                return _watermark(engine, 0 if kept is None else kept["number"])

            what = Interruption(
                root=self._folder / "checkpoints", run=RUN, config=LearnerConfig(schedule=UPDATES), ranks=RANKS,
                resume_ranks=RESUME_RANKS, updates=UPDATES, kill_at=CUT, effects=cut, watermark=now, applied=applied,
            )  # fmt: skip
            comparison = await asyncio.to_thread(interrupt, what)
        finally:
            engine.dispose()
        self._available.append(await self._stock())
        audit = await self._stack.audit()
        return self._report(comparison, len(audit.findings))

    async def _reserve(self) -> None:
        """What update 18 does, whenever it is run: ask for its filters, and wait for the answer."""
        stack = self._stack
        again = bool(self._reservations)
        await start_incident(stack.client, stack.origin, stack.journal, self._incident, replay=again)
        handle = stack.client.get_workflow_handle_for(IncidentWorkflow.run, self._incident.id)
        try:
            await asyncio.wait_for(handle.result(), STEP_SECONDS)
        except TimeoutError as error:
            raise ProcessError(f"Waited {STEP_SECONDS:g} s in vain for the end of {self._incident.id}.") from error
        row = await asyncio.to_thread(stack.journal.effect, self._key)
        if row is None or row.state is not EffectState.COMMITTED or row.receipt is None:
            raise ProcessError(f"The journal has no committed effect under {self._key}.")
        self._reservations.append(row.receipt.reservation_id)
        self._available.append(await self._stock())

    async def _stock(self) -> int:
        return int((await self._stack.get(f"/v1/stock/{SKU}"))["available"])

    def _report(self, comparison: Comparison, findings: int) -> TrainingReport:
        effects = comparison.effects or {}
        named = [each["reservation_id"] for each in effects.get("not_undone", [])]
        taken = STOCK[SKU] - _WANTED
        wanted = {
            "the run is not equal to the uninterrupted one": comparison.equal_to_uninterrupted,
            "it was not taken up from the cut": comparison.resumed_from == CUT,
            "not all contributors were killed": len(comparison.killed) == RANKS,
            "update 18 did not ask twice": len(self._reservations) == 2,  # noqa: PLR2004 - before and after
            "the second time it got another reservation": len(set(self._reservations)) == 1,
            "the report does not name the reservation as not undone": named == self._reservations[:1],
            "the restore undid an effect": effects.get("undone") == 0,
            "units came back or were taken twice": self._available == [STOCK[SKU], taken, taken, taken, taken],
            "the audit found something": findings == 0,
        }
        return TrainingReport(
            key=self._key,
            reservations=tuple(self._reservations),
            available=tuple(self._available),
            comparison=comparison,
            findings=findings,
            unfulfilled=tuple(what for what, holds in wanted.items() if not holds),
        )


def _watermark(engine: sa.Engine, at: int | None) -> dict[str, Any]:
    """What `counterfoil journal seal` and `journal watermark --at` print."""
    seal(engine, sealed_by="training act")
    found = since(engine, at)
    return asdict(found.stands) | {
        "at": None if found.at is None else asdict(found.at),
        "pending": list(found.pending),
        "committed_since": [asdict(each) for each in found.committed],
    }


def tell_training(report: TrainingReport) -> Sequence[str]:
    """The act in lines of at most 80 columns; on the right what was available then."""
    found, units = report.comparison, [*map(str, report.available), *["?"] * 5]
    killed = ", ".join(str(dead.pid) for dead in found.killed)
    first, second = (*report.reservations, None, None)[:2]
    undone = (found.effects or {}).get("undone")
    equal = "equal to" if found.equal_to_uninterrupted else "NOT equal to"
    told = [
        (f"{CUT} updates on {RANKS} contributors; the checkpoint keeps the journal's seal", units[0]),
        (f"update {RESERVES_AT} reserves two {SKU}: {first}", f"{units[0]} -> {units[1]}"),
        (f"SIGKILL for {killed}, one update later", units[1]),
        (f"{RESUME_RANKS} contributors restore update {found.resumed_from}", units[2]),
        (f"not undone: {first}; undone: {undone}", ""),
        (f"update {RESERVES_AT} runs again, under the same key: {second}", units[3]),
        (f"{found.updates} updates, {found.draws} draws, {equal} the uninterrupted run", units[4]),
    ]
    verdict = "Passed: the weights repeat, the units do not come back." if report.passed else "FAILED:"
    lines = [f"{'A training run and a reservation':<66}  {SKU:>12}", ""]
    lines += [f"{text:<70}  {stock:>8}".rstrip() for text, stock in told]
    return [*lines, "", verdict, *(f"- {each}" for each in report.unfulfilled)]
