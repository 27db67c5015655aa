"""G6, G9, G15, G17: what a person's command does, refuses, and leaves in the journal."""

from typing import Final

from tests.mutants.mutant import Mutant

_REDO: Final = "services/effects/redo.py"
_REDO_TESTS: Final = "tests/services/effects/test_redo.py"
_OPERATOR: Final = "services/journal/operator.py"
_OPERATOR_TESTS: Final = "tests/services/journal/test_operator.py"
_DESK: Final = "services/effect_desk.py"
_DESK_TESTS: Final = "tests/services/test_effect_desk.py"
_WORKFLOW: Final = "workflows/effects.py"
_WORKFLOW_TESTS: Final = "tests/workflows/test_effect_command.py"
_LATE_TESTS: Final = "tests/services/journal/test_late_rulings.py"
_STORIES: Final = "tests/services/test_effect_desk_stories.py"
_CHECKER: Final = "services/reconciliation/checker.py"
_RULINGS_TESTS: Final = "tests/services/reconciliation/test_rulings.py"
_ONE_BARS: Final = (f"{_REDO_TESTS}::test_one_former_generation_that_may_still_do_something_or_stands_bars_it",)

MUTANTS: Final = (
    Mutant(
        name="a-redo-over-a-generation-without-a-row",
        rule="G9",
        file=_REDO,
        before='return "has no row in the journal: nobody knows what became of it"',
        after='return ""',
        tests=_ONE_BARS,
        paired="a journal that was put back: a former generation may still be on its way",
    ),
    Mutant(
        name="a-redo-over-an-unsettled-generation",
        rule="G9",
        file=_REDO,
        before="    if not row.state.terminal:\n",
        after="    if False:\n",
        tests=_ONE_BARS,
        paired="a former generation whose answer is lost: both may land",
    ),
    Mutant(
        name="a-redo-over-a-late-observation",
        rule="G9",
        file=_REDO,
        before="    if row.alarmed:\n",
        after="    if False:\n",
        tests=_ONE_BARS,
        paired="a report that the voided generation is committed",
    ),
    Mutant(
        name="a-redo-over-what-stands",
        rule="G9",
        file=_REDO,
        before="    if stands and not one.given_back:\n",
        after="    if False:\n",
        tests=_ONE_BARS,
        paired="a provider without supersedes: nobody else would refuse it",
    ),
    Mutant(
        name="a-redo-looks-at-the-newest-generation-only",
        rule="G9",
        file=_REDO,
        before="    for one in former:\n",
        after="    for one in former[-1:]:\n",
        tests=_ONE_BARS,
        paired="three generations, and it is the first that stands",
    ),
    Mutant(
        name="a-generation-beyond-the-last",
        rule="G9",
        file=_REDO,
        before="    if len(former) >= LAST_GENERATION:\n",
        after="    if False:\n",
        tests=(f"{_REDO_TESTS}::test_the_last_generation_is_the_last",),
        paired="seventeen generations: the next one's header would leave the first out",
    ),
    Mutant(
        name="any-release-that-ended-gives-back",
        rule="G9",
        file=_REDO,
        before="or release.receipt.reason in BACK_ALREADY",
        after="or True",
        tests=(f"{_REDO_TESTS}::test_what_was_committed_may_be_redone_once_it_is_back",),
        paired="a release that was refused or voided: the units are still held",
    ),
    Mutant(
        name="a-believed-report-does-not-stand",
        rule="G9",
        file=_REDO,
        before=" or one.late_stands\n",
        after="\n",
        tests=(
            f"{_REDO_TESTS}::test_a_late_report_that_is_believed_counts_as_committed_until_it_is_back",
            f"{_OPERATOR_TESTS}::test_a_believed_report_stands_until_it_is_released_or_written_off",
        ),
        paired="a voided generation that landed all the same",
    ),
    Mutant(
        name="an-assertion-needs-no-second-person",
        rule="G9",
        file=_REDO,
        before="    if asserted and not _is_another(",
        after="    if False and not _is_another(",
        tests=(
            f"{_REDO_TESTS}::test_an_end_that_was_only_asserted_needs_a_second_person",
            f"{_OPERATOR_TESTS}::test_an_asserted_end_is_redone_by_two_people",
        ),
        paired="an end that no receipt stands for",
    ),
    Mutant(
        name="an-asserted-release-needs-no-second-person",
        rule="G9",
        file=_REDO,
        before="        if one.release_asserted_by\n",
        after="        if False\n",
        tests=(
            f"{_REDO_TESTS}::test_a_release_that_was_only_asserted_gives_back_with_a_second_person",
            f"{_OPERATOR_TESTS}::test_a_release_that_was_only_asserted_is_answered_so_and_redone_by_two_people",
        ),
        paired="a release that no receipt stands for",
    ),
    Mutant(
        name="what-a-word-gave-back-looks-like-any-other",
        rule="G7",
        file="services/journal/reads.py",
        before="                asserted = asserted or by_word\n",
        after="",
        tests=(f"{_OPERATOR_TESTS}::test_a_release_that_was_only_asserted_is_answered_so_and_redone_by_two_people",),
        paired="a release that no receipt stands for",
    ),
    Mutant(
        name="who-asserted-seconds-the-redo",
        rule="G9",
        file=_REDO,
        before="(by, *(who for _, who in asserted))",
        after="()",
        tests=(f"{_REDO_TESTS}::test_an_end_that_was_only_asserted_needs_a_second_person",),
        paired="whoever asserted the end seconds the redo",
    ),
    Mutant(
        name="another-word-gets-the-first-redos-answer",
        rule="G9",
        file=_OPERATOR,
        before="        if self._read(tx.connection, key) is None:\n",
        after="        if True:\n",
        tests=(
            f"{_OPERATOR_TESTS}::test_the_same_redo_is_the_same_generation_and_another_word_is_refused",
            f"{_OPERATOR_TESTS}::test_two_who_redo_at_once_decide_one_generation",
        ),
        paired="two people who redo at once: the second would think that it is theirs",
    ),
    Mutant(
        name="a-redo-that-nobody-began-is-only-its-authors",
        rule="G9",
        file=_OPERATOR,
        before="        if self._read(tx.connection, key) is None:\n",
        after="        if False:\n",
        tests=(
            f"{_OPERATOR_TESTS}::test_a_redo_that_nobody_has_begun_is_anybodys_to_send_and_stays_its_authors",
            f"{_STORIES}::test_what_somebody_decided_and_died_over_is_sent_for_a_colleague",
        ),
        paired="who decided it died before it was handed to a workflow",
    ),
    Mutant(
        name="a-redo-is-checked-without-its-release",
        rule="G9",
        file=_OPERATOR,
        before="            release=self._release_of(tx, row),\n",
        after="",
        tests=(f"{_OPERATOR_TESTS}::test_what_was_released_may_be_redone_and_has_a_release_of_its_own",),
        paired="a generation that was given back",
    ),
    Mutant(
        name="a-redo-has-the-time-of-the-first-decision",
        rule="G17",
        file=_OPERATOR,
        before="                decided_at=tx.now,\n",
        after="                decided_at=row.decided_at,\n",
        tests=(f"{_OPERATOR_TESTS}::test_a_redo_is_a_decision_of_the_journals_own_time",),
        paired="a redo after the first generation's window",
    ),
    Mutant(
        name="a-command-is-journaled-each-time",
        rule="G15",
        file=_OPERATOR,
        before="            self._locked(tx, command.key)\n            if self._said(tx, command):\n",
        after="            self._locked(tx, command.key)\n            if False:\n",
        tests=(f"{_OPERATOR_TESTS}::test_a_command_is_journaled_once_however_often_it_is_given",),
        paired="the same command, repeated after a lost answer",
    ),
    Mutant(
        name="a-person-settles-what-is-settled",
        rule="G6",
        file=_OPERATOR,
        before=(
            "            if row.state.terminal:\n                return row\n"
            '            tx.append(row.key, "resolution", command.body(ruling=RulingKind.ASSERTED, state=state))\n'
        ),
        after=(
            "            if False:\n                return row\n"
            '            tx.append(row.key, "resolution", command.body(ruling=RulingKind.ASSERTED, state=state))\n'
        ),
        tests=(
            f"{_OPERATOR_TESTS}::test_a_receipt_that_came_before_the_assertion_stands",
            f"{_OPERATOR_TESTS}::test_a_person_settles_what_the_provider_cannot_say_and_the_first_end_stands",
        ),
        paired="a receipt that comes between the look and the word",
    ),
    Mutant(
        name="a-late-observation-stays-for-ever",
        rule="G6",
        file=_OPERATOR,
        before=(
            '            tx.append(row.key, "resolution", command.body(ruling=ruling))\n'
            '            return self._update(tx, row, {"alarmed": False})\n'
        ),
        after="            return row\n",
        tests=(f"{_OPERATOR_TESTS}::test_a_late_observation_that_was_dealt_with_bars_nothing_more",),
        paired="a person who has dealt with it",
    ),
    Mutant(
        name="a-bare-word-settles",
        rule="G6",
        file=_DESK,
        before="        if another or forgotten or answer.seen in _NO_WORD:\n",
        after="        if True:\n",
        tests=(f"{_DESK_TESTS}::test_a_bare_word_settles_nothing_that_the_provider_can_settle",),
        paired="a provider that cannot be reached at that moment",
    ),
    Mutant(
        name="another-payloads-commit-is-asserted-as-ours",
        rule="G3",
        file=_DESK,
        before="        if another and to is EffectState.COMMITTED:\n",
        after="        if False:\n",
        tests=(f"{_DESK_TESTS}::test_a_key_that_is_another_payloads_was_never_this_effects",),
        paired="a key that the provider holds for another payload",
    ),
    Mutant(
        name="a-command-is-journaled-after-the-answer",
        rule="G15",
        file=_DESK,
        before=(
            "            repeated = await self._record(command)\n"
            "            return await self._resolve_open(command, row, to, repeated=repeated)\n"
        ),
        after=(
            "            answered = await self._resolve_open(command, row, to, repeated=repeated)\n"
            "            await self._record(command)\n            return answered\n"
        ),
        tests=(f"{_DESK_TESTS}::test_a_command_is_journaled_before_the_provider_is_asked",),
        paired="a crash between the provider's answer and the journal",
    ),
    Mutant(
        name="given-up-and-sent-again",
        rule="G7",
        file=_DESK,
        before=(
            "            row = await asyncio.to_thread(self._journal.forbid, command)\n"
            "            observed, answer = await recover("
        ),
        after="            observed, answer = await recover(",
        tests=(f"{_DESK_TESTS}::test_giving_up_while_nobody_answers_is_unconfirmed_and_goes_on",),
        paired="a provider that cannot be asked: the next attempt would send",
    ),
    Mutant(
        name="a-command-for-another-deployment",
        rule="G3",
        file=_DESK,
        before="        if row.origin != self._origin:\n",
        after="        if False:\n",
        tests=(f"{_DESK_TESTS}::test_another_deployments_effects_are_left_alone",),
        paired="a journal of two origins: the void would close a key of another tenant's",
    ),
    Mutant(
        name="an-attempt-answers-for-a-former-generation",
        rule="G9",
        file="activities/attempt.py",
        before="        if begun.later is not None and begun.row.state.terminal:\n",
        after="        if False:\n",
        tests=("tests/activities/test_attempt.py::test_what_was_redone_is_answered_by_its_later_generation",),
        paired="a run that asks again after a redo",
    ),
    Mutant(
        name="settling-answers-for-a-former-generation",
        rule="G9",
        file="activities/effects.py",
        before="            if later is not None:\n",
        after="            if False:\n",
        tests=("tests/activities/test_effects.py::test_what_was_redone_is_settled_in_its_later_generation",),
        paired="a cancel over a redo that is committed: nothing would be given back",
    ),
    Mutant(
        name="a-release-of-the-first-generation-for-all",
        rule="G9",
        file="workflows/reservations.py",
        before="        name=release_name(outcome.name, outcome.generation),\n",
        after="        name=release_name(outcome.name, 1),\n",
        tests=(f"{_WORKFLOW_TESTS}::test_a_cancelled_run_gives_up_the_generation_that_stands_and_compensates_it",),
        paired="a redo that is compensated after the first generation was",
    ),
    Mutant(
        name="a-redos-window-begins-when-it-is-performed",
        rule="G17",
        file=_WORKFLOW,
        before="decided_at=later.decided_at if later else workflow.now(),",
        after="decided_at=workflow.now(),",
        tests=(f"{_WORKFLOW_TESTS}::test_perform_performs_and_answers_for_the_highest_decided_generation",),
        paired="a run that asks long after the redo was decided",
    ),
    Mutant(
        name="a-dismissal-ends-a-belief",
        rule="G9",
        file=_OPERATOR,
        before="                case RulingKind.WRITTEN_OFF:\n",
        after="                case _:\n",
        tests=(f"{_LATE_TESTS}::test_a_believed_report_stands_though_a_later_one_is_dismissed",),
        paired="two reports of one effect, of which the first is believed and the second dismissed",
    ),
    Mutant(
        name="a-word-repeated-rules-on-a-report-that-came-since",
        rule="G6",
        file=_OPERATOR,
        before='if any(_is(entry, command) and entry.body.get("ruling") in LATE_RULINGS for entry in entries):',
        after="if False:",
        tests=(f"{_LATE_TESTS}::test_a_word_repeated_rules_on_no_report_that_has_come_since",),
        paired="a second report between a command and its repetition",
    ),
    Mutant(
        name="an-audit-hides-what-nobody-ruled-on",
        rule="G6",
        file=_CHECKER,
        before="if key not in journal or _said_of(",
        after="if key not in journal or not journal[key].alarmed or _said_of(",
        tests=(
            f"{_RULINGS_TESTS}::test_an_assertion_hides_no_receipt_of_the_effects_own",
            f"{_RULINGS_TESTS}::test_what_was_said_of_a_late_report_hides_no_receipt_that_is_lost_later",
            f"{_RULINGS_TESTS}::test_a_written_off_orphan_that_became_an_effect_is_looked_at_again",
        ),
        paired="a receipt that comes, or goes, after a person has spoken",
    ),
    Mutant(
        name="a-redo-that-nobody-began-is-forgotten",
        rule="G9",
        file=_CHECKER,
        before="            yield from _never_begun(key, entries[key])\n",
        after="            continue\n",
        tests=(f"{_RULINGS_TESTS}::test_a_redo_that_nobody_has_begun_is_found",),
        paired="a command that dies between its decision and its workflow",
    ),
    Mutant(
        name="what-is-dismissed-is-given-back",
        rule="G9",
        file=_DESK,
        before="        believed = await asyncio.to_thread(self._journal.believed, row.key)\n        return None if",
        after=(
            "        late = [e for e in self._journal.entries(row.key) if e.kind == 'late_observation']\n"
            "        believed = Receipt(late[0].body['receipt']) if late else None\n        return None if"
        ),
        tests=(f"{_STORIES}::test_of_a_late_report_that_is_wrong_or_written_off_nothing_is_given_back",),
        paired="one person dismisses a report, and another releases it",
    ),
)
