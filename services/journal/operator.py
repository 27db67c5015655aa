"""What a person's commands write: each is journaled before it does anything, and the same command is one entry.

- Every method is one transaction under the locks of the rows that it concludes from.
- A row moves here only by a person's assertion, where the provider has answered and cannot say; the answers of the
  provider move it by `Journal.observe`, as everybody's do.
- A redo locks every former generation's row, so that none of them changes before its decision is there.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from services.database import reading
from services.effects.commands import LATE_RULINGS, Command, RulingKind
from services.effects.keys import NAME_LIMIT, derive_key, release_name, released_name
from services.effects.records import Answer, EffectRow, Intent, Receipt
from services.effects.redo import Former, refusal
from services.effects.states import EffectState
from services.journal.rows import Decision, Entry, timestamp
from services.journal.store import Journal, Observed, Writing


class Refused(Exception):
    """The journal does not allow it: nothing was recorded. The message says why, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redone:
    """A redo's decision; `repeated` when the same command had asked for it before.

    Attributes:
        by_another: when, by whom and why it was decided, where that was another command's word.
    """

    decision: Decision
    key: str
    repeated: bool
    by_another: str = ""


class OperatorJournal(Journal):
    """The journal as an operator's commands and the sweep over closed workflows use it."""

    def commanded(self, command: Command) -> bool:
        """Journal that this was commanded; whether it had been before. It asks, and moves nothing."""

        def work(tx: Writing) -> bool:
            self._locked(tx, command.key)
            if self._said(tx, command):
                return True
            tx.append(command.key, "resolution", command.body())
            return False

        return self._write(work)

    def was_commanded(self, command: Command) -> bool:
        """Whether this was commanded before."""
        return any(_is(entry, command) for entry in self.entries(command.key))

    def forbid(self, command: Command) -> EffectRow:
        """Forbid every further mark of an unsettled effect, for a command that has been journaled."""

        def work(tx: Writing) -> EffectRow:
            row = self._existing(tx, command.key)
            if row.given_up or row.state.terminal:
                return row
            tx.append(row.key, "given_up", {"why": f"{command.by}: {command.reason}"})
            return self._update(tx, row, {"given_up": True})

        return self._write(work)

    def assert_end(self, command: Command, state: EffectState) -> EffectRow:
        """Settle an effect by a person's word; whoever settled it first stands."""

        def work(tx: Writing) -> EffectRow:
            row = self._existing(tx, command.key)
            if row.state.terminal:
                return row
            tx.append(row.key, "resolution", command.body(ruling=RulingKind.ASSERTED, state=state))
            return self._move(tx, row, state, None)

        return self._write(work)

    def rule_late(self, command: Command, ruling: RulingKind) -> EffectRow:
        """Deal with the late observation on a row: it bars its name no more. A believed one may be written off later.

        The same word again changes nothing: a report that has come since is another matter, which its speaker has not
        seen.

        Raises:
            Refused: there is none any more, or another one has come since the same was said.
        """
        if ruling not in LATE_RULINGS:
            raise ValueError(f"{ruling} deals with no late observation")

        def work(tx: Writing) -> EffectRow:
            row = self._existing(tx, command.key)
            entries = self._entries(tx.connection, command.key)
            if any(_is(entry, command) and entry.body.get("ruling") in LATE_RULINGS for entry in entries):
                if row.alarmed:
                    raise Refused("another report has come since the same was said: read it, and give a reason for it")
                return row
            believed = ruling is RulingKind.WRITTEN_OFF and believed_report(entries) is not None
            if not row.alarmed and not believed:
                raise Refused("somebody has dealt with it meanwhile: look again")
            tx.append(row.key, "resolution", command.body(ruling=ruling))
            return self._update(tx, row, {"alarmed": False})

        return self._write(work)

    def accept(self, command: Command) -> EffectRow:
        """Take a committed effect off the list of what ended workflows left standing."""

        def work(tx: Writing) -> EffectRow:
            row = self._existing(tx, command.key)
            if row.accepted:
                return row
            tx.append(row.key, "resolution", command.body(ruling=RulingKind.ACCEPTED))
            return self._update(tx, row, {"accepted": True})

        return self._write(work)

    def write_off(self, command: Command) -> bool:
        """Journal that nothing will come back of an orphan; whether that had been done before."""

        def work(tx: Writing) -> bool:
            if self._said(tx, command):
                return True
            tx.append(command.key, "resolution", command.body(ruling=RulingKind.WRITTEN_OFF))
            return False

        return self._write(work)

    def decide_redo(self, command: Command, *, second: str = "") -> Redone:
        """Decide the generation after the one that the command names, under the locks of all that came before.

        What another command has decided, and nobody has begun, is answered as it was decided: who decided it may have
        died before it was handed to a workflow, and whoever wants the same may have it sent.

        Raises:
            Refused: a former generation may still do something or stands, or another redo was decided and begun before.
        """

        def work(tx: Writing) -> Redone:
            row = self._existing(tx, command.key)
            self._require_redoable(tx, row, by=command.by, second=second)
            decision, mine = self._decide(
                tx,
                row.origin,
                row.scope,
                row.name,
                row.generation + 1,
                decided_at=tx.now,
                body={"by": command.by, "reason": command.reason, "command_id": command.id}
                | ({"second": second} if second else {}),
            )
            key = derive_key(row.origin, row.scope, row.name, row.generation + 1)
            repeated = not mine and self._asked_before(tx, command, decision)
            if not repeated:
                tx.append(row.key, "resolution", command.body(generation=row.generation + 1, redo_key=key))
            by_another = "" if mine or _is_of(command, decision) else decided(decision)
            return Redone(decision=decision, key=key, repeated=repeated, by_another=by_another)

        return self._write(work)

    def redo_refused(self, command: Command, *, second: str = "") -> str:
        """Why this redo would be refused now; empty where it would not."""

        def work(tx: Writing) -> None:
            row = self._existing(tx, command.key)
            self._require_redoable(tx, row, by=command.by, second=second)
            decision = self._standing(tx.connection, row.origin, row.scope, row.name, row.generation + 1)
            if decision is not None:
                self._asked_before(tx, command, decision)

        try:
            self._write(work)
        except Refused as error:
            return str(error)
        return ""

    def release_of(self, row: EffectRow) -> EffectRow | None:
        """The newest generation of an effect's release; None without one."""
        with reading(self._engine) as connection:
            return self._newest_release(connection, row)

    def believed(self, key: str) -> Receipt | None:
        """The late report that a person believes of an effect, and that nobody has written off; None without one."""
        return believed_report(self.entries(key))

    def adopt(self, command: Command, intent: Intent, answer: Answer) -> Observed:
        """Give an orphan its row, born by recovery, and settle it by its receipt.

        Raises:
            FingerprintMismatch: the key stands for another payload.
        """

        def work(tx: Writing) -> Observed:
            row, created = self._ensure(tx, intent, born_by="recovery")
            if created:
                tx.append(row.key, "resolution", command.body(ruling=RulingKind.ACCEPTED))
                self._update(tx, row, {"accepted": True})
            return self._observe(tx, intent.key, answer, None)

        return self._write(work)

    def closed(self, keys: Sequence[str], closed_as: str | None, *, run_id: str) -> None:
        """Record how the workflow of these effects ended, where that is not what is known already."""

        def work(tx: Writing) -> None:
            for key in keys:
                row = self._existing(tx, key)
                if row.closed_as == closed_as:
                    continue
                seen = "workflow_closed" if closed_as else "workflow_open"
                body = {"source": "temporal", "seen": seen, "reason": closed_as or "", "state": row.state}
                tx.append(key, "observation", body | {"closed_as": closed_as, "run_id": run_id})
                self._update(tx, row, {"closed_as": closed_as})

        self._write(work)

    def _said(self, tx: Writing, command: Command) -> bool:
        return any(_is(entry, command) for entry in self._entries(tx.connection, command.key))

    def _asked_before(self, tx: Writing, command: Command, decision: Decision) -> bool:
        """Whether a redo that has been decided was asked for by this command; refused once another's has been begun."""
        if _is_of(command, decision) or self._said(tx, command):
            return True
        key = derive_key(decision.origin, decision.scope, decision.name, decision.generation)
        if self._read(tx.connection, key) is None:
            return False
        raise Refused(f"generation {decision.generation} was decided {decided(decision)}; that decision stands")

    def _require_redoable(self, tx: Writing, row: EffectRow, *, by: str, second: str) -> None:
        if released_name(row.name) is None and len(row.name) > NAME_LIMIT:
            raise Refused("it is an effect without further generations")
        next_one = self._standing(tx.connection, row.origin, row.scope, row.name, row.generation + 1)
        if next_one is not None:
            return  # what was decided once is answered as it was decided
        former = [self._former(tx, row, generation) for generation in range(1, row.generation + 1)]
        why = refusal(former, by=by, second=second)
        if why:
            raise Refused(why)

    def _former(self, tx: Writing, of: EffectRow, generation: int) -> Former:
        key = derive_key(of.origin, of.scope, of.name, generation)
        row = self._locked(tx, key)
        if row is None:
            return Former(generation=generation, row=None)
        entries = self._entries(tx.connection, key)
        former = Former(
            generation=generation,
            row=row,
            release=self._release_of(tx, row),
            late_stands=believed_report(entries) is not None,
            asserted_by=_asserted_by(entries),
        )
        if former.release is None or not former.release.asserted:
            return former
        return replace(former, release_asserted_by=_asserted_by(self._entries(tx.connection, former.release.key)))

    def _release_of(self, tx: Writing, row: EffectRow) -> EffectRow | None:
        """Its release, locked: it must not be sent between the look and the decision."""
        newest = self._newest_release(tx.connection, row)
        return None if newest is None else self._locked(tx, newest.key)

    def _newest_release(self, connection: sa.Connection, row: EffectRow) -> EffectRow | None:
        if len(row.name) > NAME_LIMIT:
            return None
        name = release_name(row.name, row.generation)
        found = [other for other in self._related(connection, row) if other.name == name]
        return max(found, key=lambda other: other.generation, default=None)


def believed_report(entries: Sequence[Entry]) -> Receipt | None:
    """What was reported late as committed, is believed, and was not written off since.

    That a further report is dismissed says nothing of one that is believed; nor was a report meant by what was said
    before it came, when the effect was an orphan.
    """
    heard: Receipt | None = None
    stands: Receipt | None = None
    for entry in entries:
        if entry.kind == "late_observation" and entry.body["receipt"]["outcome"] == EffectState.COMMITTED:
            heard = Receipt(entry.body["receipt"])
        elif entry.kind == "resolution" and entry.body.get("ruling") in LATE_RULINGS:
            match entry.body["ruling"]:
                case RulingKind.BELIEVED:
                    stands = stands or heard
                case RulingKind.WRITTEN_OFF:
                    stands = None
            heard = None
    return stands


def _asserted_by(entries: Iterable[Entry]) -> str:
    """Who asserted an end; empty where nobody did."""
    asserted = (entry.body["by"] for entry in entries if entry.body.get("ruling") == RulingKind.ASSERTED)
    return next(asserted, "")


def _is(entry: Entry, command: Command) -> bool:
    return entry.kind == "resolution" and entry.body.get("command_id") == command.id


def _is_of(command: Command, decision: Decision) -> bool:
    return decision.body.get("command_id") == command.id


def decided(decision: Decision) -> str:
    """When, by whom and why something was decided, for people."""
    body = decision.body
    when = timestamp(decision.recorded_at)
    return f"at {when} by {body.get('by', 'its workflow')} ({body.get('reason', 'no reason given')})"
