"""A capture is of one moment, or there is none: in real processes, with real mutations meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.checkpoints.crew import Crew


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crew]:
    """One process a story."""
    with Crew(Path(tmp_path_factory.mktemp("capture"))) as playing:
        yield playing


@pytest.fixture(scope="module")
def races(crew: Crew) -> dict[str, Any]:
    """How each race ended."""
    (player,) = crew.play("capture-races", 1)
    return player.last


@pytest.mark.parametrize("point", ["marks_read", "item_copied", "copied"])
@pytest.mark.parametrize("who", ["marked", "unmarked", "another source", "value"])
def test_a_mutation_between_the_readings_refuses_the_capture(races: dict[str, Any], who: str, point: str) -> None:
    """C02 D03: each item may be stable in itself; all are looked at before and after all copies."""
    assert races[f"{who} {point}"].startswith("SourceChanged: ")


def test_half_an_update_is_refused_by_its_begin_mark(races: dict[str, Any]) -> None:
    """D13: torn bytes whose counter has not moved yet; when the update is done, it is captured."""
    assert races["torn"].startswith("SourceChanged: source model is being mutated")
    assert races["whole again"] == "ok"


def test_nothing_that_stands_still_is_refused(races: dict[str, Any]) -> None:
    """A mutation that ended before the first look is no change."""
    assert (races["quiet unmarked"], races["before the first look"]) == ("ok", "ok")


def test_only_what_a_view_shows_is_copied_in_c_order_with_its_own_digest(crew: Crew) -> None:
    """Transposed, sliced, reversed, empty, bfloat16; marked and unmarked."""
    (player,) = crew.play("capture-bytes", 1)
    assert len(player.said) == 20
    for said in player.said:
        assert said["equal"], said
        assert said["digest"], said
        assert said["nbytes"], said
        assert said["apart"], said
        assert said["finite"] == (said["item"] not in {"not-a-number", "infinite-bfloat16"}), said


def test_what_no_record_can_hold_is_refused_by_name(crew: Crew) -> None:
    """A box of another size, a source that is none, objects, structures, the other byte order, a set."""
    (player,) = crew.play("capture-refusals", 1)
    assert {name: text.partition(":")[0] for name, text in player.last.items()} == {
        "box": "CoverageError", "source": "ManifestInvalid", "objects": "ManifestInvalid",
        "structured": "ManifestInvalid", "big_endian": "ManifestInvalid", "value": "ManifestInvalid",
    }  # fmt: skip


def test_what_changes_after_the_capture_changes_nothing_in_it_and_the_device_is_waited_for(crew: Crew) -> None:
    """C07: values and counters are copies too; and what the device still writes is written before the first look."""
    (player,) = crew.play("capture-later", 1)
    captured, device = player.said
    assert captured == {"arrays": {"a": 1.0, "b": 1.0}, "versions": {"updates": 1}, "values": {"scheduler": 1}}
    assert device == {"first": 42.0}
