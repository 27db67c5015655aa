"""The sweep, killed at every seam of what it does about one effect; the next sweep goes on."""

from collections import Counter

import pytest

from tests.faults.seams.campaign import Campaign, Stage, Struck
from tests.faults.seams.test_giving_up import SEAMS_OF_A_MATCH, SEAMS_OF_A_VOID

pytestmark = pytest.mark.temporal


@pytest.mark.parametrize("found", ["late", "unheard"])
async def test_a_sweep_that_dies_anywhere_is_finished_by_the_next(stage: Stage, found: str, thorough: bool) -> None:
    """G11, E38: of what nobody answers for any more; what is found is believed, and what is not is closed."""
    end = "voided" if found == "late" else "committed"
    begin = stage.given_up if found == "late" else stage.unheard
    campaign = Campaign(stage=stage, command="sweep", begin=begin, about_all=True, thorough=thorough)
    counted = "voided" if found == "late" else "matched"
    swept = await campaign.clean_run()
    assert (swept["looked_at"], swept[counted]) == (1, 1)
    assert set(campaign.plan) >= (SEAMS_OF_A_VOID if found == "late" else SEAMS_OF_A_MATCH)

    async def finished(struck: Struck) -> None:
        await campaign.again(struck)
        row = stage.case.journal.effect(stage.key(struck.name))
        assert row is not None
        assert row.state == end

    struck = await campaign.at_each(campaign.numbers, finished)
    names = [campaign.name(0), *(one.name for one in struck)]
    took = Counter(reserve=len(names)) if found == "unheard" else Counter[str]()
    await stage.ends(names, states=Counter({end: len(names)}), movements=took, posts=await stage.sends())
