"""Any sequence of attempts, answers, deaths and late packets, against a tiny model of the provider's one key.

The journal is real; the provider is three lines: the first packet or void to land owns the key, for good.
"""

import itertools
import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from services.database import migrate, open_engine
from services.effects.records import Answer, EffectRow, Mark, Receipt, Seen, Source
from services.effects.settle import DID_NOTHING, MARGIN, AttemptClass, Next, fold
from services.effects.states import EffectState
from services.journal.store import Journal, Observed
from tests.services.effects.halves import DECIDED_AT, WINDOW, make_intent, make_receipt
from tests.services.inventory.conftest import Clock

INTENT = make_intent()
REFUSALS = sorted(DID_NOTHING)
# What lets a story go on is told more often: after 412 and 400 nothing is sent again.
MOSTLY = [*[Seen.NOT_SENT, Seen.BUSY, Seen.CREDENTIALS_REFUSED] * 3, Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED]
LOST = ("answer lost", "still under way", "died before the answer", "died with it under way")


class AnyAttempts(RuleBasedStateMachine):
    """One effect: whoever attempts it, looks it up, gives it up; and the key at the provider."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        shutil.copyfile(self.template, self.folder / "journal.db")
        self.engine = open_engine(f"sqlite:///{self.folder / 'journal.db'}")
        self.clock = Clock(DECIDED_AT)
        self.journal = Journal(self.engine, recorded_by="any", clock=self.clock)
        self.numbers = itertools.count(1)
        self.owner: Receipt | None = None  # the provider's key
        self.under_way = 0  # packets that may land yet
        self.sends = 0
        self.perhaps_done = False  # an attempt was left unknown, at any time
        self.ended: EffectState | None = None

    def teardown(self) -> None:
        """Leave nothing behind."""
        self.engine.dispose()
        shutil.rmtree(self.folder)

    @property
    def row(self) -> EffectRow | None:
        """The effect as the journal has it."""
        return self.journal.effect(INTENT.key)

    def lands(self, outcome: EffectState) -> Receipt:
        """The first to land owns the key."""
        if self.owner is None:
            self.owner = make_receipt(INTENT, outcome)
        return self.owner

    def observe(self, answer: Answer, attempt_id: str | None = None) -> Observed:
        """Into the journal."""
        return self.journal.observe(INTENT.key, answer, attempt_id=attempt_id)

    def look_up(self) -> Observed:
        """What the provider has at this moment."""
        absent = Answer(seen=Seen.ABSENT, source=Source.LOOK_UP, observed_at=self.clock.now)
        found = Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=self.owner)
        return self.observe(absent if self.owner is None else found)

    def permitted(self) -> str:
        """The id of a mark under which may be sent, by the protocol; empty when nothing may be."""
        mark = Mark(attempt_id=f"attempt-{next(self.numbers)}", task_token="", worker={})
        begun = self.journal.begin(INTENT, mark)
        if begun.attempt is None and not begun.row.state.terminal and self.look_up().settlement.next is Next.SEND:
            begun = self.journal.mark(INTENT, mark)
        if begun.attempt is None:
            return ""
        assert begun.row.state is EffectState.PENDING
        assert not begun.row.given_up
        self.sends += 1
        return mark.attempt_id

    @precondition(lambda self: self.sends > 1)
    @rule(outcome=st.sampled_from([EffectState.COMMITTED, EffectState.REJECTED]))
    def attempt_is_answered(self, outcome: EffectState) -> None:
        """Sent, done or refused, and heard."""
        if attempt_id := self.permitted():
            answer = Answer(seen=Seen.RECEIPT, source=Source.SEND, receipt=self.lands(outcome))
            self.observe(answer, attempt_id)

    @rule(seen=st.sampled_from(MOSTLY))
    def attempt_does_nothing(self, seen: Seen) -> None:
        """Not sent, busy, 401, 412, 400: this delivery does nothing, and says so."""
        if attempt_id := self.permitted():
            observed = self.observe(Answer(seen=seen, source=Source.SEND), attempt_id)
            assert observed.row.state is EffectState.PENDING
            assert observed.settlement.next is Next.LOOK_UP

    @rule(how=st.sampled_from(LOST), outcome=st.sampled_from([EffectState.COMMITTED, EffectState.REJECTED]))
    def attempt_is_lost(self, how: str, outcome: EffectState) -> None:
        """Sent, and nobody hears what came of it; or its worker dies, with the packet under way or done."""
        attempt_id = self.permitted()
        if not attempt_id:
            return
        self.perhaps_done = True
        if "under way" in how:
            self.under_way += 1
        else:
            self.lands(outcome)
        if "died" not in how:
            self.observe(Answer(seen=Seen.UNKNOWN, source=Source.SEND), attempt_id)

    @precondition(lambda self: self.under_way)
    @rule(outcome=st.sampled_from([EffectState.COMMITTED, EffectState.REJECTED]))
    def late_packet_lands(self, outcome: EffectState) -> None:
        """A packet of an attempt long past; after its deadline it does nothing."""
        self.under_way -= 1
        if self.clock.now <= DECIDED_AT + WINDOW:
            self.lands(outcome)

    @precondition(lambda self: self.sends)
    @rule(answered=st.booleans())
    def recovery(self, answered: bool) -> None:
        """The sweep or settle: look up, void where that is what follows; the void's answer may be lost."""
        self.journal.own(INTENT)
        observed = self.look_up()
        if observed.settlement.next is not Next.VOID:
            return
        seen = {attempt.seen for attempt in self.journal.attempts(INTENT.key)}
        over = self.clock.now > DECIDED_AT + WINDOW + MARGIN
        assert observed.row.given_up or over or seen & {Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED}
        owner = self.lands(EffectState.VOIDED)
        void = Answer(seen=Seen.RECEIPT, source=Source.VOID, receipt=owner)
        self.observe(void if answered else Answer(seen=Seen.UNKNOWN, source=Source.VOID))

    @precondition(lambda self: self.sends > 1)  # what is given up at once has no story
    @rule()
    def give_up(self) -> None:
        """The workflow was cancelled."""
        self.journal.give_up(INTENT, why="cancelled")

    @precondition(lambda self: self.sends)
    @rule(seen=st.sampled_from([Seen.UNKNOWN, Seen.BUSY, Seen.CREDENTIALS_REFUSED]))
    def look_up_goes_unanswered(self, seen: Seen) -> None:
        """It says nothing, and nothing follows from it."""
        row = self.journal.own(INTENT)
        assert self.observe(Answer(seen=seen, source=Source.LOOK_UP)).row.state is row.state

    @precondition(lambda self: self.sends)
    @rule(hours=st.sampled_from([1, 6, 12]))
    def time_passes(self, hours: int) -> None:
        """On every clock."""
        self.clock.now += timedelta(hours=hours)

    @invariant()
    def an_end_is_what_the_provider_has(self) -> None:
        """No end without the owner's receipt, and no other end than its."""
        row = self.row
        if row is not None and row.state.terminal:
            assert self.owner is not None
            assert row.state is self.owner.outcome
            assert row.receipt == self.owner

    @invariant()
    def an_end_stays(self) -> None:
        """Whatever comes later."""
        row = self.row
        if row is not None:
            assert self.ended is None or row.state is self.ended
            self.ended = row.state if row.state.terminal else None

    @invariant()
    def what_was_left_unknown_stays_unknown(self) -> None:
        """By the marks and what the journal kept of each; and a mark for each send, no more."""
        if self.row is None:
            return
        attempts = self.journal.attempts(INTENT.key)
        assert len(attempts) == self.sends
        if self.perhaps_done:
            assert fold(attempts) is AttemptClass.UNKNOWN
        elif self.owner is None and attempts:
            assert fold(attempts) is AttemptClass.NOTHING_DONE

    def play(self, *story: Callable[["AnyAttempts"], None]) -> None:
        """One story that is known beforehand."""
        for step in story:
            step(self)
            self.an_end_is_what_the_provider_has()
            self.an_end_stays()
            self.what_was_left_unknown_stays_unknown()


@pytest.fixture
def machine(tmp_path: Path) -> type[AnyAttempts]:
    """The machine, with a migrated journal to start from."""
    migrate("journal", f"sqlite:///{tmp_path / 'journal.db'}")

    class Machine(AnyAttempts):
        template = tmp_path / "journal.db"

    return Machine


@pytest.mark.parametrize("how", LOST)
@pytest.mark.parametrize("seen", REFUSALS)
def test_an_attempt_that_did_nothing_takes_no_earlier_unknown_back(
    machine: type[AnyAttempts], how: str, seen: Seen
) -> None:
    """Whatever became of the first packet, and if it lands only now: its end is the effect's."""
    one = machine()
    one.play(
        lambda it: it.attempt_is_lost(how=how, outcome=EffectState.COMMITTED),
        lambda it: it.attempt_does_nothing(seen=seen),
        lambda it: it.late_packet_lands(outcome=EffectState.COMMITTED) if it.under_way else None,
        lambda it: it.recovery(answered=True),
    )
    assert one.ended is EffectState.COMMITTED
    one.teardown()


def test_no_sequence_of_attempts_ends_otherwise_than_the_provider_says(machine: type[AnyAttempts]) -> None:
    """Not sent, busy, 401, 412 and 400 after an unknown, deaths, late packets, giving up: in any order."""
    run_state_machine_as_test(machine, settings=settings(max_examples=80, stateful_step_count=14, deadline=None))
