"""The timeline as a picture: the one on the page is what a run gives, and nothing in a manifest breaks it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from services.checkpoints.drawing import svg
from services.checkpoints.interruption import Interruption, interrupt
from services.checkpoints.layout import Run
from services.checkpoints.learner import LearnerConfig
from services.checkpoints.reading import Found, load
from services.checkpoints.timeline import document

PICTURE = Path(__file__).parents[3] / "docs/checkpoint-timeline.svg"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """The run on the page: `train --updates 40 --kill-at 17 --ranks 3 --scaler`."""
    root = tmp_path_factory.mktemp("store")
    config = LearnerConfig(schedule=40, scaler=True)
    interrupt(Interruption(root=root, config=config, ranks=3, resume_ranks=3, updates=40, kill_at=17))
    with Run.open(root, "reference") as run:
        return load(run, 2)


def timed(found: Found, timing: Mapping[str, Any]) -> Found:
    """The same cut with other times."""
    return replace(found, manifest=replace(found.manifest, timing=timing))


def texts(picture: str) -> list[str]:
    """What a person reads in it."""
    return [each.text or "" for each in ET.fromstring(picture).iter(f"{SVG}text")]  # noqa: S314 - our own


def classes(picture: str) -> list[str]:
    """What is drawn in it."""
    return [each.get("class", "") for each in ET.fromstring(picture).iter()]  # noqa: S314 - our own


def test_the_picture_on_the_page_is_what_a_run_gives(found: Found) -> None:
    """Made anew from three processes; only the seconds are those of the page, which no second run has."""
    kept = ET.fromstring(PICTURE.read_text()).find(f"{SVG}metadata")  # noqa: S314 - our own
    assert kept is not None
    timing = json.loads(kept.text or "")["timing"]
    # Where the commit came first, nobody can say when the next update was done.
    assert timing.keys() - {"next_update_seconds"} == found.manifest.timing.keys() - {"next_update_seconds"}
    assert svg(timed(found, timing)) == PICTURE.read_text()


def test_every_quantity_stands_on_the_line_of_the_cut_with_its_version(found: Found) -> None:
    """And what was measured of each contributor stands beside it."""
    picture = svg(found)
    versions = dict(found.manifest.versions)
    drawn = ET.fromstring(picture).iter(f"{SVG}text")  # noqa: S314 - our own
    on_the_line = [each.text for each in drawn if each.get("class") == "version"]
    assert sorted(map(str, versions.values())) == sorted(filter(None, on_the_line))
    assert versions.keys() | {"contributor 0", "contributor 1", "contributor 2"} <= set(texts(picture))
    assert [classes(picture).count(each) for each in ("copy", "write", "unmeasured")] == [3, 3, 0]
    metadata = ET.fromstring(picture).find(f"{SVG}metadata")  # noqa: S314 - our own
    assert metadata is not None
    assert json.loads(metadata.text or "") == document(found)


def test_a_longer_copy_has_a_longer_bar(found: Found) -> None:
    """To scale: half the seconds, half the length."""
    took = {"capture_seconds": {"0": 1.0, "1": 0.5, "2": 2.0}, "release_seconds": 2.0}
    drawn = ET.fromstring(svg(timed(found, took))).iter(f"{SVG}rect")  # noqa: S314 - our own
    wide = [float(each.get("width", "")) for each in drawn if each.get("class") == "copy"]
    assert wide == [2 * wide[1], wide[1], 4 * wide[1]]


@pytest.mark.parametrize(
    "timing",
    [{}, {"capture_seconds": "soon", "record_seconds": [1], "blocked_seconds": "1"},
     {"capture_seconds": {"0": float("nan"), "1": -1, "2": 1e300}, "persist_seconds": float("inf")},
     {"release_seconds": True, "capture_seconds": {"0": None}}],
)  # fmt: skip
def test_what_nobody_measured_has_no_number(found: Found, timing: dict[str, Any]) -> None:
    """A manifest may say anything of its times: an older store said less."""
    picture = svg(timed(found, timing))
    assert [classes(picture).count(each) for each in ("copy", "write", "unmeasured")] == [0, 0, 6]
    assert "training waits" in texts(picture)


def test_what_a_record_says_is_text_and_never_markup(found: Found) -> None:
    """A boundary is whatever the contract's author wrote; there is no script in a picture."""
    boundary = "</text><script>alert(1)</script> & \x00" + "x" * 500
    picture = svg(replace(found, manifest=replace(found.manifest, boundary=boundary)))
    assert "<script" not in picture
    assert any(text.startswith("The cut: </text><script>alert(1)</script> & ?xx") for text in texts(picture))
    assert max(map(len, texts(picture))) <= 120


def test_of_many_contributors_the_slowest_are_drawn(found: Found) -> None:
    """The coordinator and eleven more, and how many are left out."""
    many = {str(number): found.contributions["1"] for number in range(100)}
    seconds = {who: 2.0 if int(who) % 9 == 1 else 1.0 for who in many}
    drawn = texts(svg(timed(replace(found, contributions=many), {"capture_seconds": seconds})))
    assert [text for text in drawn if text.startswith("contributor ")] == [
        "contributor 0", *(f"contributor {number}" for number in range(1, 100, 9))
    ]  # fmt: skip
    assert any(text.startswith("and 88 more") for text in drawn)
