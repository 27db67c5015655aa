"""The power is cut anywhere in a real trace, and the disk keeps as little as it may."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import pytest

from services.checkpoints.errors import CheckpointError
from services.checkpoints.layout import Run
from services.checkpoints.reading import Want, latest, read_items
from tests.services.checkpoints.bench import LAUNCH, many, save_id, versions, writer
from tests.services.checkpoints.crash_model import Disk, contents, lay_out

WHOLE = np.arange(6.0).reshape(3, 2)
CUTS = 6  # adversaries at each call


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, bytes]]:
    """A process opens a new run and saves three times; its calls, and the bytes it left."""
    root = tmp_path_factory.mktemp("traced")
    with writer(root) as a:
        a.ask("open", writer="a", launch=LAUNCH)
        for updates in (1, 2, 3):
            a.save(save_id(updates), many(updates, 2, WHOLE + updates), versions(updates))
        calls = [call.replace(str(root), "") for call in a.ask("calls")]
    return calls, contents(root, calls)


def acknowledged(calls: Sequence[str]) -> list[int]:
    """For every prefix of the trace: the newest checkpoint that somebody was told of."""
    told, linked, found = 0, 0, [0]
    for call in calls:
        verb, _, path = call.partition(" ")
        if verb == "link" and "/log/" in path:
            linked = int(Path(path).stem)
        if verb == "fsync" and not path:
            told = linked if linked > 1 else 0
        found.append(told)
    return found


def wrong(place: Path, told: int) -> str | None:
    """What is wrong with a state, as the store's own reader sees it."""
    try:
        with Run.open(place, "r1") as run:
            found, skipped = latest(run)
            if skipped:
                return f"published and not whole: {skipped}"
            if found is None:
                return f"lost: {told}" if told else None
            if found.sequence < told:
                return f"lost: {told}, found {found.sequence}"
            updates = found.manifest.versions["updates"]
            array = read_items(run, found, [Want(name="w")])["w"]
            return None if array.tolist() == (WHOLE + updates).tolist() and updates == found.sequence - 1 else "mixed"
    except (CheckpointError, OSError) as error:
        return f"lost: {told}, {error}" if told else None


def bad_states(
    trace: tuple[list[str], dict[str, bytes]], place: Path, without: str | None = None
) -> tuple[int, list[str]]:
    """How many states were looked at, and what was wrong in which; without some of the syncs, up to the first."""
    calls, files = trace
    told = acknowledged(calls)
    random = Random(7)  # noqa: S311 - an adversary that can be met again
    looked, bad = 0, []
    for length in range(len(calls) + 1):
        for _ in range(CUTS):
            disk = Disk(files)
            for call in calls[:length]:
                if without is None or not re.fullmatch(f"fsync .*{without}", call):
                    disk.do(call)
            lay_out(place, disk.cut(random))
            looked += 1
            if (found := wrong(place, told[length])) is not None:
                bad.append(f"after {calls[length - 1] if length else 'nothing'}: {found}")
                if without is not None:
                    shutil.rmtree(place)
                    return looked, bad
            shutil.rmtree(place)
    return looked, bad


def test_a_power_cut_anywhere_leaves_every_acknowledged_checkpoint(
    trace: tuple[list[str], dict[str, bytes]], tmp_path: Path
) -> None:
    """C34: the old or the new one, whole, whatever the disk made of what was not synced."""
    looked, bad = bad_states(trace, tmp_path / "state")
    assert looked > 500
    assert bad == []


@pytest.mark.parametrize(
    "without",
    [r"/log", r"\.bin", r"manifest\.json", r"/0\.json", r"log/\d+\.json", r"/data", r"/data/1-[0-9a-f]+", r"/runs"],
)
def test_the_model_finds_what_any_left_out_sync_would_lose(
    trace: tuple[list[str], dict[str, bytes]], tmp_path: Path, without: str
) -> None:
    """C34: the check is itself checked: each kind of sync, left out of the trace, loses something."""
    _, bad = bad_states(trace, tmp_path / "state", without)
    assert bad
