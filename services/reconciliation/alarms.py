"""What a person has to be told: every worker reads it for itself, from the journal and, of stuck workflows, Temporal.

- An alarm is a reading, not an event: it is there as long as its reason is, whoever raised it and whoever has restarted
  since. Nothing is settled, sent or concluded here.
- All ages are by the journal's own times and clock.
- A workflow that has not taken an effect that is settled is told once more, before anybody is alarmed.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

from temporalio.client import Client
from temporalio.service import RPCError

from services.effect_commands import wake
from services.effects.records import EffectRow
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal
from workflows.search_attributes import EFFECT_KEY

# A signal that was lost; `perform` asks by itself after an hour at the latest.
WAKE_AFTER: Final = timedelta(minutes=5)
# Workflows that are looked at in one look, the longest-running ones of those with pending effects.
WAITING_LIMIT: Final = 1000
_PAGE: Final = 500


class AlarmKind(StrEnum):
    """What is wrong."""

    # No rule can settle it: a person does.
    IN_DOUBT = "in_doubt"
    # A report contradicts what is settled, and nobody has dealt with it.
    LATE_OBSERVATION = "late_observation"
    # Committed, and its workflow ended otherwise than completed: nobody has released or accepted it.
    CLOSED_OTHERWISE = "closed_otherwise"
    # Pending for longer than anybody should wait unasked.
    UNKNOWN_TOO_LONG = "unknown_too_long"
    # Settled long ago, and its workflow runs on without having taken it.
    STUCK_WORKFLOW = "stuck_workflow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """One reason to look, with the effect it is about.

    Attributes:
        since: by the journal's clock.
        said: for people, with what to do.
    """

    kind: AlarmKind
    key: str
    scope: str
    name: str
    workflow_id: str
    since: datetime
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What one look has found.

    Attributes:
        counts: effects by state, every state.
        oldest_unknown_seconds: the age of the oldest effect that is pending or in doubt; 0 where there is none.
    """

    counts: Mapping[EffectState, int]
    oldest_unknown_seconds: float
    alarms: tuple[Alarm, ...]


class Lookout:
    """One worker's look at what is wrong.

    Args:
        journal: whose effects.
        client: connected to Temporal.
        unknown_after: how long an effect may be pending, and a settled one untaken, before somebody is told.
        clock: the journal's clock; aware UTC.
    """

    def __init__(
        self,
        journal: OperatorJournal,
        client: Client,
        *,
        unknown_after: timedelta,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._journal = journal
        self._client = client
        self._unknown_after = unknown_after
        self._clock = clock
        self._woken: set[tuple[str, str]] = set()
        self._stuck: list[Alarm] = []

    async def look(self) -> Readings:
        """Read it all; while Temporal cannot be asked, what was stuck before is stuck."""
        readings = await asyncio.to_thread(self._read)
        with suppress(RPCError):
            self._stuck = await self._find_stuck()
        return replace(readings, alarms=(*readings.alarms, *self._stuck))

    def _read(self) -> Readings:
        now = self._clock()
        oldest = now
        found: list[Alarm] = []
        for row in _all(self._journal.unsettled):
            oldest = min(oldest, row.created_at)
            found += self._of_unsettled(row, now)
        found += [*self._late(), *self._left()]
        counts = self._journal.counts()
        return Readings(
            counts={state: counts.get(state, 0) for state in EffectState},
            oldest_unknown_seconds=(now - oldest).total_seconds(),
            alarms=tuple(found),
        )

    def _of_unsettled(self, row: EffectRow, now: datetime) -> Iterator[Alarm]:
        if row.state is EffectState.IN_DOUBT:
            yield _alarm(AlarmKind.IN_DOUBT, row, row.created_at, "no rule can settle it: effects resolve")
        elif now - row.created_at >= self._unknown_after:
            said = "its outcome is unknown: see that its workflow and the provider are there, or effects give-up"
            yield _alarm(AlarmKind.UNKNOWN_TOO_LONG, row, row.created_at, said)

    def _late(self) -> Iterator[Alarm]:
        for row in _all(self._journal.alarmed):
            said = f"settled as {row.state}, and a later report contradicts it: effects show says which"
            yield _alarm(AlarmKind.LATE_OBSERVATION, row, row.settled_at or row.created_at, said)

    def _left(self) -> Iterator[Alarm]:
        for row in _all(self._journal.left_standing):
            said = f"committed, and its workflow was {row.closed_as}: effects release, or effects accept"
            yield _alarm(AlarmKind.CLOSED_OTHERWISE, row, row.settled_at or row.created_at, said)

    async def _find_stuck(self) -> list[Alarm]:
        """What is settled and has not been taken by a workflow that runs."""
        now = self._clock()
        patience = min(self._unknown_after, WAKE_AFTER)
        untaken = [
            # Whoever waits is told and named: the row may be another workflow's, which a command has had send it.
            replace(row, workflow_id=waiting)
            for waiting, key in await self._awaited()
            if (row := await asyncio.to_thread(self._untaken, key))
        ]
        late = [(row, now - row.settled_at) for row in untaken if row.settled_at is not None]
        for row, waited in late:
            if waited >= patience and (row.workflow_id, row.key) not in self._woken:
                await self._wake(row)
        self._woken &= {(row.workflow_id, row.key) for row in untaken}
        return [
            _alarm(
                AlarmKind.STUCK_WORKFLOW,
                row,
                row.settled_at or row.created_at,
                f"settled as {row.state}, and workflow {row.workflow_id} runs on without having taken it: look at its "
                "workflow task in Temporal",
            )
            for row, waited in late
            if waited >= self._unknown_after
        ]

    async def _awaited(self) -> list[tuple[str, str]]:
        """Which running workflows wait for which keys, as they say themselves."""
        waiting = self._client.list_workflows("PendingEffects > 0 AND ExecutionStatus = 'Running'", limit=WAITING_LIMIT)
        return [(run.id, key) async for run in waiting for key in run.typed_search_attributes.get(EFFECT_KEY) or ()]

    def _untaken(self, key: str) -> EffectRow | None:
        """The row of an effect that could be taken; None where it is another journal's, or there is nothing to take."""
        row = self._journal.effect(key)
        if row is None or not row.state.terminal or self._journal.later(row) is not None:
            return None
        return None if self._journal.outcome_of(row) is None else row

    async def _wake(self, row: EffectRow) -> None:
        self._woken.add((row.workflow_id, row.key))
        await wake(self._client, row.workflow_id)


def _all(read: Callable[..., tuple[EffectRow, ...]]) -> Iterator[EffectRow]:
    """Every row of a reading by pages."""
    after_key = ""
    while page := read(after_key=after_key, limit=_PAGE):
        yield from page
        after_key = page[-1].key


def _alarm(kind: AlarmKind, row: EffectRow, since: datetime, said: str) -> Alarm:
    return Alarm(
        kind=kind, key=row.key, scope=row.scope, name=row.name, workflow_id=row.workflow_id, since=since, said=said
    )
