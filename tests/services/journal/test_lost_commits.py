"""A connection that is cut inside COMMIT: only what a new connection shows permits a send (A14)."""

from collections.abc import Iterator
from functools import partial

import pytest

from services.database import CommitUnknown, open_engine
from services.journal.store import Journal
from tests.postgres_cut import Cut, Side, cutting
from tests.services.effects.halves import make_intent, make_mark
from tests.services.journal.conftest import Clock
from tests.services.journal.crowd import PATIENCE, crowd

INTENT = make_intent()
only_postgresql = pytest.mark.parametrize("dialect", ["postgresql"])


@pytest.fixture
def cut(journal_url: str) -> Iterator[Cut]:
    """A switch on the way to the database."""
    with cutting(journal_url) as cut:
        yield cut


@pytest.fixture
def behind(cut: Cut) -> Iterator[Journal]:
    """A journal behind it, which has written before: a new connection sends a COMMIT of its own."""
    engine = open_engine(cut.url)
    behind = Journal(engine, recorded_by="cut", clock=Clock())
    behind.own(make_intent(scope="INC-1"))
    yield behind
    engine.dispose()


@only_postgresql
def test_a_mark_whose_commit_arrived_is_read_back_and_may_be_sent(behind: Journal, cut: Cut, journal: Journal) -> None:
    """The answer was lost, the mark is there under this attempt's id: begin gives the attempt."""
    cut.arm(Side.AFTER)
    begun = behind.begin(INTENT, make_mark("attempt-1"))
    assert begun.attempt is not None
    assert (begun.attempt,) == journal.attempts(INTENT.key)
    cut.arm(Side.AFTER)
    marked = behind.mark(INTENT, make_mark("attempt-2"))
    assert marked.attempt == journal.attempts(INTENT.key)[1]


@only_postgresql
def test_a_mark_whose_commit_never_arrived_permits_no_send(behind: Journal, cut: Cut, journal: Journal) -> None:
    """Nothing is written, nothing may be sent, and the next try begins anew."""
    cut.arm(Side.BEFORE)
    with pytest.raises(CommitUnknown, match="Nothing is sent for it"):
        behind.begin(INTENT, make_mark("attempt-1"))
    assert journal.entries(INTENT.key) == ()
    assert behind.begin(INTENT, make_mark("attempt-1")).attempt is not None


@only_postgresql
def test_a_mark_that_turns_up_later_is_one_that_nobody_sent_for(behind: Journal, cut: Cut, journal: Journal) -> None:
    """Read back too early it is not there: its own attempt gets no second leave to send when it is asked for again."""
    cut.arm(Side.LATE)
    with pytest.raises(CommitUnknown):
        behind.begin(INTENT, make_mark("attempt-1"))
    assert journal.attempts(INTENT.key) == ()
    cut.release()
    assert [attempt.attempt_id for attempt in journal.attempts(INTENT.key)] == ["attempt-1"]
    assert behind.begin(INTENT, make_mark("attempt-1")).attempt is None
    assert behind.mark(INTENT, make_mark("attempt-1")).refused == "this attempt has been marked before"


@only_postgresql
@pytest.mark.parametrize("side", [Side.AFTER, Side.BEFORE])
def test_each_member_of_a_group_is_read_back_by_its_own_attempts_id(
    behind: Journal, cut: Cut, journal: Journal, side: Side
) -> None:
    """All of them may send, or none of them; what has no mark to read back is told that it is not known."""
    intents = [make_intent(scope=f"INC-{number}") for number in range(10, 15)]
    with crowd(behind._commits) as callers:
        callers.lead(lambda _connection: None)
        cut.arm(side, passing=1)
        begun = [
            callers.queued(partial(behind.begin, intent, make_mark(f"attempt-{number}")))
            for number, intent in enumerate(intents)
        ]
        owned = callers.queued(partial(behind.own, make_intent(scope="INC-20")))
        callers.go()
        errors = [future.exception(PATIENCE) for future in begun]
        assert isinstance(owned.exception(PATIENCE), CommitUnknown)
    if side is Side.BEFORE:
        assert {type(error) for error in errors} == {CommitUnknown}
        assert all(journal.entries(intent.key) == () for intent in intents)
        return
    for number, (intent, future) in enumerate(zip(intents, begun, strict=True)):
        (attempt,) = journal.attempts(intent.key)
        assert attempt == future.result().attempt
        assert attempt.attempt_id == f"attempt-{number}"
