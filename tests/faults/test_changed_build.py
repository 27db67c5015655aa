"""Workers of another build take over effects that are under way."""

import pytest

from services.drill.network_faults import DelayRequest, Moment
from tests.faults.author_worker import ANOTHER_BUILD, THIS_BUILD
from tests.faults.books import STOCK, WANTED
from tests.faults.harness import Case, reached, within

pytestmark = pytest.mark.temporal


async def test_another_build_sends_the_journaled_bytes_under_the_same_key(case: Case) -> None:
    """E13, E58, E59, G2, G18: it takes over between two attempts, and decides again after a reset to the first task.

    That it sent the same bytes is the inventory's word: the first build's packets come late, and meet a replay.
    """
    keys = {number: case.key(number=number) for number in (1, 2)}
    held = {number: case.proxy.arm(key, DelayRequest()) for number, key in keys.items()}
    first_build = await case.worker(*THIS_BUILD)
    for number in keys:
        await case.start(case.line(number))
        await reached(held[number])
    before = {number: case.journal.effect(key) for number, key in keys.items()}
    first_build.kill()
    await case.reset(number=2)
    another_build = await case.worker(*ANOTHER_BUILD)
    for number, key in keys.items():
        outcome = (await case.result(number)).outcomes[0]
        assert (outcome.key, outcome.state, outcome.receipt) == (key, "committed", await case.receipt(key))
        row, begun = case.journal.effect(key), before[number]
        assert row is not None
        assert begun is not None
        assert case.sender(key) is another_build
        assert (row.request, row.fingerprint, row.fingerprint_version) == (begun.request, begun.fingerprint, "cf-fp1")
        held[number].release()
        await within(held[number].done())
    late = [event.status for event in case.proxy.events if event.moment is Moment.FORWARDED]
    assert late == [201, 201]
    books = await case.books()
    assert (books.available, books.receipts, books.movements, books.posts) == (
        STOCK - 2 * WANTED,
        ("committed",) * 2,
        ("reserve",) * 2,
        4,
    )
    assert set(books.effects.values()) == {("committed", 2)}
