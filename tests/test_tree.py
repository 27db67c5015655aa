"""The tree itself: what a person who comes after us may rely on."""

import ast
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from services.cli.main import COMMANDS

ROOT = Path(__file__).parents[1]
PACKAGES = ("workflows", "activities", "services", "migrations", "benchmarks")
LONGEST_FILE_LINES = 620

# Source modules without a test file of their own name, and why.
WITHOUT_MIRROR = {
    "activities/contracts.py": "abstract: tests/workflows/test_purity.py compares it with what is concrete",
    "services/effects/provider.py": "a protocol without code",
    "services/incident_desk.py": "proven with the command that uses it",
    "services/background.py": "proven with the sealing and with the watch of the neighbours, which go on by it",
    "services/worker.py": "proven under a real server: its sandbox in tests/workflows/test_purity.py",
    "services/drill/demo.py": "run whole by tests/services/cli/test_demo.py",
    "workflows/reservations.py": "what authors call: proven with the workflows that perform it",
    "services/drill/training.py": "run whole by tests/services/cli/test_demo.py",
    "services/drill/worst_day.py": "run whole by tests/services/cli/test_demo.py",
    "services/effect_commands.py": "proven under a real server by tests/workflows/test_effect_command.py",
    "services/cli/worker.py": "proven with whole stories",
    "services/cli/rulings.py": "proven with the commands that rule by it, services.cli.effects_change",
    "services/cli/opening.py": "proven with the commands that read the journal",
    "services/cli/checkpoint_words.py": "proven with the commands that say it: checkpoint plan and train",
    "services/cli/checkpoint_opening.py": "proven with the commands that read checkpoints",
    "services/cli/checkpoint_plan.py": "proven beside the other commands on one run: test_checkpoint.py",
    "services/cli/checkpoint_restore.py": "proven beside the other commands on one run: test_checkpoint.py",
    "services/cli/words.py": "proven with the commands that read the journal",
    "services/reconciliation/findings.py": "proven with the checker that finds them",
    "services/reconciliation/ledger.py": "proven with the checker that calls it",
    "services/conformance/capabilities.py": "names; the suite's order and the needs of its checks are tested with it",
    **dict.fromkeys(
        (
            f"services/conformance/checks/{name}.py"
            for name in (
                "closing",
                "deadlines",
                "documents",
                "generations",
                "holds",
                "reading",
                "repetition",
                "stock",
                "strictness",
            )
        ),
        "run by tests/services/conformance/test_suite.py, where a provider keeps the contract and where it does not",
    ),
    **dict.fromkeys(
        (
            f"services/inventory/verification/{name}.py"
            for name in ("documents", "effects", "findings", "ledger", "numbers", "redo", "statements")
        ),
        "proven with the verification as a whole, by every single change of a correct database",
    ),
    **dict.fromkeys(
        (f"services/checkpoints/{name}.py" for name in ("torch", "torch_run", "torch_tensors", "store_group")),
        "proven where torch is: tests/torch, which `make test-torch` runs",
    ),
    "benchmarks/checkpoint_correctness.py": "run where torch is: tests/torch/test_checkpoint_correctness.py",
    "services/journal/reads.py": "proven through the store",
    "services/stored.py": "proven with the verifications of both stores, which read through it",
    "benchmarks/__main__.py": "run by tests/benchmarks/test_command.py",
    "benchmarks/bare.py": "the baseline, and run by every measurement of it",
    "benchmarks/commits.py": "run by tests/benchmarks/test_command.py",
    "benchmarks/inserts.py": "run by tests/benchmarks/test_command.py",
    "benchmarks/recovery.py": "run by every measurement; its figures are those of test_figures.py",
    "benchmarks/worker.py": "run by every measurement",
}


def tracked() -> list[Path]:
    """Every file of the tree that is, or is about to be, in version control."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    return [path for name in listed.stdout.splitlines() if (path := ROOT / name).is_file()]


FILES = tracked()
PYTHON = [path for path in FILES if path.suffix == ".py"]
SOURCES = [path for path in PYTHON if path.relative_to(ROOT).parts[0] in PACKAGES]
TESTS = [path for path in PYTHON if path.relative_to(ROOT).parts[0] == "tests"]


def name_of(path: Path) -> str:
    """A path as it is written."""
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [path for path in PYTHON if path.name == "__init__.py"], ids=name_of)
def test_an_init_is_one_docstring(path: Path) -> None:
    """Nothing happens at import."""
    (only,) = ast.parse(path.read_text()).body
    assert isinstance(only, ast.Expr)
    assert isinstance(only.value, ast.Constant)
    assert isinstance(only.value.value, str)


def mirror(path: Path) -> Path:
    """Where a source module's tests are."""
    relative = path.relative_to(ROOT)
    return ROOT / "tests" / relative.parent / f"test_{relative.name}"


MIRRORED = [path for path in SOURCES if path.name != "__init__.py" and "versions" not in path.parts]


@pytest.mark.parametrize("path", [path for path in MIRRORED if name_of(path) not in WITHOUT_MIRROR], ids=name_of)
def test_a_source_module_has_its_mirror(path: Path) -> None:
    """Whoever changes it finds its tests by its name."""
    assert mirror(path).is_file(), f"{name_of(mirror(path))} is missing; write it, or give a reason in WITHOUT_MIRROR"


@pytest.mark.parametrize("name", WITHOUT_MIRROR)
def test_an_exception_is_about_a_module_that_exists(name: str) -> None:
    """A reason for nothing misleads, and so does one for a module that has its mirror."""
    assert (ROOT / name).is_file()
    assert not mirror(ROOT / name).is_file()


def test_every_activity_name_is_given_once_to_the_contract_and_once_to_the_code() -> None:
    """Two activities of one name would answer for each other."""
    names: dict[str, Counter[str]] = {"contracts.py": Counter(), "others": Counter()}
    for path in ROOT.joinpath("activities").glob("*.py"):
        where = path.name if path.name in names else "others"
        names[where].update(re.findall(r'@activity\.defn\(name="([^"]+)"\)', path.read_text()))
    assert names["contracts.py"]
    assert names["contracts.py"] == names["others"]
    assert set(names["contracts.py"].values()) == {1}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_readme(command: str) -> None:
    """By the words that a person types."""
    assert f"`counterfoil {command}" in (ROOT / "README.md").read_text()


LATER = re.compile(r"\b(?:" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_nothing_is_left_for_later(path: Path) -> None:
    """What is not done is an issue, not a comment; and a file stays short enough to be read."""
    text = path.read_text()
    assert not LATER.search(text)
    assert len(text.splitlines()) <= LONGEST_FILE_LINES


def calls(tree: ast.AST) -> set[str]:
    """What a file calls and decorates with, as it is written."""
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} | {
        ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)
    }


MAY_SKIP = {
    # Linux's /proc and its system calls are what these are about; elsewhere there is nothing to test.
    "tests/services/test_process_identity.py",
    "tests/services/drill/test_processes.py",
    # A store without tables has nothing to migrate; both have some by now.
    "tests/services/cli/test_migrate.py",
}


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_no_test_sleeps_mocks_or_is_skipped(path: Path) -> None:
    """A sleep is a flake, a mock proves the mock, and a skipped test proves nothing."""
    tree = ast.parse(path.read_text())
    imported = {
        one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)
        for one in ([node.module] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names])
    }  # fmt: skip
    assert not {one for one in imported if one and one.partition(".")[2] == "mock"}
    forbidden = {"time.sleep", "asyncio.sleep", "anyio.sleep", "pytest.mark.xfail", "pytest.xfail"}
    if name_of(path) not in MAY_SKIP:
        forbidden |= {"pytest.skip", "pytest.mark.skip", "pytest.mark.skipif", "pytest.importorskip"}
    assert not calls(tree) & forbidden


def test_no_constraint_names_an_address() -> None:
    """Packages come from the index that pip is told, with their hashes."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert not [line for line in lines if "://" in line and not line.startswith("#")]


SHARED = "../" + "shared"


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_the_tree_stands_alone(path: Path) -> None:
    """It points to nothing beside itself."""
    assert SHARED not in path.read_text(errors="replace")
