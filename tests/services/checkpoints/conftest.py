"""Runs that real processes made, copied for each test that damages one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from services.checkpoints.layout import Run
from tests.services.checkpoints.bench import LAUNCH, item, many, save_id, versions, writer

WEIGHTS = np.arange(14.0).reshape(7, 2)


@pytest.fixture(scope="session")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three contributors: checkpoint 2 after update 1, 3 after 2, 4 after 3; each has a buffer and generators."""
    root = tmp_path_factory.mktemp("made")
    with writer(root) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        for updates in (1, 2, 3):
            parts = many(updates, 3, WEIGHTS + updates)
            for rank, items in parts.items():
                items.append(item("b", [updates], role="buffer", placement="replicated"))
                items.append(item("g", [int(rank), updates], role="rng", placement="per_contributor"))
            parent = None if updates == 1 else updates
            assert a.save(save_id(updates), parts, versions(updates), parent=parent) == updates + 1
    return root


@pytest.fixture
def root(_made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(_made, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.fixture
def run(root: Path) -> Iterator[Run]:
    """The copy, open."""
    with Run.open(root, "r1") as opened:
        yield opened
