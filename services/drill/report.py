"""What a run of the demo came to: the totals, the verdict, and how people read them.

- Every number is counted from what the two sides have on record and from what the faults did, never from what the
  demo meant to do.
- A run that proves nothing fails: every planned fault must have fired, and every planned end must have come.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from services.drill.worst_day import Act
from services.effects.records import EffectRow, Source
from services.effects.states import EffectState
from services.journal.rows import Entry
from services.reconciliation.findings import Report as Audit


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One worker killed between the inventory's commit and its own observation, with the proof of that moment.

    Attributes:
        receipt_id: what the inventory had under the key then.
        journal_state: what the journal had then.
        settled_seconds: from SIGKILL to the row's terminal state.
    """

    key: str
    pid: int
    receipt_id: str
    journal_state: str
    settled_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporalKill:
    """The Temporal server killed with effects in flight and started again on its file, with the proof of that moment.

    Attributes:
        pending: effects that the journal had as pending then.
        receipts: how many of them the inventory had committed.
        answers_seconds: from SIGKILL until the server answered again.
        settled_seconds: from SIGKILL until the last of them was terminal.
    """

    pid: int
    pending: int
    receipts: int
    answers_seconds: float
    settled_seconds: float

    @property
    def proven(self) -> bool:
        """Whether there was an effect, and each was committed there and unheard of here."""
        return self.receipts == self.pending > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What the run set out to do."""

    incidents: int
    kills: int
    temporal_kills: int
    lost_responses: int
    delayed_requests: int
    rejected: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One incident, step by step; units are what is available of its SKU.

    Attributes:
        approved_by: whose approval the journal held when the worker was dead; empty if nobody's.
        matched_receipt_id: what settled the intent after the restart.
        rewound_state: what the journal, put back, said.
        found_receipt_id: what settled it then.
    """

    incident_id: str
    approved_by: str
    key: str
    sku: str
    quantity: int
    reservation_id: str
    pid: int
    units_before: int
    units_while_dead: int
    units_after_restart: int
    answer: str
    matched_receipt_id: str
    rewound_state: str
    found_receipt_id: str
    units_after_rewind: int
    attempts: int

    @property
    def holds(self) -> bool:
        """Whether it went as it is told."""
        left = self.units_before - self.quantity
        return (
            (self.units_while_dead, self.units_after_restart, self.units_after_rewind) == (left, left, left)
            and self.approved_by != ""
            and self.answer == EffectState.COMMITTED
            and self.rewound_state == EffectState.PENDING
            and self.matched_receipt_id == self.found_receipt_id
            and self.attempts == 1
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """What the run did and saw.

    Attributes:
        ended: how many incidents' workflows ended.
        late_packets: the status that each delayed request met when it was delivered at last.
        seconds: by phase.
    """

    ended: int
    kills: Sequence[Kill]
    temporal_kills: Sequence[TemporalKill]
    lost_responses: int
    delayed_requests: int
    late_packets: Mapping[str, int | None]
    story: Story
    worst_day: Sequence[Act]
    seconds: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The totals."""

    incidents: int
    effects: int
    attempts: int
    kills: int
    temporal_kills: int
    lost_responses: int
    delayed_requests: int
    matched_by_receipt: int
    rejected: int
    doubled: int
    lost: int
    unresolved: int
    stock_conserved: bool
    kill_to_settled_seconds_median: float
    kill_proofs: Sequence[Kill]
    temporal_kill_to_settled_seconds: float
    temporal_kill_proofs: Sequence[TemporalKill]
    worst_day: Sequence[Act]
    failures: Sequence[str]
    seconds: Mapping[str, float]

    @property
    def passed(self) -> bool:
        """Whether nothing was doubled, lost or left open, and every planned fault fired."""
        return not self.failures

    def document(self) -> dict[str, Any]:
        """As `--json` gives it."""
        return asdict(self) | {
            "kill_proofs": [asdict(kill) for kill in self.kill_proofs],
            "temporal_kill_proofs": [asdict(kill) for kill in self.temporal_kill_proofs],
            "worst_day": [asdict(act) for act in self.worst_day],
            "failures": list(self.failures),
            "seconds": dict(self.seconds),
            "passed": self.passed,
        }


# Settled with nothing sent again: a replayed packet meets its own first answer, a closed key meets a refusal.
_HARMLESS = frozenset({200, 201, 410})


def report(
    planned: Planned,
    happened: Happened,
    effects: Sequence[EffectRow],
    entries: Mapping[str, Sequence[Entry]],
    audit: Audit,
) -> Report:
    """Count everything, and judge it.

    Args:
        planned: what the run set out to do.
        happened: what it did.
        effects: the journal's rows at the end.
        entries: the journal's entries by key at the end.
        audit: both halves at the end.
    """
    seconds = [kill.settled_seconds for kill in happened.kills]
    counted = Report(
        incidents=happened.ended,
        effects=len(effects),
        attempts=sum(_marks(entries.get(row.key, ())) for row in effects),
        kills=len(happened.kills),
        temporal_kills=len(happened.temporal_kills),
        lost_responses=happened.lost_responses,
        delayed_requests=happened.delayed_requests,
        matched_by_receipt=sum(matched_by_receipt(row, entries.get(row.key, ())) for row in effects),
        rejected=sum(row.state is EffectState.REJECTED for row in effects),
        doubled=audit.doubled,
        lost=audit.lost,
        unresolved=audit.unresolved,
        stock_conserved=audit.stock_conserved,
        kill_to_settled_seconds_median=round(statistics.median(seconds), 3) if seconds else 0.0,
        kill_proofs=tuple(happened.kills),
        temporal_kill_to_settled_seconds=max((kill.settled_seconds for kill in happened.temporal_kills), default=0.0),
        temporal_kill_proofs=tuple(happened.temporal_kills),
        worst_day=tuple(happened.worst_day),
        failures=(),
        seconds=happened.seconds,
    )
    failures = tuple(_failures(planned, happened, counted, audit))
    values = {name: getattr(counted, name) for name in Report.__slots__}
    return Report(**values | {"failures": failures})


def matched_by_receipt(row: EffectRow, entries: Sequence[Entry]) -> bool:
    """Whether an effect was sent once and settled by a receipt that was looked up."""
    settling = [entry for entry in entries if entry.kind == "observation" and entry.body["state"] == row.state]
    return (
        row.state.terminal and _marks(entries) == 1 and bool(settling) and settling[0].body["source"] == Source.LOOK_UP
    )


def _marks(entries: Sequence[Entry]) -> int:
    return sum(entry.kind == "attempt" for entry in entries)


def _failures(planned: Planned, happened: Happened, counted: Report, audit: Audit) -> list[str]:
    found = [f"the audit found {finding.rule} at {finding.key}" for finding in audit.findings]
    found += [
        f"{have} {name.replace('_', ' ')} instead of the {getattr(planned, name)} planned"
        for name in Planned.__slots__
        if (have := getattr(counted, name)) != getattr(planned, name)
    ]
    proven = [kill for kill in happened.kills if kill.receipt_id and kill.journal_state == EffectState.PENDING]
    if len(proven) != len(happened.kills):
        found.append("a worker was killed outside the window")
    if not all(kill.proven for kill in happened.temporal_kills):
        found.append("the Temporal server was killed with nothing in flight")
    found += [
        f"the delayed request of {key} met {status} when it came at last"
        for key, status in happened.late_packets.items()
        if status not in _HARMLESS
    ]
    if len(happened.late_packets) != planned.delayed_requests:
        found.append(f"{len(happened.late_packets)} delayed requests were delivered at last")
    found += [f"the act {act.name} of {act.key}: {what}" for act in happened.worst_day for what in act.unfulfilled]
    if not happened.story.holds:
        found.append(f"the story of {happened.story.incident_id} did not go as it is told")
    return found


def kill_line(kill: Kill) -> str:
    """One kill with its proof, at most 80 columns: pid, key, what the inventory had, what the journal had, time."""
    proof = f"{kill.pid:<7}  {kill.key:<39}  {kill.receipt_id:<11}  {kill.journal_state:<7}"
    return f"{proof}  {kill.settled_seconds:.2f} s"


def temporal_kill_lines(kill: TemporalKill) -> list[str]:
    """The Temporal server's end and return, at most 80 columns."""
    back, settled = f"{kill.answers_seconds:.2f} s", f"{kill.settled_seconds:.2f} s"
    return [
        f"{kill.pid:<7}  the Temporal server: {kill.pending} pending, {kill.receipts} receipts that nobody heard of",
        f"{'':<7}  back after {back}, the last of them settled after {settled}",
    ]


KILL_HEADER = f"{'SIGKILL':<7}  {'key':<39}  {'inventory':<11}  {'journal':<7}  settled"


def tell_story(story: Story) -> list[str]:
    """The story in lines of at most 80 columns; on the right what is available of the SKU at that moment."""
    twice = story.units_before - 2 * story.quantity
    lines = (
        (f"{story.incident_id} needs {story.quantity} {story.sku}", story.sku),
        ("", ""),
        (f"{story.approved_by} approved; the journal holds the intent, pending", f"{story.units_before}"),
        (f"the inventory has committed {story.reservation_id}", f"{story.units_before} -> {story.units_while_dead}"),
        (f"worker {story.pid} is killed before it hears so; no worker is left", ""),
        (f"restart: {story.matched_receipt_id} is found, nothing is sent", f"{story.units_after_restart}, not {twice}"),
        (f"the workflow has its answer: {story.answer}, {story.reservation_id}", ""),
        (f"the journal alone is put back to then: {story.rewound_state} again", ""),
        (f"restart: {story.found_receipt_id} is found again, nothing is sent", f"{story.units_after_rewind}"),
    )
    return [f"{text:<66}  {units:>10}".rstrip() for text, units in lines]


def totals(counted: Report) -> list[tuple[str, int]]:
    """What is counted, in words, and the numbers."""
    return [
        ("incidents, each a workflow that came to its end", counted.incidents),
        ("effects", counted.effects),
        ("requests sent for them", counted.attempts),
        ("workers killed between commit and observation", counted.kills),
        ("Temporal servers killed with effects in flight", counted.temporal_kills),
        ("responses lost", counted.lost_responses),
        ("requests delayed until their effect was settled", counted.delayed_requests),
        ("settled by a receipt that was looked up, nothing sent again", counted.matched_by_receipt),
        ("rejected by the inventory", counted.rejected),
        ("doubled", counted.doubled),
        ("lost", counted.lost),
        ("unresolved", counted.unresolved),
    ]


def verdict(counted: Report) -> list[str]:
    """The last lines."""
    conserved = "The stock is conserved" if counted.stock_conserved else "THE STOCK IS NOT CONSERVED"
    median = f"{counted.kill_to_settled_seconds_median:.2f} s"
    lines = [f"{conserved}. From SIGKILL to settled: {median} (median of {counted.kills})."]
    if counted.passed:
        return [*lines, "Passed: nothing doubled, lost or left open; every planned fault fired."]
    return [*lines, *(f"FAILED: {failure}." for failure in counted.failures)]
