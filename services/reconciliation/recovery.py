"""Recovery of one effect: ask for the receipt, close the key where the rules say so, answer what the row says then.

- The row exists and is locked by the journal before the provider is asked, so that a frozen attempt cannot insert it.
- "Absent" is no answer: it permits the same key again, or a void whose answer settles.
- What is answered is what the journal's own guarded update left in the row, never what was remembered.
- Nothing is sent from here: a void and a look-up move nothing.
"""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from services.effects.provider import Provider
from services.effects.records import Answer, Attempt, EffectRow
from services.effects.settle import Next
from services.journal.store import Journal, Observed

# After a send's total deadline and this, an attempt that is not heard of owns nothing any more.
OWNERSHIP_SLACK = timedelta(seconds=1)


async def recover(
    journal: Journal, provider: Provider, row: EffectRow, *, heard: Answer | None = None, may_void: bool = True
) -> tuple[Observed, Answer]:
    """Look an unsettled effect's receipt up, and void its key where `settle` says so.

    Args:
        journal: where the row is.
        provider: whom to ask.
        row: an unsettled row of this journal.
        heard: what a look-up has answered just now, after the row was read; without it, the provider is asked.
        may_void: False where the caller has no say over the key.

    Returns:
        The row after the journal's last update, with what follows; and the provider's last answer.
    """
    answer = heard or await provider.look_up(row.key)
    observed = await asyncio.to_thread(journal.observe, row.key, answer)
    if may_void and observed.settlement.next is Next.VOID:
        answer = await provider.void(row.key)
        observed = await asyncio.to_thread(journal.observe, row.key, answer)
    return observed, answer


def unheard(attempts: tuple[Attempt, ...]) -> Attempt | None:
    """The newest attempt, if nobody has heard an answer to it."""
    return attempts[-1] if attempts and attempts[-1].seen is None else None


def owned(
    attempts: tuple[Attempt, ...],
    *,
    now: datetime,
    send_deadline: timedelta,
    provably_dead: Callable[[dict[str, str | int]], bool],
) -> bool:
    """Whether a live attempt may be at work on a row: its newest mark is fresh and its worker not provably dead.

    Ownership is politeness, and lasts seconds whatever the clocks say: safety comes from the unique key and void.
    """
    newest = unheard(attempts)
    if newest is None:
        return False
    owned_for = send_deadline + OWNERSHIP_SLACK
    # A mark from the future is another clock's, or one from before this clock was put back: it says nothing of now.
    fresh = abs(now - newest.marked_at) < owned_for
    return fresh and not provably_dead(newest.worker)
