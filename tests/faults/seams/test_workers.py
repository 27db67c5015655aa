"""A worker dies as an activity reaches it, or when its work is done and Temporal has not heard so; another goes on."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace

import httpx
import pytest

from services.drill.network_faults import Armed, DelayRequest
from services.drill.processes import wait_until
from services.effect_commands import start_effect_command
from services.effect_desk import EffectDesk
from services.effects.commands import Ruling, What
from services.incidents import Approval
from tests.faults.books import NAME, WANTED, Books
from tests.faults.harness import reached, within
from tests.faults.seams.campaign import Stage
from tests.faults.seams.children import Life
from tests.faults.seams.commands import OPERATOR, REASON
from tests.faults.seams.conftest import STOCK
from tests.faults.seams.test_zombie import arrives_late
from tests.faults.seams.watching import Strike
from tests.faults.servers import LIMIT_SECONDS
from workflows import incident
from workflows.effects import GiveUp
from workflows.incident import Incident

pytestmark = pytest.mark.temporal

Dies = Callable[[], Awaitable[None]]
# Takes the deployment to the activity's door; once its worker is dead there and another works, sees it to its end.
Story = Callable[[Stage, Dies], Awaitable[Books]]

COMMITTED = Books(
    available=STOCK - WANTED, receipts=("committed",), movements=("reserve",), posts=1, effects={NAME: ("committed", 1)}
)
RELEASED = Books(
    available=STOCK,
    receipts=("committed", "committed"),
    movements=("reserve", "release"),
    posts=2,
    effects={NAME: ("committed", 1), f"{NAME}.g1.release": ("committed", 1)},
)
VOIDED = Books(available=STOCK, receipts=("voided",), movements=(), posts=1, effects={NAME: ("voided", 1)})


def _desk(stage: Stage) -> EffectDesk:
    return EffectDesk(stage.case.journal, stage.provider, origin=stage.case.origin)


async def _performed(stage: Stage, ruling: Ruling, dies: Dies) -> None:
    """A command's effect, sent by the workflow that sends for commands."""
    assert ruling.what is What.DONE
    assert ruling.send is not None
    handle = await start_effect_command(stage.case.client, ruling.send)
    await dies()
    assert (await within(handle.result())).state == "committed"


async def _held(stage: Stage) -> Armed:
    """An incident whose request is on its way."""
    held = stage.case.proxy.arm(stage.case.key(), DelayRequest())
    await stage.case.start()
    await reached(held)
    return held


async def _given_up(stage: Stage, held: Armed, *, released: bool) -> Books:
    """The end of an effect that is given up while its request is on its way.

    Where the giving up was not durable when its worker died, the other worker may have sent before it is: then it is
    too late, and said so; who was cancelled gives it back. Or what it had marked before came after the void.
    """
    row = stage.case.journal.effect(stage.case.key())
    assert row is not None
    arrived = await arrives_late(stage.case, held)
    if row.state == "voided":
        assert arrived == httpx.codes.GONE
        assert row.attempts in {1, 2}
        return replace(VOIDED, posts=row.attempts, effects={NAME: ("voided", row.attempts)})
    assert arrived == httpx.codes.CREATED
    if not released:
        return replace(COMMITTED, posts=2, effects={NAME: ("committed", 2)})
    return replace(RELEASED, posts=3, effects={**RELEASED.effects, NAME: ("committed", 2)})


async def _reserve(stage: Stage, dies: Dies) -> Books:
    await stage.case.start()
    await dies()
    assert (await stage.case.result()).status == "done"
    return COMMITTED


async def _approval(stage: Stage, dies: Dies) -> Books:
    await stage.case.start(stage.case.line(approval=Approval.REQUIRED))
    word = incident.Approval(approved=True, by="ada", reason="the part is on the shelf")
    said = asyncio.create_task(stage.case.handle().execute_update(Incident.approve, word))
    await dies()
    assert (await within(said)).by == "ada"
    assert (await stage.case.result()).decided_by == "ada"
    return COMMITTED


async def _cancel(stage: Stage, dies: Dies) -> Books:
    held = await _held(stage)
    await stage.case.handle().cancel()
    await dies()
    await stage.case.ends_cancelled()
    return await _given_up(stage, held, released=True)


async def _give_up(stage: Stage, dies: Dies) -> Books:
    held = await _held(stage)
    word = GiveUp(effect=NAME, by=OPERATOR, reason=REASON)
    said = asyncio.create_task(stage.case.handle().execute_update(Incident.give_up, word))
    await dies()
    ruling = await within(said)
    assert (ruling.what, ruling.state) in {(What.DONE, "voided"), (What.REFUSED, "committed")}
    assert (await stage.case.result()).status == ("short" if ruling.state == "voided" else "done")
    return await _given_up(stage, held, released=False)


async def _redo(stage: Stage, dies: Dies) -> Books:
    await stage.voided(NAME)
    await _performed(stage, await _desk(stage).redo(stage.key(NAME), by=OPERATOR, reason=REASON), dies)
    return Books(
        available=STOCK - WANTED,
        receipts=("voided", "committed"),
        movements=("reserve",),
        posts=1,
        effects={NAME: ("voided", 1), f"{NAME} g2": ("committed", 1)},
    )


async def _release(stage: Stage, dies: Dies) -> Books:
    await stage.settled(NAME)
    await _performed(stage, await _desk(stage).release(stage.key(NAME), by=OPERATOR, reason=REASON), dies)
    return RELEASED


async def _sweep(stage: Stage, dies: Dies) -> Books:
    await stage.marked(NAME)
    stage.case.journal.give_up(stage.intent(NAME), why="nobody wants it")
    await dies()
    assert await stage.case.settled(stage.key(NAME)) == "voided"
    return Books(available=STOCK, receipts=("voided",), movements=(), posts=0, effects={NAME: ("voided", 1)})


async def _follow(stage: Stage, dies: Dies) -> Books:
    await stage.settled(NAME)
    await dies()

    def closed() -> bool:
        row = stage.case.journal.effect(stage.key(NAME))
        return row is not None and row.closed_as == "deleted"

    await wait_until(closed, timeout_seconds=LIMIT_SECONDS, what="it is seen that no workflow answers for it")
    return COMMITTED


STORIES: dict[str, tuple[str, Story]] = {
    "reserve": ("inventory.reserve", _reserve),
    "approve": ("journal.record_decision", _approval),
    "cancel": ("effects.settle", _cancel),
    "give-up": ("effects.command", _give_up),
    "redo": ("inventory.reserve", _redo),
    "release": ("inventory.release", _release),
    "sweep": ("reconciliation.sweep_page", _sweep),
    "follow": ("reconciliation.follow_page", _follow),
}


@pytest.mark.parametrize("moment", ["start", "complete"])
@pytest.mark.parametrize("story", STORIES)
async def test_another_worker_goes_on_where_one_has_died(stage: Stage, story: str, moment: str) -> None:
    """E10, E11, E62, A04, A27: what was done is not done again, and what was begun has one end."""
    activity, tells = STORIES[story]
    seam = f"{moment} {activity}"
    first = await stage.start("worker", Strike(label=seam))

    async def dies() -> None:
        await _struck(first, seam)
        await stage.worker()

    books = await tells(stage, dies)
    assert await stage.case.books() == books
    await stage.is_clean()


async def _struck(life: Life, seam: str) -> None:
    await life.end()
    assert life.code == -signal.SIGKILL, f"{seam} was planned and not hit: {life.error}"
    assert life.seams[-1] == seam
