"""A cancel that arrives while an attempt is frozen and the retries cannot ask the provider."""

import pytest
from temporalio.client import WorkflowExecutionStatus

from services.drill.network_faults import Armed, DelayRequest, Fault, WithholdResponse
from services.drill.processes import Child, wait_until
from services.effects.keys import derive_key, release_name
from services.effects.states import EffectState
from tests.faults.books import NAME, SKU, STOCK, Books
from tests.faults.harness import Case, freeze, reached, thaw, within
from tests.faults.servers import LIMIT_SECONDS
from workflows import search_attributes

pytestmark = pytest.mark.temporal

RELEASE = release_name(NAME, 1)


async def _cancel_over_a_frozen_attempt(case: Case, fault: Fault) -> tuple[Child, Armed]:
    """The sender frozen over its request, its heartbeat timed out, the retries without an answer, then a cancel."""
    armed = case.proxy.arm(case.key(), fault)
    one, other = case.start_worker(), case.start_worker()
    await case.ready(one, other)
    await case.start()
    await reached(armed)
    frozen = case.sender(case.key())
    freeze(frozen)
    await case.proxy.down()

    async def backing_off() -> bool:
        pending = (await case.describe()).raw_description.pending_activities
        return any(activity.attempt > 2 for activity in pending)

    await wait_until(backing_off, timeout_seconds=LIMIT_SECONDS, what="the other worker's retries back off")
    await case.handle().cancel()

    def given_up() -> bool:
        row = case.journal.effect(case.key())
        return row is not None and row.given_up

    await wait_until(given_up, timeout_seconds=LIMIT_SECONDS, what="every further attempt is forbidden")
    await _still_open(case)
    return frozen, armed


async def _still_open(case: Case) -> None:
    """Nobody has answered anything yet: the workflow says so and stays."""
    row = case.journal.effect(case.key())
    assert row is not None
    assert row.state is EffectState.PENDING
    described = await case.describe()  # no query: the frozen worker may be the one that is asked
    assert described.status is WorkflowExecutionStatus.RUNNING
    assert described.typed_search_attributes.get(search_attributes.EFFECT_KEY) == [case.key()]


async def test_a_cancel_over_a_frozen_attempt_waits_until_its_key_is_closed(case: Case) -> None:
    """A04, A27, E50: nothing had arrived; the key is voided, and what the thawed worker sent meets 410."""
    frozen, held = await _cancel_over_a_frozen_attempt(case, DelayRequest())
    thaw(frozen)
    await _still_open(case)
    await case.proxy.up()
    await case.ends_cancelled()
    held.release()
    await within(held.done())
    assert await case.books() == Books(
        available=STOCK, receipts=("voided",), movements=(), posts=1, effects={NAME: ("voided", 1)}
    )


async def test_a_cancel_over_a_frozen_attempt_that_had_committed_gives_the_units_back(case: Case) -> None:
    """A04, E08, E16, E70: the receipt is found, and released under a key and receipt of its own."""
    frozen, _withheld = await _cancel_over_a_frozen_attempt(case, WithholdResponse())
    assert (await case.receipt() or {})["outcome"] == "committed"
    await case.proxy.up()
    await case.ends_cancelled()
    thaw(frozen)
    assert await case.books() == Books(
        available=STOCK,
        receipts=("committed", "committed"),
        movements=("reserve", "release"),
        posts=2,
        effects={NAME: ("committed", 1), RELEASE: ("committed", 1)},
    )
    key = derive_key(case.origin, case.scope(), RELEASE, 1)
    released = await case.receipt(key)
    assert released is not None
    assert (released["kind"], released["reservation_id"]) == ("inventory.release", "reservation-1")
    outcome = case.journal.outcome(case.key())
    assert outcome is not None
    assert outcome.state == "released"


async def test_a_cancel_that_comes_too_late_gives_back_what_was_committed(case: Case) -> None:
    """E16, E08: the answer is on its way; the operator never reads "cancelled" over held units."""
    await case.unheard()
    await case.handle().cancel()
    await case.ends_cancelled()
    books = await case.books()
    assert (books.available, books.movements, books.posts) == (STOCK, ("reserve", "release"), 2)
    assert books.effects == {NAME: ("committed", 1), RELEASE: ("committed", 1)}
    stock = (await case.http.get(f"/v1/stock/{SKU}")).json()
    assert stock["consumed"] == 0


async def test_a_release_whose_answer_is_lost_is_found_and_not_repeated(case: Case) -> None:
    """E70, A26: compensated only with the release's own receipt, and one of it."""
    withheld = case.proxy.arm(case.key(), WithholdResponse())
    release_key = derive_key(case.origin, case.scope(), RELEASE, 1)
    lost = case.proxy.arm(release_key, WithholdResponse())
    await case.worker()
    await case.start()
    await reached(withheld)
    await case.handle().cancel()
    assert await reached(lost) == 200
    case.sender(release_key).kill()
    outcome = case.journal.outcome(case.key())
    assert outcome is None  # while its release is pending nothing is answered
    await case.worker()
    await case.ends_cancelled()
    books = await case.books()
    assert (books.available, books.movements, books.posts) == (STOCK, ("reserve", "release"), 2)
    assert books.effects == {NAME: ("committed", 1), RELEASE: ("committed", 1)}
