"""The benchmark's workflows."""

from typing import Any

import pytest
from temporalio import workflow

from benchmarks.workflows import ALL
from services.worker import sandbox


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.__name__)
async def test_a_variant_runs_in_the_sandbox_of_a_deployment(one: type[Any]) -> None:
    """With no module let through that a deployment's worker refuses: both sides of a ratio bear the same sandbox."""
    sandbox().prepare_workflow(workflow._Definition.must_from_class(one))
