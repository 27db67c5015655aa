"""The sweep: every unsettled effect of the journal is matched to its receipt, page by page.

It runs by a Schedule only, which a starting worker triggers.
"""

import itertools
from dataclasses import dataclass, field

from temporalio import workflow

from activities.contracts import PageRequest, ReconciliationActivities, Swept
from workflows import policies


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationInput:
    """Where the sweep goes on, and what it has done so far."""

    after_key: str = ""
    swept: Swept = field(default_factory=Swept)


@workflow.defn(name="Reconciliation")
class Reconciliation:
    """One sweep over all that is unsettled."""

    @workflow.run
    async def run(self, sweep: ReconciliationInput) -> Swept:
        """Sweep to the end of the journal; the result counts what was done."""
        after_key, swept = sweep.after_key, sweep.swept
        for number in itertools.count():
            if number == policies.SWEEP_PAGES_PER_RUN:
                workflow.continue_as_new(ReconciliationInput(after_key=after_key, swept=swept))
            page = await workflow.execute_activity_method(
                ReconciliationActivities.sweep_page,
                PageRequest(after_key=after_key),
                activity_id=f"page-{number}",
                start_to_close_timeout=policies.SWEEP_START_TO_CLOSE,
                heartbeat_timeout=policies.SWEEP_HEARTBEAT,
                retry_policy=policies.RETRY,
                summary=f"unsettled effects after {after_key or 'the first'}",
            )
            swept = swept.plus(page.swept)
            workflow.set_current_details(
                f"- looked at {swept.looked_at}\n- matched {swept.matched}\n- voided {swept.voided}\n"
                f"- owned by a live attempt {swept.owned}\n- waiting {swept.waiting}\n- unheard {swept.unheard}"
            )
            if page.next_after is None:
                break
            after_key = page.next_after
        return swept
