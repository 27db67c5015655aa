"""Recovery of one effect, and whose a row is meanwhile."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from services.effects.records import Attempt, Seen, Source
from services.effects.settle import Next
from services.effects.states import EffectState
from services.reconciliation.recovery import OWNERSHIP_SLACK, owned, recover
from tests.activities.bench import ME, Bench, instead, intent_now, response_lost
from tests.services.inventory.conftest import NOW

INTENT = intent_now()
DEADLINE = timedelta(seconds=2.5)
MARK = Attempt(attempt_id="a", number=1, not_after=NOW + timedelta(hours=24), marked_at=NOW, worker=ME)


async def test_a_receipt_settles_and_an_absence_does_not(bench: Bench) -> None:
    """Looked up, nothing else."""
    row = bench.pending(INTENT)
    observed, answer = await recover(bench.journal, bench.between, row)
    assert (observed.settlement.next, answer.seen) == (Next.SEND, Seen.ABSENT)
    assert bench.wire.requests == ["GET"]
    bench.between.sends.append(response_lost)
    with pytest.raises(Exception, match="ReadTimeout"):
        await bench.attempt(INTENT)
    observed, _ = await recover(bench.journal, bench.between, bench.row(INTENT))
    assert observed.row.state is EffectState.COMMITTED
    assert bench.wire.count() == {"GET": 3, "POST": 1}


@pytest.mark.parametrize("may_void", [True, False])
async def test_it_voids_only_where_the_caller_may(bench: Bench, *, may_void: bool) -> None:
    """Past the window by the provider's clock; a mismatching caller has no say over the key."""
    row = bench.pending(INTENT)
    bench.later(timedelta(hours=24, minutes=5, seconds=1))
    observed, _ = await recover(bench.journal, bench.between, row, may_void=may_void)
    assert observed.row.state is (EffectState.VOIDED if may_void else EffectState.PENDING)
    assert bench.wire.count()["PUT"] == may_void


async def test_an_alarm_is_never_voided_over(bench: Bench) -> None:
    """Another payload's receipt under our key: in doubt, however late it is."""
    row = bench.pending(INTENT)
    other = intent_now(request={"lines": [{"sku": "FILTER-A", "quantity": 5}]})
    bench.caller.http.post(
        "/v1/reservations",
        content=other.request.encode(),
        headers={"Idempotency-Key": INTENT.key, "Effect-Not-After": bench.caller.not_after},
    ).raise_for_status()
    bench.later(timedelta(days=3))
    observed, _ = await recover(bench.journal, bench.between, row)
    assert (observed.row.state, observed.settlement.next) == (EffectState.IN_DOUBT, Next.WAIT)
    assert bench.wire.count()["PUT"] == 0


async def test_an_unheard_void_leaves_the_row_pending(bench: Bench) -> None:
    """It may have been closed: the next look-up says."""
    bench.pending(INTENT)
    bench.journal.give_up(INTENT, why="cancelled")
    bench.between.voids.append(instead(Seen.UNKNOWN, Source.VOID))
    observed, answer = await recover(bench.journal, bench.between, bench.row(INTENT))
    assert (observed.row.state, answer.source) == (EffectState.PENDING, Source.VOID)


@pytest.mark.parametrize(
    ("attempts", "after", "dead", "whose"),
    [
        ((), timedelta(0), False, False),
        ((MARK,), timedelta(0), False, True),
        ((MARK,), DEADLINE + OWNERSHIP_SLACK - timedelta(milliseconds=1), False, True),
        ((MARK,), DEADLINE + OWNERSHIP_SLACK, False, False),
        ((MARK,), timedelta(0), True, False),
        ((replace(MARK, seen=Seen.UNKNOWN),), timedelta(0), False, False),
        ((replace(MARK, seen=Seen.UNKNOWN), replace(MARK, number=2)), timedelta(0), False, True),
    ],
)
def test_a_row_is_owned_while_a_live_attempt_may_be_at_work(
    attempts: tuple[Attempt, ...], after: timedelta, *, dead: bool, whose: bool
) -> None:
    """G12: its total deadline and a second after its newest mark, unless the worker is provably dead."""
    asked: list[dict[str, Any]] = []

    def provably_dead(worker: dict[str, str | int]) -> bool:
        asked.append(worker)
        return dead

    assert owned(attempts, now=NOW + after, send_deadline=DEADLINE, provably_dead=provably_dead) is whose
    assert all(worker == ME for worker in asked)
