"""Workflow code does no I/O and depends on no process: four nets, each with something in it that it must catch."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from activities import contracts
from activities.effects import EffectActivities
from activities.inventory import InventoryActivities
from activities.journal import JournalActivities
from activities.reconciliation import ReconciliationActivities
from services.worker import PASSED_THROUGH, sandbox

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "workflows").glob("*.py"))
ALLOWED = {"asyncio", "collections.abc", "dataclasses", "datetime", "itertools", "json", "typing"}
PURE = ("temporalio", "workflows", "activities.contracts", "services.effects")
TIME_OUTS = {"start_to_close_timeout", "retry_policy", "summary"}

HAZARDS = [
    "import os\nprint(os.getpid())",
    "import time\nprint(time.time())",
    "import random\nprint(random.random())",
    "import uuid\nprint(uuid.uuid4())",
    "import secrets\nprint(secrets.token_hex())",
    "import logging\nlogging.getLogger()",
    "import threading\nthreading.Lock()",
    "import socket\nsocket.socket()",
    "import subprocess\nsubprocess.run([])",
    "import httpx\nhttpx.get('')",
    "import sqlalchemy\nsqlalchemy.text('')",
    "import pydantic\npydantic.BaseModel()",
    "from pathlib import Path\nPath().read_text()",
    "from datetime import datetime\ndatetime.now()",
    "from datetime import UTC, datetime\ndatetime.now(UTC)",
    "from datetime import datetime\ndatetime.utcnow()",
    "from datetime import date\ndate.today()",
    "import asyncio\nasyncio.sleep(1)",
    "import asyncio\nasyncio.to_thread(print)",
    "import sys\nprint(sys.argv)",
]


def imported(tree: ast.AST) -> set[str]:
    """Every module that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


def allowed(name: str) -> bool:
    """Whether workflow code may import it."""
    return name in ALLOWED or any(name == pure or name.startswith(f"{pure}.") for pure in PURE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_workflow_file_imports_nothing_but_what_is_listed(path: Path) -> None:
    """Temporal, the pure types, the contracts, other workflow modules, and a few modules without I/O."""
    assert {name for name in imported(ast.parse(path.read_text())) if not allowed(name)} == set()


def test_the_list_would_notice() -> None:
    """The net itself holds."""
    tree = ast.parse(
        "import os.path\ndef f():\n    from services.journal import store\n    from . import x\nimport json"
    )
    assert {name for name in imported(tree) if not allowed(name)} == {"os.path", "services.journal", "."}
    assert not allowed("activities.inventory")
    assert not allowed("services.effectsx")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_assert_and_no_plain_exception_ends_a_workflow_task_for_ever(path: Path) -> None:
    """Anything but Temporal's failures fails the task, again and again; a validator's ValueError only refuses."""
    tree = ast.parse(path.read_text())
    validators = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and ".validator" in " ".join(map(ast.unparse, node.decorator_list))
    ]
    in_validators = {node for validator in validators for node in ast.walk(validator)}
    raised = {
        ast.unparse(node.exc).partition("(")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise) and node.exc is not None and node not in in_validators
    }
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    assert raised <= {"ApplicationError", "failure", "EffectCancelled", "asyncio.CancelledError"}


def test_every_activity_call_names_its_time_outs_its_policy_and_its_summary() -> None:
    """From workflows/policies.py; effect activities and the sweep beat, and have ids of their own."""
    calls = [
        node
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and "activity" in ast.unparse(node.func).rpartition(".")[2]
    ]
    assert len(calls) == 5
    for call in calls:
        named = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert set(named) >= TIME_OUTS
        assert named["retry_policy"] == "policies.RETRY"
        assert named["start_to_close_timeout"].startswith("policies.")
        if "record_decision" not in ast.unparse(call):
            assert named["heartbeat_timeout"].startswith("policies.")
            assert "activity_id" in named


@pytest.mark.parametrize("hazard", HAZARDS, ids=lambda hazard: hazard.splitlines()[1])
def test_ruff_bans_each_planted_hazard_in_workflow_and_pure_files_and_not_elsewhere(hazard: str) -> None:
    """With the project's own configuration, for the file names that it is about."""
    ruff = str(Path(sys.executable).with_name("ruff"))

    def found(name: str) -> set[str]:
        ran = subprocess.run(
            [ruff, "check", "--output-format=json", f"--stdin-filename={name}", "-"],
            input=hazard, text=True, capture_output=True, cwd=ROOT, check=False, timeout=100,
        )  # fmt: skip
        return {one["code"] for one in json.loads(ran.stdout)}

    for name in ("workflows/planted.py", "services/effects/planted.py", "activities/contracts.py"):
        assert "TID251" in found(name), name
    assert "TID251" not in found("activities/planted.py")


@pytest.mark.temporal
@pytest.mark.parametrize("module", ["httpx", "sqlalchemy", "services.journal.store", "activities.inventory"])
async def test_a_workflow_module_with_io_keeps_the_worker_from_starting(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """The sandbox refuses what nobody has listed, though it is imported already outside."""
    name = f"planted_{module.replace('.', '_')}"
    (tmp_path / f"{name}.py").write_text(
        f"from temporalio import workflow\nimport {module}\n\n\n@workflow.defn\nclass Planted:\n"
        "    @workflow.run\n    async def run(self) -> None:\n        pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    planted = __import__(name).Planted
    with pytest.raises(RuntimeError, match="Failed validating workflow Planted"):
        Worker(client, task_queue="planted", workflows=[planted], workflow_runner=sandbox())


def test_what_the_sandbox_passes_through_is_pure() -> None:
    """Nothing that does I/O is shared by all runs."""
    assert all(name == "rfc8785" or allowed(name) for name in PASSED_THROUGH)
    assert isinstance(sandbox(), SandboxedWorkflowRunner)


@pytest.mark.parametrize(
    ("abstract", "concrete"),
    [
        (contracts.InventoryActivities, InventoryActivities),
        (contracts.EffectActivities, EffectActivities),
        (contracts.JournalActivities, JournalActivities),
        (contracts.ReconciliationActivities, ReconciliationActivities),
    ],
)
def test_a_concrete_activity_has_its_contracts_name(abstract: type, concrete: type) -> None:
    """A decorator that is forgotten or misspelt would be found by no type check."""
    for name in abstract.__abstractmethods__:  # type: ignore[attr-defined]
        assert _activity_name(getattr(concrete, name)) == _activity_name(getattr(abstract, name))


def _activity_name(function: object) -> str:
    definition = getattr(function, "__temporal_activity_definition")
    return str(definition.name)


def test_workflows_and_activities_are_named_for_the_ui() -> None:
    """Workflow types are nouns, activities are system.verb."""
    names = [
        _activity_name(getattr(kind, name))
        for kind in vars(contracts).values()
        if isinstance(kind, type) and getattr(kind, "__abstractmethods__", None)
        for name in kind.__abstractmethods__  # type: ignore[attr-defined]
    ]
    assert sorted(names) == [
        "effects.command", "effects.settle", "inventory.confirm", "inventory.release", "inventory.reserve",
        "journal.record_decision", "reconciliation.follow_page", "reconciliation.sweep_page",
    ]  # fmt: skip
