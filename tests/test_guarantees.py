"""docs/guarantees.md against the tests and the mutants: no promise without its proof, no proof that is not there."""

import ast
import re
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.mutant import Mutant
from tests.mutants.register import MUTANTS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/guarantees.md"
RULES = [f"G{number}" for number in range(1, 24)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """One section of the page."""

    rule: str
    promise: str
    tests: tuple[str, ...]
    mutants: tuple[str, ...]
    says: tuple[str, ...]  # the beginnings of its lines


def read() -> list[Guarantee]:
    """Every rule of the page, in order."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        rule = re.match(r"(G[0-9]+) ", title)
        if rule is None:
            continue
        promise, *lines = text.strip().split("\n- ")
        items = {line.partition(":")[0]: line for line in lines}
        quoted = {name: tuple(re.findall(r"`([^`]+)`", items.get(name, ""))) for name in ("Tests", "Mutants")}
        found.append(
            Guarantee(
                rule=rule[1], promise=promise, tests=quoted["Tests"], mutants=quoted["Mutants"], says=tuple(items)
            )
        )
    return found


GUARANTEES = read()


@cache
def names_in(file: str) -> frozenset[str]:
    """The test functions of a file, without importing it."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module(body=[], type_ignores=[])
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


def exists(test: str) -> bool:
    """Whether there is such a test."""
    file, _, name = test.partition("::")
    return name in names_in(file)


def test_every_rule_has_its_section_in_order() -> None:
    """None is left out, and none is told twice."""
    assert [guarantee.rule for guarantee in GUARANTEES] == RULES


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda guarantee: guarantee.rule)
def test_a_rule_has_a_promise_and_tests_that_exist(guarantee: Guarantee) -> None:
    """What nothing shows is marked as not there yet, and promises nothing."""
    assert guarantee.promise
    assert guarantee.tests or guarantee.promise.startswith("Not yet")
    assert not [test for test in guarantee.tests if not exists(test)]
    assert set(guarantee.says) <= {"Tests", "Mutants", "Not yet", "Not promised"}


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=lambda guarantee: guarantee.rule)
def test_a_rule_names_exactly_its_mutants(guarantee: Guarantee) -> None:
    """The page and the register are one list in two places."""
    registered = [mutant.name for mutant in MUTANTS if mutant.rule == guarantee.rule]
    assert sorted(guarantee.mutants) == sorted(registered)


def test_no_two_mutants_have_one_name_or_make_one_change() -> None:
    """A verdict is about one guard."""
    assert max(Counter(mutant.name for mutant in MUTANTS).values()) == 1
    assert max(Counter((mutant.file, mutant.before, mutant.after) for mutant in MUTANTS).values()) == 1
    assert {mutant.rule for mutant in MUTANTS} <= set(RULES)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_its_tests_exist(mutant: Mutant) -> None:
    """Its text stands exactly once in real code, what is left is Python, and it says why it needs its pair."""
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", mutant.name)
    assert not mutant.file.startswith("tests/")
    code = (ROOT / mutant.file).read_text()
    assert code.count(mutant.before) == 1
    ast.parse(code.replace(mutant.before, mutant.after))
    assert mutant.tests
    assert not [test for test in mutant.tests if not exists(test)]
    assert mutant.paired
