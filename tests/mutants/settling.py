"""G6 to G12, G15, G19: what is final, who may close a key, and what recovery leaves alone."""

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "services/journal/store.py"
_SETTLE: Final = "services/effects/settle.py"
_BOOKS: Final = "services/inventory/books.py"
_FORGOTTEN_TESTS: Final = "tests/services/reconciliation/test_forgotten.py"
_APPROVAL_TESTS: Final = "tests/workflows/test_approval.py"
_OLD_TESTS: Final = "tests/services/journal/test_old_effects.py"
_RECOVERY: Final = "services/reconciliation/recovery.py"
_EFFECTS: Final = "activities/effects.py"
_STORE_TESTS: Final = "tests/services/journal/test_store.py"
_SETTLE_TESTS: Final = "tests/services/effects/test_settle.py"
_STOCK_TESTS: Final = "tests/services/inventory/test_stock.py"
_EFFECTS_TESTS: Final = "tests/activities/test_effects.py"

MUTANTS: Final = (
    Mutant(
        name="an-update-that-leaves-an-end",
        rule="G6",
        file=_STORE,
        before="if row.state not in sources(state):",
        after="if False:",
        tests=(f"{_STORE_TESTS}::test_no_update_leaves_an_end",),
        paired="a writer that read before it had the lock; the lock hides it, so the update is called directly",
    ),
    Mutant(
        name="an-update-of-a-row-that-has-changed",
        rule="G6",
        file="services/journal/statements.py",
        before='EFFECTS.c.version == sa.bindparam("of_version"))',
        after='sa.bindparam("of_version") == sa.bindparam("of_version"))',
        tests=(f"{_STORE_TESTS}::test_no_update_lands_on_a_row_that_has_changed_since_it_was_read",),
        paired="a writer that read before it had the lock; the lock hides it, so the update is called directly",
    ),
    Mutant(
        name="a-contradiction-that-nobody-hears-of",
        rule="G6",
        file=_SETTLE,
        before="late = contradicts or receipt.key != row.key or not agree(row.state, receipt.outcome)",
        after="late = contradicts or receipt.key != row.key",
        tests=(f"{_SETTLE_TESTS}::test_a_report_after_settlement_is_late_exactly_when_it_contradicts",),
        paired="a provider that reports committed after voided",
    ),
    Mutant(
        name="an-answer-under-an-alarm",
        rule="G6",
        file="services/journal/reads.py",
        before="if any(other.alarmed for other in related if other.name == row.name):",
        after="if row.alarmed:",
        tests=(f"{_STORE_TESTS}::test_a_committed_predecessor_raises_the_alarm_on_the_former_generation",),
        paired="a provider that refuses a redo because a voided generation is committed after all",
    ),
    Mutant(
        name="an-answer-while-its-release-is-under-way",
        rule="G7",
        file="services/journal/reads.py",
        before="if any(not release.state.terminal for release in releases):",
        after="if False:",
        tests=(
            f"{_STORE_TESTS}::test_a_committed_effect_is_answered_as_released_once_its_release_is",
            "tests/activities/test_attempt.py::test_an_effect_whose_release_is_under_way_has_no_outcome_yet",
        ),
        paired="a release whose answer is lost, beside a workflow that starts again",
    ),
    Mutant(
        name="a-give-up-that-is-not-journaled",
        rule="G7",
        file=_EFFECTS,
        before="if request.given_up:",
        after="if False:",
        tests=(
            f"{_EFFECTS_TESTS}::test_without_a_row_giving_up_makes_one_and_voids",
            f"{_EFFECTS_TESTS}::test_giving_up_is_journaled_before_the_provider_is_asked",
        ),
        paired="a cancel beside an attempt that is about to send",
    ),
    Mutant(
        name="settle-is-not-asked-after-a-failure",
        rule="G7",
        file="workflows/effects.py",
        before="if not concluded and not performance.given_up:",
        after="if False:",
        tests=("tests/workflows/test_effects.py::test_perform_goes_on_when_settling_itself_fails_for_good",),
        paired="an activity failed for good",
    ),
    Mutant(
        name="another-payloads-key-is-voided",
        rule="G7",
        file=_EFFECTS,
        before="may_void=not mismatch",
        after="may_void=True",
        tests=(f"{_EFFECTS_TESTS}::test_a_mismatch_never_voids_and_is_told_when_the_row_is_settled",),
        paired="a second payload under a used name, past the window",
    ),
    Mutant(
        name="an-alarm-is-voided-over",
        rule="G7",
        file=_SETTLE,
        before="if state is EffectState.IN_DOUBT or (row.alarmed and step in {Next.SEND, Next.VOID}):",
        after="if state is EffectState.IN_DOUBT:",
        tests=(f"{_SETTLE_TESTS}::test_an_alarm_on_the_row_stops_both_sending_and_voiding",),
        paired="a late observation, then an absence",
    ),
    Mutant(
        name="a-rejection-is-not-kept",
        rule="G8",
        file=_BOOKS,
        before="return self._add(self._execute(call))",
        after=(
            "entry = self._execute(call)\n"
            "        if entry.reason is Problem.INSUFFICIENT_STOCK:\n"
            "            return Refused(entry.reason, entry.detail)\n"
            "        return self._add(entry)"
        ),
        tests=(f"{_STOCK_TESTS}::test_a_rejection_is_for_good",),
        paired="the provider's half: a restock between two tries of one key",
    ),
    Mutant(
        name="a-redo-supersedes-nothing",
        rule="G9",
        file="activities/inventory_client.py",
        before="if row.supersedes:",
        after="if False:",
        tests=("tests/activities/test_outcomes.py::test_a_refused_predecessor_comes_with_the_former_receipt",),
        paired="a provider put back to before a tombstone; the header is read on the wire",
    ),
    Mutant(
        name="a-provider-that-closes-no-former-generation",
        rule="G9",
        file=_BOOKS,
        before="for key in call.supersedes:",
        after="for key in ():",
        tests=(
            f"{_STOCK_TESTS}::test_a_redo_closes_the_generations_that_never_came",
            f"{_STOCK_TESTS}::test_a_redo_of_what_is_committed_is_refused_for_good",
        ),
        paired="the provider's half: a packet of a former generation, still under way",
    ),
    Mutant(
        name="a-dropped-receipt-counts-as-nothing-done",
        rule="G10",
        file="activities/inventory_client.py",
        before='(410, "key-expired"): Seen.KEY_EXPIRED,',
        after='(410, "key-expired"): Seen.REQUEST_REFUSED,',
        tests=(
            "tests/activities/test_outcomes.py::test_each_response_to_a_send_has_its_class_and_what_follows",
            f"{_FORGOTTEN_TESTS}::test_the_sweep_leaves_it_in_doubt_and_stays_away",
            f"{_FORGOTTEN_TESTS}::test_a_send_that_is_answered_so_is_in_doubt",
            f"{_FORGOTTEN_TESTS}::test_a_void_that_is_answered_so_is_in_doubt",
        ),
        paired="a provider past its retention",
    ),
    Mutant(
        name="an-absence-after-the-retention-is-believed",
        rule="G10",
        file=_SETTLE,
        before="case Seen.ABSENT if forgotten(row.decided_at, answer.observed_at, retention=retention, margin=margin):",
        after="case Seen.ABSENT if False:",
        tests=(
            f"{_SETTLE_TESTS}::test_what_is_older_than_the_retention_is_neither_sent_nor_voided",
            f"{_OLD_TESTS}::test_an_absence_after_the_journals_retention_leaves_it_in_doubt",
        ),
        paired="a provider that forgets its keys; ours keeps them, and the void meets 410",
    ),
    Mutant(
        name="a-retention-that-the-journal-is-not-told",
        rule="G10",
        file=_STORE,
        before="settlement = settle(row, after, answer, margin=self._margin, retention=self._retention)",
        after="settlement = settle(row, after, answer, margin=self._margin)",
        tests=(f"{_OLD_TESTS}::test_an_absence_after_the_journals_retention_leaves_it_in_doubt",),
        paired="a provider that forgets its keys",
    ),
    Mutant(
        name="a-retention-that-the-worker-does-not-read",
        rule="G10",
        file="services/settings.py",
        before="retention=None if retention is None else timedelta(seconds=retention),",
        after="retention=None,",
        tests=(
            "tests/services/test_settings.py::test_a_recovery_horizon_of_ones_own_counts_instead",
            "tests/faults/test_old_effects.py::test_a_worker_that_comes_back_after_three_days_leaves_it_to_a_person",
        ),
        paired="a worker that comes back after the retention, over an effect that was given up",
    ),
    Mutant(
        name="a-person-closes-what-is-forgotten",
        rule="G10",
        file="services/effect_desk.py",
        before="if answer.seen is Seen.ABSENT and to is EffectState.VOIDED and not forgotten:",
        after="if answer.seen is Seen.ABSENT and to is EffectState.VOIDED:",
        tests=("tests/services/test_effect_desk.py::test_what_is_older_than_the_retention_is_not_closed_but_asserted",),
        paired="a provider that forgets its keys, and a person who wants one closed",
    ),
    Mutant(
        name="a-mark-after-the-retention",
        rule="G10",
        file=_STORE,
        before="if forgotten(row.decided_at, tx.now, retention=self._retention, margin=self._margin):",
        after="if False:",
        tests=(f"{_OLD_TESTS}::test_nothing_is_marked_that_is_older_than_the_providers_retention",),
        paired="a provider that forgets within the send window; start-up refuses it, so the mark is asked for directly",
    ),
    Mutant(
        name="a-provider-that-forgets-too-soon-is-taken",
        rule="G10",
        file="services/settings.py",
        before="if value < horizon:",
        after="if False:",
        tests=("tests/services/test_settings.py::test_a_retention_shorter_than_the_recovery_horizon_is_refused",),
        paired="receipts kept for minutes, and a workflow that resumes after days",
    ),
    Mutant(
        name="nobody-closes-what-is-overdue",
        rule="G11",
        file=_RECOVERY,
        before="if may_void and observed.settlement.next is Next.VOID:",
        after="if False:",
        tests=("tests/services/reconciliation/test_sweep.py::test_each_kind_of_row_ends_where_it_belongs",),
        paired="a workflow that is gone",
    ),
    Mutant(
        name="the-sweep-takes-what-a-live-attempt-owns",
        rule="G12",
        file=_RECOVERY,
        before="return fresh and not provably_dead(newest.worker)",
        after="return False",
        tests=("tests/services/reconciliation/test_sweep.py::test_what_a_live_attempt_owns_is_left_alone",),
        paired="a sweep beside a send; the unique key and the void hide it, so the look-ups are counted",
    ),
    Mutant(
        name="recovery-asks-before-there-is-a-row",
        rule="G12",
        file=_EFFECTS,
        before="row = await asyncio.to_thread(self._journal.own, intent)",
        after=(
            "from services.effects.states import EffectState\n\n"
            "                row = await asyncio.to_thread(self._journal.effect, intent.key)\n"
            "                if row is None:\n"
            "                    return Standing(\n"
            "                        key=intent.key, state=EffectState.PENDING, outcome=None, send_again=True\n"
            "                    )"
        ),
        tests=(f"{_EFFECTS_TESTS}::test_without_a_row_settle_makes_one_and_asks_for_the_same_key_again",),
        paired="a worker frozen before its INSERT: it would come second and think that it is first",
    ),
    Mutant(
        name="recovery-answers-what-it-remembered",
        rule="G12",
        file=_EFFECTS,
        before="row, reason = observed.row, answer.reason",
        after="reason = answer.reason",
        tests=(f"{_EFFECTS_TESTS}::test_what_is_answered_is_what_the_row_says_after_its_own_update",),
        paired="a rival that settles between the look-up and its record",
    ),
    Mutant(
        name="entries-that-can-be-changed",
        rule="G15",
        file="migrations/journal/versions/journal_0001_first.py",
        before="for table in APPEND_ONLY:",
        after="for table in APPEND_ONLY[1:]:",
        tests=(f"{_STORE_TESTS}::test_what_was_recorded_cannot_be_changed",),
        paired="a statement that no code of ours has",
    ),
    Mutant(
        name="a-sealer-that-waits-for-nobody",
        rule="G15",
        file="services/journal/seals.py",
        before='connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({SEAL_LOCK})")',
        after="pass",
        tests=("tests/services/journal/test_seals.py::test_an_entry_that_commits_late_is_never_skipped",),
        paired="a writer that commits after a later one, on PostgreSQL; SQLite has one writer",
    ),
    Mutant(
        name="a-sealer-that-sees-what-was-there-before-it-waited",
        rule="G15",
        file="services/journal/seals.py",
        before="SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
        after="SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        tests=("tests/services/journal/test_seals.py::test_a_sealer_that_waited_sees_what_it_waited_for",),
        paired="a writer that commits while the sealer waits for it, on PostgreSQL",
    ),
    Mutant(
        name="a-second-decision-under-one-name",
        rule="G19",
        file="migrations/journal/versions/journal_0001_first.py",
        before='sa.PrimaryKeyConstraint("origin", "scope", "name", "generation", name="pk_decisions"),',
        after='sa.PrimaryKeyConstraint("origin", "scope", "name", "generation", "recorded_at", name="pk_decisions"),',
        tests=(
            "tests/services/journal/test_tables.py::test_the_database_itself_has_one_row_per_key_and_one_decision_per_name",
        ),
        paired="two writers that both found none; a trigger hides it on SQLite, so the test takes the trigger away",
    ),
    Mutant(
        name="a-person-is-asked-before-the-journal",
        rule="G19",
        file="workflows/incident.py",
        before="if standing is not None:",
        after="if False:",
        tests=("tests/workflows/test_incident.py::test_a_decision_in_the_journal_is_asked_for_before_a_person",),
        paired="a Temporal put back to before the approval",
    ),
    Mutant(
        name="a-second-person-is-asked-before-the-journal",
        rule="G19",
        file="workflows/incident.py",
        before="            if not self._complete():\n                await self._ask_for_second()",
        after="",
        tests=(f"{_APPROVAL_TESTS}::test_the_journal_is_asked_for_both_before_anybody_is",),
        paired="a Temporal put back to before both approvals",
    ),
    Mutant(
        name="one-person-is-two",
        rule="G19",
        file="workflows/incident.py",
        before='if same_person(first.body["by"], approval.by):',
        after="if False:",
        tests=(f"{_APPROVAL_TESTS}::test_two_people_approve_and_they_are_two",),
        paired="somebody who repeats the command, as everybody is told to",
    ),
    Mutant(
        name="a-name-in-capitals-is-another-person",
        rule="G19",
        file="services/effects/people.py",
        before="return _plain(one) == _plain(other)",
        after="return one == other",
        tests=(
            "tests/services/effects/test_people.py::test_one_person_is_one_however_the_name_is_written",
            f"{_APPROVAL_TESTS}::test_two_people_approve_and_they_are_two",
        ),
        paired="somebody who repeats the command from another machine",
    ),
    Mutant(
        name="a-decline-that-a-second-person-can-turn",
        rule="G19",
        file="workflows/incident.py",
        before="if self._incident.approvers == 1 or not _approves(first):",
        after="if self._incident.approvers == 1:",
        tests=(f"{_APPROVAL_TESTS}::test_a_decline_by_either_is_final",),
        paired="a second person who approves what the first one declined",
    ),
    Mutant(
        name="the-clock-beats-an-approval",
        rule="G19",
        file="workflows/incident.py",
        before='await self._approve(Approval(approved=False, by=f"{RULE} nobody approved within {seconds} s"))',
        after='return False, f"{RULE} nobody approved within {seconds} s"',
        tests=(
            f"{_APPROVAL_TESTS}::test_when_its_time_is_over_the_rule_declines",
            f"{_APPROVAL_TESTS}::test_an_approval_that_the_journal_has_first_beats_the_clock",
        ),
        paired="an approval that is recorded while the timer fires; nothing of the rule would be in the journal",
    ),
    Mutant(
        name="somebody-decides-as-a-rule",
        rule="G19",
        file="services/effects/people.py",
        before="if _plain(by).startswith(RULE):",
        after="if False:",
        tests=(
            "tests/services/effects/test_people.py::test_what_is_no_persons_name_is_said",
            f"{_APPROVAL_TESTS}::test_nobody_decides_as_a_rule_or_without_end",
        ),
        paired="somebody who wants no name in the journal",
    ),
    Mutant(
        name="an-export-that-goes-on-past-what-is-sealed",
        rule="G15",
        file="services/journal/export.py",
        before="sealed = 0 if stands.seal is None else stands.seal.upto_id",
        after="sealed = stands.last_entry_id",
        tests=("tests/services/journal/test_export.py::test_an_export_goes_on_where_the_last_one_was_sealed",),
        paired="an entry with a lower id that commits after the export; what is said to go on after is read",
    ),
)
