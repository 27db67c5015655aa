"""An effect that was not heard of before retention took its receipt: in doubt by every way of asking, and no further.

The inventory is real: GET, POST and void of the key are 410 key-expired.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from services.effects.records import Answer, Intent, Seen, Source
from services.effects.settle import Next
from services.effects.states import EffectState
from services.reconciliation.recovery import recover
from tests.activities.bench import Bench, bench_of, instead, intent_now, inventory, response_lost
from tests.services.inventory.conftest import Service
from tests.services.reconciliation.test_sweep import swept

INTENT = intent_now()


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An inventory that keeps no receipt's body for long."""
    with inventory(tmp_path_factory.mktemp("forgetful"), retention=timedelta(0)) as service:
        yield service


@pytest.fixture
async def bench(forgetful: Service, journal_path: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """An effect that was done, was not heard of, and whose receipt has expired since."""
    async with bench_of(forgetful, journal_path, tmp_path) as bench:
        await unheard(bench, INTENT)
        bench.later(timedelta(minutes=1))
        forgetful.housekeeping()
        yield bench


async def unheard(bench: Bench, intent: Intent) -> None:
    """Send it; the answer is lost."""
    bench.between.sends.append(response_lost)
    await asyncio.gather(bench.attempt(intent), return_exceptions=True)
    assert bench.state(intent) is EffectState.PENDING


def left_alone(bench: Bench, posts: int = 1, puts: int = 0) -> bool:
    """In doubt, nothing sent or voided beyond that, and the units taken once."""
    count = bench.wire.count()
    asked = (count["POST"], count["PUT"])
    return (bench.state(INTENT), asked, bench.caller.available()) == (EffectState.IN_DOUBT, (posts, puts), 8)


async def test_the_sweep_leaves_it_in_doubt_and_stays_away(bench: Bench) -> None:
    """Looked up, once and again; also long after its window, where an absence would have it voided."""
    assert await swept(bench) == {"looked_at": 1, "waiting": 1}
    assert left_alone(bench)
    bench.later(timedelta(days=3))
    assert await swept(bench) == {"looked_at": 1, "waiting": 1}
    assert left_alone(bench)


async def test_one_that_was_given_up_is_not_voided_either(bench: Bench) -> None:
    """It may have been committed, and was: what is taken stays taken until a person has decided."""
    bench.journal.give_up(INTENT, why="the incident was cancelled")
    observed, answer = await recover(bench.journal, bench.between, bench.row(INTENT))
    assert (answer.seen, observed.settlement.next) == (Seen.KEY_EXPIRED, Next.WAIT)
    assert left_alone(bench)


async def test_an_attempt_that_comes_back_sends_nothing(bench: Bench) -> None:
    """It looks the receipt up first, and says who decides; so does the next one."""
    for _ in range(2):
        standing = await bench.attempt(INTENT)
        assert (standing.state, standing.outcome) == (EffectState.IN_DOUBT, None)
        assert "a person decides" in standing.waiting
        assert left_alone(bench)


async def test_a_send_that_is_answered_so_is_in_doubt(bench: Bench) -> None:
    """It was on its way while the receipt expired: the provider executes nothing."""
    row, (attempt,) = bench.row(INTENT), bench.journal.attempts(INTENT.key)
    answer = await bench.between.send(row, attempt)
    observed = bench.journal.observe(INTENT.key, answer, attempt_id=attempt.attempt_id)
    assert (answer.seen, observed.settlement.next) == (Seen.KEY_EXPIRED, Next.WAIT)
    assert left_alone(bench, posts=2)


async def test_a_void_that_is_answered_so_is_in_doubt(bench: Bench) -> None:
    """It was absent a moment ago, landed late and expired: the tombstone is not put over it."""
    bench.later(timedelta(days=3))
    absent = instead(Seen.ABSENT, Source.LOOK_UP, observed_at=bench.clock())
    bench.between.look_ups.append(absent)
    observed, answer = await recover(bench.journal, bench.between, bench.row(INTENT))
    assert (answer.seen, answer.source) == (Seen.KEY_EXPIRED, Source.VOID)
    assert observed.settlement.next is Next.WAIT
    assert left_alone(bench, puts=1)


async def test_what_was_settled_before_it_expired_stays_so(bench: Bench) -> None:
    """The journal has its receipt: what the provider has forgotten since changes nothing, and is no alarm."""
    settled = intent_now(scope="INC-settled")
    await bench.attempt(settled)
    observed = bench.journal.observe(settled.key, Answer(seen=Seen.KEY_EXPIRED, source=Source.LOOK_UP))
    assert (observed.row.state, observed.settlement.alarm) == (EffectState.COMMITTED, None)
