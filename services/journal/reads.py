"""What the journal can be asked: every method is one read transaction, a single snapshot.

The methods block: call them from a thread.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from services.database import at_one_moment, reading
from services.effects.keys import release_name
from services.effects.records import Attempt, EffectRow, Outcome, OutcomeState, Seen, Source
from services.effects.states import EffectState
from services.journal import rows
from services.journal.fold import Snapshot, WrittenEntry
from services.journal.rows import Decision, Entry
from services.journal.statements import EFFECT, EFFECT_LOCKED, EFFECTS_RELATED, ENTRIES_OF_KEY, HIGHEST_DECIDED
from services.journal.tables import DECISIONS, EFFECTS, ENTRIES, JOURNAL, LEFT, WATCHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """From one time on, and up to before another; None sets no limit."""

    since: datetime | None = None
    until: datetime | None = None


ALWAYS: Final = Period()


class JournalReads:
    """The reading half of a journal.

    Args:
        engine: from `services.database.open_engine`, at this build's schema.
        send_window: how long after its decision an effect may be sent.
    """

    def __init__(self, engine: sa.Engine, *, send_window: timedelta) -> None:
        self._engine = engine
        self._window = send_window

    def journal_id(self) -> str:
        """The journal's 128 random bits, hex."""
        with reading(self._engine) as connection:
            return str(connection.execute(sa.select(JOURNAL.c.id)).scalar_one())

    def effect(self, key: str) -> EffectRow | None:
        """One effect, or None."""
        with reading(self._engine) as connection:
            return self._read(connection, key)

    def attempts(self, key: str) -> tuple[Attempt, ...]:
        """Every mark of a key, in order, with what was last seen of it."""
        return fold_attempts(self.entries(key))

    def entries(self, key: str) -> tuple[Entry, ...]:
        """Everything recorded of a key, in order."""
        with reading(self._engine) as connection:
            return self._entries(connection, key)

    def all_entries(self, *, after_id: int = 0, limit: int = 1000) -> tuple[Entry, ...]:
        """A page of the whole journal, in order."""
        statement = sa.select(ENTRIES).where(ENTRIES.c.id > after_id).order_by(ENTRIES.c.id).limit(limit)
        with reading(self._engine) as connection:
            return tuple(rows.entry(row) for row in connection.execute(statement).mappings())

    def marking_workers(self, *, after_id: int, limit: int = 1000) -> tuple[list[dict[str, str | int]], int]:
        """Whose attempts were marked in the newest entries after one, and the newest entry's id.

        A mark that cannot be read names nobody: entries stay for ever, and no worker could start any more.
        """
        newest = sa.select(ENTRIES.c.id, ENTRIES.c.kind, ENTRIES.c.body).where(ENTRIES.c.id > after_id)
        with reading(self._engine) as connection:
            found = connection.execute(newest.order_by(ENTRIES.c.id.desc()).limit(limit)).all()
        marking = (_worker(body) for _, kind, body in found if kind == "attempt")
        return [worker for worker in marking if worker is not None], found[0].id if found else after_id

    def effects(
        self,
        *,
        states: tuple[EffectState, ...] = (),
        scope: str | None = None,
        after_key: str = "",
        limit: int = 1000,
    ) -> tuple[EffectRow, ...]:
        """A page of effects by key, of the states and the scope asked for."""
        statement = sa.select(EFFECTS).where(EFFECTS.c.key > after_key)
        if states:
            statement = statement.where(EFFECTS.c.state.in_(states))
        if scope is not None:
            statement = statement.where(EFFECTS.c.scope == scope)
        return self._page(statement, limit)

    def unsettled(self, *, after_key: str = "", limit: int = 500) -> tuple[EffectRow, ...]:
        """A page of what is pending or in doubt, by key."""
        statement = sa.select(EFFECTS).where(EFFECTS.c.settled_at.is_(None), EFFECTS.c.key > after_key)
        return self._page(statement, limit)

    def listed(
        self,
        *,
        states: tuple[EffectState, ...] = (),
        scope: str | None = None,
        recorded: Period = ALWAYS,
        limit: int = 100,
    ) -> tuple[EffectRow, ...]:
        """The effects as a person wants them: what is unsettled first, the oldest on top; then the newest settled."""
        unsettled = EFFECTS.c.settled_at.is_(None)
        statement = sa.select(EFFECTS).order_by(
            unsettled.desc(), sa.case((unsettled, EFFECTS.c.created_at)), EFFECTS.c.settled_at.desc()
        )
        if states:
            statement = statement.where(EFFECTS.c.state.in_(states))
        return self._page(_narrowed(statement, scope, recorded), limit)

    def watched(self, *, after_key: str = "", limit: int = 500) -> tuple[EffectRow, ...]:
        """A page of committed effects, by key, whose workflow is open, or ended otherwise than Completed.

        None that is released or accepted, no releases and no confirmations.
        """
        return self._page(_standing(WATCHED).where(EFFECTS.c.key > after_key), limit)

    def left_standing(
        self, *, scope: str | None = None, recorded: Period = ALWAYS, after_key: str = "", limit: int = 500
    ) -> tuple[EffectRow, ...]:
        """A page of those whose workflow ended otherwise than Completed: somebody releases or accepts them."""
        statement = _standing(LEFT).where(EFFECTS.c.key > after_key)
        return self._page(_narrowed(statement, scope, recorded), limit)

    def alarmed(
        self, *, scope: str | None = None, recorded: Period = ALWAYS, after_key: str = "", limit: int = 500
    ) -> tuple[EffectRow, ...]:
        """A page of effects with a late observation that nobody has dealt with, by key."""
        statement = sa.select(EFFECTS).where(EFFECTS.c.alarmed.is_(True), EFFECTS.c.key > after_key)
        return self._page(_narrowed(statement, scope, recorded), limit)

    def counts(self) -> dict[EffectState, int]:
        """How many effects are in each state."""
        statement = sa.select(EFFECTS.c.state, sa.func.count()).group_by(EFFECTS.c.state)
        with reading(self._engine) as connection:
            return {EffectState(state): count for state, count in connection.execute(statement)}

    def snapshot(self) -> Snapshot:
        """The whole journal at one moment, as it was written; nothing in it is interpreted."""
        with reading(self._engine) as connection:
            at_one_moment(connection)
            effects = connection.execute(sa.select(EFFECTS).order_by(EFFECTS.c.key)).mappings()
            entries = connection.execute(sa.select(ENTRIES).order_by(ENTRIES.c.id)).mappings()
            return Snapshot(
                effects=tuple(dict(row) for row in effects), entries=tuple(WrittenEntry(**row) for row in entries)
            )

    def decision(self, *, origin: str, scope: str, name: str, generation: int = 1) -> Decision | None:
        """The decision that stands, or None."""
        with reading(self._engine) as connection:
            return self._standing(connection, origin, scope, name, generation)

    def decisions(self, *, origin: str, scope: str) -> tuple[Decision, ...]:
        """Every decision of a scope, by when it was taken."""
        statement = (
            sa.select(DECISIONS)
            .where(DECISIONS.c.origin == origin, DECISIONS.c.scope == scope)
            .order_by(DECISIONS.c.recorded_at, DECISIONS.c.name, DECISIONS.c.generation)
        )
        with reading(self._engine) as connection:
            return tuple(rows.decision(row) for row in connection.execute(statement).mappings())

    def outcome(self, key: str) -> Outcome | None:
        """How an effect ended, or None while that may not be answered yet.

        Nothing is answered while the effect is unsettled, while a late observation on its name is undealt with, or
        while its release is under way: it may turn out to be given back.
        """
        row = self.effect(key)
        return None if row is None else self.outcome_of(row)

    def outcome_of(self, row: EffectRow) -> Outcome | None:
        """How an effect ended whose row has just been read, as `outcome` says it; a settled row does not change."""
        with reading(self._engine) as connection:
            return self._answer(connection, row)

    def _answer(self, connection: sa.Connection, row: EffectRow) -> Outcome | None:
        if row.settled_at is None:
            return None
        related = self._related(connection, row)
        if any(other.alarmed for other in related if other.name == row.name):
            return None
        state, asserted = OutcomeState(row.state), row.asserted
        if row.state is EffectState.COMMITTED:
            releases = [other for other in related if other.name != row.name]
            if any(not release.state.terminal for release in releases):
                return None
            given_back = [release for release in releases if release.state is EffectState.COMMITTED]
            if given_back:
                state, by_word = OutcomeState.RELEASED, all(release.asserted for release in given_back)
                asserted = asserted or by_word
        return Outcome(
            name=row.name,
            key=row.key,
            state=state,
            receipt={} if row.receipt is None else row.receipt.body,
            replayed=False,
            settled_at=row.settled_at,
            decided_at=row.decided_at,
            generation=row.generation,
            asserted=asserted,
        )

    def later(self, row: EffectRow) -> Decision | None:
        """The decision of the highest generation of an effect, where that is a later one than this row's."""
        with reading(self._engine) as connection:
            return self._later(connection, row)

    def _later(self, connection: sa.Connection, row: EffectRow) -> Decision | None:
        of = {"of_origin": row.origin, "of_scope": row.scope, "of_name": row.name}
        generation = connection.execute(HIGHEST_DECIDED, of).scalar_one()
        if generation is None or generation <= row.generation:
            return None
        return self._standing(connection, row.origin, row.scope, row.name, generation)

    def _related(self, connection: sa.Connection, row: EffectRow) -> tuple[EffectRow, ...]:
        """Every generation of the effect, and of its release."""
        release = release_name(row.name, row.generation)
        of = {"of_origin": row.origin, "of_scope": row.scope, "of_name": row.name, "of_release": release}
        return tuple(self._row(found) for found in connection.execute(EFFECTS_RELATED, of).mappings())

    def _standing(
        self, connection: sa.Connection, origin: str, scope: str, name: str, generation: int
    ) -> Decision | None:
        statement = sa.select(DECISIONS).where(
            DECISIONS.c.origin == origin,
            DECISIONS.c.scope == scope,
            DECISIONS.c.name == name,
            DECISIONS.c.generation == generation,
        )
        found = connection.execute(statement).mappings().first()
        return None if found is None else rows.decision(found)

    def _read(self, connection: sa.Connection, key: str, *, lock: bool = False) -> EffectRow | None:
        found = connection.execute(EFFECT_LOCKED if lock else EFFECT, {"of_key": key}).mappings().first()
        return None if found is None else self._row(found)

    def _row(self, found: sa.RowMapping | Mapping[str, Any]) -> EffectRow:
        return rows.effect_row(found, self._window)

    def _entries(self, connection: sa.Connection, key: str) -> tuple[Entry, ...]:
        return tuple(rows.entry(row) for row in connection.execute(ENTRIES_OF_KEY, {"of_key": key}).mappings())

    def _page(self, statement: sa.Select[Any], limit: int) -> tuple[EffectRow, ...]:
        with reading(self._engine) as connection:
            found = connection.execute(statement.order_by(EFFECTS.c.key).limit(limit)).mappings()
            return tuple(self._row(row) for row in found)


def _narrowed(statement: sa.Select[Any], scope: str | None, recorded: Period) -> sa.Select[Any]:
    """Only this scope's, and only those whose intent was recorded then."""
    if scope is not None:
        statement = statement.where(EFFECTS.c.scope == scope)
    if recorded.since is not None:
        statement = statement.where(EFFECTS.c.created_at >= recorded.since)
    if recorded.until is not None:
        statement = statement.where(EFFECTS.c.created_at < recorded.until)
    return statement


_RELEASE = EFFECTS.alias("release")


def _standing(of: sa.ColumnElement[bool]) -> sa.Select[Any]:
    return sa.select(EFFECTS).where(
        of,
        EFFECTS.c.kind.not_like("%.release"),
        EFFECTS.c.kind.not_like("%.confirm"),
        ~sa.exists().where(
            _RELEASE.c.origin == EFFECTS.c.origin,
            _RELEASE.c.scope == EFFECTS.c.scope,
            _RELEASE.c.name == EFFECTS.c.name + ".g" + sa.cast(EFFECTS.c.generation, sa.String) + ".release",
            _RELEASE.c.state == "committed",
        ),
    )


def fold_attempts(entries: tuple[Entry, ...]) -> tuple[Attempt, ...]:
    """Every mark of a key, in order, with what was last seen of it, from the entries of that key."""
    return tuple(_marks(entries))


def _worker(body: str) -> dict[str, str | int] | None:
    try:
        worker = json.loads(body)["worker"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return None
    whole = isinstance(worker, dict) and all(isinstance(value, str | int) for value in worker.values())
    return worker if whole else None


def _marks(entries: tuple[Entry, ...]) -> Iterator[Attempt]:
    seen = {
        entry.body["attempt_id"]: Seen(entry.body["seen"])
        for entry in entries
        if entry.kind == "observation" and "attempt_id" in entry.body and entry.body["source"] == Source.SEND
    }
    for entry in entries:
        if entry.kind == "attempt":
            body = entry.body
            yield Attempt(
                attempt_id=body["attempt_id"],
                number=body["number"],
                not_after=datetime.fromisoformat(body["not_after"]),
                marked_at=entry.recorded_at,
                worker=body["worker"],
                task_token=body["task_token"],
                seen=seen.get(body["attempt_id"]),
            )
