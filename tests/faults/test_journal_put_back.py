"""The journal alone put back to an older copy, while no worker runs."""

import asyncio

import pytest

from services.effects.states import EffectState
from tests.faults.books import Books, committed
from tests.faults.harness import Case

pytestmark = pytest.mark.temporal


async def _finish(case: Case) -> None:
    """Let the incident end, then stop every worker."""
    assert (await case.result()).status == "done"
    for worker in case.workers:
        await asyncio.to_thread(worker.terminate)


async def _put_back_to_the_pending_intent(case: Case) -> None:
    _, withheld = await case.unheard()
    copy = case.copy_journal()
    withheld.release()
    await _finish(case)
    case.put_back_journal(copy)
    row = case.journal.effect(case.key())
    assert row is not None
    assert (row.state, row.attempts) == (EffectState.PENDING, 1)


async def _put_back_to_before_the_intent(case: Case) -> None:
    copy = case.copy_journal()
    await case.worker()
    await case.start()
    await _finish(case)
    assert await case.books() == committed()
    case.put_back_journal(copy)
    assert case.journal.effect(case.key()) is None


async def test_a_journal_put_back_to_the_pending_intent_finds_the_receipt_again(case: Case) -> None:
    """The story's second half (E01, A07): the sweep matches it; no unit comes back and none is taken."""
    await _put_back_to_the_pending_intent(case)
    receipt = await case.receipt()
    await case.worker()
    assert await case.settled() == "committed"
    row = case.journal.effect(case.key())
    assert row is not None
    assert row.receipt is not None
    assert row.receipt.body == receipt
    assert await case.books() == committed(posts=1, attempts=1)


async def test_a_workflow_reset_over_a_journal_put_back_finds_the_receipt_again(case: Case) -> None:
    """E01, A01: the workflow decides again before anybody has swept."""
    await _put_back_to_the_pending_intent(case)
    await case.reset()
    await case.worker()
    outcome = (await case.result()).outcomes[0]
    assert outcome.receipt == await case.receipt()
    assert await case.books() == committed(posts=1, attempts=1)


async def _is_a_replay_at_the_provider(case: Case) -> Books:
    """The key is begun anew in a journal that has never heard of it: what it sends is answered with the receipt."""
    await case.worker()
    outcome = (await case.result()).outcomes[0]
    assert (outcome.key, outcome.state) == (case.key(), "committed")
    assert outcome.receipt == await case.receipt()
    return await case.books()


async def test_a_workflow_reset_over_a_journal_that_has_lost_its_intent_is_answered_with_a_replay(case: Case) -> None:
    """E01, E43, G2: same key, same bytes, the provider's first receipt: eight, not six."""
    await _put_back_to_before_the_intent(case)
    await case.reset()
    assert await _is_a_replay_at_the_provider(case) == committed(posts=2, attempts=1)


async def test_an_incident_started_again_over_a_journal_that_has_lost_it_is_answered_with_a_replay(case: Case) -> None:
    """A12, E43, E47: with --replay; without it the ended incident is only shown."""
    await _put_back_to_before_the_intent(case)
    assert (await case.start()).what == "replay"
    assert (await case.start(replay=True)).what == "started"
    assert await _is_a_replay_at_the_provider(case) == committed(posts=2, attempts=1)
