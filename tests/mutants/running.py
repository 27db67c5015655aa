"""Copies of the tree, a mutant in one of them, its tests against it, and what that shows.

- The tests import the copy's packages, never this tree's: PYTHONPATH goes before the editable install, in every child
  process too, and each copy proves it before it is used.
- Dead is only what every named test has shown by failing. One that stays green has another guard in front of it, and
  would not notice. A program that does not start, a fixture that fails or a run that hangs shows nothing: broken.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from xml.etree import ElementTree as ET

from tests.mutants.mutant import Mutant

ROOT = Path(__file__).parents[2]
TORCH = ROOT / "var/venv-torch/bin/python"
PACKAGES = ("workflows", "activities", "services", "migrations", "tests")
# A few tests are over in seconds, and all of them in a minute; on a loaded machine much later.
LIMIT_SECONDS = 300
CONTROL_LIMIT_SECONDS = 1200
# A test that fails with one of these met a program that cannot run, not one without its guard.
MALFORMED = ("NameError", "UnboundLocalError", "AttributeError", "TypeError", "ImportError", "SyntaxError")


class MutantError(Exception):
    """Nothing can be concluded: the message says why and what to do."""


class Judgement(StrEnum):
    """What a run of a mutant's tests shows."""

    DEAD = "dead"
    SURVIVED = "survived"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of one mutant.

    Attributes:
        says: the first failed test and its first words; which tests stayed green, or what went wrong, where it is not
            dead.
    """

    name: str
    rule: str
    judgement: Judgement
    seconds: float
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What one run of pytest came to.

    Attributes:
        failed: each failed test, as pytest names it, with the first line of why.
        errors: how many tests could not be set up or collected.
        output: pytest's last lines.
    """

    exit_code: int | None
    tests: int
    failed: tuple[tuple[str, str], ...]
    errors: int
    output: str


def copy_tree(target: Path) -> None:
    """Copy what is, or is about to be, in version control, as it stands now.

    Raises:
        MutantError: this tree is no git working tree.
    """
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    if listed.returncode != 0:
        raise MutantError(f"git cannot list the files of {ROOT}: {listed.stderr.strip()} Run this in a git clone.")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def environment(copy: Path) -> dict[str, str]:
    """This process's environment, with the copy's packages before everything that is installed."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("COUNTERFOIL_", "PYTEST_"))}
    # No byte code is written: two mutants of one length within one second would be taken for each other.
    return own | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}


def check_imports(copy: Path) -> None:
    """Make sure that a process in the copy imports the copy.

    Raises:
        MutantError: it would import something else, and every mutant would survive.
    """
    code = f"import {', '.join(PACKAGES)}\nfor one in ({', '.join(PACKAGES)}): print(*one.__path__)"
    found = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy, env=environment(copy), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if found.stdout.split() != [str(copy / package) for package in PACKAGES]:
        raise MutantError(f"The tests would not import the copy in {copy}: {found.stdout}{found.stderr}")


def apply(mutant: Mutant, copy: Path) -> str:
    """Remove the guard in a copy; the file's text before that.

    Raises:
        MutantError: the text is not there exactly once.
    """
    text = (copy / mutant.file).read_text()
    if text.count(mutant.before) != 1:
        raise MutantError(
            f"{mutant.name}: {mutant.before!r} occurs {text.count(mutant.before)} times in {mutant.file}, not once. "
            "The code has moved on: write the mutant anew in tests/mutants/."
        )
    (copy / mutant.file).write_text(text.replace(mutant.before, mutant.after))
    return text


def interpreter(test: str) -> str:
    """The Python that a test runs in: those of PyTorch's adapter have one of their own (`make test-torch`)."""
    return str(TORCH) if test.startswith("tests/torch/") else sys.executable


def run_tests(copy: Path, tests: Sequence[str], *, limit_seconds: float = LIMIT_SECONDS) -> Ran:
    """Run some tests of one environment in a copy."""
    report = copy / "mutants-report.xml"
    report.unlink(missing_ok=True)
    command = [
        *(interpreter(tests[0]), "-m", "pytest", "-q", "--tb=line", "-p", "no:cacheprovider"),
        # Tests with settings of their own are named from the copy's root too.
        f"--rootdir={copy}",
        *(f"--junitxml={report}", f"--basetemp={copy / 'mutants-temp'}", *tests),
    ]
    with subprocess.Popen(
        command, cwd=copy, env=environment(copy), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=limit_seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return Ran(exit_code=None, tests=0, failed=(), errors=0, output=f"not over after {limit_seconds:.0f} s")
    tail = "\n".join(output.strip().splitlines()[-20:])
    if not report.is_file():
        return Ran(exit_code=process.returncode, tests=0, failed=(), errors=0, output=tail)
    cases = list(ET.parse(report).iter("testcase"))  # noqa: S314 - pytest wrote it a moment ago
    failed = tuple(
        (_named(case), str(why.get("message")).partition("\n")[0]) for case in cases
        for why in case.findall("failure")
    )  # fmt: skip
    errors = sum(len(case.findall("error")) for case in cases)
    return Ran(exit_code=process.returncode, tests=len(cases), failed=failed, errors=errors, output=tail)


def _named(case: ET.Element) -> str:
    return f"{str(case.get('classname')).replace('.', '/')}.py::{case.get('name')}"


def judge(ran: Ran, tests: Iterable[str]) -> tuple[Judgement, str]:
    """What a run of a mutant's tests shows, and in which words."""
    if ran.exit_code not in {0, 1} or ran.errors or not ran.tests:
        return Judgement.BROKEN, ran.output
    malformed = [f"{test}: {why}" for test, why in ran.failed if why.startswith(MALFORMED)]
    if malformed:
        return Judgement.BROKEN, malformed[0]
    red = {test.partition("[")[0] for test, _ in ran.failed}
    green = [test for test in tests if test not in red]
    if green:
        return Judgement.SURVIVED, f"still green: {', '.join(green)}"
    test, why = ran.failed[0]
    return Judgement.DEAD, f"{test.partition('::')[2]}: {why}"


def control(copy: Path, mutants: Iterable[Mutant]) -> int:
    """Run the mutants' tests in a copy without any mutant; how many there are.

    Raises:
        MutantError: one of them is red without a mutant.
    """
    tests = dict.fromkeys(test for mutant in mutants for test in mutant.tests)
    count = 0
    for python in dict.fromkeys(map(interpreter, tests)):
        if not Path(python).exists():
            raise MutantError(f"{python} is not there, and tests need it: make test-torch builds it.")
        its = [test for test in tests if interpreter(test) == python]
        ran = run_tests(copy, its, limit_seconds=CONTROL_LIMIT_SECONDS)
        if ran.exit_code != 0 or not ran.tests:
            raise MutantError(f"The tests are not green without a mutant, so nothing is shown with one.\n{ran.output}")
        count += ran.tests
    return count


def try_mutant(mutant: Mutant, copy: Path) -> Verdict:
    """Apply a mutant in a copy, run its tests, and put the copy back."""
    started = time.monotonic()
    text = apply(mutant, copy)
    try:
        judgement, says = judge(run_tests(copy, mutant.tests), mutant.tests)
    finally:
        (copy / mutant.file).write_text(text)
    seconds = round(time.monotonic() - started, 1)
    return Verdict(name=mutant.name, rule=mutant.rule, judgement=judgement, seconds=seconds, says=says)
