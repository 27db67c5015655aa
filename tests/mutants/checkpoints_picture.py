"""What judges a trainer under delay, accounts for a run that is killed again and again, and draws a cut."""

from typing import Final

from tests.mutants.mutant import Mutant

_DELAYTEST: Final = "services/checkpoints/delaytest.py"
_PROBE: Final = "services/checkpoints/probe.py"
_ACCOUNTING: Final = "services/checkpoints/accounting.py"
_DRAWING: Final = "services/checkpoints/drawing.py"
_TIMELINE: Final = "services/checkpoints/timeline.py"
_TESTS: Final = "tests/services/checkpoints"
_VERDICTS: Final = f"{_TESTS}/test_delaytest.py::test_each_run_has_the_verdict_that_it_deserves"

MUTANTS: Final = (
    Mutant(
        name="a-mixture-under-delay-is-not-looked-for",
        rule="G21",
        file=_DELAYTEST,
        before="    wrong = [*seen.damaged, *_mixtures(seen, whole)]",
        after="    wrong = [*seen.damaged]",
        tests=(_VERDICTS, f"{_TESTS}/test_delaytest.py::test_a_trainer_that_reads_its_live_arrays_late_fails"),
        paired="a trainer that reads its live arrays late, with records that agree with themselves",
    ),
    Mutant(
        name="one-moment-under-another-update-passes",
        rule="G21",
        file=_DELAYTEST,
        before="        if updates is not None and updates not in of:",
        after="        if updates is not None and not of:",
        tests=(_VERDICTS,),
        paired="a whole moment whose record names an earlier update",
    ),
    Mutant(
        name="a-delay-that-never-came-passes",
        rule="G21",
        file=_DELAYTEST,
        before="    if point is not None and not seen.late:",
        after="    if point is None and not seen.late and rank is not None:",
        tests=(_VERDICTS,),
        paired="a run that never came to the point",
    ),
    Mutant(
        name="another-run-judges-a-delayed-one",
        rule="G21",
        file=_DELAYTEST,
        before="    if different and not seen.damaged:",
        after="    if different and seen.damaged:",
        tests=(_VERDICTS,),
        paired="a trainer whose own arrays are others in each run",
    ),
    Mutant(
        name="a-boundary-is-read-beside-training",
        rule="G21",
        file=_PROBE,
        before="threading.get_ident() == self._thread:",
        after="self._thread:",
        tests=(f"{_TESTS}/test_probe.py::test_a_boundary_is_what_the_arrays_hold_on_the_trainers_own_thread",),
        paired="a look from another thread than the trainer's",
    ),
    Mutant(
        name="what-was-lost-was-useful",
        rule="G21",
        file=_ACCOUNTING,
        before="kept = trained if retained == updates and not life.killed else",
        after="kept = trained if retained else",
        tests=(
            f"{_TESTS}/test_accounting.py::test_what_the_next_start_took_up_was_useful_and_the_rest_was_done_again",
        ),
        paired="a start that trained beyond what was durable",
    ),
    Mutant(
        name="a-killed-start-is-not-compared",
        rule="G21",
        file=_ACCOUNTING,
        before="        difference = difference or first_difference(",
        after="        difference = difference and first_difference(",
        tests=(f"{_TESTS}/test_accounting.py::test_a_start_that_differs_is_named",),
        paired="a second start that is not the run uninterrupted",
    ),
    Mutant(
        name="what-a-record-says-is-drawn-as-markup",
        rule="G22",
        file=_DRAWING,
        before='    return escape("".join(',
        after='    return str("".join(',
        tests=(f"{_TESTS}/test_drawing.py::test_what_a_record_says_is_text_and_never_markup",),
        paired="a boundary in whose text an element stands",
    ),
    Mutant(
        name="whatever-stands-for-seconds-is-a-number",
        rule="G22",
        file=_TIMELINE,
        before="not 0 <= value < LONGEST_SECONDS:",
        after="value < 0:",
        tests=(f"{_TESTS}/test_drawing.py::test_what_nobody_measured_has_no_number",),
        paired="a manifest whose times are no numbers",
    ),
)
