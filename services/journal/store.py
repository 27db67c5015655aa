"""The journal's store: every method is one transaction, durable before it returns.

What holds after every method, whatever crashed:

- A row of `effects` and its entries change together; the row is the fold of the entries.
- No row, no byte: an attempt's mark is committed before the attempt may send, under the row's lock, and it is refused
  in that same transaction when the row is settled, in doubt, given up, superseded or under an alarm.
- A terminal state never changes: moves are guarded by the state they leave. A report that contradicts it becomes a late
  observation.
- A row's decided_at is only ever lowered; its deadline is the latest one ever marked.
- Decisions: the first one under (origin, scope, name, generation) stands.
- No method keeps its transaction open after it returns, so none is open across a send.
- What several threads write at the same time is committed together (`services.journal.group_commit`). A mark whose
  COMMIT got no answer is read back by its attempt's id: not found means not sent.

The methods block: call them from a thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from services.database import CommitUnknown, insert_once
from services.effects.errors import FingerprintMismatch
from services.effects.horizon import forgotten
from services.effects.keys import derive_key
from services.effects.records import (
    Answer,
    Attempt,
    EffectRow,
    Intent,
    Mark,
    Outcome,
    Receipt,
    Seen,
    Source,
)
from services.effects.settle import DID_NOTHING, MARGIN, SEND_WINDOW, Settlement, settle
from services.effects.states import EffectState, sources
from services.journal import rows
from services.journal.group_commit import GroupCommit
from services.journal.reads import JournalReads, fold_attempts
from services.journal.rows import Decision, Entry, text, timestamp
from services.journal.statements import BARS, EFFECT_CHANGED, ENTRY_APPENDED
from services.journal.tables import DECISIONS, EFFECTS

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What came of asking for an attempt.

    Attributes:
        row: the effect as it stands.
        attempt: the mark, when this call wrote it; the caller may send.
        refused: why there is no mark, for people; empty when there is one.
        later: the decision of the highest generation, where that is a later one: it is what is to be performed.
    """

    row: EffectRow
    attempt: Attempt | None = None
    refused: str = ""
    later: Decision | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What an observation did.

    Attributes:
        row: after the journal's own guarded update.
        settlement: what was decided, and what follows.
        outcome: what may be answered, as `outcome` says it; None while nothing may.
    """

    row: EffectRow
    settlement: Settlement
    outcome: Outcome | None = None


@dataclass(slots=True, kw_only=True)
class Writing:
    """One write transaction under way; what it appends goes in at its end, in one statement."""

    connection: sa.Connection
    now: datetime
    by: str
    _entries: list[dict[str, Any]] = field(default_factory=list)

    def append(self, key: str, kind: str, body: Mapping[str, Any]) -> None:
        """Add an entry, at the transaction's end."""
        written = text(dict(body))
        entry = {"key": key, "kind": kind, "body": written, "recorded_at": self.now, "recorded_by": self.by}
        digest = rows.entry_digest(key, kind, written, self.now, self.by)
        self._entries.append(entry | {"digest": digest})

    def flush(self) -> None:
        """Write the entries, in their order."""
        if self._entries:  # as parameters, not by `.values()`: see `insert_once`
            self.connection.execute(ENTRY_APPENDED, self._entries)


class Journal(JournalReads):
    """The store of one journal database, for one process.

    Args:
        engine: from `services.database.open_engine`, at this build's schema.
        recorded_by: who writes: stands in every entry.
        send_window: how long after its decision an effect may be sent.
        margin: how far the provider's clock must be past a deadline before it counts as passed.
        retention: how long the provider keeps receipts; None: for ever.
        clock: the journal's clock; aware UTC.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        recorded_by: str,
        send_window: timedelta = SEND_WINDOW,
        margin: timedelta = MARGIN,
        retention: timedelta | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(engine, send_window=send_window)
        self._commits = GroupCommit(engine)
        self._recorded_by = recorded_by
        self._margin = margin
        self._retention = retention
        self._clock = clock

    def begin(self, intent: Intent, mark: Mark) -> Begun:
        """Record decision, intent and first mark in one transaction, if the key is new.

        With an attempt in the answer this call wrote the key's first mark: the caller may send at once. Without one,
        something was interrupted or is settled: the receipt comes first.

        Raises:
            FingerprintMismatch: the key stands for another payload; nothing was recorded.
            CommitUnknown: the mark may come to be there: nothing may be sent for it.
        """

        def work(tx: Writing) -> Begun:
            row, created = self._ensure(tx, intent, born_by="attempt")
            if not created:
                later = self._later(tx.connection, row)
                return Begun(row=row, refused="the key has been begun before", later=later)
            return self._mark(tx, row, mark)

        return self._marked(work, intent, mark)

    def mark(self, intent: Intent, mark: Mark) -> Begun:
        """Record the next attempt's mark under the row's lock, unless something forbids another send.

        Raises:
            CommitUnknown: the mark may come to be there: nothing may be sent for it.
        """

        def work(tx: Writing) -> Begun:
            row, _ = self._ensure(tx, intent, born_by="attempt")
            return self._mark(tx, row, mark)

        return self._marked(work, intent, mark)

    def own(self, intent: Intent) -> EffectRow:
        """Make sure that the row exists before the provider is asked: a frozen attempt can then no longer insert it.

        Raises:
            FingerprintMismatch: the key stands for another payload; nothing was recorded.
        """
        return self._write(lambda tx: self._ensure(tx, intent, born_by="recovery")[0])

    def give_up(self, intent: Intent, *, why: str) -> EffectRow:
        """Forbid every further mark; the row is inserted first if there is none.

        Raises:
            FingerprintMismatch: the key stands for another payload: it is not this caller's to give up.
        """

        def work(tx: Writing) -> EffectRow:
            row, _ = self._ensure(tx, intent, born_by="recovery")
            if row.given_up or row.state.terminal:
                return row
            tx.append(row.key, "given_up", {"why": why})
            return self._update(tx, row, {"given_up": True})

        return self._write(work)

    def observe(self, key: str, answer: Answer, *, attempt_id: str | None = None) -> Observed:
        """Record what was learned and move the row as `settle` decides, under its lock.

        Args:
            key: the effect's.
            answer: what one exchange with the provider showed.
            attempt_id: of the attempt whose own send was answered.
        """
        return self._write(lambda tx: self._observe(tx, key, answer, attempt_id))

    def record_decision(
        self, *, origin: str, scope: str, name: str, decided_at: datetime, body: Mapping[str, str], generation: int = 1
    ) -> tuple[Decision, bool]:
        """Record a decision unless one stands already; the one that stands, and whether it is this call's."""
        return self._write(
            lambda tx: self._decide(tx, origin, scope, name, generation, decided_at=decided_at, body=body)
        )

    def _write(self, work: Callable[[Writing], T]) -> T:
        def whole(connection: sa.Connection) -> T:
            tx = Writing(connection=connection, now=self._clock(), by=self._recorded_by)
            result = work(tx)
            tx.flush()
            return result

        return self._commits.run(whole)

    def _marked(self, work: Callable[[Writing], Begun], intent: Intent, mark: Mark) -> Begun:
        try:
            return self._write(work)
        except CommitUnknown:
            # Only what a new connection shows permits a send. A mark that turns up later is one that nobody sent for.
            attempts = {attempt.attempt_id: attempt for attempt in self.attempts(intent.key)}
            row = self.effect(intent.key)
            if row is None or mark.attempt_id not in attempts:
                raise
            return Begun(row=row, attempt=attempts[mark.attempt_id])

    def _observe(self, tx: Writing, key: str, answer: Answer, attempt_id: str | None) -> Observed:
        row = self._locked(tx, key)
        if row is None:
            raise LookupError(f"The journal has no effect {key}: own the row before observing.")
        entries = self._entries(tx.connection, key)
        known = fold_attempts(entries)
        after = known if answer.source is not Source.SEND else _with_seen(known, attempt_id, answer.seen)
        settlement = settle(row, after, answer, margin=self._margin, retention=self._retention)
        if settlement.late and answer.receipt is not None:
            row = self._late(tx, row, answer.receipt, settlement.alarm or "")
            return Observed(row=row, settlement=settlement)
        moved = settlement.state is not row.state
        body = _observation(answer, settlement, attempt_id, with_receipt=moved)
        proven = after != known and answer.seen in DID_NOTHING
        if moved or proven or _is_news(entries, body):
            tx.append(key, "observation", body)
        if moved:
            row = self._move(tx, row, settlement.state, answer.receipt)
        if settlement.predecessor is not None:
            row = self._late_predecessor(tx, row, settlement.predecessor, settlement.alarm or "")
        return Observed(row=row, settlement=settlement, outcome=self._answer(tx.connection, row))

    def _ensure(self, tx: Writing, intent: Intent, *, born_by: str) -> tuple[EffectRow, bool]:
        key = intent.key
        row = self._locked(tx, key)
        if row is None:
            standing, _ = self._decide(
                tx,
                intent.origin,
                intent.scope,
                intent.name,
                intent.generation,
                decided_at=intent.decided_at,
                body=intent.why,
            )
            if intent.generation > 1:  # a redo's window runs from its recorded decision, the same for every caller
                intent = replace(intent, decided_at=standing.decided_at)
            values = rows.new_effect(intent, born_by=born_by, created_at=tx.now)
            if insert_once(tx.connection, EFFECTS, values):
                tx.append(key, "intent", rows.intent_body(intent, born_by))
                return self._row(rows.complete(values)), True
            row = self._existing(tx, key)  # a rival committed first; on PostgreSQL the insert waited for it
        _check_same(row, intent)
        if intent.decided_at < row.decided_at:
            tx.append(key, "intent", rows.intent_body(intent, born_by))
            row = self._update(tx, row, {"decided_at": intent.decided_at})
        return row, False

    def _mark(self, tx: Writing, row: EffectRow, mark: Mark) -> Begun:
        refused = self._refusal(tx, row)
        if not refused and self._has_mark(tx, row, mark.attempt_id):
            refused = "this attempt has been marked before"
        if refused:
            return Begun(row=row, refused=refused)
        if forgotten(row.decided_at, tx.now, retention=self._retention, margin=self._margin):
            return Begun(row=row, refused="it is older than the provider's retention")
        not_after = row.decided_at + self._window
        if tx.now >= not_after:  # the gate would let nothing through, and the mark would count as a send
            return Begun(row=row, refused="its send window is over")
        number = row.attempts + 1
        body = {
            "attempt_id": mark.attempt_id,
            "number": number,
            "decided_at": timestamp(row.decided_at),
            "not_after": timestamp(not_after),
            "task_token": mark.task_token,
            "worker": mark.worker,
        }
        tx.append(row.key, "attempt", body)
        latest = not_after if row.attempts == 0 else max(not_after, row.deadline)
        row = self._update(tx, row, {"attempts": number, "last_not_after": latest})
        attempt = Attempt(
            attempt_id=mark.attempt_id,
            number=number,
            not_after=not_after,
            marked_at=tx.now,
            worker=mark.worker,
            task_token=mark.task_token,
        )
        return Begun(row=row, attempt=attempt)

    def _refusal(self, tx: Writing, row: EffectRow) -> str:
        if row.state.terminal:
            return f"it is settled: {row.state}"
        if row.state is EffectState.IN_DOUBT:
            return "it is in doubt"
        if row.given_up:
            return "it has been given up"
        of = {"of_origin": row.origin, "of_scope": row.scope, "of_name": row.name}
        generation, alarm = tx.connection.execute(BARS, of).one()
        if generation > row.generation:
            return "a later generation has been decided"
        if alarm:
            return "a late observation on its name waits for a person"
        return ""

    def _has_mark(self, tx: Writing, row: EffectRow, attempt_id: str) -> bool:
        marks = fold_attempts(self._entries(tx.connection, row.key)) if row.attempts else ()
        return any(mark.attempt_id == attempt_id for mark in marks)

    def _move(self, tx: Writing, row: EffectRow, state: EffectState, receipt: Receipt | None) -> EffectRow:
        if row.state not in sources(state):
            raise RuntimeError(f"{row.key} cannot go from {row.state} to {state}; nothing was recorded.")
        values: dict[str, Any] = {"state": state}
        if state.terminal:
            values |= {"settled_at": tx.now, "receipt": None if receipt is None else text(receipt.body)}
        return self._update(tx, row, values)

    def _update(self, tx: Writing, row: EffectRow, values: Mapping[str, Any]) -> EffectRow:
        read = {"of_key": row.key, "of_version": row.version}
        change = {**values, "version": row.version + 1}
        landed = tx.connection.execute(EFFECT_CHANGED, read | change).mappings().one_or_none()
        if landed is None:
            raise RuntimeError(f"The row of {row.key} changed under its lock; nothing was recorded.")
        return self._row(landed)

    def _late(self, tx: Writing, row: EffectRow, receipt: Receipt, alarm: str) -> EffectRow:
        recorded = any(
            entry.kind == "late_observation" and entry.body["receipt"]["receipt_id"] == receipt.receipt_id
            for entry in self._entries(tx.connection, row.key)
        )
        if recorded:
            return row
        tx.append(row.key, "late_observation", {"alarm": alarm, "receipt": receipt.body})
        return self._update(tx, row, {"alarmed": True})

    def _late_predecessor(self, tx: Writing, row: EffectRow, receipt: Receipt, alarm: str) -> EffectRow:
        # The journal was wrong about the former generation, even where it has it as committed: its release is not what
        # the journal thinks. Where it has no row of it, the alarm stands on the row that was refused.
        former = self._locked(tx, receipt.key)
        if former is None:
            return self._late(tx, row, receipt, alarm)
        self._late(tx, former, receipt, alarm)
        return row

    def _decide(
        self,
        tx: Writing,
        origin: str,
        scope: str,
        name: str,
        generation: int,
        *,
        decided_at: datetime,
        body: Mapping[str, str],
    ) -> tuple[Decision, bool]:
        values = {
            "origin": origin,
            "scope": scope,
            "name": name,
            "generation": generation,
            "decided_at": decided_at,
            "body": text(dict(body)),
            "recorded_at": tx.now,
            "recorded_by": self._recorded_by,
        }
        if insert_once(tx.connection, DECISIONS, values):
            told = {
                "origin": origin,
                "scope": scope,
                "name": name,
                "generation": generation,
                "decided_at": timestamp(decided_at),
            }
            key = derive_key(origin, scope, name, generation)
            tx.append(key, "decision", told | {"why": dict(body)})
            return rows.decision(values), True
        standing = self._standing(tx.connection, origin, scope, name, generation)
        if standing is None:
            raise RuntimeError(f"The decision {name} of {scope} was neither recorded nor found.")
        return standing, False

    def _locked(self, tx: Writing, key: str) -> EffectRow | None:
        return self._read(tx.connection, key, lock=True)

    def _existing(self, tx: Writing, key: str) -> EffectRow:
        row = self._locked(tx, key)
        if row is None:
            raise RuntimeError(f"The row of {key} is gone inside its own transaction.")
        return row


def _is_news(entries: tuple[Entry, ...], body: Mapping[str, Any]) -> bool:
    """Whether an observation that moves nothing says anything that the last one did not."""
    observed = [entry.body for entry in entries if entry.kind == "observation"]
    if not observed:
        return True
    return any(observed[-1].get(member) != body.get(member) for member in ("source", "seen", "reason", "alarm"))


def _check_same(row: EffectRow, intent: Intent) -> None:
    # A row written by another fingerprint version is compared by its bytes: a new build never changes a retry.
    same = (row.kind, row.path) == (intent.kind, intent.path) and (
        row.fingerprint == intent.fingerprint
        if row.fingerprint_version == intent.fingerprint_version
        else row.request == intent.request
    )
    if not same:
        raise FingerprintMismatch(
            f"The key {row.key} ({row.scope}, {row.name}) stands for another payload. Recorded: {row.kind} "
            f"{text(row.path)} {row.request}. Asked for now: {intent.kind} {text(intent.path)} {intent.request}. "
            "Nothing was sent for the new one. Give the new effect a name of its own."
        )


def _observation(
    answer: Answer, settlement: Settlement, attempt_id: str | None, *, with_receipt: bool
) -> dict[str, Any]:
    body: dict[str, Any] = {
        "source": answer.source,
        "seen": answer.seen,
        "reason": answer.reason,
        "state": settlement.state,
    }
    if attempt_id is not None:
        body["attempt_id"] = attempt_id
    if settlement.alarm is not None:
        body["alarm"] = settlement.alarm
    if answer.receipt is not None and (with_receipt or settlement.alarm is not None):
        body["receipt"] = answer.receipt.body
    return body


def _with_seen(attempts: tuple[Attempt, ...], attempt_id: str | None, seen: Seen) -> tuple[Attempt, ...]:
    return tuple(replace(attempt, seen=seen) if attempt.attempt_id == attempt_id else attempt for attempt in attempts)
