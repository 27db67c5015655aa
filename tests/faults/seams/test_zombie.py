"""A worker that sleeps between its mark and its send, through the giving up and the redo, and wakes over both."""

import signal

import httpx
import pytest

from services.drill.network_faults import Armed, DelayRequest, Moment, WithholdResponse
from services.drill.processes import wait_until
from services.effect_commands import start_effect_command, wake
from services.effect_desk import EffectDesk
from services.effects.commands import Ruling, What
from services.effects.keys import derive_key
from tests.faults.books import NAME, WANTED, Books
from tests.faults.harness import Case, reached, within
from tests.faults.seams.campaign import Stage
from tests.faults.seams.children import Life
from tests.faults.seams.commands import OPERATOR, REASON
from tests.faults.seams.conftest import STOCK as MUCH
from tests.faults.seams.watching import Strike
from tests.faults.servers import LIMIT_SECONDS

pytestmark = pytest.mark.temporal

REDONE = Books(
    available=MUCH - WANTED,
    receipts=("voided", "committed"),
    movements=("reserve",),
    posts=2,
    effects={NAME: ("voided", 1), f"{NAME} g2": ("committed", 1)},
)


async def _given_up(stage: Stage) -> Ruling:
    case = stage.case
    desk = EffectDesk(case.journal, stage.provider, origin=case.origin)
    ruling = await desk.give_up(case.key(), by=OPERATOR, reason=REASON)
    assert (ruling.what, ruling.state) == (What.DONE, "voided")
    return ruling


async def _redone(stage: Stage) -> str:
    """Generation 2 is decided and sent by a worker that is awake; its key."""
    case = stage.case
    desk = EffectDesk(case.journal, stage.provider, origin=case.origin)
    ruling = await desk.redo(case.key(), by=OPERATOR, reason=REASON)
    assert ruling.what is What.DONE
    assert ruling.send is not None
    handle = await start_effect_command(case.client, ruling.send)
    outcome = await within(handle.result())
    second = derive_key(case.origin, case.scope(), NAME, 2)
    assert (outcome.state, outcome.key) == ("committed", second)
    return second


async def _has_said_all(life: Life) -> None:
    """Wait until whatever the sleeper has heard of its send is written down."""

    def observed() -> bool:
        return "after_commit" in life.seams[life.seams.index("connected POST") :]

    await wait_until(observed, timeout_seconds=LIMIT_SECONDS, what="the sleeper has journaled what it heard")


async def _nothing_moved(stage: Stage) -> None:
    case = stage.case
    assert await case.books() == REDONE
    row = case.journal.effect(case.key())
    assert row is not None
    assert not row.alarmed
    kinds = [entry.kind for entry in case.journal.entries(case.key())]
    assert kinds.count("attempt") == 1
    assert "late_observation" not in kinds
    await stage.is_clean()


async def test_a_first_generation_that_wakes_before_its_first_byte_meets_its_closed_key(stage: Stage) -> None:
    """A19, A23, E11, E29, E62: marked, its gate open, then asleep; redone, its bytes leave now, and meet 410."""
    case = stage.case
    sleeper = await stage.worker(Strike(label="connected POST", signal=signal.SIGSTOP))
    await case.start()
    await sleeper.until_asleep()
    assert case.journal.attempts(case.key())[0].worker["pid"] == sleeper.pid
    await stage.worker()
    ruling = await _given_up(stage)
    await wake(case.client, str(ruling.workflow_id))
    result = await case.result()
    assert (result.status, result.outcomes[0].state) == ("short", "voided")
    await _redone(stage)
    heard = case.proxy.arm(case.key(), WithholdResponse())
    sleeper.send_signal(signal.SIGCONT)
    assert await reached(heard) == httpx.codes.GONE
    heard.release()
    await _has_said_all(sleeper)
    await _nothing_moved(stage)


async def arrives_late(case: Case, held: Armed) -> int | None:
    """Let a held request go on; what the inventory answered it."""
    held.release()
    await within(held.done())
    (status,) = [one.status for one in case.proxy.events if one.fault is held.fault and one.moment is Moment.FORWARDED]
    return status


async def test_a_first_generations_packet_that_arrives_after_its_redo_meets_its_closed_key(stage: Stage) -> None:
    """A27, E35, E38, E50: its workflow is terminated over it, it is given up and redone, then it arrives, and wakes."""
    case = stage.case
    held = case.proxy.arm(case.key(), DelayRequest())
    sleeper = await stage.worker(Strike(label="sent POST", signal=signal.SIGSTOP))
    await case.start()
    await sleeper.until_asleep()
    await reached(held)
    await case.handle().terminate("a fault test")
    await stage.worker()
    await _given_up(stage)
    await _redone(stage)
    assert await arrives_late(case, held) == httpx.codes.GONE
    await _nothing_moved(stage)
    sleeper.send_signal(signal.SIGCONT)
    await _has_said_all(sleeper)
    await _nothing_moved(stage)
