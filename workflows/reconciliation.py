"""The sweep: every unsettled effect of the journal is matched to its receipt, page by page.

Then it looks at how the workflows of committed effects ended: some pages in each sweep, going on where the last one
stopped. It runs by a Schedule only, which a starting worker triggers. A page that fails is repeated, and a run that has
done many goes on as a new one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio import workflow

from activities.contracts import Page, PageRequest, ReconciliationActivities, Swept
from workflows import policies


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationInput:
    """Where the sweep goes on, and what it has done so far."""

    after_key: str = ""
    swept: Swept = field(default_factory=Swept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What a sweep did.

    Attributes:
        followed_to: the key after which the next sweep goes on with the workflows; empty: it begins at the first one.
    """

    swept: Swept = field(default_factory=Swept)
    followed_to: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a sweep is.

    Attributes:
        part: what it is at: the effects, or the workflows of committed ones.
        after_key: the last key that is done.
        swept: what it has done so far.
    """

    part: str
    after_key: str
    swept: Swept


@workflow.defn(name="Reconciliation")
class Reconciliation:
    """One sweep over all that is unsettled."""

    def __init__(self) -> None:
        self._pages = 0
        self._progress = Progress(part="effects", after_key="", swept=Swept())

    @workflow.run
    async def run(self, sweep: ReconciliationInput) -> Reconciled:
        """Sweep to the end of the journal; the result counts what was done."""
        after_key: str | None = sweep.after_key
        swept = sweep.swept
        while after_key is not None:
            if self._pages == policies.SWEEP_PAGES_PER_RUN:
                workflow.continue_as_new(ReconciliationInput(after_key=after_key, swept=swept))
            self._say("effects", after_key, swept)
            what = f"unsettled effects after {after_key or 'the first'}"
            page = await self._page(ReconciliationActivities.sweep_page, after_key, what)
            swept, after_key = swept.plus(page.swept), page.next_after
        done = Reconciled(swept=swept)
        if workflow.patched("follow-workflows"):
            done = await self._follow(swept)
        self._say("done", "", done.swept)
        return done

    async def _follow(self, swept: Swept) -> Reconciled:
        """Look at the workflows of some pages of committed effects, beginning where the last sweep stopped."""
        last = workflow.get_last_completion_result(Reconciled) if workflow.has_last_completion_result() else None
        after_key: str | None = last.followed_to if last else ""
        for _ in range(policies.FOLLOWED_PAGES_PER_SWEEP):
            self._say("workflows", after_key or "", swept)
            what = f"workflows of committed effects after {after_key or 'the first'}"
            page = await self._page(ReconciliationActivities.follow_page, after_key or "", what)
            swept, after_key = swept.plus(page.swept), page.next_after
            if after_key is None:
                break
        return Reconciled(swept=swept, followed_to=after_key or "")

    async def _page(self, activity: Callable[..., Any], after_key: str, what: str) -> Page:
        page: Page = await workflow.execute_activity_method(
            activity,
            PageRequest(after_key=after_key),
            activity_id=f"page-{self._pages}",
            start_to_close_timeout=policies.SWEEP_START_TO_CLOSE,
            heartbeat_timeout=policies.SWEEP_HEARTBEAT,
            retry_policy=policies.RETRY,
            summary=what,
        )
        self._pages += 1
        return page

    def _say(self, part: str, after_key: str, swept: Swept) -> None:
        self._progress = Progress(part=part, after_key=after_key, swept=swept)
        workflow.set_current_details(
            f"- looked at {swept.looked_at}\n- matched {swept.matched}\n- voided {swept.voided}\n"
            f"- owned by a live attempt {swept.owned}\n- waiting {swept.waiting}\n- unheard {swept.unheard}\n"
            f"- workflows of {swept.followed} committed effects looked at, {swept.left} newly left standing"
        )

    @workflow.query(name="progress", description="How far this sweep is, and what it has done so far")
    def progress(self) -> Progress:
        """What it is at, and its counts."""
        return self._progress
