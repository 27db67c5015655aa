"""What a person decides about an effect: the commands, as the command line, the workflows' Updates and tests give them.

- A command is in the journal before it does anything; the same command again is the same entry and gets the answer that
  holds now.
- Nobody's word settles an effect that its provider can speak for: `resolve` asks, and the receipt that comes back is
  the end, whatever was wanted. Only where the provider has answered and cannot say, a person's assertion stands.
- Nothing is sent from here. What has to be sent is in the answer (`Ruling.send`), for a workflow to perform.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime

from services.effects import keys
from services.effects.commands import Command, CommandName, Ruling, RulingKind, ToSend, What
from services.effects.errors import FingerprintMismatch, InvalidCommand, InvalidEffect
from services.effects.provider import Provider
from services.effects.records import Answer, Effect, EffectRow, Intent, Receipt, Seen
from services.effects.redo import BACK_ALREADY
from services.effects.states import TERMINAL, EffectState
from services.journal.operator import OperatorJournal, Refused, decided
from services.journal.store import Observed
from services.reconciliation.recovery import recover

# What a provider that has answered cannot say: retention took the receipt, or the key stands for another payload.
_NO_WORD = frozenset({Seen.KEY_EXPIRED, Seen.KEY_REUSED})


class EffectDesk:
    """The commands about effects of one deployment.

    Args:
        journal: where they are recorded.
        provider: whom to ask; a void and a look-up move nothing.
        origin: this deployment: its effects only.
    """

    def __init__(self, journal: OperatorJournal, provider: Provider, *, origin: str) -> None:
        self._journal = journal
        self._provider = provider
        self._origin = origin

    async def give_up(self, key: str, *, by: str, reason: str, dry_run: bool = False) -> Ruling:
        """Send nothing more of an effect, and close its key; what owns the key then is its end.

        Raises:
            InvalidCommand: who or why is missing, or the effect is another deployment's.
        """
        command = Command(name=CommandName.GIVE_UP, key=key, by=by, reason=reason)

        async def work(row: EffectRow, repeated: bool) -> Ruling:
            if row.alarmed:
                return _refused(command, row, _ALARMED)
            if row.state.terminal:
                ended = _ended(command, row, wanted=_NOTHING_DONE, repeated=repeated)
                return await self._as_believed(command, row) or ended
            if row.state is EffectState.IN_DOUBT:
                return _refused(command, row, "It is in doubt: no void settles it. `resolve` it, with evidence.")
            if dry_run:
                return _would(command, row, "nothing more is sent, and the key is closed: what owns it is the end")
            repeated = await self._record(command)
            row = await asyncio.to_thread(self._journal.forbid, command)
            observed, answer = await recover(self._journal, self._provider, row)
            if observed.row.state.terminal:
                return _ended(command, observed.row, wanted=_NOTHING_DONE, repeated=repeated)
            if observed.row.state is EffectState.IN_DOUBT:
                return _refused(command, observed.row, f"It is in doubt now: {observed.settlement.alarm}.")
            return _unconfirmed(
                command, observed.row, answer, "Nothing more is sent; the sweep closes the key.", repeated
            )

        return await self._about(command, work)

    async def resolve(
        self, key: str, *, to: EffectState, evidence: str, by: str, reason: str, dry_run: bool = False
    ) -> Ruling:
        """Say how an effect ended. The provider is asked, and its receipt decides; without one, the word stands.

        Raises:
            InvalidCommand: who, why, or what it stands on is missing, or `to` is no end.
        """
        if to not in TERMINAL:
            raise InvalidCommand(f"An effect is resolved to committed, rejected or voided, not to {to}.")
        command = Command(
            name=CommandName.RESOLVE,
            key=key,
            by=by,
            reason=reason,
            arguments={"wanted": to.value, "evidence": evidence},
        )

        async def work(row: EffectRow, repeated: bool) -> Ruling:
            if row.state.terminal:
                return await self._resolve_settled(command, row, to, repeated=repeated, dry_run=dry_run)
            if dry_run:
                step = (
                    "the key is closed, and what owns it is the end" if to is EffectState.VOIDED else "it is looked up"
                )
                return _would(command, row, f"the provider is asked first: {step}")
            repeated = await self._record(command)
            return await self._resolve_open(command, row, to, repeated=repeated)

        return await self._about(command, work)

    async def _resolve_settled(
        self, command: Command, row: EffectRow, to: EffectState, *, repeated: bool, dry_run: bool
    ) -> Ruling:
        if not row.alarmed:
            return await self._as_believed(command, row) or _ended(command, row, wanted={to}, repeated=repeated)
        if to is not row.state:
            how = f"`accept`, `write-off` or `resolve --as {row.state}`"
            return _refused(command, row, f"{_end(row)}, for good. What was reported late is dealt with by {how}.")
        if dry_run:
            return _would(command, row, "the late report is dismissed: it bars the name no more")
        said = f"It ended {row.state}; the late report is dismissed."
        return await self._rule_late(command, row, RulingKind.DISMISSED, said, repeated=repeated)

    async def _rule_late(
        self, command: Command, row: EffectRow, ruling: RulingKind, said: str, *, repeated: bool
    ) -> Ruling:
        try:
            row = await asyncio.to_thread(self._journal.rule_late, command, ruling)
        except Refused as error:
            return _refused(command, row, f"The late report is as it was: {error}.")
        return _done(command, row, said, repeated=repeated)

    async def _as_believed(self, command: Command, row: EffectRow) -> Ruling | None:
        """The answer to who wants nothing to be done, where a person believes a report that it was."""
        if row.state is EffectState.COMMITTED:
            return None
        believed = await asyncio.to_thread(self._journal.believed, row.key)
        if believed is None:
            return None
        said = f"{_end(row)}, but a later report that it is committed ({believed.receipt_id}) is believed"
        return _refused(command, row, f"{said}: `release` it, or `write-off`.")

    async def _resolve_open(self, command: Command, row: EffectRow, to: EffectState, *, repeated: bool) -> Ruling:
        answer = await self._provider.look_up(row.key)
        observed = await self._observe(row, answer)
        forgotten = observed.settlement.forgotten  # then no void is sent: it would find the key free, and prove nothing
        if answer.seen is Seen.ABSENT and to is EffectState.VOIDED and not forgotten:
            await asyncio.to_thread(self._journal.forbid, command)
            answer = await self._provider.void(row.key)
            observed = await self._observe(row, answer)
        row = observed.row
        if row.state.terminal:
            return _ended(command, row, wanted={to}, repeated=repeated)
        if answer.seen is Seen.ABSENT and not forgotten:
            return _refused(command, row, f"The provider has no receipt: it is not {to}. `--as voided` closes the key.")
        another = answer.seen is Seen.RECEIPT or answer.seen is Seen.KEY_REUSED
        if another and to is EffectState.COMMITTED:
            return _refused(command, row, f"The key is another payload's there ({observed.settlement.alarm}): under it "
                            "this effect was not done.")  # fmt: skip
        if another or forgotten or answer.seen in _NO_WORD:
            row = await asyncio.to_thread(self._journal.assert_end, command, to)
            return _ended(command, row, wanted={to}, repeated=repeated)
        return _unconfirmed(command, row, answer, "It stays as it is.", repeated)

    async def redo(self, key: str, *, by: str, reason: str, second: str = "", dry_run: bool = False) -> Ruling:
        """Decide the next generation of an effect whose former ones have ended and do not stand.

        Raises:
            InvalidCommand: who or why is missing.
        """
        arguments = {"second": second} if second else {}
        command = Command(name=CommandName.REDO, key=key, by=by, reason=reason, arguments=arguments)

        async def work(row: EffectRow, _repeated: bool) -> Ruling:
            if dry_run:
                why = await asyncio.to_thread(self._journal.redo_refused, command, second=second)
                if why:
                    return _refused(command, row, f"It cannot be redone: {why}.")
                return _would(command, row, await asyncio.to_thread(self._would_redo, row))
            try:
                redone = await asyncio.to_thread(self._journal.decide_redo, command, second=second)
            except Refused as error:
                return _refused(command, row, f"It cannot be redone: {error}.")
            said = f"Generation {redone.decision.generation} is decided; its key is {redone.key}."
            if redone.by_another:
                said += f" It was decided {redone.by_another}, and that decision stands."
            return _done(
                command,
                row,
                said,
                repeated=redone.repeated,
                send=_again(row, redone.key, command),
                new_key=redone.key,
            )

        return await self._about(command, work)

    def _would_redo(self, row: EffectRow) -> str:
        generation = row.generation + 1
        standing = self._journal.decision(origin=row.origin, scope=row.scope, name=row.name, generation=generation)
        if standing is None:
            return f"generation {generation} is decided and sent"
        return f"generation {generation} is sent, as it was decided {decided(standing)}"

    async def replay(self, key: str, *, by: str, reason: str, workflow_open: bool, dry_run: bool = False) -> Ruling:
        """Perform the same generation again: the original outcome, or the journaled bytes once more.

        `workflow_open` says whether the effect's own workflow runs: then it is the one that sends.

        Raises:
            InvalidCommand: who or why is missing.
        """
        command = Command(name=CommandName.REPLAY, key=key, by=by, reason=reason)

        async def work(row: EffectRow, repeated: bool) -> Ruling:
            if row.alarmed:
                return _refused(command, row, _ALARMED)
            if row.state.terminal:
                return _done(command, row, f"{_end(row)}. That is its outcome; nothing is sent.", repeated=repeated)
            if row.state is EffectState.IN_DOUBT:
                return _refused(command, row, "It is in doubt: nothing is sent. `resolve` it, with evidence.")
            if row.given_up:
                return _refused(command, row, "It has been given up: nothing more is sent. The sweep closes its key.")
            later = await asyncio.to_thread(self._journal.later, row)
            if later is not None:
                return _refused(
                    command, row, f"Generation {later.generation} has been decided: nothing of this one is sent."
                )
            how = "its workflow runs and is woken" if workflow_open else "an EffectCommand workflow performs it"
            if dry_run:
                return _would(command, row, f"the receipt is looked up, and only then the same bytes are sent: {how}")
            repeated = await self._record(command)
            send = None if workflow_open else _again(row, row.key, command)
            return _done(command, row, f"The receipt is looked up first: {how}.", repeated=repeated, send=send)

        return await self._about(command, work)

    async def release(self, key: str, *, by: str, reason: str, dry_run: bool = False) -> Ruling:
        """Give back what a committed reservation took, by a keyed effect of its own.

        Raises:
            InvalidCommand: who or why is missing.
        """
        command = Command(name=CommandName.RELEASE, key=key, by=by, reason=reason)

        async def work(row: EffectRow, repeated: bool) -> Ruling:
            if row.alarmed:
                return _refused(command, row, _ALARMED)
            reservation = await self._reservation(row)
            if reservation is None:
                return _refused(command, row, f"{_end(row)}: it holds no reservation to release.")
            own = await asyncio.to_thread(self._journal.release_of, row)
            if own is not None and own.state.terminal and await asyncio.to_thread(self._journal.later, own) is None:
                return _given_back(command, row, own, reservation, repeated=repeated)
            send = self._giving_back(command, row, own, reservation)
            if dry_run:
                return _would(command, row, f"{reservation} is released under {send.key}")
            repeated = await self._record(command)
            said = f"{reservation} is released by an effect of its own: {send.key}."
            return _done(command, row, said, repeated=repeated, send=send, new_key=send.key)

        return await self._about(command, work)

    def _giving_back(self, command: Command, row: EffectRow, own: EffectRow | None, reservation: str) -> ToSend:
        """What gives a reservation back: the release as it was journaled, where it has been begun."""
        if own is not None:
            return _again(own, own.key, command)
        name = keys.release_name(row.name, row.generation)
        effect = Effect(
            name=name,
            kind=f"{row.provider}.release",
            path={"id": reservation},
            request={},
            summary=f"release {reservation}",
        )
        key = keys.derive_key(row.origin, row.scope, name, 1)
        return ToSend(origin=row.origin, scope=row.scope, effect=effect, key=key, why=_why(command))

    async def accept(self, key: str, *, by: str, reason: str, dry_run: bool = False) -> Ruling:
        """Take responsibility for what stands: of a workflow that ended otherwise than Completed, or reported late.

        Raises:
            InvalidCommand: who or why is missing.
        """
        command = Command(name=CommandName.ACCEPT, key=key, by=by, reason=reason)

        async def work(row: EffectRow, repeated: bool) -> Ruling:
            if row.alarmed:
                if dry_run:
                    return _would(command, row, "the late report is believed: it counts as committed and unreleased")
                said = "The late report is believed: it counts as committed until it is released or written off."
                return await self._rule_late(command, row, RulingKind.BELIEVED, said, repeated=repeated)
            left = row.state is EffectState.COMMITTED and row.closed_as not in {None, "completed"}
            if row.accepted or (repeated and not left):
                return _done(command, row, f"{_end(row)}, and somebody has accepted it.", repeated=repeated)
            if row.state is not EffectState.COMMITTED:
                return _refused(command, row, f"{_end(row)}: there is nothing that stands.")
            if not left:
                known = "completed" if row.closed_as else "is open, or no sweep has looked"
                return _refused(command, row, f"Its workflow {known}: there is nothing to accept.")
            if dry_run:
                return _would(command, row, "it leaves the list of what ended workflows left standing")
            row = await asyncio.to_thread(self._journal.accept, command)
            return _done(command, row, "It stands, and is no longer listed.", repeated=repeated)

        return await self._about(command, work)

    async def adopt(
        self, key: str, *, scope: str, name: str, generation: int, by: str, reason: str, dry_run: bool = False
    ) -> Ruling:
        """Give a receipt without an intent its row: scope, name and generation must come out as its key.

        Raises:
            InvalidCommand: who or why is missing, or scope, name and generation make no key.
        """
        arguments = {"scope": scope, "name": name, "generation": str(generation)}
        command = Command(name=CommandName.ADOPT, key=key, by=by, reason=reason, arguments=arguments)
        try:
            named = keys.derive_key(self._origin, scope, name, generation)
        except InvalidEffect as error:
            raise InvalidCommand(f"{scope}/{name}, generation {generation}: {error}") from error
        row = await asyncio.to_thread(self._journal.effect, key)
        repeated = await asyncio.to_thread(self._journal.was_commanded, command)
        if row is not None:
            if repeated:
                return _done(command, row, f"{_end(row)}; it was adopted.", repeated=True)
            return _refused(command, row, "The journal has this effect: there is nothing to adopt.")
        if named != key:
            said = f"{scope}/{name}, generation {generation}, of origin {self._origin} has the key {named}."
            return _nobody(command, f"{said} Nothing was adopted.")
        answer = await self._provider.look_up(key)
        receipt = answer.receipt
        if receipt is None:
            return self._without_receipt(command, answer)
        intent = _intent_of(
            receipt, origin=self._origin, scope=scope, name=name, generation=generation, why=_why(command)
        )
        if intent is None:
            return _nobody(
                command, f"{receipt.receipt_id} says no request: it cannot be adopted. `write-off` closes it."
            )
        if dry_run:
            said = f"{receipt.receipt_id} becomes the receipt of {scope}/{name}, generation {generation}"
            return replace(_nobody(command, f"Would be done: {said}."), what=What.DONE, dry_run=True)
        try:
            observed = await asyncio.to_thread(self._journal.adopt, command, intent, answer)
        except FingerprintMismatch as error:
            return _nobody(command, str(error))
        return _ended(command, observed.row, wanted=TERMINAL, repeated=False)

    async def write_off(self, key: str, *, by: str, reason: str, dry_run: bool = False) -> Ruling:
        """Close what nobody will give back: an orphan, or what was reported late.

        Raises:
            InvalidCommand: who or why is missing.
        """
        command = Command(name=CommandName.WRITE_OFF, key=key, by=by, reason=reason)
        row = await asyncio.to_thread(self._journal.effect, key)
        repeated = await asyncio.to_thread(self._journal.was_commanded, command)
        if row is not None:
            self._require_own(row)
            if row.alarmed or await asyncio.to_thread(self._journal.believed, key) is not None:
                if dry_run:
                    return _would(command, row, "what was reported late is written off: it bars no redo")
                said = "What was reported late is written off."
                return await self._rule_late(command, row, RulingKind.WRITTEN_OFF, said, repeated=repeated)
            if repeated:
                return _done(command, row, "It was written off.", repeated=True)
            return _refused(command, row, f"{_end(row)}: what is written off is an orphan, or what was reported late.")
        if not repeated:
            answer = await self._provider.look_up(key)
            if answer.seen not in {Seen.RECEIPT, Seen.KEY_EXPIRED}:
                return self._without_receipt(command, answer)
            if dry_run:
                said = "Would be done: the orphan is written off; no audit lists it."
                return replace(_nobody(command, said), what=What.DONE, dry_run=True)
            repeated = await asyncio.to_thread(self._journal.write_off, command)
        return replace(_nobody(command, "The orphan is written off."), what=What.DONE, repeated=repeated)

    def _without_receipt(self, command: Command, answer: Answer) -> Ruling:
        if answer.seen is Seen.ABSENT:
            return _nobody(command, "Nobody knows this key: the journal has no effect, and the provider no receipt.")
        if answer.seen is Seen.KEY_EXPIRED:
            return _nobody(command, "Retention has taken the receipt: it cannot be adopted. `write-off` closes it.")
        said = f"The provider gave no usable answer ({answer.reason}). Nothing was changed. Repeat the same command."
        return replace(_nobody(command, said), what=What.UNCONFIRMED)

    async def _about(self, command: Command, work: Callable[[EffectRow, bool], Awaitable[Ruling]]) -> Ruling:
        """Do it about a row that is there, with whether it was commanded before."""
        row = await asyncio.to_thread(self._journal.effect, command.key)
        if row is None:
            return _nobody(command, "The journal has no such effect. `effects show` says whether it has a receipt.")
        self._require_own(row)
        return await work(row, await asyncio.to_thread(self._journal.was_commanded, command))

    def _require_own(self, row: EffectRow) -> None:
        if row.origin != self._origin:
            raise InvalidCommand(
                f"{row.key} is of origin {row.origin}, and this is {self._origin}. Nothing was changed. "
                "Set COUNTERFOIL_ORIGIN, and the tenant's token, to those of the effect."
            )

    async def _record(self, command: Command) -> bool:
        return await asyncio.to_thread(self._journal.commanded, command)

    async def _observe(self, row: EffectRow, answer: Answer) -> Observed:
        return await asyncio.to_thread(self._journal.observe, row.key, answer)

    async def _reservation(self, row: EffectRow) -> str | None:
        """What a committed effect reserved, also where that was reported late and is believed."""
        if not row.kind.endswith(".reserve"):
            return None
        if row.state is EffectState.COMMITTED and row.receipt is not None:
            return row.receipt.reservation_id
        believed = await asyncio.to_thread(self._journal.believed, row.key)
        return None if believed is None else believed.reservation_id


_ALARMED = (
    "It ended, and was then reported otherwise: a person says first which is true (`accept`, `write-off`, `resolve`)."
)
_NOTHING_DONE = frozenset({EffectState.REJECTED, EffectState.VOIDED})


def _end(row: EffectRow) -> str:
    if not row.state.terminal:
        return f"It is {row.state.replace('_', ' ')}"
    by = f" ({row.receipt.receipt_id})" if row.receipt else " (asserted by a person; no receipt says so)"
    return f"It ended {row.state}{by}"


def _ruling(command: Command, row: EffectRow, what: What, said: str, **more: object) -> Ruling:
    ruling = Ruling(
        key=row.key,
        command=command.name,
        what=what,
        state=row.state,
        said=said,
        receipt_id=row.receipt.receipt_id if row.receipt else None,
        workflow_id=row.workflow_id,
    )
    return replace(ruling, **more)  # type: ignore[arg-type]


def _done(command: Command, row: EffectRow, said: str, *, repeated: bool, **more: object) -> Ruling:
    return _ruling(command, row, What.DONE, said, repeated=repeated, **more)


def _refused(command: Command, row: EffectRow, why: str) -> Ruling:
    return _ruling(command, row, What.REFUSED, why)


def _would(command: Command, row: EffectRow, what: str) -> Ruling:
    return _ruling(command, row, What.DONE, f"Would be done: {what}.", dry_run=True)


def _ended(
    command: Command, row: EffectRow, *, wanted: frozenset[EffectState] | set[EffectState], repeated: bool
) -> Ruling:
    if row.state in wanted:
        return _done(command, row, f"{_end(row)}.", repeated=repeated)
    asked = " or ".join(sorted(wanted))
    return _ruling(command, row, What.REFUSED, f"{_end(row)}, and not {asked}; that is final.", repeated=repeated)


def _given_back(command: Command, row: EffectRow, own: EffectRow, reservation: str, *, repeated: bool) -> Ruling:
    if own.state is EffectState.COMMITTED:
        by = own.receipt.receipt_id if own.receipt else "asserted"
        return _done(command, row, f"{reservation} is released ({by}).", repeated=repeated, new_key=own.key)
    if own.receipt is not None and own.receipt.reason in BACK_ALREADY:
        said = f"{reservation} was back already when {own.key} came ({own.receipt.reason})."
        return _done(command, row, said, repeated=repeated, new_key=own.key)
    return _refused(command, row, f"Its release {own.key} ended {own.state}: look at that key, and redo it.")


def _unconfirmed(command: Command, row: EffectRow, answer: Answer, meanwhile: str, repeated: bool) -> Ruling:
    said = f"The provider gave no usable answer ({answer.reason}). {meanwhile} Repeat the same command."
    return _ruling(command, row, What.UNCONFIRMED, said, repeated=repeated)


def _nobody(command: Command, why: str) -> Ruling:
    return Ruling(key=command.key, command=command.name, what=What.REFUSED, state=None, said=why)


def _why(command: Command) -> dict[str, str]:
    return {"by": command.by, "reason": command.reason, "command": command.name.value}


def _again(row: EffectRow, key: str, command: Command) -> ToSend:
    request = json.loads(row.request)
    request.pop("reference", None)  # the engine's: each generation has its own
    effect = Effect(name=row.name, kind=row.kind, request=request, path=row.path, summary=f"{row.kind} {row.name}")
    return ToSend(origin=row.origin, scope=row.scope, effect=effect, key=key, why=_why(command))


def _intent_of(
    receipt: Receipt, *, origin: str, scope: str, name: str, generation: int, why: dict[str, str]
) -> Intent | None:
    """The intent that a receipt must have come from; None where it says no request of a kind that is known."""
    kind, request = receipt.body.get("kind"), receipt.body.get("request")
    if not isinstance(kind, str) or kind not in keys.DEFAULTS or not isinstance(request, dict):
        return None
    of_a_reservation = kind.endswith((".release", ".confirm")) and receipt.reservation_id is not None
    path = {"id": str(receipt.reservation_id)} if of_a_reservation else {}
    return Intent(
        origin=origin,
        scope=scope,
        name=name,
        generation=generation,
        kind=kind,
        provider=kind.partition(".")[0],
        path=path,
        request=keys.canonical(request).decode(),
        fingerprint=keys.fingerprint(kind, path, request),
        fingerprint_version=keys.FINGERPRINT_VERSION,
        supersedes=keys.former_keys(origin, scope, name, generation),
        decided_at=datetime.fromisoformat(receipt.created_at),
        why=why,
        workflow_id=scope,
        workflow_type="",
        first_run_id="",
    )
