"""The plan of the demo: which incidents meet which faults, made of the incidents alone.

Two runs meet the same faults on the same keys.
"""

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

from services.drill.report import Planned
from services.effects.keys import derive_key
from services.incidents import Approval as ApprovalRule
from services.incidents import Incident, read_incidents

ORIGIN = "demo"
STORY_ID = "INC-2041"
WAVES = 6
LOST_EACH_WAVE = 2
# A delayed request is given up after 2.5 s: in the first waves, so that nobody waits for it at the end.
WAVES_WITH_DELAY = 4
# Effects that are under way when the Temporal server is killed.
IN_FLIGHT = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Incidents started together, and the keys whose requests meet a fault."""

    incidents: tuple[Incident, ...]
    kill: str
    lose: tuple[str, ...]
    delay: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do; the Temporal server is killed while the effects of `in_flight` are under way."""

    waves: tuple[Wave, ...]
    in_flight: tuple[Incident, ...]
    story: Incident
    worst_day_sku: str
    planned: Planned


def examples() -> tuple[list[Incident], dict[str, int]]:
    """The incidents and the stock that come with the program."""
    folder = resources.files("services.drill")
    incidents, problems = read_incidents(io.BytesIO(folder.joinpath("incidents.jsonl").read_bytes()))
    if problems:
        raise ValueError(f"The example incidents are not usable: {problems[0]}")
    stock: dict[str, int] = json.loads(folder.joinpath("stock.json").read_text(encoding="utf-8"))
    return incidents, stock


def plan(incidents: Sequence[Incident], stock: Mapping[str, int], *, origin: str = ORIGIN) -> Plan:
    """Choose who meets which fault: among the effects that commit and wait for nobody."""
    story = next(incident for incident in incidents if incident.id == STORY_ID)
    fleet = [incident for incident in incidents if incident is not story]
    impossible = [
        effect
        for incident in incidents
        for effect in incident.effects
        if any(line.quantity > stock.get(line.sku, 0) for line in effect.lines)
    ]
    commits = [
        incident
        for incident in fleet
        if incident.approval is ApprovalRule.AUTO and incident.effects[0] not in impossible
    ]
    in_flight = tuple(incident for incident in commits if len(incident.effects) == 1)[-IN_FLIGHT:]
    fleet = [incident for incident in fleet if incident not in in_flight]
    waves = []
    for number in range(WAVES):
        members = fleet[number * len(fleet) // WAVES : (number + 1) * len(fleet) // WAVES]
        keys = [key_of(incident, origin=origin) for incident in members if incident in commits]
        victim = keys.pop(len(keys) // 2)
        lose, delay = keys[:LOST_EACH_WAVE], keys[-1:] if number < WAVES_WITH_DELAY else []
        waves.append(Wave(incidents=tuple(members), kill=victim, lose=tuple(lose), delay=tuple(delay)))
    planned = Planned(
        incidents=len(incidents),
        kills=len(waves) + 1,
        temporal_kills=1,
        lost_responses=sum(len(wave.lose) for wave in waves),
        delayed_requests=sum(len(wave.delay) for wave in waves) + 1,  # the zombie's
        rejected=len(impossible),
    )
    return Plan(
        waves=tuple(waves),
        in_flight=in_flight,
        story=story,
        worst_day_sku=max(stock, key=lambda sku: stock[sku]),
        planned=planned,
    )


def key_of(incident: Incident, *, origin: str = ORIGIN) -> str:
    """The key of an incident's first effect: known before anything is started."""
    return derive_key(origin, incident.id, incident.effects[0].name, 1)
