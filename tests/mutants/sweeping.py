"""G5, G6, G11, G12, G14: what a page of the sweep concludes, whom it tells, and that nobody waits for another."""

from typing import Final

from tests.mutants.mutant import Mutant

_SWEEP: Final = "services/reconciliation/sweep.py"
_CLOSURES: Final = "services/reconciliation/closures.py"
_ALARMS: Final = "services/reconciliation/alarms.py"
_CLIENT: Final = "activities/inventory_client.py"
_SWEEP_TESTS: Final = "tests/services/reconciliation/test_sweep.py"
_CLOSURES_TESTS: Final = "tests/services/reconciliation/test_closures.py"
_ALARMS_TESTS: Final = "tests/services/reconciliation/test_alarms.py"
_MANY_TESTS: Final = "tests/activities/test_look_up_many.py"

MUTANTS: Final = (
    Mutant(
        name="a-status-that-is-taken-for-every-keys",
        rule="G5",
        file=_CLIENT,
        before="whole if whole.seen in of_all else _unknown(source",
        after="whole if True else _unknown(source",
        tests=(f"{_MANY_TESTS}::test_what_is_no_answer_to_the_question_is_one_for_no_key",),
        paired="a gateway that takes the look-up's path for a key, of which there is no receipt",
    ),
    Mutant(
        name="a-key-that-is-left-out-is-absent",
        rule="G5",
        file=_CLIENT,
        before='return _unknown(source, "a look-up that leaves the key out")',
        after='return Answer(seen=Seen.ABSENT, source=source, reason="", observed_at=observed_at)',
        tests=(f"{_MANY_TESTS}::test_what_is_odd_about_one_key_says_nothing_of_another",),
        paired="an answer that was cut to a page",
    ),
    Mutant(
        name="an-absence-of-no-time",
        rule="G5",
        file=_CLIENT,
        before="            if observed_at is None:\n",
        after="            if False:\n",
        tests=(f"{_MANY_TESTS}::test_an_absence_without_its_time_is_none",),
        paired="a copy that is behind and does not say of when it is",
    ),
    Mutant(
        name="a-late-observation-that-nobody-is-told-of",
        rule="G6",
        file=_ALARMS,
        before="for row in _all(self._journal.alarmed):",
        after="for row in list[EffectRow]():",
        tests=(f"{_ALARMS_TESTS}::test_what_only_a_person_can_settle_is_an_alarm_until_somebody_has",),
        paired="a provider that reports committed after voided, and nobody who looks at that effect",
    ),
    Mutant(
        name="a-workflow-that-waits-for-what-is-settled",
        rule="G11",
        file=_SWEEP,
        before="                await told(swept[-1])\n",
        after="",
        tests=(
            "tests/activities/test_reconciliation.py::test_each_workflow_whose_effect_was_settled_is_woken",
            f"{_SWEEP_TESTS}::test_a_slow_scope_delays_no_other",
        ),
        paired="a sweep that settles, beside a workflow in a pause of minutes",
    ),
    Mutant(
        name="an-end-that-nobody-records",
        rule="G11",
        file=_CLOSURES,
        before="if not changed:",
        after="if True:",
        tests=(f"{_CLOSURES_TESTS}::test_what_workflows_leave_standing_that_did_not_complete_is_listed",),
        paired="a workflow that is terminated over a committed effect",
    ),
    Mutant(
        name="an-end-that-stays-whatever-comes",
        rule="G11",
        file=_CLOSURES,
        before="if row.closed_as != closed_as]",
        after="if row.closed_as is None]",
        tests=(f"{_CLOSURES_TESTS}::test_a_workflow_that_starts_again_under_its_id_takes_its_effects_over",),
        paired="a workflow that is terminated and started again",
    ),
    Mutant(
        name="what-a-command-has-sent-is-nobodys",
        rule="G11",
        file=_CLOSURES,
        before="if row.workflow_type != SENDER:",
        after="if True:",
        tests=(f"{_CLOSURES_TESTS}::test_what_a_command_has_sent_is_left_standing_by_the_workflow_of_its_scope",),
        paired="a sender that completed, in the scope of a workflow that did not",
    ),
    Mutant(
        name="a-terminated-sender-leaves-nothing",
        rule="G11",
        file=_CLOSURES,
        before="        return (own, row.workflow_id)\n",
        after="        return (own,)\n",
        tests=(f"{_CLOSURES_TESTS}::test_a_sender_that_did_not_complete_leaves_what_it_sent_standing_too",),
        paired="a sender that was terminated, in the scope of a workflow that completed",
    ),
    Mutant(
        name="out-of-reach-is-gone",
        rule="G11",
        file=_CLOSURES,
        before='                return DELETED, ""\n            raise\n',
        after='                return DELETED, ""\n            return DELETED, ""\n',
        tests=(f"{_CLOSURES_TESTS}::test_a_workflow_that_cannot_be_asked_about_keeps_no_other_from_being_looked_at",),
        paired="a Temporal that is away for a moment",
    ),
    Mutant(
        name="every-sweep-follows-the-same-workflows",
        rule="G11",
        file="workflows/reconciliation.py",
        before='after_key: str | None = last.followed_to if last else ""',
        after='after_key: str | None = "" if last else ""',
        tests=(
            "tests/workflows/test_reconciliation.py::test_each_sweep_follows_some_workflows_and_goes_on_where_the_last_one_stopped",
        ),
        paired="more open workflows than one sweep looks at",
    ),
    Mutant(
        name="a-stuck-workflow-that-nobody-names",
        rule="G11",
        file=_ALARMS,
        before="if row is None or not row.state.terminal or self._journal.later(row) is not None:",
        after="if True:",
        tests=(f"{_ALARMS_TESTS}::test_a_workflow_that_does_not_take_what_is_settled_is_woken_once_and_then_named",),
        paired="a workflow task that fails for ever",
    ),
    Mutant(
        name="a-claim-of-a-day",
        rule="G12",
        file="services/reconciliation/recovery.py",
        before="owned_for = send_deadline + OWNERSHIP_SLACK",
        after="owned_for = OWNERSHIP_SLACK * 86_400",
        tests=(
            f"{_SWEEP_TESTS}::test_a_claim_ends_with_its_attempt_and_the_record_stays",
            f"{_SWEEP_TESTS}::test_what_a_live_attempt_owns_is_left_alone",
        ),
        paired="a worker on another host that is gone and cannot be proven dead",
    ),
    Mutant(
        name="one-scope-takes-every-turn",
        rule="G14",
        file=_SWEEP,
        before="for _ in range(AT_ONCE_PER_SCOPE)",
        after="for _ in range(len(works))",
        tests=(f"{_SWEEP_TESTS}::test_a_slow_scope_delays_no_other",),
        paired="many effects of one scope at a provider that hangs over them",
    ),
    Mutant(
        name="a-page-that-one-scope-keeps-open",
        rule="G14",
        file=_SWEEP,
        before="if self._spent_seconds >= SCOPE_SECONDS:",
        after="if False:",
        tests=(f"{_SWEEP_TESTS}::test_a_scope_whose_calls_have_taken_their_time_is_left_for_the_next_sweep",),
        paired="a page of slow answers, longer than the activity may take: it would be tried for ever",
    ),
    Mutant(
        name="a-receipt-that-hides-the-others",
        rule="G14",
        file=_SWEEP,
        before="return None if answer is None or answer.seen is Seen.UNKNOWN else answer",
        after="return answer",
        tests=(f"{_SWEEP_TESTS}::test_what_the_look_up_of_many_says_nothing_of_is_asked_for_by_itself",),
        paired="one receipt in a page that cannot be read",
    ),
)
