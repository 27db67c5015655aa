"""What may be concluded from an answer: the one pure decision of the effect protocol.

    settle(row, attempts, answer) -> Settlement

- Only a receipt or a tombstone settles. "Not found" never means failed and never permits a new key.
- Nothing is sent again but after an absence, and then under the same key with the same bytes.
- Time settles nothing: a passed deadline permits a void, and the void's answer settles.
- What is older than the provider's retention is neither sent nor voided, whatever else would permit it.
- Nothing is sent after giving up, under an alarm, or after a question that went unanswered: the receipt comes first.
- A state once terminal stays; a later answer that contradicts it is a late observation.
- An answer that contradicts the intent itself never voids: a person decides.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, assert_never

from services.effects.horizon import forgotten
from services.effects.records import Answer, Attempt, EffectRow, Receipt, Seen, requested
from services.effects.states import EffectState, agree

# How long after its decision an effect may be sent. A day: an outage over night ends before its effects are voided, and
# a person sees them within a working day.
SEND_WINDOW = timedelta(hours=24)
# The provider's clock and ours may differ by half of it; the other half is for the packet that is under way.
MARGIN = timedelta(minutes=5)


# Kinds whose path names the reservation that they are about.
OF_A_RESERVATION = frozenset({"inventory.confirm", "inventory.release"})


class Next(StrEnum):
    """What is to be done next about an effect."""

    DONE = "done"
    LOOK_UP = "look_up"  # ask for the receipt
    SEND = "send"  # the same key and the same bytes again; only a workflow's activity does that
    VOID = "void"  # close the key, and take what owns it then
    WAIT = "wait"  # a person decides, or a receipt turns up


class AttemptClass(StrEnum):
    """What is known about whether an effect was sent."""

    UNKNOWN = "unknown"  # sent, or perhaps sent
    NOTHING_DONE = "nothing_done"  # every attempt on record provably did nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """What an answer does to an effect.

    Attributes:
        state: the state that the row is to move to; its own when nothing changes.
        alarm: what a person has to be told, or None.
        late: the answer contradicts a settled row: it is recorded and blocks a redo until a person has dealt with it.
        predecessor: a former generation's receipt that its own row contradicts: a late observation there.
        forgotten: the provider may have dropped the receipt: that it has none proves nothing.
    """

    state: EffectState
    next: Next
    attempt_class: AttemptClass
    alarm: str | None = None
    late: bool = False
    predecessor: Receipt | None = None
    forgotten: bool = False


# This delivery did nothing; what an earlier one did is not said.
DID_NOTHING = frozenset(
    {Seen.NOT_SENT, Seen.BUSY, Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED, Seen.CREDENTIALS_REFUSED}
)


def fold(attempts: Iterable[Attempt]) -> AttemptClass:
    """The class of an effect over all its attempts.

    No attempt on record proves nothing: marks may have been lost with an older copy of the journal.
    """
    seen = [attempt.seen for attempt in attempts]
    return AttemptClass.NOTHING_DONE if seen and DID_NOTHING.issuperset(seen) else AttemptClass.UNKNOWN


def mismatch(row: EffectRow, receipt: Receipt) -> str | None:
    """Why a receipt is not this effect's, or None when it is.

    A tombstone matches by key alone; it stands for no payload. What was done must match the intent in its fingerprint,
    what was granted must be what was asked for, and a reservation that the intent names must be the receipt's.
    """
    if receipt.key != row.key:
        return f"the receipt {receipt.receipt_id} is for key {receipt.key}"
    if receipt.outcome is EffectState.VOIDED:
        return None
    if receipt.fingerprint != row.fingerprint:
        return (
            f"the receipt {receipt.receipt_id} is for another payload: {_text(receipt.body.get('request'))} instead of "
            f"{row.request}"
        )
    if receipt.outcome is not EffectState.COMMITTED:
        return None
    if row.kind in OF_A_RESERVATION and receipt.reservation_id != row.path.get("id"):
        return f"the receipt {receipt.receipt_id} is for {receipt.reservation_id} instead of {row.path.get('id')}"
    asked = requested(json.loads(row.request))
    if asked is None:  # the reservation's own lines, and all of each
        asked = receipt.totals("requested")
    if receipt.totals("requested") != asked or receipt.totals("granted") != asked:
        return f"the receipt {receipt.receipt_id} grants {receipt.body.get('lines')} instead of {asked}"
    return None


def _text(request: Any) -> str:
    """As the journal writes requests, so that a person sees what differs; the provider's may be any JSON."""
    return json.dumps(request, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def settle(
    row: EffectRow,
    attempts: Iterable[Attempt],
    answer: Answer,
    *,
    margin: timedelta = MARGIN,
    retention: timedelta | None = None,
) -> Settlement:
    """Decide what an answer means for an effect.

    Args:
        row: the effect as the journal has it.
        attempts: every attempt on record, with what was seen of each.
        answer: what one exchange with the provider showed.
        margin: how far the provider's clock must be past the deadline before it counts as passed.
        retention: how long the provider keeps receipts; None: for ever.
    """
    attempts = tuple(attempts)
    known = fold(attempts)
    if row.state.terminal:
        return _after_settlement(row, known, answer)
    state, step, alarm, predecessor = row.state, Next.LOOK_UP, None, None
    dropped = answer.seen is Seen.KEY_EXPIRED
    match answer.seen:
        case Seen.RECEIPT:
            state, step, alarm = _by_receipt(row, answer)
            if state.terminal and answer.predecessor is not None:
                predecessor, alarm = _by_predecessor(row, answer.predecessor)
        case Seen.ABSENT if forgotten(row.decided_at, answer.observed_at, retention=retention, margin=margin):
            state, step = EffectState.IN_DOUBT, Next.WAIT
            alarm = "it is older than the provider's retention: that there is no receipt proves nothing"
            dropped = True
        case Seen.ABSENT:
            step = _on_absence(row, attempts, answer, margin)
        case Seen.CREDENTIALS_REFUSED:
            step, alarm = Next.LOOK_UP, f"the provider refuses our credentials: {answer.reason}"
        case Seen.UNKNOWN | Seen.NOT_SENT | Seen.BUSY | Seen.DEADLINE_REFUSED | Seen.REQUEST_REFUSED:
            step = Next.LOOK_UP
        case Seen.KEY_REUSED:
            state, step = EffectState.IN_DOUBT, Next.WAIT
            alarm = f"the provider holds another payload under this key: {answer.reason}; ours is {row.request}"
        case Seen.KEY_EXPIRED:
            state, step = EffectState.IN_DOUBT, Next.WAIT
            alarm = "the provider has dropped this key's receipt: it cannot be asked and must not be sent again"
        case _:
            assert_never(answer.seen)
    if state is EffectState.IN_DOUBT or (row.alarmed and step in {Next.SEND, Next.VOID}):
        step = Next.WAIT
    return Settlement(
        state=state, next=step, attempt_class=known, alarm=alarm, predecessor=predecessor, forgotten=dropped
    )


def _by_receipt(row: EffectRow, answer: Answer) -> tuple[EffectState, Next, str | None]:
    receipt = answer.receipt
    problem = "an answer without its receipt" if receipt is None else mismatch(row, receipt)
    if receipt is None or problem is not None:
        return EffectState.IN_DOUBT, Next.WAIT, problem
    return receipt.outcome, Next.DONE, None


def _by_predecessor(row: EffectRow, receipt: Receipt) -> tuple[Receipt | None, str]:
    refused = f"generation {row.generation} was refused: "
    if receipt.key in row.supersedes and receipt.outcome is EffectState.COMMITTED:
        return receipt, f"{refused}{receipt.receipt_id} of a former one is committed"
    return None, f"{refused}it names {receipt!r}, which is no committed former generation"


def _on_absence(row: EffectRow, attempts: tuple[Attempt, ...], answer: Answer, margin: timedelta) -> Next:
    if row.given_up:
        return Next.VOID
    if any(attempt.seen in {Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED} for attempt in attempts):
        return Next.VOID
    if answer.observed_at is not None and answer.observed_at > row.deadline + margin:
        return Next.VOID
    return Next.SEND


def _after_settlement(row: EffectRow, known: AttemptClass, answer: Answer) -> Settlement:
    late, alarm = False, None
    receipt = answer.receipt
    if answer.seen is Seen.RECEIPT and receipt is not None:
        problem = mismatch(row, receipt)
        twice = row.receipt is not None and receipt.receipt_id != row.receipt.receipt_id
        contradicts = row.state is EffectState.COMMITTED and (twice or problem is not None)
        late = contradicts or receipt.key != row.key or not agree(row.state, receipt.outcome)
        if late:
            alarm = f"settled as {row.state}, and now {receipt!r} is reported" + (f": {problem}" if problem else "")
    elif answer.seen is Seen.KEY_REUSED:
        alarm = f"settled as {row.state}, and now the provider holds another payload: {answer.reason}"
    return Settlement(state=row.state, next=Next.DONE, attempt_class=known, alarm=alarm, late=late)
