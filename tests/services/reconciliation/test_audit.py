"""The audit over a real inventory and a real journal: what is wrong is found, what is only under way is not."""

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from services.database import migrate, open_engine
from services.journal.store import Journal
from services.reconciliation import provider_half
from services.reconciliation.audit import audit
from services.reconciliation.findings import Report, Rule
from services.reconciliation.provider_half import ProviderUnreadable
from tests.services.reconciliation.world import ORIGIN, TOKEN, World, intent, running_world

pytestmark = pytest.mark.anyio


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """An inventory and a journal of the test's own."""
    with running_world(tmp_path / "world") as started:
        yield started


async def _audit(world: World, transport: httpx.AsyncBaseTransport | None = None) -> Report:
    return await audit(world.journal, world.service.url, TOKEN, origin=ORIGIN, transport=transport)


class _Meanwhile(httpx.AsyncHTTPTransport):
    """Does something before each request to a path, as often as it is asked for it."""

    def __init__(self, path: str, then: Callable[[], Awaitable[object]]) -> None:
        super().__init__()
        self._path = path
        self._then = then

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith(self._path):
            await self._then()
        return await super().handle_async_request(request)


def _found(report: Report) -> set[tuple[Rule, str]]:
    return {(finding.rule, finding.key) for finding in report.findings}


async def test_two_empty_halves_agree(world: World) -> None:
    """Nothing is found in nothing."""
    report = await _audit(world)
    assert (report.clean, report.effects, report.receipts, report.stock_conserved) == (True, 0, 0, True)


async def test_every_way_to_end_is_clean(world: World) -> None:
    """Committed, released, rejected, voided, redone, recovered: no finding, and everything is counted."""
    await world.fill()
    report = await _audit(world)
    assert report.findings == ()
    assert (report.effects, report.receipts) == (8, 11)


async def test_the_provider_is_read_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of one finds what a page of hundreds finds."""
    await world.fill()
    monkeypatch.setattr(provider_half, "PAGE", 1)
    assert (await _audit(world)).receipts == 11


async def test_a_lost_answer_is_unresolved_until_it_is_recovered(world: World) -> None:
    """Both halves are said: pending here, committed there; after recovery the audit is clean."""
    await world.fill()
    wanted = intent("INC-7")
    await world.send(wanted)
    report = await _audit(world)
    assert _found(report) == {(Rule.UNRESOLVED, wanted.key)}
    (finding,) = report.findings
    assert finding.what == "INC-7/reserve-filter"
    assert finding.journal.startswith("pending since ")
    assert "committed, reservation-" in finding.provider
    await world.recover(wanted)
    assert (await _audit(world)).clean


async def test_an_intent_that_was_never_sent_is_unresolved(world: World) -> None:
    """The provider has nothing of it, and that settles nothing."""
    await world.fill()
    wanted = intent("INC-7")
    world.begin(wanted)
    report = await _audit(world)
    assert report.unresolved == 1
    assert report.findings[0].provider == "no receipt"


async def test_another_programs_reservation_is_an_orphan(world: World) -> None:
    """It moved stock and no journal wanted it."""
    await world.fill()
    world.caller.reserve(1, key="another-programs-key")
    report = await _audit(world)
    assert _found(report) == {(Rule.ORPHAN, "another-programs-key")}
    assert report.stock_conserved


async def test_an_older_copy_of_the_journal_has_lost_what_it_forgot(world: World, tmp_path: Path) -> None:
    """The provider's committed receipts are of this origin: they are lost here, the rest are orphans."""
    await world.fill()
    migrate("journal", f"sqlite:///{tmp_path}/older.db")
    engine = open_engine(f"sqlite:///{tmp_path}/older.db")
    older = Journal(engine, recorded_by="test")
    report = await audit(older, world.service.url, TOKEN, origin=ORIGIN)
    engine.dispose()
    assert (report.effects, report.lost, report.orphans, report.doubled) == (0, 5, 3, 0)


async def test_effects_that_settle_while_it_reads_raise_no_alarm(world: World) -> None:
    """A whole effect runs between any two requests of the audit, and between its two readings."""
    await world.fill()
    numbers = iter(range(100, 1000))

    async def one_more() -> None:
        await world.perform(intent(f"INC-{next(numbers)}", {"FILTER-A": 1}))

    for path in ("/v1/receipts", "/v1/stock", "/v1/ledger"):
        world.caller.deliver(100)
        assert (await _audit(world, _Meanwhile(path, one_more))).findings == ()


async def test_what_was_pending_and_settles_meanwhile_raises_no_alarm(world: World) -> None:
    """Its answer is observed while the feed is read."""
    await world.fill()
    wanted = intent("INC-7")
    await world.send(wanted)

    async def observe() -> None:
        await world.recover(wanted)

    assert (await _audit(world, _Meanwhile("/v1/receipts", observe))).findings == ()


async def test_a_fault_under_load_is_found_all_the_same(world: World) -> None:
    """Among effects that come and go, the one orphan stays."""
    await world.fill()
    world.caller.deliver(100)
    world.caller.reserve(1, key="another-programs-key")
    numbers = iter(range(100, 1000))

    async def one_more() -> None:
        await world.perform(intent(f"INC-{next(numbers)}", {"FILTER-A": 1}))

    report = await _audit(world, _Meanwhile("/v1/receipts", one_more))
    assert _found(report) == {(Rule.ORPHAN, "another-programs-key")}


async def test_a_refused_token_is_said(world: World) -> None:
    """It is no finding, and no clean report."""
    with pytest.raises(ProviderUnreadable, match="refused the token") as caught:
        await audit(world.journal, world.service.url, "wrong")
    assert caught.value.refused


async def test_an_inventory_that_is_away_is_no_clean_report(world: World) -> None:
    """The connection's error comes through."""
    with pytest.raises(httpx.ConnectError):
        await audit(world.journal, "http://127.0.0.1:1", TOKEN)
