"""The plan of the demo: made of the incidents alone, and full of faults that can fire."""

import json
from collections import Counter
from pathlib import Path

from services.drill.plan import IN_FLIGHT, ORIGIN, STORY_ID, WAVES, examples, key_of, plan
from services.effects.keys import derive_key
from services.incidents import Approval

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_the_examples_are_the_ones_that_are_shown() -> None:
    """What the program carries is what the examples folder holds."""
    incidents, stock = examples()
    assert len(incidents) == len((EXAMPLES / "incidents.jsonl").read_text().splitlines()) >= 60
    assert stock == json.loads((EXAMPLES / "stock.json").read_text())


def test_every_incident_has_exactly_one_place() -> None:
    """A wave, in the order of the file, or the flight in which the Temporal server is killed, or the story."""
    incidents, stock = examples()
    what = plan(incidents, stock)
    assert len(what.waves) == WAVES
    started = [incident for wave in what.waves for incident in wave.incidents]
    others = [*what.in_flight, what.story]
    assert what.story.id == STORY_ID
    assert started == [each for each in incidents if each not in others]
    assert len(started) + len(others) == len(incidents)
    assert what.planned.incidents == len(incidents)


def test_every_fault_waits_for_an_effect_of_its_own_wave_that_commits_and_waits_for_nobody() -> None:
    """Else it might never fire; and no key meets two faults."""
    incidents, stock = examples()
    what = plan(incidents, stock)
    armed: Counter[str] = Counter()
    for wave in what.waves:
        by_key = {key_of(incident): incident for incident in wave.incidents}
        for key in (wave.kill, *wave.lose, *wave.delay):
            armed[key] += 1
            assert by_key[key].approval is Approval.AUTO
            assert all(line.quantity <= stock[line.sku] for line in by_key[key].effects[0].lines)
    assert set(armed.values()) == {1}
    assert key_of(what.story) not in armed
    assert len(what.in_flight) == IN_FLIGHT
    for incident in what.in_flight:
        assert incident.approval is Approval.AUTO
        assert [len(effect.lines) > 0 for effect in incident.effects] == [True]
        assert all(line.quantity <= stock[line.sku] for line in incident.effects[0].lines)


def test_the_plan_says_how_many_faults_there_are() -> None:
    """Six kills and the story's; the rejections are the effects that ask for more than there is."""
    incidents, stock = examples()
    what = plan(incidents, stock)
    assert what.planned.kills == len(what.waves) + 1 == 7
    assert what.planned.lost_responses == sum(len(wave.lose) for wave in what.waves) == 12
    assert what.planned.delayed_requests == sum(len(wave.delay) for wave in what.waves) + 1 == 5
    assert what.planned.rejected == 4


def test_two_plans_are_the_same() -> None:
    """Two runs meet the same faults on the same keys."""
    assert plan(*examples()) == plan(*examples())


def test_the_keys_are_known_before_anything_starts() -> None:
    """The story's is the one in the documentation."""
    story = plan(*examples()).story
    assert key_of(story) == derive_key(ORIGIN, "INC-2041", "reserve-filter", 1)
    assert key_of(story) == "cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g1"
