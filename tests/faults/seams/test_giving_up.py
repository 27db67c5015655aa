"""An effect is given up, and whoever does it dies at every seam."""

from collections import Counter

import pytest

from tests.faults.seams.campaign import Campaign, Stage, Struck

pytestmark = pytest.mark.temporal

WHY = "the workflow was cancelled"
# What no way through the protocol can do without: where one of them is missing, nothing watches any more.
SEAMS_OF_A_VOID = {
    "exec SELECT effects", "exec UPDATE effects", "exec INSERT entries", "before_commit", "after_commit",
    "request GET", "connected GET", "sent GET", "response GET",
    "request PUT", "connected PUT", "sent PUT", "response PUT",
}  # fmt: skip
SEAMS_OF_A_MATCH = {seam for seam in SEAMS_OF_A_VOID if not seam.endswith("PUT")}


@pytest.mark.parametrize("found", ["nothing", "marked", "unheard"])
async def test_who_gives_up_may_die_anywhere(stage: Stage, found: str, thorough: bool) -> None:
    """A04, A19, A24, A27, E35, E38, E50: one end to each key; what is still on its way comes too late."""
    end = "committed" if found == "unheard" else "voided"
    names: list[str] = []
    for turn in range(2 if thorough else 1):
        campaign = Campaign(
            stage=stage,
            command="settle",
            begin=getattr(stage, found),
            arguments={"given_up": WHY},
            thorough=thorough,
            turn=turn,
        )
        assert (await campaign.clean_run())["state"] == end
        assert set(campaign.plan) >= (SEAMS_OF_A_MATCH if found == "unheard" else SEAMS_OF_A_VOID)
        names += [campaign.name(0), *await _recovered(campaign, end)]
    took = len(names) if end == "committed" else 0
    await stage.ends(names, states=Counter({end: len(names)}), movements=+Counter(reserve=took), posts=took)


async def _recovered(campaign: Campaign, end: str) -> list[str]:
    """A death at each seam, and the recovery of each; the effects' names."""
    stage = campaign.stage
    left: list[Struck] = []

    async def recovered(struck: Struck) -> None:
        """By the same command at once; or later, with others, by the sweep."""
        if (struck.number + campaign.turn) % 2:
            assert (await campaign.again(struck))["state"] == end
        else:
            left.append(struck)

    struck = await campaign.at_each(campaign.numbers, recovered)
    await stage.does("sweep")
    for one in left:
        row = stage.case.journal.effect(stage.key(one.name))
        if row is None or not (row.given_up or end == "committed"):  # it died before anything of it was durable
            assert row is None or not row.state.terminal
        else:
            assert row.state == end
        assert (await campaign.again(one))["state"] == end
    return [one.name for one in struck]
