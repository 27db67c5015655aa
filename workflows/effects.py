"""The one module that workflow authors use: `EffectWorkflow` and its `perform`.

    @workflow.defn
    class Order(EffectWorkflow):
        @workflow.run
        async def run(self, order: OrderInput) -> str:
            self.act_for(origin=order.origin, why={"approved_by": order.approver})
            outcome = await self.perform(reserve("reserve-filter", {"FILTER-A": 2}))
            return outcome.state

What `perform` guarantees: one key, whatever happens to the workflow; it never ends over an effect whose outcome is
unknown; cancelled, it first forbids every further attempt, settles, and then raises `EffectCancelled` with the outcome.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError

from activities.contracts import (
    CommandActivities,
    CommandRequest,
    EffectActivities,
    InventoryActivities,
    Later,
    SettleRequest,
    Standing,
)
from services.effects.commands import SENDER, Command, CommandName, Ruling, ToSend
from services.effects.errors import FingerprintMismatch, InvalidCommand, InvalidEffect, NameUsedTwice
from services.effects.records import Effect, Intent, Outcome, decide
from services.effects.states import TERMINAL, EffectState
from workflows import policies, search_attributes
from workflows.reservations import confirm, failure, release, reserve

__all__ = [
    "EffectCancelled",
    "EffectWorkflow",
    "GiveUp",
    "Redo",
    "Resolve",
    "command_workflow_id",
    "confirm",
    "release",
    "reserve",
]

T = TypeVar("T")

UNHEARD = "its outcome is unknown; the activity tries on, and asks for the receipt before it sends again"

_ACTIVITIES: Mapping[str, Callable[..., Any]] = {
    "inventory.reserve": InventoryActivities.reserve,
    "inventory.confirm": InventoryActivities.confirm,
    "inventory.release": InventoryActivities.release,
}


def command_workflow_id(key: str) -> str:
    """The workflow that performs this key for a command: one at a time."""
    return f"effect-command-{key}"


class EffectCancelled(asyncio.CancelledError):
    """The workflow was cancelled and the effect is settled: compensate what is committed, then let this go on."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(f"{outcome.name} ended {outcome.state} before the cancellation")
        self.outcome = outcome


@dataclass(slots=True, kw_only=True)
class _Performance:
    """What one call of `perform` knows, for the queries and for itself."""

    effect: Effect
    intent: Intent
    asked_at: datetime
    state: EffectState = EffectState.PENDING
    outcome: Outcome | None = None
    given_up: str = ""
    waiting: str = "waiting for the inventory's receipt"
    rounds: int = 0
    alarmed: bool = False
    send_again: bool = True  # whether the last look at the row left room for another attempt
    unheard: asyncio.Task[None] | None = None
    unknown_since: datetime | None = None
    ended: bool = False

    def view(self) -> dict[str, Any]:
        """As the queries show it."""
        return {
            "key": self.intent.key,
            "name": self.intent.name,
            "kind": self.intent.kind,
            "summary": self.intent.summary,
            "request": json.loads(self.intent.request),
            "decided_at": self.intent.decided_at.isoformat(),
            "state": self.outcome.state if self.outcome else self.state,
            "replayed": self.outcome.replayed if self.outcome else None,
            "receipt_id": self.outcome.receipt.get("receipt_id") if self.outcome else None,
            "given_up": self.given_up or None,
            "waiting": None if self.ended else self.waiting,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """What the Update `give_up` says: of which effect (its name or its key), who, and why."""

    effect: str
    by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolve(GiveUp):
    """What the Update `resolve` says: how it ended, and on what that stands."""

    wanted: EffectState
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Redo(GiveUp):
    """What the Update `redo` says; over an end that was only asserted, a second person."""

    second: str = ""


# What every command has beside its arguments.
_WORD = frozenset({"effect", "by", "reason"})


class EffectWorkflow:
    """Base of every workflow that performs effects: `perform`, the queries, the signal and what the UI shows."""

    def __init__(self) -> None:
        self._origin = ""
        self._scope = ""
        self._why: dict[str, str] = {}
        self._performed: dict[str, _Performance] = {}
        self._journal: list[dict[str, Any]] = []
        self._settled: list[str] = []
        self._woken = 0
        self._commands = 0
        self._shows_soon = False

    def act_for(self, *, origin: str, scope: str | None = None, why: Mapping[str, str] | None = None) -> None:
        """Say for which deployment and business identity this run acts, and why: before the first `perform`.

        Args:
            origin: the deployment, from the workflow's input.
            scope: the business identity; the workflow id by default. Once said, it stays.
            why: the decision's body: who approved what. Later calls add to it.
        """
        self._origin = origin
        self._scope = scope or self._scope or workflow.info().workflow_id
        self._why |= dict(why or {})

    def note(self, kind: str, **body: Any) -> None:
        """Add a line to what the `journal` query shows."""
        self._journal.append({"at": workflow.now().isoformat(), "kind": kind, **body})

    async def perform(self, effect: Effect) -> Outcome:
        """Perform an effect, once, and answer how it ended.

        Raises:
            ApplicationError: the effect cannot be keyed, its name was used twice in this run, or its key stands for
                another payload. Its type says which (`services.effects.errors`).
            EffectCancelled: the workflow was cancelled; the effect is settled and the outcome is with the error.
        """
        performance = self._open(effect)
        driver = asyncio.create_task(self._drive(performance))
        # No `finally` here: it would also run when a run leaves a worker's cache, outside of any workflow.
        try:
            outcome = await asyncio.shield(driver)
        except asyncio.CancelledError as cancellation:
            performance.given_up = "the workflow was cancelled"
            self._show_soon()
            outcome = await _whatever_comes(self._abandon(performance, driver))
            raise EffectCancelled(outcome) from cancellation
        except ApplicationError:
            self._close(performance)
            raise
        self._close(performance)
        return outcome

    def _open(self, effect: Effect) -> _Performance:
        if not self._origin:
            raise failure(InvalidEffect("perform was called before act_for(origin=...): no key can be made."))
        if effect.kind not in _ACTIVITIES:
            raise failure(InvalidEffect(f"No activity performs {effect.kind!r:.80}."))
        if effect.name in self._performed:
            raise failure(
                NameUsedTwice(
                    f"The name {effect.name!r} was used twice in one run. The second effect was not performed; the "
                    "first one stands. Give each effect a name of its own, in a loop too."
                )
            )
        try:
            intent = self._intend(effect)
            performance = _Performance(effect=effect, intent=intent, asked_at=workflow.now())
            self.note("intent", key=intent.key, name=intent.name, request=json.loads(intent.request))
        except InvalidEffect as error:
            raise failure(error) from error
        self._performed[effect.name] = performance
        performance.unheard = asyncio.create_task(self._unheard(performance))
        self._show_soon()
        return performance

    def _intend(self, effect: Effect, later: Later | None = None) -> Intent:
        info = workflow.info()
        return decide(
            effect,
            origin=self._origin,
            scope=self._scope,
            decided_at=later.decided_at if later else workflow.now(),
            why=self._why,
            workflow_id=info.workflow_id,
            workflow_type=info.workflow_type,
            first_run_id=info.first_execution_run_id,
            generation=later.generation if later else 1,
        )

    def _go_on_with(self, performance: _Performance, later: Later) -> None:
        """A person has decided a later generation: that is the one to perform and to answer for."""
        performance.intent = self._intend(performance.effect, later)
        performance.state = EffectState.PENDING
        performance.send_again = True
        self.note("redo", key=performance.intent.key, name=performance.intent.name, generation=later.generation)
        self._show_soon()

    def _close(self, performance: _Performance) -> None:
        performance.ended = True
        performance.unknown_since = None
        if performance.unheard is not None:
            performance.unheard.cancel()
        outcome = performance.outcome
        if outcome is not None:
            self.note(
                "observation",
                key=outcome.key,
                name=outcome.name,
                state=outcome.state,
                replayed=outcome.replayed,
                receipt_id=outcome.receipt.get("receipt_id"),
            )
            receipt_id = outcome.receipt.get("receipt_id")
            self._settled.append(f"- {performance.intent.summary} (`{outcome.key}`): {outcome.state}, {receipt_id}")
        self._show()

    async def _drive(self, performance: _Performance) -> Outcome:
        """Attempt, settle, pause, until the row is terminal and may be answered; given up, leave that to `_abandon`."""
        pause = policies.FIRST_PAUSE
        while True:
            woken = self._woken
            standing = await self._attempt(performance)
            concluded = standing is not None and (standing.outcome is not None or standing.later is not None)
            if not concluded and not performance.given_up:
                standing = await self._settle(performance)
            if standing is not None and standing.outcome is not None:
                return self._answer(performance, standing.outcome)
            if standing is not None and standing.later is not None:
                self._go_on_with(performance, standing.later)
                continue
            if performance.given_up:
                raise asyncio.CancelledError
            await self._pause(pause.total_seconds(), woken)
            # Only a person or the sweep can go on, and both wake us: in doubt for a month, the history stays small.
            longest = policies.LONGEST_PAUSE if performance.send_again else policies.LONGEST_WAIT
            pause = min(pause * 2, longest)

    async def _abandon(self, performance: _Performance, driver: asyncio.Task[Outcome]) -> Outcome:
        """Give up beside whatever attempt is under way; end it when the row is terminal.

        Awaiting the activity's own cancellation first would let Temporal report "cancelled" over a committed effect.
        """
        try:
            outcome = await self._given_up(performance)
        except ApplicationError:
            await self._end(performance, driver)
            raise
        await self._end(performance, driver)
        return outcome

    async def _given_up(self, performance: _Performance) -> Outcome:
        pause = policies.FIRST_PAUSE
        while True:
            woken = self._woken
            standing = await self._settle(performance)
            if standing is not None and standing.outcome is not None:
                return self._answer(performance, standing.outcome)
            if standing is not None and standing.later is not None:
                self._go_on_with(performance, standing.later)
                continue
            await self._pause(pause.total_seconds(), woken)
            pause = min(pause * 2, policies.LONGEST_WAIT)

    async def _end(self, performance: _Performance, driver: asyncio.Task[Outcome]) -> None:
        driver.cancel()
        await workflow.wait([driver])
        self._close(performance)

    async def _attempt(self, performance: _Performance) -> Standing | None:
        intent = performance.intent
        left = policies.schedule_to_close(intent.decided_at, workflow.now())
        if left is None or performance.given_up or not performance.send_again:
            return None
        performance.rounds += 1
        try:
            standing: Standing = await workflow.execute_activity_method(
                _ACTIVITIES[intent.kind],
                intent,
                activity_id=f"{intent.name}#{performance.rounds}",
                schedule_to_close_timeout=left,
                start_to_close_timeout=policies.START_TO_CLOSE,
                heartbeat_timeout=policies.HEARTBEAT,
                retry_policy=policies.RETRY,
                summary=f"{intent.summary} - {intent.key}",
            )
        except ActivityError as error:
            self._unknown(performance, f"the attempt failed ({_cause(error)}): the receipt is looked up next")
            return None
        return standing

    async def _settle(self, performance: _Performance) -> Standing | None:
        """How the row stands; None where settling itself failed for good: that ends nothing and is tried again."""
        intent = performance.intent
        performance.rounds += 1
        try:
            standing = await workflow.execute_activity_method(
                EffectActivities.settle,
                SettleRequest(intent=intent, given_up=performance.given_up),
                activity_id=f"{intent.name}#{performance.rounds}.settle",
                start_to_close_timeout=policies.START_TO_CLOSE,
                heartbeat_timeout=policies.HEARTBEAT,
                retry_policy=policies.RETRY,
                summary=f"settle {intent.summary} - {intent.key}",
            )
        except ActivityError as error:
            self._unknown(performance, f"settling failed ({_cause(error)}): it is tried again")
            return None
        performance.state = standing.state
        performance.alarmed = standing.alarmed
        performance.send_again = standing.send_again
        if standing.later is not None:
            return standing
        if standing.mismatch and standing.state.terminal:
            raise failure(FingerprintMismatch(standing.mismatch))
        if standing.outcome is None:
            self._unknown(performance, standing.mismatch or standing.waiting)
        return standing

    async def _pause(self, seconds: float, woken: int) -> None:
        """Wait, or go on at once when somebody has settled something since `woken` was read."""
        try:
            await workflow.wait_condition(
                lambda: self._woken > woken, timeout=seconds, timeout_summary="ask again, unless woken before"
            )
        except TimeoutError:
            return

    def _answer(self, performance: _Performance, outcome: Outcome) -> Outcome:
        performance.outcome = outcome.since(performance.asked_at)
        return performance.outcome

    def _unknown(self, performance: _Performance, waiting: str, *, since: datetime | None = None) -> None:
        if performance.unknown_since is not None and performance.waiting == waiting:
            return
        performance.unknown_since = performance.unknown_since or since or workflow.now()
        performance.waiting = waiting
        self._show_soon()

    async def _unheard(self, performance: _Performance) -> None:
        """Say that the outcome is unknown while the activity still retries, of which a workflow hears nothing.

        Its timer starts and ends with workflow tasks that there are anyway.
        """
        await workflow.sleep(policies.UNHEARD_AFTER, summary=f"unknown if not heard of: {performance.intent.key}")
        if performance.unknown_since is None:
            self._unknown(performance, UNHEARD, since=performance.intent.decided_at)

    def _show_soon(self) -> None:
        """Show it once for all that happens in this step: a hundred effects opened together are one change."""

        def show() -> None:
            if self._shows_soon:
                self._show()

        if not self._shows_soon:
            self._shows_soon = True
            asyncio.get_running_loop().call_soon(show)

    def _show(self) -> None:
        """Mirror what is unsettled into search attributes, memo and current details."""
        self._shows_soon = False
        unsettled = [performance for performance in self._performed.values() if not performance.ended]
        unknown = [performance.unknown_since for performance in unsettled if performance.unknown_since]
        workflow.upsert_search_attributes(
            search_attributes.updates(
                states=[
                    search_attributes.ALARM if performance.alarmed else performance.state for performance in unsettled
                ],
                keys=[performance.intent.key for performance in unsettled],
                unknown_since=min(unknown, default=None),
            )
        )
        lines = [
            f"- {performance.intent.summary} (`{performance.intent.key}`): {performance.state} since "
            f"{performance.intent.decided_at:%Y-%m-%d %H:%M:%S} UTC; "
            f"{'given up, ' if performance.given_up else ''}{performance.waiting}"
            for performance in unsettled
        ]
        lines += self._settled
        workflow.upsert_memo({"effects": search_attributes.fitting_lines(lines)})
        workflow.set_current_details("\n".join(lines))

    @workflow.query(name="journal", description="Decisions, intents and observations of this run, in order")
    def journal(self) -> list[dict[str, Any]]:
        """What this run has journaled."""
        return self._journal

    @workflow.query(name="pending", description="Effects of this run whose outcome is not known yet, and why")
    def pending(self) -> list[dict[str, Any]]:
        """The unsettled effects."""
        return [performance.view() for performance in self._performed.values() if not performance.ended]

    @workflow.query(name="effect", description="One effect of this run, by its name or its key")
    def effect(self, name: str) -> dict[str, Any] | None:
        """One effect, or null."""
        for performance in self._performed.values():
            if name in {performance.intent.name, performance.intent.key}:
                return performance.view()
        return None

    @workflow.update(name="give_up", description="Send nothing more of an effect of this run, and close its key")
    async def give_up(self, word: GiveUp) -> Ruling:
        """Give an effect up; what owns its key then is its end."""
        return await self._command(CommandName.GIVE_UP, word)

    @give_up.validator
    def _check_give_up(self, word: GiveUp) -> None:
        self._checked(CommandName.GIVE_UP, word)

    @workflow.update(name="resolve", description="Say how an effect of this run ended, with evidence")
    async def resolve(self, word: Resolve) -> Ruling:
        """Resolve an effect: the provider is asked, and its receipt decides."""
        return await self._command(CommandName.RESOLVE, word)

    @resolve.validator
    def _check_resolve(self, word: Resolve) -> None:
        self._checked(CommandName.RESOLVE, word)
        if word.wanted not in TERMINAL:
            raise InvalidCommand(f"An effect is resolved to committed, rejected or voided, not to {word.wanted}.")

    @workflow.update(name="redo", description="Decide and perform the next generation of an effect of this run")
    async def redo(self, word: Redo) -> Ruling:
        """Redo an effect that has ended and does not stand."""
        return await self._command(CommandName.REDO, word)

    @redo.validator
    def _check_redo(self, word: Redo) -> None:
        self._checked(CommandName.REDO, word)

    def _checked(self, name: CommandName, word: GiveUp) -> CommandRequest:
        """A person's word as a command about one effect of this run."""
        keys = {p.intent.name: (p.intent.key, *p.intent.supersedes) for p in self._performed.values()}
        # A key stays what it was, also after a redo of it: the same word again is the same command.
        found = next((word.effect for of_one in keys.values() if word.effect in of_one), None)
        key = found or keys.get(word.effect, ("",))[0]
        if not key:
            raise failure(InvalidCommand(f"This run has no effect {word.effect!r:.140}. Nothing was changed."))
        said = {field.name: str(getattr(word, field.name)) for field in fields(word)}
        arguments = {what: text for what, text in said.items() if what not in _WORD and (text or what != "second")}
        try:
            command = Command(name=name, key=key, by=word.by, reason=word.reason, arguments=arguments)
        except InvalidCommand as error:
            raise failure(error) from error
        return CommandRequest(
            name=name, key=command.key, by=command.by, reason=command.reason, arguments=dict(command.arguments)
        )

    async def _command(self, name: CommandName, word: GiveUp) -> Ruling:
        request = self._checked(name, word)
        self._commands += 1
        ruling: Ruling = await workflow.execute_activity_method(
            CommandActivities.command,
            request,
            activity_id=f"{name}#{self._commands}",
            start_to_close_timeout=policies.START_TO_CLOSE,
            heartbeat_timeout=policies.HEARTBEAT,
            retry_policy=policies.RETRY,
            summary=f"{name} {request.key} for {request.by}",
        )
        self.note("command", command=name, key=request.key, by=request.by, what=ruling.what, said=ruling.said)
        if ruling.send is not None:
            await _send_beside(ruling.send)
        self._woken += 1
        return ruling

    @workflow.signal(name="wake", description="Somebody has settled an effect: look at the journal now")
    def wake(self) -> None:
        """End the pause that `perform` may be in."""
        self._woken += 1


async def _send_beside(send: ToSend) -> None:
    """Let another workflow perform what this run has an answer for already; it outlives this one."""
    try:
        await workflow.start_child_workflow(
            SENDER,
            send,
            id=command_workflow_id(send.key),
            parent_close_policy=workflow.ParentClosePolicy.ABANDON,
            task_timeout=policies.TASK_TIMEOUT,
            static_summary=f"{send.why.get('command', 'command')}: {send.effect.summary}",
        )
    except WorkflowAlreadyStartedError:
        return  # it performs this key already


def _cause(error: ActivityError) -> str:
    cause = error.cause
    return f"{cause.type}: {cause.message}" if isinstance(cause, ApplicationError) else str(cause or error)


async def _whatever_comes(coroutine: Coroutine[Any, Any, T]) -> T:
    """Await something to its end through any number of cancellations."""
    task = asyncio.create_task(coroutine)
    while True:
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.done():
                return task.result()
