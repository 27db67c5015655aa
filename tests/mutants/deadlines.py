"""G17, G18: every packet has its deadline, and it is the journaled bytes, sent while nothing is locked."""

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "services/journal/store.py"
_CLIENT: Final = "activities/inventory_client.py"
_ATTEMPT: Final = "activities/attempt.py"
_STORE_TESTS: Final = "tests/services/journal/test_store.py"
_ATTEMPT_TESTS: Final = "tests/activities/test_attempt.py"
_ON_THE_WIRE: Final = (
    "tests/activities/test_inventory_client.py::test_what_is_sent_is_the_journaled_bytes_with_the_marks_deadline"
)
_LATER: Final = f"{_ATTEMPT_TESTS}::test_a_start_again_never_extends_the_window"
_EARLIER: Final = f"{_ATTEMPT_TESTS}::test_an_earlier_history_shortens_what_is_sent_and_not_what_was_marked"
_LATEST: Final = f"{_STORE_TESTS}::test_the_earliest_decision_time_wins_and_the_latest_deadline_stays"
_SENT: Final = "answer = await self._provider.send(begun.row, begun.attempt)"

MUTANTS: Final = (
    Mutant(
        name="a-send-without-its-deadline",
        rule="G17",
        file=_CLIENT,
        before='"Effect-Not-After": timestamp(gate.attempt.not_after),',
        after="",
        tests=(_ON_THE_WIRE,),
        paired="a packet delayed past the window, or a restored provider: the header is read on the wire",
    ),
    Mutant(
        name="a-send-with-the-rows-deadline",
        rule="G17",
        file=_CLIENT,
        before='"Effect-Not-After": timestamp(gate.attempt.not_after),',
        after='"Effect-Not-After": timestamp(row.deadline),',
        tests=(_EARLIER,),
        paired="an earlier history that comes back; the header is read on the wire",
    ),
    Mutant(
        name="the-window-runs-from-before-the-approval",
        rule="G17",
        file="workflows/effects.py",
        before="decided_at=later.decided_at if later else workflow.now(),",
        after="decided_at=later.decided_at if later else workflow.info().start_time,",
        tests=("tests/workflows/test_incident.py::test_nothing_is_performed_before_a_person_has_approved",),
        paired="an approval that takes longer than the send window",
    ),
    Mutant(
        name="a-later-history-extends-the-window",
        rule="G17",
        file=_STORE,
        before="if intent.decided_at < row.decided_at:",
        after="if intent.decided_at > row.decided_at:",
        tests=(_LATER, _LATEST),
        paired="reset or start again after a provider was put back; void hides it, so decided_at and header are read",
    ),
    Mutant(
        name="an-earlier-history-does-not-shorten-it",
        rule="G17",
        file=_STORE,
        before="if intent.decided_at < row.decided_at:",
        after="if False:",
        tests=(_EARLIER, _LATEST),
        paired="an older Temporal that comes back; the header is read on the wire",
    ),
    Mutant(
        name="the-last-deadline-marked-instead-of-the-latest",
        rule="G17",
        file=_STORE,
        before="latest = not_after if row.attempts == 0 else max(not_after, row.deadline)",
        after="latest = not_after",
        tests=(_LATEST, _EARLIER),
        paired="a packet of the first mark, still under way, with the later deadline",
    ),
    Mutant(
        name="a-deadline-computed-instead-of-the-latest-marked",
        rule="G17",
        file="services/journal/rows.py",
        before='"deadline": last_not_after or values["decided_at"] + send_window,',
        after='"deadline": values["decided_at"] + send_window,',
        tests=(_LATEST, _EARLIER),
        paired="a packet of the first mark, still under way, with the later deadline",
    ),
    Mutant(
        name="no-margin",
        rule="G17",
        file="services/effects/settle.py",
        before="answer.observed_at > row.deadline + margin",
        after="answer.observed_at > row.deadline",
        tests=("tests/services/effects/test_settle.py::test_absent_means_send_again_until_something_permits_a_void",),
        paired="two clocks that differ, and a packet under way",
    ),
    Mutant(
        name="a-margin-that-is-not-the-journals",
        rule="G17",
        file=_STORE,
        before="settle(row, after, answer, margin=self._margin, retention=self._retention)",
        after="settle(row, after, answer, retention=self._retention)",
        tests=(f"{_STORE_TESTS}::test_the_journals_own_margin_is_waited_out",),
        paired="clocks that differ by more than the default allows for",
    ),
    Mutant(
        name="a-mark-after-the-window",
        rule="G17",
        file=_STORE,
        before='return Begun(row=row, refused="its send window is over")',
        after="pass",
        tests=(
            f"{_STORE_TESTS}::test_no_attempt_is_marked_from_its_deadline_on",
            f"{_ATTEMPT_TESTS}::test_within_the_margin_nothing_is_marked_or_sent",
        ),
        paired="an outage longer than the window; the send gate would hide it, so the marks are counted",
    ),
    Mutant(
        name="a-redos-window-runs-from-each-callers-clock",
        rule="G17",
        file=_STORE,
        before="if intent.generation > 1:",
        after="if False:",
        tests=(f"{_STORE_TESTS}::test_a_redos_window_runs_from_its_recorded_decision",),
        paired="two callers of one redo, days apart",
    ),
    Mutant(
        name="a-provider-that-ignores-the-deadline",
        rule="G17",
        file="services/inventory/stock.py",
        before="and now > call.not_after",
        after="and False",
        tests=("tests/services/inventory/test_app.py::test_after_its_deadline_a_request_is_not_executed",),
        paired="the provider's half: a packet that arrives after the window",
    ),
    Mutant(
        name="the-bytes-made-again-from-the-row",
        rule="G18",
        file=_CLIENT,
        before="content=row.request.encode()",
        after="content=json.dumps(json.loads(row.request)).encode()",
        tests=(_ON_THE_WIRE,),
        paired="a row whose text another build wrote; the bytes are read on the wire",
    ),
    Mutant(
        name="the-historys-bytes-instead-of-the-journals",
        rule="G18",
        file=_ATTEMPT,
        before=_SENT,
        after=(
            "from dataclasses import replace\n\n"
            "        answer = await self._provider.send(replace(begun.row, request=intent.request), begun.attempt)"
        ),
        tests=(f"{_ATTEMPT_TESTS}::test_what_is_sent_again_is_the_rows_text_and_not_the_new_builds",),
        paired="a build that writes the same payload in another order; the bytes are read on the wire",
    ),
    Mutant(
        name="a-transaction-open-across-the-send",
        rule="G18",
        file=_ATTEMPT,
        before=_SENT,
        after=(
            "from services.database import writing\n\n"
            "        with writing(self._journal._engine):\n"
            f"            {_SENT}"
        ),
        tests=(f"{_ATTEMPT_TESTS}::test_no_transaction_is_open_across_a_send",),
        paired="a slow provider: every other writer of the journal would wait for it",
    ),
)
