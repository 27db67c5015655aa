"""Every time-out and retry policy of the workflows, with the reason for each number.

From SIGKILL to settled takes about 13 s with Temporal's defaults. These settings and the server's
`history.timerProcessorMaxTimeShift` bring it to about a second.
"""

from datetime import datetime, timedelta

from temporalio.common import RetryPolicy

from activities.contracts import SEND_DEADLINE_SECONDS
from services.effects.settle import MARGIN, SEND_WINDOW

# A workflow task is milliseconds of pure code; a worker killed inside one is noticed after this.
TASK_TIMEOUT = timedelta(seconds=1)
# A dead worker's sticky queue is given up after this (Temporal's default: 10 s).
STICKY_SCHEDULE_TO_START = timedelta(seconds=0.3)

# Under 1 s, heartbeats of a busy worker come late and living attempts are taken for dead.
HEARTBEAT = timedelta(seconds=1)
# Above a send's total deadline, else a shutdown would cut it.
DRAIN = timedelta(seconds=5)
# Look-up, mark, send and observation, each at its own limit, fit into this.
START_TO_CLOSE = timedelta(seconds=12)

# No attempt limit: an effect is tried until it is settled or its send window is over.
RETRY = RetryPolicy(
    initial_interval=timedelta(seconds=0.1), backoff_coefficient=2.0, maximum_interval=timedelta(seconds=5)
)

# A send has come to its end before this: from here on an effect without an outcome is shown as unknown.
UNHEARD_AFTER = timedelta(seconds=SEND_DEADLINE_SECONDS + 1)

# Between two rounds of `perform`, when an activity has failed for good.
FIRST_PAUSE = timedelta(seconds=5)
LONGEST_PAUSE = timedelta(minutes=5)
# Where nothing may be sent again. At five minutes an effect in doubt would fill its history (51,200 events) in weeks.
LONGEST_WAIT = timedelta(hours=1)

SWEEP_EVERY = timedelta(seconds=60)
SWEEP_START_TO_CLOSE = timedelta(seconds=60)
SWEEP_HEARTBEAT = timedelta(seconds=5)
SWEEP_PAGES_PER_RUN = 50
# A thousand effects a minute; the next sweep goes on there. One that somebody asks for waits for no more than that.
FOLLOWED_PAGES_PER_SWEEP = 16


def schedule_to_close(decided_at: datetime, now: datetime) -> timedelta | None:
    """How long an effect's activity may go on; None when nothing may be sent any more.

    The journal's own window, which is never longer, decides about each send; this only bounds the activity.
    """
    left = decided_at + SEND_WINDOW + MARGIN - now
    return left if left > timedelta(0) else None
