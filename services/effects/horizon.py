"""How far back a provider has to remember: retention against the recovery horizon, and what is too old to be asked for.

- A provider that forgets receipts says of a forgotten key what it says of one that was never used: nothing. From then
  on an absence permits no send and no void: a person decides.
- An effect's receipt is never older than its decision. What was decided longer ago than the retention, less the margin
  between two clocks, counts as forgotten.
- The recovery horizon is the longest time after a decision at which somebody may still ask. A retention below it is
  refused when a process starts, not when an effect is lost.
"""

from datetime import datetime, timedelta

# A weekend and the Monday on which somebody looks.
LONGEST_OUTAGE = timedelta(hours=72)
# Nothing is sent until both halves have been compared and a named person releases it: a working week and its weekend.
LONGEST_HOLD = timedelta(days=7)
# The oldest copy of a database that anybody may put back; an effect that only the provider has is asked for by it.
OLDEST_COPY = timedelta(days=30)


def recovery_horizon(send_window: timedelta, margin: timedelta) -> timedelta:
    """The longest time after its decision that an effect may be asked for.

    It is sent until its window is over, which is as long as a workflow needs the provider for it; then all that can
    keep its outcome unknown comes in turn: an outage, a hold, a journal that is put back; and clocks differ.
    """
    return send_window + LONGEST_OUTAGE + LONGEST_HOLD + OLDEST_COPY + margin


def forgotten(decided_at: datetime, at: datetime | None, *, retention: timedelta | None, margin: timedelta) -> bool:
    """Whether a receipt of something decided then may have been forgotten by now.

    Args:
        decided_at: no receipt of it is older.
        at: now, by the clock of whoever concludes from it; None where a provider did not say: that proves nothing.
        retention: how long the provider keeps receipts; None: for ever.
        margin: how far two clocks may differ.
    """
    if retention is None:
        return False
    return at is None or at > decided_at + retention - margin
