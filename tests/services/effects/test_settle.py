"""The one decision of the protocol, over every combination of state, answer, source, history and deadline."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pytest

from services.effects.records import Answer, Attempt, EffectRow, Receipt, Seen, Source
from services.effects.settle import MARGIN, AttemptClass, Next, Settlement, fold, mismatch, settle
from services.effects.states import MOVES, TERMINAL, EffectState
from tests.services.effects.halves import DECIDED_AT, WINDOW, make_intent, make_receipt, make_row, shows

INTENT = make_intent(generation=2)
FORMER = make_intent()
STRANGER = make_intent(name="reserve-pump")
OTHER_PAYLOAD = make_intent(generation=2, request={"lines": [{"sku": "FILTER-A", "quantity": 3}]})
DID_NOTHING = {Seen.NOT_SENT, Seen.BUSY, Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED, Seen.CREDENTIALS_REFUSED}

MATCHING = [make_receipt(INTENT, outcome) for outcome in sorted(TERMINAL)]
SHORT = make_receipt(INTENT, lines=[{"sku": "FILTER-A", "requested": 2, "granted": 1}])
NOT_OURS = {
    "another key, committed": make_receipt(STRANGER),
    "another key, voided": make_receipt(STRANGER, EffectState.VOIDED),
    "another payload": make_receipt(INTENT, fingerprint=OTHER_PAYLOAD.fingerprint),
    "another payload, rejected": make_receipt(INTENT, EffectState.REJECTED, fingerprint=OTHER_PAYLOAD.fingerprint),
    "granted less": SHORT,
    "without lines": make_receipt(INTENT, lines=None),
    "no receipt": None,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination."""

    row: EffectRow
    attempts: tuple[Attempt, ...]
    answer: Answer

    @property
    def settled(self) -> Settlement:
        """What the decision is."""
        return settle(self.row, self.attempts, self.answer)


def _attempt(number: int, seen: Seen | None) -> Attempt:
    return Attempt(
        attempt_id=f"attempt-{number}",
        number=number,
        not_after=DECIDED_AT + WINDOW,
        marked_at=DECIDED_AT,
        worker={},
        seen=seen,
    )


def _histories() -> list[tuple[Attempt, ...]]:
    seen: list[Seen | None] = [None, *Seen]
    return [
        (),
        *((_attempt(1, one),) for one in seen),
        *((_attempt(1, one), _attempt(2, other)) for one, other in itertools.combinations_with_replacement(seen, 2)),
    ]


def _answers() -> list[Answer]:
    deadline = DECIDED_AT + WINDOW
    times = [None, DECIDED_AT, deadline + MARGIN, deadline + MARGIN + timedelta(microseconds=1)]
    receipts: list[Receipt | None] = [*MATCHING, *NOT_OURS.values()]
    former = [None, make_receipt(FORMER), make_receipt(STRANGER), make_receipt(FORMER, EffectState.REJECTED)]
    answers = [
        Answer(seen=seen, source=source, observed_at=observed_at, reason="because")
        for seen, source, observed_at in itertools.product(Seen, Source, times)
        if seen is not Seen.RECEIPT
    ]
    for receipt, source, predecessor in itertools.product(receipts, Source, former):
        answers.append(Answer(seen=Seen.RECEIPT, source=source, receipt=receipt, predecessor=predecessor))
    return answers


def _rows() -> list[EffectRow]:
    rows = []
    for state, given_up, alarmed in itertools.product(EffectState, (False, True), (False, True)):
        receipt = make_receipt(INTENT, state) if state.terminal else None
        settled_at = DECIDED_AT if state.terminal else None
        row = make_row(INTENT, state=state, given_up=given_up, alarmed=alarmed, receipt=receipt, settled_at=settled_at)
        rows.append(row)
    return rows


HISTORIES, ANSWERS, ROWS = _histories(), _answers(), _rows()


def _cases() -> Iterator[Case]:
    for row, attempts, answer in itertools.product(ROWS, HISTORIES, ANSWERS):
        yield Case(row=row, attempts=attempts, answer=answer)


def _matches(row: EffectRow, answer: Answer) -> bool:
    return answer.receipt is not None and mismatch(row, answer.receipt) is None


def _proven_absent(case: Case) -> bool:
    refused = any(attempt.seen in {Seen.DEADLINE_REFUSED, Seen.REQUEST_REFUSED} for attempt in case.attempts)
    observed_at = case.answer.observed_at
    return case.row.given_up or refused or (observed_at is not None and observed_at > DECIDED_AT + WINDOW + MARGIN)


def test_every_answer_is_covered() -> None:
    """Each member of Seen, from each source, meets each state."""
    assert {(answer.seen, answer.source) for answer in ANSWERS} == set(itertools.product(Seen, Source))
    assert {row.state for row in ROWS} == set(EffectState)


def test_what_holds_of_every_decision() -> None:
    """Moves are allowed ones, only matching receipts settle, nothing is sent or voided that may not be."""
    for case in _cases():
        row, answer, settled = case.row, case.answer, case.settled
        state, step = settled.state, settled.next
        assert state is row.state or state in MOVES[row.state], case
        assert settled.attempt_class is fold(case.attempts), case
        assert (step is Next.DONE) == state.terminal, case
        if state.terminal and not row.state.terminal:
            assert answer.seen is Seen.RECEIPT, case
            assert _matches(row, answer), case
            assert answer.receipt is not None
            assert state is answer.receipt.outcome, case
        if answer.seen is Seen.ABSENT:
            assert state is row.state, case
        if step is Next.SEND:
            assert row.state is EffectState.PENDING, case
            assert not row.given_up, case
            assert not row.alarmed, case
            assert answer.seen is Seen.ABSENT or answer.source is Source.SEND, case
        if step is Next.VOID:
            assert answer.seen is Seen.ABSENT, case
            assert _proven_absent(case), case
            assert settled.alarm is None, case
            assert not row.alarmed, case
        if state is EffectState.IN_DOUBT:
            assert step is Next.WAIT, case
        if state is EffectState.IN_DOUBT and row.state is EffectState.PENDING:
            assert settled.alarm is not None, case
        if settled.late:
            assert row.state.terminal, case
            assert settled.alarm is not None, case
            assert answer.receipt is not None, case
        if settled.predecessor is not None:
            assert settled.predecessor.key in row.supersedes, case
            assert settled.predecessor.outcome is EffectState.COMMITTED, case
            assert settled.alarm is not None, case


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.state}-{row.given_up}-{row.alarmed}")
@pytest.mark.parametrize("receipt", MATCHING, ids=lambda receipt: str(receipt.outcome))
def test_a_matching_receipt_settles_whatever_came_before(row: EffectRow, receipt: Receipt) -> None:
    """Pending or in doubt, given up or alarmed, seen by a send, a look-up or a void; and whoever is settled stays."""
    for attempts, source in itertools.product(HISTORIES, Source):
        settled = settle(row, attempts, shows(receipt, source))
        assert settled.state is (row.state if row.state.terminal else receipt.outcome)
        assert settled.next is Next.DONE


@pytest.mark.parametrize("receipt", NOT_OURS.values(), ids=list(NOT_OURS))
@pytest.mark.parametrize("state", [EffectState.PENDING, EffectState.IN_DOUBT])
def test_a_receipt_that_is_not_the_intents_leaves_it_in_doubt(state: EffectState, receipt: Receipt | None) -> None:
    """A person decides, told why; nothing is voided, not even when it was given up (A18)."""
    for given_up in (False, True):
        row = make_row(INTENT, state=state, given_up=given_up)
        settled = settle(row, (), Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=receipt))
        assert (settled.state, settled.next) == (EffectState.IN_DOUBT, Next.WAIT)
        assert settled.alarm


@pytest.mark.parametrize("seen", [Seen.KEY_REUSED, Seen.KEY_EXPIRED])
def test_an_answer_that_no_rule_settles_is_put_before_a_person(seen: Seen) -> None:
    """Never a new key, never a void."""
    settled = settle(make_row(INTENT), (), Answer(seen=seen, source=Source.SEND, reason="sku FILTER-B"))
    assert (settled.state, settled.next) == (EffectState.IN_DOUBT, Next.WAIT)
    assert settled.alarm


def test_a_reused_key_shows_both_payloads() -> None:
    """Theirs, as they told it, and ours."""
    row = make_row(INTENT)
    settled = settle(row, (), Answer(seen=Seen.KEY_REUSED, source=Source.SEND, reason="theirs: FILTER-B"))
    assert settled.alarm is not None
    assert "theirs: FILTER-B" in settled.alarm
    assert row.request in settled.alarm


SAYS_NOTHING = sorted(set(Seen) - {Seen.RECEIPT, Seen.ABSENT, Seen.KEY_REUSED, Seen.KEY_EXPIRED})


@pytest.mark.parametrize("seen", SAYS_NOTHING)
def test_an_answer_that_says_nothing_of_the_key_is_followed_by_a_look_up(seen: Seen) -> None:
    """Unknown is not failed, and a delivery that did nothing says nothing of an earlier one (E28, E31, E35)."""
    for attempts, source, given_up in itertools.product(HISTORIES, Source, (False, True)):
        settled = settle(make_row(INTENT, given_up=given_up), attempts, Answer(seen=seen, source=source))
        assert (settled.state, settled.next) == (EffectState.PENDING, Next.LOOK_UP)


def test_refused_credentials_raise_an_alarm_without_changing_the_state() -> None:
    """Somebody mends them; the effect is as it was."""
    settled = settle(make_row(INTENT), (), Answer(seen=Seen.CREDENTIALS_REFUSED, source=Source.SEND, reason="401"))
    assert settled.state is EffectState.PENDING
    assert settled.alarm is not None
    assert "401" in settled.alarm


def test_absent_means_send_again_until_something_permits_a_void() -> None:
    """Giving up, a refused request, or the provider's clock past the latest deadline and the margin (E38)."""
    row, deadline = make_row(INTENT), DECIDED_AT + WINDOW + MARGIN
    absent = Answer(seen=Seen.ABSENT, source=Source.LOOK_UP, observed_at=deadline)
    assert settle(row, (_attempt(1, Seen.UNKNOWN),), absent).next is Next.SEND
    assert settle(replace(row, given_up=True), (), absent).next is Next.VOID
    assert settle(row, (_attempt(1, Seen.DEADLINE_REFUSED), _attempt(2, None)), absent).next is Next.VOID
    assert settle(row, (_attempt(1, Seen.REQUEST_REFUSED),), absent).next is Next.VOID
    past = replace(absent, observed_at=deadline + timedelta(microseconds=1))
    assert settle(row, (), past).next is Next.VOID
    assert settle(replace(row, deadline=row.deadline + timedelta(seconds=1)), (), past).next is Next.SEND
    assert settle(row, (), replace(absent, observed_at=None)).next is Next.SEND


def test_the_margin_is_the_callers() -> None:
    """A doubtful clock gets more of it."""
    absent = Answer(
        seen=Seen.ABSENT, source=Source.LOOK_UP, observed_at=DECIDED_AT + WINDOW + MARGIN + timedelta(seconds=1)
    )
    assert settle(make_row(INTENT), (), absent, margin=MARGIN * 2).next is Next.SEND


def test_what_is_older_than_the_retention_is_neither_sent_nor_voided() -> None:
    """Given up, refused or overdue: that a provider that forgets has no receipt proves nothing (E44, G10)."""
    retention = timedelta(days=60)
    last = DECIDED_AT + retention - MARGIN
    for given_up, attempts in itertools.product((False, True), ((), (_attempt(1, Seen.REQUEST_REFUSED),))):
        row = make_row(INTENT, given_up=given_up)
        absent = Answer(seen=Seen.ABSENT, source=Source.LOOK_UP, observed_at=last)
        assert settle(row, attempts, absent, retention=retention).next is Next.VOID
        for observed_at in (last + timedelta(microseconds=1), None):
            settled = settle(row, attempts, replace(absent, observed_at=observed_at), retention=retention)
            assert (settled.state, settled.next) == (EffectState.IN_DOUBT, Next.WAIT)
            assert "retention" in (settled.alarm or "")


def test_a_receipt_settles_however_old_it_is() -> None:
    """What the provider still has, it has not forgotten."""
    found = Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=MATCHING[0])
    settled = settle(make_row(INTENT, state=EffectState.IN_DOUBT), (), found, retention=timedelta(microseconds=1))
    assert (settled.state, settled.next) == (MATCHING[0].outcome, Next.DONE)


def test_an_alarm_on_the_row_stops_both_sending_and_voiding() -> None:
    """A late observation that nobody has dealt with: only a receipt or a person goes on."""
    for given_up, observed_at in itertools.product((False, True), (None, DECIDED_AT + WINDOW * 2)):
        row = make_row(INTENT, alarmed=True, given_up=given_up)
        absent = Answer(seen=Seen.ABSENT, source=Source.LOOK_UP, observed_at=observed_at)
        assert settle(row, (), absent).next is Next.WAIT


def test_an_effect_in_doubt_waits_unless_its_receipt_turns_up() -> None:
    """No answer but a matching receipt moves it."""
    for attempts, answer in itertools.product(HISTORIES, ANSWERS):
        row = make_row(INTENT, state=EffectState.IN_DOUBT)
        settled = settle(row, attempts, answer)
        if answer.seen is Seen.RECEIPT and _matches(row, answer):
            assert settled.next is Next.DONE
        else:
            assert (settled.state, settled.next) == (EffectState.IN_DOUBT, Next.WAIT)


@pytest.mark.parametrize("was", sorted(TERMINAL))
@pytest.mark.parametrize("reported", sorted(TERMINAL))
def test_a_report_after_settlement_is_late_exactly_when_it_contradicts(was: EffectState, reported: EffectState) -> None:
    """Voided and rejected agree: both did nothing."""
    row = make_row(INTENT, state=was, receipt=make_receipt(INTENT, was), settled_at=DECIDED_AT)
    settled = settle(row, (), shows(make_receipt(INTENT, reported)))
    assert settled.late == ((was is EffectState.COMMITTED) != (reported is EffectState.COMMITTED))
    assert settled.late == (settled.alarm is not None)


def test_a_second_receipt_for_a_committed_effect_is_late() -> None:
    """Two receipts under one key: it may have been done twice."""
    first = make_receipt(INTENT)
    row = make_row(INTENT, state=EffectState.COMMITTED, receipt=first, settled_at=DECIDED_AT)
    assert not settle(row, (), shows(first)).late
    assert settle(row, (), shows(make_receipt(INTENT, receipt_id="receipt-9"))).late


@pytest.mark.parametrize("receipt", [NOT_OURS["another payload"], SHORT, NOT_OURS["without lines"]])
def test_a_committed_effects_receipt_that_changes_its_payload_is_late(receipt: Receipt) -> None:
    """The same receipt id with another payload or other lines contradicts what settled it."""
    row = make_row(INTENT, state=EffectState.COMMITTED, receipt=make_receipt(INTENT), settled_at=DECIDED_AT)
    assert settle(row, (), shows(receipt)).late


@pytest.mark.parametrize("was", sorted(TERMINAL))
def test_another_keys_receipt_after_settlement_is_late_even_when_the_outcomes_agree(was: EffectState) -> None:
    """A provider that answers for another key is not to be believed."""
    row = make_row(INTENT, state=was, receipt=make_receipt(INTENT, was), settled_at=DECIDED_AT)
    settled = settle(row, (), shows(make_receipt(STRANGER, was)))
    assert settled.late
    assert settled.alarm is not None


@pytest.mark.parametrize("was", sorted(TERMINAL))
def test_a_reused_key_after_settlement_raises_an_alarm(was: EffectState) -> None:
    """The provider holds another payload than the one that was settled."""
    row = make_row(INTENT, state=was, receipt=make_receipt(INTENT, was), settled_at=DECIDED_AT)
    settled = settle(row, (), Answer(seen=Seen.KEY_REUSED, source=Source.SEND, reason="FILTER-B"))
    assert (settled.state, settled.next) == (was, Next.DONE)
    assert settled.alarm is not None


def test_a_committed_predecessor_is_reported_only_of_a_former_generation() -> None:
    """The rejection settles this generation; a stranger's receipt is no predecessor, and says so."""
    row, rejected = make_row(INTENT), make_receipt(INTENT, EffectState.REJECTED, reason="predecessor-committed")
    answer = shows(rejected)
    settled = settle(row, (), replace(answer, predecessor=make_receipt(FORMER)))
    assert settled.state is EffectState.REJECTED
    assert settled.predecessor == make_receipt(FORMER)
    for stranger in (make_receipt(STRANGER), make_receipt(FORMER, EffectState.VOIDED)):
        settled = settle(row, (), replace(answer, predecessor=stranger))
        assert settled.state is EffectState.REJECTED
        assert settled.predecessor is None
        assert settled.alarm is not None


def test_the_class_is_nothing_done_only_when_every_attempt_on_record_did_nothing() -> None:
    """No attempt on record proves nothing, and neither does one without an answer."""
    for attempts in HISTORIES:
        expected = attempts and all(attempt.seen in DID_NOTHING for attempt in attempts)
        assert (fold(attempts) is AttemptClass.NOTHING_DONE) == bool(expected)


def test_a_tombstone_matches_by_its_key_alone() -> None:
    """It stands for no payload."""
    row = make_row(INTENT)
    assert mismatch(row, make_receipt(INTENT, EffectState.VOIDED, fingerprint="0" * 64)) is None
    assert mismatch(row, make_receipt(STRANGER, EffectState.VOIDED)) is not None


def test_both_payloads_are_said_in_one_form() -> None:
    """JSON as the journal writes it, so that a person sees what differs."""
    request = {"lines": [{"sku": "Łódź", "quantity": 1}]}
    said = mismatch(make_row(INTENT), make_receipt(INTENT, fingerprint="0" * 64, request=request))
    assert said is not None
    assert said.endswith(f'another payload: {{"lines":[{{"quantity":1,"sku":"Łódź"}}]}} instead of {INTENT.request}')


def test_lines_are_compared_as_sums() -> None:
    """A SKU asked for in two lines may be granted in one."""
    intent = make_intent(request={"lines": [{"sku": "A", "quantity": 1}, {"sku": "A", "quantity": 2}]})
    granted = [{"sku": "A", "requested": 3, "granted": 3}]
    assert mismatch(make_row(intent), make_receipt(intent, lines=granted)) is None
    assert mismatch(make_row(intent), make_receipt(intent, lines=[*granted, *granted])) is not None


@pytest.mark.parametrize("kind", ["inventory.confirm", "inventory.release"])
def test_what_is_done_to_a_reservation_is_compared_by_the_reservation_and_its_lines(kind: str) -> None:
    """I46: another reservation, none, or a part of its lines is not what was asked for; a rejection names none."""
    name = "a.g1.release" if kind == "inventory.release" else "a.g1.confirm"
    intent = make_intent(name=name, kind=kind, request={}, path={"id": "reservation-7"})
    row = make_row(intent)
    whole, part = ([{"sku": "A", "requested": 2, "granted": granted}] for granted in (2, 1))
    assert mismatch(row, make_receipt(intent, reservation_id="reservation-7", lines=whole)) is None
    for wrong in ({"reservation_id": "reservation-8", "lines": whole}, {"reservation_id": None, "lines": whole},
                  {"reservation_id": "reservation-7", "lines": part}):  # fmt: skip
        receipt = make_receipt(intent, **wrong)
        assert mismatch(row, receipt) is not None
        assert settle(row, (), shows(receipt)).state is EffectState.IN_DOUBT
    assert mismatch(row, make_receipt(intent, EffectState.REJECTED, reason="hold-expired")) is None


def test_an_expirys_receipt_settles_nobodys_effect() -> None:
    """It is committed and no request's: neither under its own key nor under ours does it settle anything."""
    row = make_row(INTENT)
    for key in (f"{INTENT.key}@expiry", INTENT.key):
        expiry = make_receipt(INTENT, key=key, kind="expiry", fingerprint=None)
        assert settle(row, (), shows(expiry)).state is EffectState.IN_DOUBT


def test_a_request_without_lines_is_compared_by_its_fingerprint() -> None:
    """A confirmation grants no lines."""
    intent = make_intent(name="confirm", kind="inventory.confirm", request={}, path={"id": "reservation-1"})
    assert mismatch(make_row(intent), make_receipt(intent)) is None
