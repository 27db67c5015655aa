"""Random lives of effects: whatever is asked in whatever order, each row is the fold of its entries."""

from datetime import timedelta
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from services.database import open_engine
from services.effects.commands import LATE_RULINGS, Command, CommandName, RulingKind
from services.effects.errors import FingerprintMismatch
from services.effects.records import Answer, EffectRow, Intent, Seen, Source
from services.effects.settle import AttemptClass
from services.effects.settle import fold as attempt_class
from services.effects.states import MOVES, TERMINAL, EffectState
from services.journal.operator import OperatorJournal, Refused
from services.journal.rows import Decision, Entry
from services.journal.store import Begun
from tests.services.effects.halves import DECIDED_AT, WINDOW, make_intent, make_mark, make_receipt, make_release
from tests.services.journal.conftest import Clock, NewJournal
from tests.services.journal.folding import as_folded, digest, fold

INTENTS = (
    make_intent(),
    make_intent(generation=2),
    make_intent(generation=3),
    make_release(),
    make_intent(name="reserve-pump"),
)
intents = st.sampled_from(INTENTS)
offsets = st.integers(-3, 3).map(lambda hours: timedelta(hours=hours))


class Lives(RuleBasedStateMachine):
    """Every method of the store, on a handful of effects that share names and generations."""

    new_journal: ClassVar[NewJournal]

    def __init__(self) -> None:
        super().__init__()
        self.engine = open_engine(type(self).new_journal())
        self.clock = Clock()
        self.journal = OperatorJournal(self.engine, recorded_by="test", clock=self.clock)
        self.rows: dict[str, EffectRow] = {}
        self.entries: tuple[Entry, ...] = ()
        self.decisions: dict[tuple[str, int], Decision] = {}
        self.marks = 0

    def teardown(self) -> None:
        """Let go of the database."""
        self.engine.dispose()

    def _asked(self, intent: Intent, offset: timedelta) -> Intent:
        return make_intent(
            name=intent.name,
            generation=intent.generation,
            kind=intent.kind,
            request={} if intent.path else None,
            path=intent.path,
            decided_at=DECIDED_AT + offset,
        )

    def _forbidden(self, intent: Intent) -> bool:
        row = self.rows.get(intent.key)
        higher = any(name == intent.name and generation > intent.generation for name, generation in self.decisions)
        alarmed = any(other.alarmed for other in self.rows.values() if other.name == intent.name)
        return higher or alarmed or (row is not None and (row.given_up or row.state is not EffectState.PENDING))

    def _check(self, begun: Begun, *, allowed: bool) -> None:
        assert (begun.attempt is not None) == allowed == (not begun.refused)
        if begun.attempt is not None:
            assert begun.attempt.not_after == begun.row.decided_at + WINDOW <= begun.row.deadline

    @rule(intent=intents, offset=offsets)
    def begin(self, intent: Intent, offset: timedelta) -> None:
        """The first mark is for whoever makes the row."""
        self.marks += 1
        allowed = intent.key not in self.rows and not self._forbidden(intent)
        begun = self.journal.begin(self._asked(intent, offset), make_mark(f"attempt-{self.marks}"))
        self._check(begun, allowed=allowed)

    @rule(intent=intents, offset=offsets, again=st.integers(0, 5))
    def mark(self, intent: Intent, offset: timedelta, again: int) -> None:
        """A later mark is refused exactly when something forbids another send, or it is the same attempt's."""
        self.marks += again != 0
        attempt_id = f"attempt-{self.marks}"
        known = {mark.attempt_id for mark in self.journal.attempts(intent.key)}
        allowed = attempt_id not in known and not self._forbidden(intent)
        self._check(self.journal.mark(self._asked(intent, offset), make_mark(attempt_id)), allowed=allowed)

    @rule(intent=intents, offset=offsets)
    def own(self, intent: Intent, offset: timedelta) -> None:
        """Recovery makes sure that there is a row."""
        row = self.journal.own(self._asked(intent, offset))
        assert row.born_by == ("recovery" if intent.key not in self.rows else self.rows[intent.key].born_by)

    @rule(intent=intents, offset=offsets)
    def give_up(self, intent: Intent, offset: timedelta) -> None:
        """No mark after it; nothing when it is settled."""
        row = self.journal.give_up(self._asked(intent, offset), why="cancelled")
        assert row.given_up or row.state.terminal

    @rule(intent=intents)
    def ask_for_another_payload(self, intent: Intent) -> None:
        """Refused wherever the key stands, and nothing is recorded."""
        other = make_intent(
            name=intent.name, generation=intent.generation, kind=intent.kind, path=intent.path, request={"lines": []}
        )
        if intent.key in self.rows:
            for ask in (self.journal.own, lambda asked: self.journal.begin(asked, make_mark("x"))):
                with pytest.raises(FingerprintMismatch):
                    ask(other)

    @rule(
        intent=intents,
        seen=st.sampled_from(Seen) | st.just(Seen.RECEIPT),
        source=st.sampled_from(Source),
        outcome=st.sampled_from(sorted(TERMINAL)),
        reason=st.sampled_from(["", "timeout", "refused"]),
        number=st.integers(0, 3),
        stranger=st.integers(0, 9),
        former=st.booleans(),
    )
    def observe(
        self,
        *,
        intent: Intent,
        seen: Seen,
        source: Source,
        outcome: EffectState,
        reason: str,
        number: int,
        stranger: int,
        former: bool,
    ) -> None:
        """The store answers what its own row says."""
        receipt = predecessor = None
        if seen is Seen.RECEIPT:
            receipt = make_receipt(INTENTS[-1] if stranger == 0 else intent, outcome)
            if former and intent.supersedes and outcome is EffectState.REJECTED:
                predecessor = make_receipt(INTENTS[0])
        answer = Answer(
            seen=seen, source=source, reason=reason, receipt=receipt, predecessor=predecessor, observed_at=self.clock()
        )
        if intent.key not in self.rows:
            with pytest.raises(LookupError):
                self.journal.observe(intent.key, answer)
            return
        attempts = self.journal.attempts(intent.key)
        attempt_id = attempts[number].attempt_id if number < len(attempts) else None
        observed = self.journal.observe(intent.key, answer, attempt_id=attempt_id)
        assert observed.row == self.journal.effect(intent.key)
        assert observed.settlement.state is observed.row.state
        after = attempt_class(self.journal.attempts(intent.key))
        if observed.settlement.attempt_class is AttemptClass.NOTHING_DONE:
            assert after is AttemptClass.NOTHING_DONE, "what was concluded is what is on record"

    @rule(intent=intents, offset=offsets)
    def decide(self, intent: Intent, offset: timedelta) -> None:
        """The first decision stands."""
        place = (intent.name, intent.generation)
        decision, mine = self.journal.record_decision(
            origin="demo",
            scope=intent.scope,
            name=intent.name,
            generation=intent.generation,
            decided_at=DECIDED_AT + offset,
            body={"by": str(offset)},
        )
        assert mine == (place not in self.decisions)
        assert decision == self.decisions.get(place, decision)

    @rule(intent=intents, by=st.sampled_from(["ada", "bob"]), name=st.sampled_from(CommandName))
    def command(self, intent: Intent, by: str, name: CommandName) -> None:
        """A person asks; who asks twice is in the journal once."""
        if intent.key in self.rows:
            asked = Command(name=name, key=intent.key, by=by, reason="drawn")
            assert self.journal.commanded(asked) <= (self.journal.was_commanded(asked))

    @rule(intent=intents, state=st.sampled_from(sorted(TERMINAL)))
    def assert_end(self, intent: Intent, state: EffectState) -> None:
        """The first end stands, a person's as well."""
        if intent.key in self.rows:
            row = self.journal.assert_end(self._word(CommandName.RESOLVE, intent), state)
            assert row.state is (self.rows[intent.key].state if self.rows[intent.key].state.terminal else state)

    @rule(intent=intents, ruling=st.sampled_from(sorted(LATE_RULINGS)))
    def rule_late(self, intent: Intent, ruling: RulingKind) -> None:
        """No alarm is left on the row, or nothing was there to rule on that this word had not been said of."""
        if intent.key in self.rows:
            before = self.journal.effect(intent.key)
            try:
                assert not self.journal.rule_late(self._word(CommandName.ACCEPT, intent), ruling).alarmed
            except Refused:
                assert self.journal.effect(intent.key) == before

    @rule(intent=intents, closed_as=st.sampled_from(["completed", "terminated", None]))
    def close(self, intent: Intent, closed_as: str | None) -> None:
        """Its workflow has ended, or runs again."""
        if intent.key in self.rows:
            self.journal.closed([intent.key], closed_as, run_id="run-1")

    @rule(intent=intents)
    def accept(self, intent: Intent) -> None:
        """A person takes responsibility."""
        if intent.key in self.rows:
            assert self.journal.accept(self._word(CommandName.ACCEPT, intent)).accepted

    @rule(intent=intents)
    def redo(self, intent: Intent) -> None:
        """Never over what may still do something."""
        if intent.key not in self.rows:
            return
        former = [row for row in self.rows.values() if row.name == intent.name and row.generation <= intent.generation]
        try:
            redone = self.journal.decide_redo(self._word(CommandName.REDO, intent))
        except Refused:
            return
        if not redone.repeated:
            assert len(former) == intent.generation
            assert all(row.state.terminal and not row.alarmed for row in former)

    def _word(self, name: CommandName, intent: Intent) -> Command:
        return Command(name=name, key=intent.key, by="ada", reason="drawn")

    @rule(seconds=st.integers(-7200, 7200))
    def move_the_clock(self, seconds: int) -> None:
        """Forward or back."""
        self.clock.now += timedelta(seconds=seconds)

    @invariant()
    def what_was_recorded_stays(self) -> None:
        """Entries are only appended, each digest recomputes, and decisions never change."""
        entries = self.journal.all_entries()
        assert entries[: len(self.entries)] == self.entries
        assert all(entry.digest == digest(entry) for entry in entries)
        decisions = {(one.name, one.generation): one for one in self.journal.decisions(origin="demo", scope="INC-2041")}
        assert all(decisions[place] == decision for place, decision in self.decisions.items())
        told = {(entry.body["name"], entry.body["generation"]) for entry in entries if entry.kind == "decision"}
        assert told == set(decisions)
        self.entries, self.decisions = entries, decisions

    @invariant()
    def rows_are_folds(self) -> None:
        """Each row is the fold of its entries and has moved only as it may."""
        rows = {row.key: row for row in self.journal.effects()}
        assert rows.keys() >= self.rows.keys()
        assert {row.key for row in self.journal.unsettled()} == {
            key for key, row in rows.items() if not row.state.terminal
        }
        for key, row in rows.items():
            entries = self.journal.entries(key)
            attempts = [entry for entry in entries if entry.kind == "attempt"]
            assert as_folded(row, marked=bool(attempts)) == fold(entries)
            assert len(attempts) == row.attempts == len({entry.body["attempt_id"] for entry in attempts})
            ends = [
                entry.id
                for entry in entries
                if entry.kind == "given_up"
                or (entry.kind == "observation" and entry.body["state"] in TERMINAL)
                or entry.body.get("ruling") == "asserted"
            ]
            assert not ends or all(entry.id < ends[0] for entry in attempts)
            if key in self.rows:
                self._moved(self.rows[key], row)
        self.rows = rows

    def _moved(self, before: EffectRow, after: EffectRow) -> None:
        assert after.state is before.state or after.state in MOVES[before.state]
        if before.state.terminal:
            assert (after.receipt, after.settled_at) == (before.receipt, before.settled_at)
        assert after.decided_at <= before.decided_at
        assert after.deadline >= before.deadline or before.attempts == 0
        assert after.given_up >= before.given_up
        assert (after == before) == (after.version == before.version)
        assert after.version >= before.version


@pytest.mark.parametrize(("dialect", "examples"), [("sqlite", 40), ("postgresql", 10)])
def test_every_row_is_the_fold_of_its_entries_after_every_step(new_journal: NewJournal, examples: int) -> None:
    """Random methods, answers and clocks; the whole of the store's promises after each of them."""

    class Here(Lives):
        pass

    Here.new_journal = staticmethod(new_journal)
    run_state_machine_as_test(
        Here,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )
