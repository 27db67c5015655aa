"""A person's commands, killed at every seam of what they do and of what is sent; then the same command again."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from tests.faults.seams.campaign import Campaign, Stage, Struck
from tests.faults.seams.test_giving_up import SEAMS_OF_A_MATCH, SEAMS_OF_A_VOID

pytestmark = pytest.mark.temporal

SEAMS_OF_A_SEND = {
    "exec INSERT effects", "exec INSERT decisions", "exec UPDATE effects", "exec INSERT entries",
    "before_commit", "after_commit", "request POST", "connected POST", "sent POST", "response POST",
}  # fmt: skip
SEAMS_OF_AN_ADOPTION = SEAMS_OF_A_MATCH | {"exec INSERT effects"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command, how it finds its effect, and how one that comes to its end leaves it.

    Attributes:
        found: the method of the stage that makes the effect.
        what: how the command ends.
        states: of the effect, and of what the command makes, by the name's ending.
        movements: of the stock, whoever made them.
        seams: what it cannot do without.
    """

    command: str
    found: str
    what: str = "done"
    states: dict[str, str]
    movements: tuple[str, ...] = ()
    seams: set[str]
    arguments: dict[str, Any]


EVIDENCE = {"evidence": "the shelf has been counted"}
ORDERS = {
    "give-up": Order(
        command="give_up", found="marked", states={"": "voided"}, seams=SEAMS_OF_A_VOID, arguments={}
    ),
    "give-up, too late": Order(
        command="give_up", found="unheard", what="refused", states={"": "committed"}, movements=("reserve",),
        seams=SEAMS_OF_A_MATCH, arguments={},
    ),
    "resolve as voided": Order(
        command="resolve", found="marked", states={"": "voided"}, seams=SEAMS_OF_A_VOID,
        arguments={"to": "voided", **EVIDENCE},
    ),
    "resolve as committed": Order(
        command="resolve", found="unheard", states={"": "committed"}, movements=("reserve",), seams=SEAMS_OF_A_MATCH,
        arguments={"to": "committed", **EVIDENCE},
    ),
    "redo": Order(
        command="redo", found="voided", states={"": "voided", " g2": "committed"}, movements=("reserve",),
        seams=SEAMS_OF_A_SEND, arguments={},
    ),
    "redo after the window": Order(
        command="redo", found="overdue", states={"": "voided", " g2": "committed"}, movements=("reserve",),
        seams=SEAMS_OF_A_SEND, arguments={},
    ),
    "adopt": Order(
        command="adopt", found="orphan", states={"": "committed"}, movements=("reserve",), seams=SEAMS_OF_AN_ADOPTION,
        arguments={},
    ),
    "release": Order(
        command="release", found="settled", states={"": "committed", ".g1.release": "committed"},
        movements=("reserve", "release"), seams=SEAMS_OF_A_SEND, arguments={},
    ),
}  # fmt: skip


async def _is_finished_by_the_same_command(stage: Stage, order: Order, *, thorough: bool) -> None:
    """It is journaled once, it ends as it would have, and nothing is taken or given back twice."""
    campaign = Campaign(
        stage=stage,
        command="desk",
        begin=getattr(stage, order.found),
        arguments={"command": order.command, **order.arguments},
        thorough=thorough,
    )
    assert (await campaign.clean_run())["ruling"]["what"] == order.what
    assert set(campaign.plan) >= order.seams

    async def finished(struck: Struck) -> None:
        ruling = (await campaign.again(struck))["ruling"]
        assert (ruling["what"], ruling["state"]) == (order.what, order.states[""])

    struck = await campaign.at_each(campaign.numbers, finished)
    lives = [campaign.name(0), *(one.name for one in struck)]
    for name in lives:
        said = [entry.body for entry in stage.case.journal.entries(stage.key(name)) if entry.kind == "resolution"]
        assert [body["command"] for body in said] == [order.command.replace("_", "-")]
    states, movements = Counter(order.states.values()), Counter(order.movements)
    await stage.ends(
        [f"{name}{ending}" for name in lives for ending in order.states],
        states=Counter({state: count * len(lives) for state, count in states.items()}),
        movements=Counter({kind: count * len(lives) for kind, count in movements.items()}),
        posts=await stage.sends(),
    )


@pytest.mark.parametrize("order", ["give-up", "give-up, too late", "resolve as voided", "resolve as committed"])
async def test_who_settles_may_die_anywhere_and_the_same_command_finishes_it(
    stage: Stage, order: str, thorough: bool
) -> None:
    """E35, E38, E50: the provider's word is the end, whoever asked for it."""
    await _is_finished_by_the_same_command(stage, ORDERS[order], thorough=thorough)


@pytest.mark.parametrize("order", ["redo", "redo after the window"])
async def test_who_redoes_may_die_anywhere_and_the_same_command_finishes_it(
    stage: Stage, order: str, thorough: bool
) -> None:
    """A25: one decision, one second generation, its window its own."""
    await _is_finished_by_the_same_command(stage, ORDERS[order], thorough=thorough)


async def test_who_releases_may_die_anywhere_and_the_same_command_finishes_it(stage: Stage, thorough: bool) -> None:
    """The units come back once."""
    await _is_finished_by_the_same_command(stage, ORDERS["release"], thorough=thorough)


async def test_who_adopts_may_die_anywhere_and_the_same_command_finishes_it(stage: Stage, thorough: bool) -> None:
    """No orphan gets half a row."""
    await _is_finished_by_the_same_command(stage, ORDERS["adopt"], thorough=thorough)
