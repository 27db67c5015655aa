"""The kit itself: what it says of a child is the kernel's word, and a seam that is not hit is a failure."""

import os
import signal

import pytest

from services.drill.processes import wait_until
from services.process_identity import ProcessIdentity, provably_dead
from tests.faults.seams.campaign import SCOPE, Campaign, Stage, outside_of_writing
from tests.faults.seams.watching import Strike
from tests.faults.servers import LIMIT_SECONDS

pytestmark = pytest.mark.temporal


async def test_a_struck_child_does_nothing_after_its_seam(stage: Stage) -> None:
    """Nothing of an open transaction is there, and the process is gone."""
    life = await (await stage.start("attempt", Strike(label="before_commit"), scope=SCOPE, name="one")).end()
    assert life.code == -signal.SIGKILL
    assert (life.answer, life.error) == (None, "")
    assert life.seams[-1] == "before_commit"
    assert stage.case.journal.effects() == ()


async def test_a_planned_seam_that_is_not_hit_fails_its_campaign(stage: Stage) -> None:
    """A child that comes to its end has shown nothing."""
    campaign = Campaign(stage=stage, command="attempt", begin=stage.nothing)
    await campaign.clean_run()
    campaign.plan.append("response PATCH")
    with pytest.raises(AssertionError, match="response PATCH, was planned and not hit"):
        await campaign.strike(len(campaign.plan))


async def test_a_seam_that_is_another_than_planned_fails_its_campaign(stage: Stage) -> None:
    """What was killed was not what the plan says."""
    campaign = Campaign(stage=stage, command="attempt", begin=stage.nothing)
    await campaign.clean_run()
    campaign.plan[0] = "exec SELECT nothing"
    with pytest.raises(AssertionError):
        await campaign.strike(1)


async def test_a_sleeper_stands_at_its_seam_and_goes_on_from_there(stage: Stage) -> None:
    """It does not take another step until it is told to."""
    at = Strike(label="connected POST", signal=signal.SIGSTOP)
    life = await stage.start("attempt", at, scope=SCOPE, name="one")
    await life.until_asleep()
    assert stage.case.proxy.requests == {}
    life.send_signal(signal.SIGCONT)
    assert (await life.finished())["state"] == "committed"


async def test_what_a_command_raises_is_told(stage: Stage) -> None:
    """A child that ends otherwise is not taken for one that was struck."""
    life = await (await stage.start("desk", scope=SCOPE, name="one", command="nothing-of-the-kind")).end()
    assert life.code == 1
    assert "nothing-of-the-kind" in life.error


@pytest.mark.linux
async def test_a_child_dies_with_whoever_forked_it(stage: Stage) -> None:
    """No sleeper is left behind by tests that were killed."""
    at = Strike(label="connected POST", signal=signal.SIGSTOP)
    life = await stage.start("attempt", at, scope=SCOPE, name="one")
    await life.until_asleep()
    who = ProcessIdentity(**stage.case.journal.attempts(stage.key("one"))[0].worker)  # type: ignore[arg-type]
    with open(f"/proc/{life.pid}/stat") as stat:  # noqa: ASYNC230, PTH123 - of the kernel's own
        parent = int(stat.read().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    await wait_until(lambda: provably_dead(who), timeout_seconds=LIMIT_SECONDS, what="the kernel has killed the child")
    with pytest.raises(AssertionError, match="has not ended"):
        await life.end()
    assert life.lost


def test_a_seam_inside_of_a_write_transaction_is_told_from_one_outside() -> None:
    """A sleeper inside keeps others out, on SQLite all of them."""
    plan = [
        "exec BEGIN",
        "before_commit",
        "after_commit",
        "exec BEGIN IMMEDIATE",
        "exec UPDATE effects",
        "after_commit",
    ]
    assert outside_of_writing(plan) == [1, 2, 3, 4, 6]
