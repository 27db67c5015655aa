"""G5, G9, G11: what the command line says of a person's commands, and what it sends for them."""

from typing import Final

from tests.mutants.mutant import Mutant

_CHANGE: Final = "services/cli/effects_change.py"
_DESK: Final = "services/effect_desk.py"
_REDO: Final = "services/effects/redo.py"
_RULINGS: Final = "services/cli/rulings.py"
_CHANGE_TESTS: Final = "tests/services/cli/test_effects_change.py"
_STORIES: Final = "tests/services/test_effect_desk_stories.py"

MUTANTS: Final = (
    Mutant(
        name="a-word-stands-where-the-inventory-was-not-heard",
        rule="G5",
        file=_DESK,
        before="if another or forgotten or answer.seen in _NO_WORD:",
        after="if another or forgotten or answer.receipt is None:",
        tests=(f"{_STORIES}::test_two_people_who_cannot_reach_the_inventory_settle_nothing",),
        paired="an inventory that nobody can reach",
    ),
    Mutant(
        name="a-hold-that-ran-out-bars-a-redo",
        rule="G9",
        file=_REDO,
        before="or release.receipt.reason in BACK_ALREADY",
        after="",
        tests=(f"{_STORIES}::test_a_hold_that_ran_out_is_given_back_and_may_be_redone",),
        paired="a release that is refused because time has given back already",
    ),
    Mutant(
        name="confirmed-before-temporal-has-taken-it",
        rule="G11",
        file=_RULINGS,
        before="return _Answer(ruling=replace(ruling, what=What.UNCONFIRMED, said=said), wrong=wrong)",
        after="return _Answer(ruling=replace(ruling, said=said), wrong=wrong)",
        tests=(f"{_CHANGE_TESTS}::test_what_has_to_be_sent_is_not_confirmed_while_temporal_is_away",),
        paired="a Temporal that nobody can reach",
    ),
    Mutant(
        name="a-workflow-that-is-taken-for-closed",
        rule="G11",
        file=_CHANGE,
        before="workflow_open = await at.is_open(key)",
        after="workflow_open = False",
        tests=(
            f"{_CHANGE_TESTS}::test_whether_a_workflow_runs_is_not_guessed",
            "tests/services/cli/test_effects_sent.py::test_a_replay_of_a_running_workflow_wakes_it_and_starts_no_other",
        ),
        paired="a workflow that runs, and a Temporal that nobody can reach",
    ),
    Mutant(
        name="one-refused-key-ends-the-command",
        rule="G11",
        file=_RULINGS,
        before="if self._stopped:",
        after="if self._stopped or key != self._ask.keys[0]:",
        tests=(f"{_CHANGE_TESTS}::test_many_keys_are_ruled_on_one_by_one_and_the_worst_is_the_exit_code",),
        paired="a bulk whose first key is refused",
    ),
    Mutant(
        name="a-defect-over-one-key-ends-the-command",
        rule="G11",
        file=_RULINGS,
        before="            return self._not_ruled(key, error)\n",
        after="            raise\n",
        tests=(f"{_CHANGE_TESTS}::test_a_defect_over_one_key_keeps_no_other_from_being_ruled_on",),
        paired="a row that cannot be read, among others",
    ),
    Mutant(
        name="what-is-lost-in-waiting-takes-the-answers",
        rule="G11",
        file=_RULINGS,
        before="                self._unheard[workflow_id] = self._explained(error).message\n",
        after="                raise\n",
        tests=("tests/services/cli/test_effects_sent.py::test_what_is_lost_while_one_waits_takes_no_answer_with_it",),
        paired="a Temporal that is away when the second of two is waited for",
    ),
    Mutant(
        name="an-interruption-takes-the-answers",
        rule="G11",
        file=_RULINGS,
        before="            _say(output, ask, office.answers())\n            raise\n",
        after="            raise\n",
        tests=(f"{_CHANGE_TESTS}::test_an_interruption_says_what_has_been_ruled",),
        paired="Ctrl-C in the middle of many keys",
    ),
)
