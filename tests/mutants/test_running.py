"""The runner itself: it runs the copy's code, and calls nothing dead that no failed test has shown."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.running import (
    MALFORMED,
    TORCH,
    Judgement,
    MutantError,
    Ran,
    apply,
    check_imports,
    control,
    copy_tree,
    environment,
    interpreter,
    judge,
    run_tests,
    try_mutant,
)

TESTS = "tests/services/effects/test_states.py"
MUTANT = Mutant(
    name="nothing-is-terminal",
    rule="G6",
    file="services/effects/states.py",
    before="return not MOVES[self]",
    after="return False",
    tests=(f"{TESTS}::test_a_state_is_terminal_exactly_when_nothing_leaves_it",),
    paired="nothing",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this tree."""
    folder = tmp_path_factory.mktemp("tree") / "copy"
    copy_tree(folder)
    return folder


def test_every_process_in_a_copy_imports_the_copy(copy: Path, tmp_path: Path) -> None:
    """Also our own program, which the editable install puts elsewhere; a folder without packages is noticed."""
    check_imports(copy)
    program = Path(sys.executable).with_name("counterfoil")
    (copy / "services/__init__.py").write_text('raise SystemExit("the copy")')
    try:
        ran = subprocess.run(
            [program, "--version"], cwd=tmp_path, env=environment(copy), capture_output=True, text=True, check=False
        )
    finally:
        (copy / "services/__init__.py").write_text('"""As it was."""')
    assert "the copy" in ran.stderr
    with pytest.raises(MutantError, match="would not import the copy"):
        check_imports(tmp_path)


def test_a_guard_that_is_gone_is_dead_and_put_back(copy: Path) -> None:
    """Its test fails with the mutant, is green without it, and the verdict names it."""
    verdict = try_mutant(MUTANT, copy)
    assert (verdict.judgement, verdict.rule) == (Judgement.DEAD, "G6")
    assert "test_a_state_is_terminal_exactly_when_nothing_leaves_it" in verdict.says
    assert control(copy, [MUTANT]) == 5


def test_a_change_that_no_test_notices_survives(copy: Path) -> None:
    """As would a mutant whose tests ran against other code."""
    harmless = replace(MUTANT, after="return not MOVES[self] and True")
    assert try_mutant(harmless, copy).judgement is Judgement.SURVIVED


@pytest.mark.parametrize("after", ["return not MOVS[self]", "return not (("])
def test_a_program_that_cannot_run_is_broken_and_not_dead(copy: Path, after: str) -> None:
    """It shows nothing of the guard: a slip in the mutant would be green for ever."""
    assert try_mutant(replace(MUTANT, after=after), copy).judgement is Judgement.BROKEN


def test_a_test_that_is_not_there_is_broken(copy: Path) -> None:
    """Nothing ran."""
    assert try_mutant(replace(MUTANT, tests=(f"{TESTS}::test_of_nothing",)), copy).judgement is Judgement.BROKEN


@pytest.mark.parametrize("before", ["no such text", "return"])
def test_a_text_that_is_not_there_exactly_once_is_refused(copy: Path, before: str) -> None:
    """The code has moved on: a mutant that changes nothing, or too much, proves nothing."""
    with pytest.raises(MutantError, match="not once"):
        apply(replace(MUTANT, before=before), copy)


def test_nothing_is_concluded_from_tests_that_are_red_without_a_mutant(copy: Path) -> None:
    """Whatever is red anyway would kill every mutant."""
    text = apply(MUTANT, copy)
    try:
        with pytest.raises(MutantError, match="not green without a mutant"):
            control(copy, [MUTANT])
    finally:
        (copy / MUTANT.file).write_text(text)


def test_a_run_that_hangs_is_ended_and_broken(copy: Path) -> None:
    """With every process it has started."""
    ran = run_tests(copy, MUTANT.tests, limit_seconds=0.01)
    assert judge(ran, MUTANT.tests)[0] is Judgement.BROKEN
    assert "not over after" in ran.output


WHY = "AssertionError: assert 2 == 1"
ONE, OTHER = "tests/test_it.py::test_one", "tests/test_it.py::test_other"
RED = Ran(exit_code=1, tests=3, failed=((f"{ONE}[2]", WHY), (OTHER, WHY)), errors=0, output="2 failed")


@pytest.mark.parametrize(
    ("ran", "judgement"),
    [
        (RED, Judgement.DEAD),
        (replace(RED, errors=1), Judgement.BROKEN),
        (replace(RED, failed=(), errors=1), Judgement.BROKEN),
        (replace(RED, failed=((OTHER, WHY),)), Judgement.SURVIVED),
        (replace(RED, exit_code=2), Judgement.BROKEN),
        (replace(RED, exit_code=None), Judgement.BROKEN),
        (replace(RED, exit_code=0, failed=()), Judgement.SURVIVED),
        (replace(RED, exit_code=0, failed=(), tests=0), Judgement.BROKEN),
        *((replace(RED, failed=((ONE, WHY), (OTHER, f"{name}: oh"))), Judgement.BROKEN) for name in MALFORMED),
    ],
)
def test_only_failed_tests_kill_and_all_of_them(ran: Ran, judgement: Judgement) -> None:
    """Not an error in a fixture, not an interrupted run, not a run without tests, not one test of two."""
    assert judge(ran, [ONE, OTHER])[0] is judgement


def test_tests_of_the_adapter_for_pytorch_run_where_it_is() -> None:
    """And all others in the interpreter that tries the mutants."""
    assert interpreter("tests/torch/test_tensors.py::test_x") == str(TORCH)
    assert interpreter("tests/workflows/test_purity.py::test_x") == sys.executable
