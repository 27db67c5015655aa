"""The store's promises, one by one, on each database: marks, decisions, observations, outcomes."""

import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from services.effects.errors import FingerprintMismatch
from services.effects.keys import release_name
from services.effects.records import OutcomeState, Receipt, Seen, Source
from services.effects.settle import AttemptClass, Next
from services.effects.settle import fold as attempt_class
from services.effects.states import TERMINAL, EffectState
from services.journal.rows import Entry
from services.journal.store import Journal
from tests.services.effects.halves import (
    DECIDED_AT,
    WINDOW,
    make_answer,
    make_intent,
    make_mark,
    make_receipt,
    make_release,
    shows,
)
from tests.services.journal.conftest import Clock
from tests.services.journal.folding import as_folded, digest, fold

INTENT = make_intent()
REDO = make_intent(generation=2)


def _kinds(journal: Journal, key: str = INTENT.key) -> list[str]:
    return [entry.kind for entry in journal.entries(key)]


def _commit(journal: Journal, receipt: Receipt | None = None) -> None:
    journal.begin(INTENT, make_mark("attempt-1"))
    journal.observe(INTENT.key, shows(receipt or make_receipt(INTENT)), attempt_id="attempt-1")


def test_decision_intent_and_mark_are_recorded_together_before_anything_is_sent(journal: Journal) -> None:
    """One transaction, three entries, and the caller may send."""
    begun = journal.begin(INTENT, make_mark("attempt-1"))
    assert begun.attempt is not None
    assert begun.attempt.not_after == DECIDED_AT + WINDOW
    assert _kinds(journal) == ["decision", "intent", "attempt"]
    assert len({entry.recorded_at for entry in journal.entries(INTENT.key)}) == 1
    assert journal.attempts(INTENT.key) == (begun.attempt,)
    assert journal.effect(INTENT.key) == begun.row


def test_a_key_that_was_begun_is_looked_up_before_it_is_sent_again(journal: Journal) -> None:
    """The second asker gets no mark from begin, and one from mark (E31)."""
    journal.begin(INTENT, make_mark("attempt-1"))
    again = journal.begin(INTENT, make_mark("attempt-2"))
    assert (again.attempt, again.refused) == (None, "the key has been begun before")
    marked = journal.mark(INTENT, make_mark("attempt-2"))
    assert marked.attempt is not None
    assert marked.attempt.number == 2


def test_a_row_that_recovery_made_is_looked_up_before_it_is_sent(journal: Journal) -> None:
    """A delayed attempt that arrives after recovery gets no mark from begin (A24)."""
    assert journal.own(INTENT).born_by == "recovery"
    assert journal.begin(INTENT, make_mark("attempt-1")).attempt is None
    assert journal.own(INTENT).attempts == 0


def test_one_attempt_is_marked_once(journal: Journal) -> None:
    """A mark asked for again under its own id permits no second send; it is read back by that id (A14)."""
    journal.begin(INTENT, make_mark("attempt-1"))
    assert journal.mark(INTENT, make_mark("attempt-1")).refused == "this attempt has been marked before"
    assert [attempt.attempt_id for attempt in journal.attempts(INTENT.key)] == ["attempt-1"]


@pytest.mark.parametrize("outcome", sorted(TERMINAL))
def test_no_mark_after_settlement(journal: Journal, outcome: EffectState) -> None:
    """A zombie's mark is refused under the row's lock (A23)."""
    _commit(journal, make_receipt(INTENT, outcome))
    begun = journal.mark(INTENT, make_mark("zombie"))
    assert (begun.attempt, begun.row.state) == (None, outcome)
    assert begun.refused == f"it is settled: {outcome}"


def test_no_mark_while_in_doubt(journal: Journal) -> None:
    """A person decides first."""
    journal.begin(INTENT, make_mark("attempt-1"))
    journal.observe(INTENT.key, make_answer(Seen.KEY_REUSED))
    assert journal.mark(INTENT, make_mark("attempt-2")).refused == "it is in doubt"


def test_no_mark_after_giving_up(journal: Journal) -> None:
    """Neither for the attempt that was about to send nor for one that comes first of all (A19, A24, A27)."""
    journal.give_up(INTENT, why="cancelled")
    assert journal.begin(INTENT, make_mark("attempt-1")).attempt is None
    assert journal.mark(INTENT, make_mark("attempt-1")).refused == "it has been given up"
    assert _kinds(journal) == ["decision", "intent", "given_up"]
    journal.give_up(INTENT, why="again")
    assert _kinds(journal) == ["decision", "intent", "given_up"]


def test_giving_up_a_settled_effect_changes_nothing(journal: Journal) -> None:
    """Cancel too late: committed (E16)."""
    _commit(journal)
    row = journal.give_up(INTENT, why="cancelled")
    assert (row.state, row.given_up) == (EffectState.COMMITTED, False)


def test_no_mark_once_a_higher_generation_has_been_decided(journal: Journal) -> None:
    """The redo is decided: the former generation sends no more, not even as a new row."""
    journal.own(INTENT)
    journal.record_decision(
        origin="demo", scope=INTENT.scope, name=INTENT.name, generation=2, decided_at=DECIDED_AT, body={}
    )
    assert journal.mark(INTENT, make_mark("attempt-1")).refused == "a later generation has been decided"
    assert journal.begin(REDO, make_mark("attempt-2")).attempt is not None
    other = make_intent(scope="INC-1")
    assert journal.begin(other, make_mark("attempt-3")).attempt is not None


def test_no_mark_on_any_generation_of_a_name_under_a_late_observation(journal: Journal) -> None:
    """Voided, and then a committed receipt: the redo sends nothing until a person has dealt with it."""
    _commit(journal, make_receipt(INTENT, EffectState.VOIDED))
    late = journal.observe(INTENT.key, shows(make_receipt(INTENT)))
    assert late.settlement.late
    assert (late.row.state, late.row.alarmed) == (EffectState.VOIDED, True)
    begun = journal.begin(REDO, make_mark("attempt-2"))
    assert begun.refused == "a late observation on its name waits for a person"
    assert journal.begin(make_intent(name="reserve-pump"), make_mark("attempt-3")).attempt is not None


def test_a_late_observation_is_recorded_once_and_moves_nothing(journal: Journal) -> None:
    """The first settlement stands; the contradiction is kept whole."""
    _commit(journal, make_receipt(INTENT, EffectState.REJECTED))
    before = journal.effect(INTENT.key)
    assert before is not None
    for _ in range(3):
        journal.observe(INTENT.key, shows(make_receipt(INTENT)))
    assert journal.effect(INTENT.key) == replace(before, alarmed=True, version=before.version + 1)
    assert _kinds(journal)[-2:] == ["observation", "late_observation"]
    assert journal.entries(INTENT.key)[-1].body["receipt"] == make_receipt(INTENT).body


def test_no_update_leaves_an_end(journal: Journal) -> None:
    """G6: the update's own guard: whoever decided on what it had read before it had the lock changes nothing."""
    _commit(journal)
    row = journal.effect(INTENT.key)
    assert row is not None
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        journal._write(lambda tx: journal._move(tx, row, EffectState.VOIDED, None))
    assert journal.effect(INTENT.key) == row


def test_no_update_lands_on_a_row_that_has_changed_since_it_was_read(journal: Journal) -> None:
    """G6: by the row's version."""
    journal.begin(INTENT, make_mark("attempt-1"))
    remembered = journal.effect(INTENT.key)
    assert remembered is not None
    journal.give_up(INTENT, why="cancelled")
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        journal._write(lambda tx: journal._update(tx, remembered, {"alarmed": True}))
    row = journal.effect(INTENT.key)
    assert row is not None
    assert not row.alarmed


def test_a_report_that_agrees_is_no_late_observation(journal: Journal) -> None:
    """Rejected after voided: both did nothing."""
    _commit(journal, make_receipt(INTENT, EffectState.VOIDED))
    observed = journal.observe(INTENT.key, shows(make_receipt(INTENT, EffectState.REJECTED)))
    assert (observed.row.alarmed, observed.row.state) == (False, EffectState.VOIDED)


@pytest.mark.parametrize("former", [EffectState.VOIDED, EffectState.REJECTED, EffectState.COMMITTED])
def test_a_committed_predecessor_raises_the_alarm_on_the_former_generation(
    journal: Journal, former: EffectState
) -> None:
    """Whatever the journal thought of it: its row keeps its state, and nothing is answered under the name (A05)."""
    _commit(journal, make_receipt(INTENT, former))
    journal.begin(REDO, make_mark("attempt-2"))
    refused = make_receipt(REDO, EffectState.REJECTED, reason="predecessor-committed")
    answer = replace(shows(refused), predecessor=make_receipt(INTENT))
    observed = journal.observe(REDO.key, answer, attempt_id="attempt-2")
    assert observed.row.state is EffectState.REJECTED
    row = journal.effect(INTENT.key)
    assert row is not None
    assert (row.state, row.alarmed) == (former, True)
    assert journal.outcome(REDO.key) is None
    assert journal.outcome(INTENT.key) is None


def test_a_committed_predecessor_without_a_row_raises_the_alarm_on_the_one_that_was_refused(journal: Journal) -> None:
    """The journal has forgotten the former generation: nothing is answered under the name all the same."""
    journal.begin(REDO, make_mark("attempt-1"))
    answer = replace(shows(make_receipt(REDO, EffectState.REJECTED)), predecessor=make_receipt(INTENT))
    observed = journal.observe(REDO.key, answer)
    assert (observed.row.state, observed.row.alarmed) == (EffectState.REJECTED, True)
    assert observed.row == journal.effect(REDO.key)
    assert journal.outcome(REDO.key) is None


def test_a_strangers_receipt_named_as_predecessor_touches_no_other_effect(journal: Journal) -> None:
    """A confused provider cannot put another name under an alarm."""
    stranger = make_intent(name="reserve-pump")
    journal.begin(stranger, make_mark("attempt-0"))
    journal.begin(REDO, make_mark("attempt-1"))
    answer = replace(shows(make_receipt(REDO, EffectState.REJECTED)), predecessor=make_receipt(stranger))
    assert journal.observe(REDO.key, answer).settlement.alarm
    assert _kinds(journal, stranger.key) == ["decision", "intent", "attempt"]


@pytest.mark.parametrize("method", ["begin", "mark", "own", "give_up"])
def test_another_payload_under_a_key_is_shown_and_not_recorded(journal: Journal, method: str) -> None:
    """Both payloads are in the message; the row that stands is not voided, marked or given up (A18)."""
    journal.begin(INTENT, make_mark("attempt-1"))
    before = journal.all_entries()
    other = make_intent(request={"lines": [{"sku": "FILTER-A", "quantity": 3}]}, decided_at=DECIDED_AT - WINDOW)
    ask: dict[str, Callable[[], object]] = {
        "begin": lambda: journal.begin(other, make_mark("attempt-2")),
        "mark": lambda: journal.mark(other, make_mark("attempt-2")),
        "own": lambda: journal.own(other),
        "give_up": lambda: journal.give_up(other, why="cancelled"),
    }
    with pytest.raises(FingerprintMismatch) as caught:
        ask[method]()
    assert INTENT.request in str(caught.value)
    assert other.request in str(caught.value)
    assert journal.all_entries() == before


def test_another_reservation_under_a_releases_key_is_another_payload(journal: Journal) -> None:
    """Path parameters are part of it."""
    journal.own(make_release())
    with pytest.raises(FingerprintMismatch, match="reservation-2"):
        journal.own(
            make_intent(name=make_release().name, kind="inventory.release", request={}, path={"id": "reservation-2"})
        )


def test_an_older_fingerprint_version_is_compared_by_its_bytes(journal: Journal) -> None:
    """A new build never changes a retry, and never passes another payload."""
    journal.own(replace(INTENT, fingerprint="0" * 64, fingerprint_version="cf-fp0"))
    assert journal.mark(INTENT, make_mark("attempt-1")).row.fingerprint == "0" * 64
    with pytest.raises(FingerprintMismatch):
        journal.own(make_intent(request={"lines": []}))


@pytest.mark.parametrize("change", [{"path": {"id": "reservation-2"}}, {"kind": "inventory.confirm"}])
def test_an_older_fingerprint_version_is_compared_by_its_kind_and_path_too(
    journal: Journal, change: dict[str, Any]
) -> None:
    """A release's request says nothing: what it gives back stands in its path (G3)."""
    release = make_release()
    journal.own(replace(release, fingerprint="0" * 64, fingerprint_version="cf-fp0"))
    assert journal.own(release).attempts == 0
    with pytest.raises(FingerprintMismatch):
        journal.own(replace(release, **change))


def test_what_is_journaled_is_what_is_sent_however_it_is_asked_for_later(journal: Journal) -> None:
    """The same fingerprint spelled with its defaults: the first bytes stay (G18)."""
    journal.own(INTENT)
    spelled = make_intent(request={"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": None})
    assert spelled.request != INTENT.request
    assert journal.mark(spelled, make_mark("attempt-1")).row.request == INTENT.request


def test_the_earliest_decision_time_wins_and_the_latest_deadline_stays(journal: Journal) -> None:
    """A later history never extends the window; an earlier one shortens what is sent, not what was marked (A01)."""
    first = journal.begin(INTENT, make_mark("attempt-1"))
    assert journal.own(make_intent(decided_at=DECIDED_AT + WINDOW)) == first.row
    earlier = make_intent(decided_at=DECIDED_AT - timedelta(hours=1))
    marked = journal.mark(earlier, make_mark("attempt-2"))
    assert marked.attempt is not None
    assert marked.attempt.not_after == DECIDED_AT - timedelta(hours=1) + WINDOW
    assert marked.row.deadline == DECIDED_AT + WINDOW
    assert [entry.kind for entry in journal.entries(INTENT.key)][3:] == ["intent", "attempt"]


def test_the_journals_own_margin_is_waited_out(engine: sa.Engine, clock: Clock) -> None:
    """Where clocks differ more, a deadline counts as passed later (G17)."""
    patient = Journal(engine, recorded_by="test", clock=clock, margin=timedelta(minutes=30))
    patient.begin(INTENT, make_mark("attempt-1"))
    deadline = DECIDED_AT + WINDOW
    for late, then in ((timedelta(minutes=30), Next.SEND), (timedelta(minutes=31), Next.VOID)):
        absent = make_answer(Seen.ABSENT, Source.LOOK_UP, observed_at=deadline + late)
        assert patient.observe(INTENT.key, absent).settlement.next is then


def test_no_attempt_is_marked_from_its_deadline_on(journal: Journal, clock: Clock) -> None:
    """Attempts count real sends, and the gate would let this one's request through no more (G17)."""
    clock.now = DECIDED_AT + WINDOW
    late = journal.begin(INTENT, make_mark("attempt-1"))
    assert (late.attempt, late.refused) == (None, "its send window is over")
    assert _kinds(journal) == ["decision", "intent"]
    clock.now -= timedelta(microseconds=1)
    assert journal.mark(INTENT, make_mark("attempt-1")).attempt is not None


def test_a_redos_window_runs_from_its_recorded_decision(journal: Journal) -> None:
    """Every caller sends with the same deadline, however late it asks (A25, G17)."""
    decided_at = DECIDED_AT + timedelta(days=3)
    journal.record_decision(
        origin="demo", scope=REDO.scope, name=REDO.name, generation=2, decided_at=decided_at, body={"by": "ada"}
    )
    begun = journal.begin(make_intent(generation=2, decided_at=decided_at + WINDOW), make_mark("attempt-1"))
    assert begun.row.decided_at == decided_at
    assert begun.row.deadline == decided_at + WINDOW
    row = journal.effect(REDO.key)
    assert row is not None
    assert as_folded(row, marked=True) == fold(journal.entries(REDO.key))


def test_the_first_decision_stands_and_the_second_is_told_so(journal: Journal) -> None:
    """The approval that was journaled wins over a later refusal (A03)."""
    record = partial(journal.record_decision, origin="demo", scope="INC-2041", name="approval")
    first, mine = record(decided_at=DECIDED_AT, body={"approved_by": "ada"})
    assert mine
    again = record(decided_at=DECIDED_AT + WINDOW, body={"declined_by": "bob"})
    assert again == (first, False)
    assert journal.decision(origin="demo", scope="INC-2041", name="approval") == first
    assert journal.decisions(origin="demo", scope="INC-2041") == (first,)
    assert journal.decision(origin="demo", scope="INC-2041", name="other") is None
    entries = journal.all_entries()
    assert [entry.kind for entry in entries] == ["decision"]
    assert entries[0].body["origin"] == "demo"


def test_an_effects_row_keeps_the_decision_that_came_before_it(journal: Journal) -> None:
    """An approval recorded first is not recorded again by the effect."""
    journal.record_decision(
        origin="demo", scope=INTENT.scope, name=INTENT.name, decided_at=DECIDED_AT, body={"by": "x"}
    )
    journal.begin(INTENT, make_mark("attempt-1"))
    assert _kinds(journal) == ["decision", "intent", "attempt"]


def test_an_unknown_observation_is_recorded_when_it_says_something_new(journal: Journal) -> None:
    """One outage is one entry, however often it is asked; another reason, source or class is another."""
    journal.begin(INTENT, make_mark("attempt-1"))
    for _ in range(12):
        journal.observe(INTENT.key, make_answer(Seen.UNKNOWN, reason="ReadTimeout"), attempt_id="attempt-1")
    assert _kinds(journal).count("observation") == 1
    journal.observe(INTENT.key, make_answer(Seen.UNKNOWN, reason="502"))
    journal.observe(INTENT.key, make_answer(Seen.UNKNOWN, Source.LOOK_UP, reason="502"))
    journal.observe(INTENT.key, make_answer(Seen.BUSY, Source.LOOK_UP, reason="502"))
    assert _kinds(journal).count("observation") == 4


def test_that_an_attempt_did_nothing_is_recorded_of_every_attempt(journal: Journal) -> None:
    """Twice the same refusal proves twice that nothing was done: the class must not be lost with the second."""
    journal.begin(INTENT, make_mark("attempt-1"))
    refused = make_answer(Seen.NOT_SENT, reason="connection refused")
    journal.observe(INTENT.key, refused, attempt_id="attempt-1")
    journal.mark(INTENT, make_mark("attempt-2"))
    journal.observe(INTENT.key, refused, attempt_id="attempt-2")
    observed = journal.observe(INTENT.key, refused, attempt_id="attempt-2")
    assert observed.settlement.attempt_class is AttemptClass.NOTHING_DONE
    assert attempt_class(journal.attempts(INTENT.key)) is AttemptClass.NOTHING_DONE
    assert _kinds(journal).count("observation") == 2


def test_only_the_answer_to_an_attempts_own_send_says_what_became_of_it(journal: Journal) -> None:
    """A look-up that did nothing does not turn an unknown attempt into one that did nothing."""
    journal.begin(INTENT, make_mark("attempt-1"))
    journal.observe(INTENT.key, make_answer(Seen.UNKNOWN), attempt_id="attempt-1")
    asked = journal.observe(INTENT.key, make_answer(Seen.BUSY, Source.LOOK_UP), attempt_id="attempt-1")
    assert asked.settlement.attempt_class is AttemptClass.UNKNOWN
    assert [attempt.seen for attempt in journal.attempts(INTENT.key)] == [Seen.UNKNOWN]


def test_a_refused_deadline_is_remembered_until_the_look_up(journal: Journal) -> None:
    """412, then not found: the key is voided, though our clocks say that there is time."""
    journal.begin(INTENT, make_mark("attempt-1"))
    assert journal.observe(INTENT.key, make_answer(Seen.DEADLINE_REFUSED), attempt_id="attempt-1").settlement.next is (
        Next.LOOK_UP
    )
    assert journal.observe(INTENT.key, make_answer(Seen.ABSENT, Source.LOOK_UP)).settlement.next is Next.VOID


def test_an_effect_in_doubt_is_settled_by_the_receipt_that_turns_up(journal: Journal) -> None:
    """And its doubt stays on record."""
    journal.begin(INTENT, make_mark("attempt-1"))
    journal.observe(INTENT.key, make_answer(Seen.KEY_EXPIRED, Source.LOOK_UP))
    observed = journal.observe(INTENT.key, shows(make_receipt(INTENT), Source.LOOK_UP))
    assert observed.row.state is EffectState.COMMITTED
    assert [entry.body["state"] for entry in journal.entries(INTENT.key) if entry.kind == "observation"] == [
        "in_doubt",
        "committed",
    ]


def test_nothing_is_observed_of_a_key_without_a_row(journal: Journal) -> None:
    """Recovery owns the row first."""
    with pytest.raises(LookupError, match="own the row"):
        journal.observe(INTENT.key, shows(make_receipt(INTENT)))
    assert journal.all_entries() == ()


@pytest.mark.parametrize("outcome", sorted(TERMINAL))
def test_an_outcome_is_answered_once_it_is_settled(journal: Journal, clock: Clock, outcome: EffectState) -> None:
    """Not before, and with its receipt, whole."""
    assert journal.outcome(INTENT.key) is None
    journal.begin(INTENT, make_mark("attempt-1"))
    assert journal.outcome(INTENT.key) is None
    receipt = make_receipt(INTENT, outcome, expires_at=None, stock_versions={"FILTER-A": 4})
    journal.observe(INTENT.key, shows(receipt))
    found = journal.outcome(INTENT.key)
    assert found is not None
    assert (found.state, found.receipt, found.settled_at) == (OutcomeState(outcome), receipt.body, clock.now)


def test_a_committed_effect_is_answered_as_released_once_its_release_is(journal: Journal) -> None:
    """While the release is under way nothing is answered (A02, A26, E70)."""
    _commit(journal)
    release = make_release()
    journal.begin(release, make_mark("attempt-2"))
    assert journal.outcome(INTENT.key) is None
    journal.observe(release.key, shows(make_receipt(release)))
    found = journal.outcome(INTENT.key)
    assert found is not None
    assert (found.state, found.asserted) == (OutcomeState.RELEASED, False)
    assert found.receipt["receipt_id"] == "receipt-committed"


@pytest.mark.parametrize("ended", [EffectState.REJECTED, EffectState.VOIDED])
def test_a_release_that_did_nothing_leaves_the_effect_committed(journal: Journal, ended: EffectState) -> None:
    """And a later generation of the release may still give it back."""
    _commit(journal)
    for again, outcome in ((1, ended), (2, EffectState.COMMITTED)):
        release = make_release(again=again)
        journal.begin(release, make_mark(f"release-{again}"))
        journal.observe(release.key, shows(make_receipt(release, outcome)))
        found = journal.outcome(INTENT.key)
        assert found is not None
        assert (found.state is OutcomeState.RELEASED) == (again == 2)


def test_the_release_of_another_generation_gives_nothing_back(journal: Journal) -> None:
    """Each generation has a release of its own (A06)."""
    _commit(journal)
    release = make_release(generation=2)
    assert release.name == release_name(INTENT.name, 2)
    journal.begin(release, make_mark("attempt-2"))
    found = journal.outcome(INTENT.key)
    assert found is not None
    assert found.committed


def test_every_digest_recomputes(journal: Journal) -> None:
    """Over key, kind, body, time and writer."""
    _commit(journal)
    journal.observe(INTENT.key, shows(make_receipt(INTENT, EffectState.VOIDED)))
    entries = journal.all_entries()
    assert len(entries) == 5
    assert [entry.digest for entry in entries] == [digest(entry) for entry in entries]


def test_pages_cover_everything_once(journal: Journal) -> None:
    """Entries by id, effects by key."""
    for number in range(7):
        journal.own(make_intent(scope=f"INC-{number}"))
    entries: list[Entry] = []
    keys: list[str] = []
    open_keys: list[str] = []
    while page := journal.all_entries(after_id=entries[-1].id if entries else 0, limit=3):
        entries += page
    while found := journal.effects(after_key=keys[-1] if keys else "", limit=3):
        keys += [row.key for row in found]
    while found := journal.unsettled(after_key=open_keys[-1] if open_keys else "", limit=2):
        open_keys += [row.key for row in found]
    assert len(entries) == len({entry.id for entry in entries}) == 14
    assert keys == sorted(set(keys)) == open_keys
    assert len(keys) == 7
    assert [row.scope for row in journal.effects(scope="INC-3", states=(EffectState.PENDING,))] == ["INC-3"]
    assert journal.effects(states=(EffectState.VOIDED,)) == ()


def test_a_journal_has_one_identity(journal: Journal, engine: sa.Engine) -> None:
    """128 random bits, the same for every process."""
    assert len(bytes.fromhex(journal.journal_id())) == 16
    assert journal.journal_id() == Journal(engine, recorded_by="other").journal_id()


FORGERIES = {
    "sqlite": [
        "UPDATE entries SET key = 'x'",
        "UPDATE OR REPLACE entries SET key = 'x'",
        "DELETE FROM entries",
        "REPLACE INTO entries SELECT id, key, kind, 'forged', recorded_at, recorded_by, digest FROM entries",
        "INSERT OR REPLACE INTO entries SELECT id, key, kind, 'forged', recorded_at, recorded_by, digest FROM entries",
        "INSERT INTO entries SELECT * FROM entries WHERE 1 ON CONFLICT DO UPDATE SET body = 'forged'",
        "UPDATE decisions SET body = 'forged'",
        "UPDATE OR REPLACE decisions SET generation = 2",
        "DELETE FROM decisions",
        (
            "REPLACE INTO decisions SELECT origin, scope, name, generation, decided_at, 'forged', recorded_at, 'x' "
            "FROM decisions"
        ),
        (
            "INSERT OR REPLACE INTO decisions "
            "SELECT origin, scope, name, generation, decided_at, 'forged', recorded_at, 'x' FROM decisions"
        ),
        "INSERT INTO decisions SELECT * FROM decisions WHERE 1 ON CONFLICT DO UPDATE SET body = 'forged'",
    ],
    "postgresql": [
        "UPDATE entries SET key = 'x'",
        "DELETE FROM entries",
        "TRUNCATE entries",
        "TRUNCATE effects, entries CASCADE",
        "INSERT INTO entries SELECT * FROM entries ON CONFLICT (id) DO UPDATE SET body = 'forged'",
        (
            "MERGE INTO entries USING effects ON effects.key = entries.key WHEN MATCHED AND entries.kind = 'attempt' "
            "THEN UPDATE SET body = 'forged'"
        ),
        "MERGE INTO entries USING journal ON true WHEN MATCHED THEN DELETE",
        "UPDATE decisions SET body = 'forged'",
        "DELETE FROM decisions",
        "TRUNCATE decisions",
        "INSERT INTO decisions SELECT * FROM decisions ON CONFLICT ON CONSTRAINT pk_decisions DO UPDATE SET body = ''",
    ],
}
forgeries = pytest.mark.parametrize(
    ("dialect", "statement"),
    [(dialect, statement) for dialect, statements in FORGERIES.items() for statement in statements],
)


def _passed_over(dialect: str, statement: str) -> bool:
    return dialect == "sqlite" and "INTO decisions" in statement  # the first one stands, without a word


@forgeries
def test_what_was_recorded_cannot_be_changed(journal: Journal, engine: sa.Engine, dialect: str, statement: str) -> None:
    """By no statement of our own engine."""
    _commit(journal)
    before = journal.all_entries(), journal.decisions(origin="demo", scope=INTENT.scope)
    expected = pytest.raises(sa.exc.DBAPIError, match="append-")
    refused = contextlib.nullcontext() if _passed_over(dialect, statement) else expected
    with refused, engine.begin() as connection:
        connection.exec_driver_sql(statement)
    assert (journal.all_entries(), journal.decisions(origin="demo", scope=INTENT.scope)) == before


@forgeries
def test_what_was_recorded_cannot_be_changed_through_a_plain_connection(
    journal: Journal, journal_url: str, dialect: str, statement: str
) -> None:
    """By no statement of somebody else's either, without our pragmas and settings."""
    _commit(journal)
    before = journal.all_entries(), journal.decisions(origin="demo", scope=INTENT.scope)
    expected = pytest.raises((sqlite3.Error, psycopg.Error), match="append-only")
    refused = contextlib.nullcontext() if _passed_over(dialect, statement) else expected
    with contextlib.closing(_plain(journal_url)) as connection, refused, connection:
        connection.execute(statement)
    assert (journal.all_entries(), journal.decisions(origin="demo", scope=INTENT.scope)) == before


def _plain(url: str) -> Any:
    """The driver's own connection."""
    parsed = sa.make_url(url)
    return sqlite3.connect(str(parsed.database)) if url.startswith("sqlite") else psycopg.connect(url)


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_decisions_have_no_hidden_row_number_to_be_replaced_by(journal: Journal, journal_url: str) -> None:
    """REPLACE by rowid would remove a decision under another primary key."""
    _commit(journal)
    with (
        contextlib.closing(_plain(journal_url)) as connection,
        pytest.raises(sqlite3.OperationalError, match="rowid"),
    ):
        connection.execute("REPLACE INTO decisions (rowid, origin) VALUES (1, 'x')")
