"""One attempt of an effect: mark, gate, send, observe; the receipt first wherever something was interrupted.

new key        decision, intent and mark in one transaction -> send -> observe
known key      settled: the journal answers
               else look the receipt up; found: observe, send nothing
               absent: the next mark -> the same bytes again
"""

import asyncio
import uuid
from collections.abc import Callable

from activities.contracts import Later, Standing
from services.effects.errors import HeldBack, NotSent, OutcomeUnknown
from services.effects.provider import Provider
from services.effects.records import Answer, EffectRow, Intent, Mark, Outcome, Seen
from services.effects.settle import Next
from services.effects.states import EffectState
from services.journal.rows import Decision
from services.journal.store import Begun, Journal, Observed

# No effect of a busy or refusing provider is asked for more often than this.
LEAST_PAUSE_SECONDS = 0.5
# Credentials are mended by a person.
REFUSED_PAUSE_SECONDS = 5.0
# From this many marks on the pause doubles, to a minute: all marks of a key are read for each of its decisions, under
# SQLite's one write lock, and two of them a second for a day would leave no room for anybody else.
PATIENT_MARKS = 10
LONGEST_PAUSE_SECONDS = 60.0


class Attempts:
    """How one worker process attempts effects.

    Args:
        journal: authorises each send.
        provider: where the effects happen.
        worker: this process's identity, kept with every mark.
    """

    def __init__(self, journal: Journal, provider: Provider, worker: dict[str, str | int]) -> None:
        self._journal = journal
        self._provider = provider
        self._worker = worker

    async def run(self, intent: Intent, *, task_token: str) -> Standing:
        """Attempt an effect once.

        Returns:
            How it stands; with an outcome when it is settled.

        Raises:
            FingerprintMismatch: the key stands for another payload.
            OutcomeUnknown: sent or perhaps sent; try again, and the receipt is looked up first.
            NotSent: nothing left this process; try again.
            HeldBack: the provider asked for a pause or refused our credentials.
        """

        def mark() -> Mark:
            return Mark(attempt_id=uuid.uuid4().hex, task_token=task_token, worker=self._worker)

        begun = await asyncio.to_thread(self._journal.begin, intent, mark())
        if begun.later is not None and begun.row.state.terminal:
            return Standing(key=begun.row.key, state=begun.row.state, later=later_of(begun.later))
        if begun.attempt is None and not begun.row.state.terminal:
            begun = await self._after_interruption(intent, begun.row, mark)
        if begun.attempt is None:
            return await standing_of(self._journal, begun.row, waiting=f"nothing is sent: {begun.refused}")
        answer = await self._provider.send(begun.row, begun.attempt)
        observed = await asyncio.to_thread(
            self._journal.observe, begun.row.key, answer, attempt_id=begun.attempt.attempt_id
        )
        raise_if_retryable(observed, answer)
        return standing(observed.row, observed.outcome, waiting=answer.reason)

    async def _after_interruption(self, intent: Intent, row: EffectRow, mark: Callable[[], Mark]) -> Begun:
        """A mark exists already, or recovery made the row: the receipt is asked for before anything is sent."""
        answer = await self._provider.look_up(row.key)
        observed = await asyncio.to_thread(self._journal.observe, row.key, answer)
        if observed.settlement.next is Next.SEND:
            return await asyncio.to_thread(self._journal.mark, intent, mark())
        raise_if_retryable(observed, answer)
        return Begun(row=observed.row, refused=f"next comes {observed.settlement.next} ({answer.reason})")


def later_of(decision: Decision) -> Later:
    """A redo's decision, as an activity answers it."""
    return Later(generation=decision.generation, decided_at=decision.decided_at)


async def standing_of(journal: Journal, row: EffectRow, *, waiting: str) -> Standing:
    """How a row stands, as an activity answers it; what may be answered is read from the journal."""
    outcome = await asyncio.to_thread(journal.outcome_of, row) if row.state.terminal else None
    return standing(row, outcome, waiting=waiting)


def standing(row: EffectRow, outcome: Outcome | None, *, waiting: str) -> Standing:
    """How a row stands, as an activity answers it."""
    if row.state.terminal and outcome is None:
        waiting = "settled, but its release is under way or a late observation waits for a person"
    if row.state is EffectState.IN_DOUBT:
        waiting = f"in doubt, a person decides: `counterfoil effects show {row.key}`"
    return Standing(
        key=row.key, state=row.state, outcome=outcome, waiting="" if outcome else waiting, alarmed=row.alarmed
    )


def least_pause(marks: int) -> float:
    """How long an effect with so many marks waits before the next, whatever the provider asks for."""
    doublings = min(max(0, marks - PATIENT_MARKS), 10)
    return min(LEAST_PAUSE_SECONDS * 2.0**doublings, LONGEST_PAUSE_SECONDS)


def raise_if_retryable(observed: Observed, answer: Answer) -> None:
    """Ask Temporal for another try where the answer was no conclusion."""
    if observed.row.state is not EffectState.PENDING or observed.settlement.next is not Next.LOOK_UP:
        return
    key = observed.row.key
    match answer.seen:
        case Seen.UNKNOWN:
            raise OutcomeUnknown(
                f"{key}: {answer.source} ended without a usable answer ({answer.reason}). Nothing is lost: the "
                "receipt is looked up next, and nothing is sent before that."
            )
        case Seen.NOT_SENT:
            raise NotSent(f"{key}: this attempt sent nothing ({answer.reason}). The same key is tried again.")
        case Seen.BUSY | Seen.CREDENTIALS_REFUSED:
            least = REFUSED_PAUSE_SECONDS if answer.seen is Seen.CREDENTIALS_REFUSED else 0.0
            pause = max(answer.retry_after_seconds or 0.0, least_pause(observed.row.attempts), least)
            raise HeldBack(
                f"{key}: the inventory did nothing ({answer.reason}). The same key is tried again.",
                retry_after_seconds=pause,
            )
        case _:
            return
