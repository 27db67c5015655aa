"""The checkpoint store meets nobody, and who performs effects neither loads nor needs it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
OURS = ("services.checkpoints", "numpy", "ml_dtypes", "blake3")


def loaded(statement: str, *, missing: tuple[str, ...] = ()) -> set[str]:
    """The modules that a process has after a statement, in a world where some are not installed."""
    program = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({missing!r}))\n"
        f"{statement}\n"
        "print(*(name for name, module in sys.modules.items() if module is not None))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("who", ["services.worker", "services.inventory.serve", "services.cli.journal"])
def test_who_performs_effects_runs_where_it_is_not_installed(who: str) -> None:
    """A worker's environment need not have it."""
    assert not {name for name in loaded(f"import {who}", missing=OURS) if name.startswith(OURS)}


def test_the_store_loads_no_other_part() -> None:
    """No journal, no inventory, no database, no engine; and of this tree nothing but itself."""
    has = loaded(
        "import services.checkpoints.session, services.checkpoints.interruption, services.checkpoints.watermark"
    )
    assert "numpy" in has
    assert not has & {"sqlalchemy", "temporalio", "httpx", "pydantic", "click", "alembic", "workflows", "activities"}
    assert not {name for name in has if name.startswith("services.") and not name.startswith("services.checkpoints")}
