"""G1, G4, G5: no byte without its mark, the receipt before anything is sent again, and no end but by a receipt."""

from typing import Final

from tests.mutants.mutant import Mutant

_STORE: Final = "services/journal/store.py"
_ATTEMPT: Final = "activities/attempt.py"
_CLIENT: Final = "activities/inventory_client.py"
_SETTLE: Final = "services/effects/settle.py"
_STORE_TESTS: Final = "tests/services/journal/test_store.py"
_ATTEMPT_TESTS: Final = "tests/activities/test_attempt.py"
_CLIENT_TESTS: Final = "tests/activities/test_inventory_client.py"
_BREAK_TESTS: Final = "tests/activities/test_breaks.py"
_OUTCOME_TESTS: Final = "tests/activities/test_outcomes.py"
_SETTLE_TESTS: Final = "tests/services/effects/test_settle.py"
_RACES: Final = "tests/services/journal/test_races_and_crashes.py"
_PERFORM_TESTS: Final = "tests/workflows/test_effects.py"

MUTANTS: Final = (
    Mutant(
        name="no-mark-before-the-first-send",
        rule="G1",
        file=_STORE,
        before='tx.append(row.key, "attempt", body)',
        after="pass",
        tests=(
            f"{_ATTEMPT_TESTS}::test_when_its_first_byte_leaves_an_attempts_mark_is_committed",
            f"{_STORE_TESTS}::test_decision_intent_and_mark_are_recorded_together_before_anything_is_sent",
        ),
        paired="read from another connection while the request is under way; the effect itself comes out the same",
    ),
    Mutant(
        name="no-mark-before-the-next-send",
        rule="G1",
        file=_ATTEMPT,
        before="return await asyncio.to_thread(self._journal.mark, intent, mark())",
        after=(
            "from services.effects.records import Attempt\n"
            '            late = {"attempt_id": "late", "number": 2, "marked_at": row.created_at, "worker": {}}\n'
            "            return Begun(row=observed.row, attempt=Attempt(not_after=row.deadline, **late))"
        ),
        tests=(
            f"{_ATTEMPT_TESTS}::test_when_its_first_byte_leaves_an_attempts_mark_is_committed",
            f"{_ATTEMPT_TESTS}::test_after_an_absence_the_same_bytes_go_out_under_the_next_mark",
        ),
        paired="read from another connection while the request is under way; the provider's dedupe hides it",
    ),
    Mutant(
        name="row-and-mark-in-two-transactions",
        rule="G1",
        file=_STORE,
        before='row, created = self._ensure(tx, intent, born_by="attempt")',
        after=(
            'row, created = self._ensure(tx, intent, born_by="attempt")\n'
            '            tx.connection.exec_driver_sql("COMMIT")\n'
            '            tx.connection.exec_driver_sql("BEGIN IMMEDIATE")'
        ),
        tests=(f"{_RACES}::test_a_process_killed_before_its_commit_leaves_no_row_and_no_lock",),
        paired="SIGKILL between the two",
    ),
    Mutant(
        name="a-commit-is-not-on-disk",
        rule="G1",
        file="services/database.py",
        before='"synchronous=FULL",',
        after='"synchronous=OFF",',
        tests=("tests/services/test_database.py::test_commits_are_on_disk_before_they_return",),
        paired="a power cut: no process dies of it, so SQLite's own setting is looked at",
    ),
    Mutant(
        name="a-writer-decides-before-it-may-write",
        rule="G1",
        file="services/database.py",
        before='"BEGIN IMMEDIATE" if writes else "BEGIN"',
        after='"BEGIN"',
        tests=("tests/services/test_database.py::test_a_writer_holds_the_right_to_write_from_its_first_statement",),
        paired="a second process between the read and the write, on SQLite",
    ),
    Mutant(
        name="a-mark-without-the-rows-lock",
        rule="G1",
        file="services/journal/reads.py",
        before="EFFECT_LOCKED if lock else EFFECT",
        after="EFFECT",
        tests=(f"{_RACES}::test_a_row_is_held_from_its_reading_to_the_commit",),
        paired="a second writer between the read and the write, on PostgreSQL; SQLite has one writer",
    ),
    Mutant(
        name="one-mark-for-two-sends",
        rule="G1",
        file=_STORE,
        before='refused = "this attempt has been marked before"',
        after='refused = ""',
        tests=(f"{_STORE_TESTS}::test_one_attempt_is_marked_once",),
        paired="a COMMIT whose answer was lost, asked for again",
    ),
    Mutant(
        name="a-send-for-a-mark-that-nobody-confirmed",
        rule="G1",
        file=_STORE,
        before="if row is None or mark.attempt_id not in attempts:\n                raise",
        after=(
            "if row is None or mark.attempt_id not in attempts:\n"
            "                row = self.own(intent)\n"
            "                hoped = {'attempt_id': mark.attempt_id, 'number': 1, 'worker': mark.worker}\n"
            "                attempt = Attempt(not_after=row.deadline, marked_at=self._clock(), **hoped)\n"
            "                return Begun(row=row, attempt=attempt)"
        ),
        tests=(f"{_RACES}::test_a_mark_whose_commit_got_no_answer_counts_only_where_it_is_found",),
        paired="a connection that breaks inside COMMIT",
    ),
    Mutant(
        name="a-mark-after-settlement",
        rule="G1",
        file=_STORE,
        before='return f"it is settled: {row.state}"',
        after="pass",
        tests=(f"{_STORE_TESTS}::test_no_mark_after_settlement",),
        paired="a zombie between its look-up and its mark; the provider would answer it with a replay",
    ),
    Mutant(
        name="a-mark-while-in-doubt",
        rule="G1",
        file=_STORE,
        before='return "it is in doubt"',
        after="pass",
        tests=(f"{_STORE_TESTS}::test_no_mark_while_in_doubt",),
        paired="a provider that answers the key with another payload",
    ),
    Mutant(
        name="a-mark-after-giving-up",
        rule="G1",
        file=_STORE,
        before='return "it has been given up"',
        after="pass",
        tests=(
            f"{_STORE_TESTS}::test_no_mark_after_giving_up",
            f"{_ATTEMPT_TESTS}::test_giving_up_between_the_look_up_and_the_mark_forbids_the_mark",
        ),
        paired="a delayed attempt; a provider with void would refuse its request, so the sends are counted",
    ),
    Mutant(
        name="a-mark-under-a-later-generation",
        rule="G1",
        file=_STORE,
        before='return "a later generation has been decided"',
        after="pass",
        tests=(
            f"{_STORE_TESTS}::test_no_mark_once_a_higher_generation_has_been_decided",
            f"{_ATTEMPT_TESTS}::test_a_later_generation_forbids_another_mark_of_the_former",
        ),
        paired="a redo beside a frozen attempt; Effect-Supersedes would close its key, so the sends are counted",
    ),
    Mutant(
        name="a-mark-under-an-alarm",
        rule="G1",
        file=_STORE,
        before='return "a late observation on its name waits for a person"',
        after="pass",
        tests=(f"{_STORE_TESTS}::test_no_mark_on_any_generation_of_a_name_under_a_late_observation",),
        paired="a provider that reports committed after voided",
    ),
    Mutant(
        name="an-alarm-on-one-generation-only",
        rule="G1",
        file="services/journal/statements.py",
        before="for name, value in _OF_NAME.items()), EFFECTS.c.alarmed.is_(True)",
        after=(
            "for name, value in _OF_NAME.items()), EFFECTS.c.alarmed.is_(True), "
            "EFFECTS.c.generation == sa.select(sa.func.max(DECISIONS.c.generation)).where("
            "*(DECISIONS.c[name] == value for name, value in _OF_NAME.items())).scalar_subquery()"
        ),
        tests=(f"{_STORE_TESTS}::test_no_mark_on_any_generation_of_a_name_under_a_late_observation",),
        paired="a provider that reports committed after voided, and a redo",
    ),
    Mutant(
        name="the-send-gate-stands-open",
        rule="G1",
        file=_CLIENT,
        before="if self.clock() >= self.attempt.not_after:",
        after="if False:",
        tests=(
            f"{_CLIENT_TESTS}::test_no_byte_leaves_once_the_deadline_has_passed",
            f"{_CLIENT_TESTS}::test_no_byte_leaves_a_kept_connection_once_the_deadline_has_passed",
        ),
        paired="a worker frozen between mark and send; the provider's 412 would hide it, so the peer counts bytes",
    ),
    Mutant(
        name="the-gate-forgets-that-a-byte-left",
        rule="G1",
        file=_CLIENT,
        before="self.opened = True",
        after="self.opened = False",
        tests=(f"{_BREAK_TESTS}::test_a_connection_that_breaks_after_the_first_byte_is_unknown",),
        paired="a connection that breaks over a committed effect",
    ),
    Mutant(
        name="no-receipt-asked-for-first",
        rule="G4",
        file=_ATTEMPT,
        before="answer = await self._provider.look_up(row.key)",
        after=(
            "from services.effects.records import Source\n"
            "        answer = Answer(seen=Seen.ABSENT, source=Source.LOOK_UP)"
        ),
        tests=(
            f"{_ATTEMPT_TESTS}::test_a_mark_that_exists_means_a_look_up_first_and_found_nothing_is_sent",
            f"{_ATTEMPT_TESTS}::test_a_row_that_recovery_made_is_looked_up_before_its_first_mark",
        ),
        paired="no POST before the GET: a provider with dedupe hides it in everything else",
    ),
    Mutant(
        name="whoever-comes-second-sends-at-once",
        rule="G4",
        file=_STORE,
        before="if not created:",
        after="if False:",
        tests=(
            f"{_STORE_TESTS}::test_a_key_that_was_begun_is_looked_up_before_it_is_sent_again",
            f"{_ATTEMPT_TESTS}::test_a_mark_that_exists_means_a_look_up_first_and_found_nothing_is_sent",
        ),
        paired="an answer that was lost; no POST before the GET",
    ),
    Mutant(
        name="a-row-that-recovery-made-counts-as-new",
        rule="G4",
        file=_STORE,
        before="if not created:",
        after='if not created and row.born_by == "attempt":',
        tests=(
            f"{_STORE_TESTS}::test_a_row_that_recovery_made_is_looked_up_before_it_is_sent",
            f"{_ATTEMPT_TESTS}::test_a_row_that_recovery_made_is_looked_up_before_its_first_mark",
        ),
        paired="marks lost with an older copy of the journal; no POST before the GET",
    ),
    Mutant(
        name="a-send-after-an-unanswered-look-up",
        rule="G4",
        file=_ATTEMPT,
        before="if observed.settlement.next is Next.SEND:",
        after="if observed.settlement.next in {Next.SEND, Next.LOOK_UP}:",
        tests=(f"{_ATTEMPT_TESTS}::test_a_look_up_that_goes_unanswered_sends_nothing",),
        paired="a look-up that fails; a provider with dedupe hides it, so the sends are counted",
    ),
    Mutant(
        name="not-found-settles",
        rule="G5",
        file=_SETTLE,
        before="step = _on_absence(row, attempts, answer, margin)",
        after="state, step = EffectState.VOIDED, Next.DONE",
        tests=(
            f"{_SETTLE_TESTS}::test_absent_means_send_again_until_something_permits_a_void",
            f"{_ATTEMPT_TESTS}::test_after_an_absence_the_same_bytes_go_out_under_the_next_mark",
        ),
        paired="a packet still under way when the receipt is asked for",
    ),
    Mutant(
        name="not-found-permits-a-new-key",
        rule="G5",
        file=_ATTEMPT,
        before="return await asyncio.to_thread(self._journal.mark, intent, mark())",
        after=(
            "from dataclasses import replace\n"
            "            intent = replace(intent, generation=intent.generation + 1)\n"
            "            return await asyncio.to_thread(self._journal.mark, intent, mark())"
        ),
        tests=(f"{_ATTEMPT_TESTS}::test_after_an_absence_the_same_bytes_go_out_under_the_next_mark",),
        paired="a first packet that lands after the look-up; without it there is one effect under either key",
    ),
    Mutant(
        name="each-round-of-perform-has-a-key-of-its-own",
        rule="G5",
        file="workflows/effects.py",
        before="left = policies.schedule_to_close(intent.decided_at, workflow.now())",
        after=(
            "from dataclasses import replace\n"
            "        intent = replace(intent, generation=performance.rounds + 1)\n"
            "        left = policies.schedule_to_close(intent.decided_at, workflow.now())"
        ),
        tests=(f"{_PERFORM_TESTS}::test_an_activity_that_fails_for_good_is_followed_by_settle_and_the_same_key",),
        paired="an attempt failed for good over a committed effect",
    ),
    Mutant(
        name="time-settles-without-the-providers-void",
        rule="G5",
        file="services/reconciliation/recovery.py",
        before="answer = await provider.void(row.key)",
        after=(
            "from services.effects.records import Receipt, Seen, Source\n"
            '        body = {"key": row.key, "receipt_id": "none", "outcome": "voided", "created_at": "now"}\n'
            "        answer = Answer(seen=Seen.RECEIPT, source=Source.VOID, receipt=Receipt(body))"
        ),
        tests=(
            "tests/activities/test_effects.py::test_a_held_packet_that_lands_after_the_void_does_nothing",
            "tests/activities/test_effects.py::test_a_held_packet_that_commits_before_the_void_is_the_outcome",
        ),
        paired="a packet that lands after the look-up",
    ),
    Mutant(
        name="a-refusal-of-this-delivery-voids-without-a-look-up",
        rule="G5",
        file=_SETTLE,
        before="case Seen.UNKNOWN | Seen.NOT_SENT | Seen.BUSY | Seen.DEADLINE_REFUSED | Seen.REQUEST_REFUSED:\n"
        "            step = Next.LOOK_UP",
        after="case Seen.UNKNOWN | Seen.NOT_SENT | Seen.BUSY | Seen.DEADLINE_REFUSED | Seen.REQUEST_REFUSED:\n"
        "            step = Next.VOID if answer.seen is Seen.DEADLINE_REFUSED else Next.LOOK_UP",
        tests=(
            f"{_SETTLE_TESTS}::test_an_answer_that_says_nothing_of_the_key_is_followed_by_a_look_up",
            f"{_STORE_TESTS}::test_a_refused_deadline_is_remembered_until_the_look_up",
        ),
        paired="an earlier delivery that committed unheard",
    ),
    Mutant(
        name="any-404-is-an-absence",
        rule="G5",
        file=_CLIENT,
        before="if source is Source.SEND or observed_at is None:",
        after="if source is Source.SEND:",
        tests=(f"{_OUTCOME_TESTS}::test_each_response_to_a_look_up_has_its_class_and_what_follows",),
        paired="a 404 of something that stands between, without the provider's clock",
    ),
    Mutant(
        name="a-tombstone-that-closes-nothing",
        rule="G5",
        file="services/inventory/books.py",
        before="if known is not None:\n            return _expired",
        after="if known is not None and known.kind is not Kind.VOID:\n            return _expired",
        tests=("tests/services/inventory/test_stock.py::test_a_void_closes_a_key_for_good",),
        paired="the provider's half: a packet that arrives after the void",
    ),
)
