"""An attempt that dies, or sleeps, at every seam, and whoever finds what it left."""

import signal
from collections import Counter

import pytest

from tests.faults.seams.campaign import SCOPE, Campaign, Stage, Struck, outside_of_writing

pytestmark = pytest.mark.temporal

SEAMS_OF_AN_ATTEMPT = {
    "exec INSERT decisions", "exec INSERT effects", "exec UPDATE effects", "exec INSERT entries", "before_commit",
    "after_commit", "request POST", "connected POST", "sent POST", "response POST",
}  # fmt: skip


def _came_to(campaign: Campaign, struck: Struck) -> set[str]:
    """How an effect may end that is given up when its attempt has come so far."""
    sent = campaign.plan.index("sent POST") + 1
    if struck.number == sent:
        return {"committed", "voided"}  # the request is on its way
    return {"voided"} if struck.number < sent else {"committed"}


async def test_an_attempt_that_dies_anywhere_is_found_by_the_next_by_the_sweep_or_by_who_gives_up(
    stage: Stage, thorough: bool
) -> None:
    """E35, E38, E50: whoever comes next finds out what became of it; no second effect, and no second key."""
    names: list[str] = []
    ends: Counter[str] = Counter()
    for turn in range(3 if thorough else 1):
        campaign = Campaign(stage=stage, command="attempt", begin=stage.nothing, thorough=thorough, turn=turn)
        assert (await campaign.clean_run())["state"] == "committed"
        assert set(campaign.plan) >= SEAMS_OF_AN_ATTEMPT
        ends["committed"] += 1
        names += [campaign.name(0), *await _found(campaign, ends)]
    await stage.ends(names, states=ends, movements=Counter(reserve=ends["committed"]), posts=await stage.sends())


async def _found(campaign: Campaign, ends: Counter[str]) -> list[str]:
    """A death at each seam, and each found by somebody; the effects' names."""
    stage = campaign.stage
    left: list[Struck] = []

    async def found(struck: Struck) -> None:
        match (struck.number + campaign.turn) % 3:
            case 0:
                assert (await campaign.again(struck))["state"] == "committed"
                ends["committed"] += 1
            case 1:
                left.append(struck)
            case _:
                given_up = await stage.does("settle", scope=SCOPE, name=struck.name, given_up="nobody wants it")
                assert given_up["state"] in _came_to(campaign, struck)
                ends[given_up["state"]] += 1

    struck = await campaign.at_each(campaign.numbers, found)
    swept = await stage.does("sweep")
    assert not swept.keys() & {"owned", "unheard"}  # the dead own nothing
    for one in left:
        row = stage.case.journal.effect(stage.key(one.name))
        done = row is not None and row.state == "committed"
        assert done or "committed" not in _came_to(campaign, one) or one.seam == "sent POST"
        assert (await campaign.again(one))["state"] == "committed"
        ends["committed"] += 1
    return [one.name for one in struck]


async def test_a_sleeper_that_wakes_at_any_seam_after_the_redo_changes_nothing(stage: Stage, thorough: bool) -> None:
    """A19, A23, A24, A25, E29, E62, E68: given up and redone over a living attempt; it wakes, and meets what is there.

    On one that has committed before, the giving up says so, and no redo is decided.
    """
    campaign = Campaign(stage=stage, command="attempt", begin=stage.nothing, thorough=thorough)
    await campaign.clean_run()
    ends: Counter[str] = Counter(committed=1)
    names = [campaign.name(0)]

    async def redone(struck: Struck) -> None:
        one = {"scope": SCOPE, "name": struck.name}
        first = (await stage.does("settle", **one, given_up="nobody wants it"))["state"]
        assert first in _came_to(campaign, struck)
        redo = await stage.does("desk", **one, command="redo")
        again = first == "voided"
        assert redo["ruling"]["what"] == ("done" if again else "refused")
        ends.update([first, *(["committed"] if again else [])])
        names.extend([struck.name, *([f"{struck.name} g2"] if again else [])])
        known = len(stage.case.journal.entries(stage.key(struck.name)))
        struck.life.send_signal(signal.SIGCONT)
        await struck.life.end()
        assert struck.life.code in {0, 1}
        if struck.life.code == 0 and not again:
            assert struck.life.answer["outcome"]["state"] == "committed"
        woken = stage.case.journal.entries(stage.key(struck.name))[known:]
        assert [entry.kind for entry in woken] in ([], ["observation"])

    await campaign.at_each(outside_of_writing(campaign.plan), redone, signal.SIGSTOP)
    took = Counter(reserve=ends["committed"])
    await stage.ends(names, states=ends, movements=took, posts=await stage.sends())
    assert ends["voided"] > 3
    assert ends["committed"] > len(campaign.plan) // 3
