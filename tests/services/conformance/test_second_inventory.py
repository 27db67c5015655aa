"""The contract's page suffices to write a provider: one that was written from it alone keeps the contract."""

from pathlib import Path

from services.conformance.bench import Bench, connect
from services.conformance.suite import State, examine
from tests.services.conformance.second_inventory import Inventory, served

TOKEN, READER, STRANGER = "token-of-the-second", "token-of-a-reader", "token-of-a-stranger"
ROUNDS = 24


async def test_a_provider_written_from_the_page_alone_keeps_the_contract(tmp_path: Path) -> None:
    """Nothing that its callers need is known to the first implementation only."""
    with served({TOKEN: (Inventory(str(tmp_path / "second.db")), True)}) as url:
        async with connect(url, TOKEN) as http:
            report = await examine(http, rounds=ROUNDS, progress=lambda _name: None)
    assert [finding for finding in report.findings if finding.state is not State.HELD] == []
    assert report.lacking == ()


async def test_an_answer_comes_again_after_a_restart(tmp_path: Path) -> None:
    """The same bytes, from the database alone."""
    bodies = []
    for _ in range(2):
        with served({TOKEN: (Inventory(str(tmp_path / "second.db")), True)}) as url:
            async with connect(url, TOKEN) as http:
                bodies.append((await Bench(http, rounds=1).deliver("FILTER-A", 1, "cf1-a-delivery-g1")).body)
    assert bodies[0] == bodies[1]


async def test_what_another_tenant_has_does_not_exist_and_a_reader_changes_nothing(tmp_path: Path) -> None:
    """A token decides the tenant, and may be restricted to reading."""
    ours, theirs = Inventory(str(tmp_path / "ours.db")), Inventory(str(tmp_path / "theirs.db"))
    statuses = {}
    with served({TOKEN: (ours, True), READER: (ours, False), STRANGER: (theirs, True)}) as url:
        for token in (TOKEN, READER, STRANGER):
            async with connect(url, token) as http:
                bench = Bench(http, rounds=1)
                if token == TOKEN:
                    await bench.deliver("FILTER-A", 1)
                read = await bench.get("/v1/stock/FILTER-A")
                statuses[token] = read.status, (await bench.void(bench.key())).status
    assert statuses == {TOKEN: (200, 200), READER: (200, 403), STRANGER: (404, 200)}
