"""The contract's page suffices to write a provider: one that was written from it alone keeps the contract."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from services.conformance.bench import Bench, connect
from services.conformance.suite import State, examine
from tests.services.conformance import second_inventory
from tests.services.conformance.second_inventory import Inventory, application

TOKEN, READER, STRANGER = "token-of-the-second", "token-of-a-reader", "token-of-a-stranger"
ROUNDS = 24
MOST_LINES = 300


@contextmanager
def served(tokens: dict[str, tuple[Inventory, bool]]) -> Iterator[str]:
    """Serve in a thread, on a free port; yields the URL."""

    async def expire() -> None:
        for inventory, _ in tokens.values():
            inventory.expire()

    config = uvicorn.Config(
        application(tokens), ws="none", lifespan="off", log_config=None, server_header=False,
        callback_notify=expire, timeout_notify=0,
    )  # fmt: skip
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0), backlog=512)
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


async def test_a_provider_written_from_the_page_alone_keeps_the_contract(tmp_path: Path) -> None:
    """Nothing that its callers need is known to the first implementation only."""
    with served({TOKEN: (Inventory(str(tmp_path / "second.db")), True)}) as url:
        async with connect(url, TOKEN) as http:
            report = await examine(http, rounds=ROUNDS, progress=lambda _name: None)
    assert [finding for finding in report.findings if finding.state is not State.HELD] == []
    assert report.lacking == ()


def test_it_is_short_enough_to_be_read_at_once() -> None:
    """Whoever has to write a provider sees in one sitting what that takes."""
    assert len(Path(second_inventory.__file__).read_text().splitlines()) <= MOST_LINES


async def everything(bench: Bench) -> list[bytes]:
    """What can be read of two SKUs, their reservations, and all receipts."""
    feed = await bench.get("/v1/receipts?limit=1000")
    receipts = feed.document["receipts"]
    names = sorted({receipt["reservation_id"] for receipt in receipts if receipt["reservation_id"]})
    paths = [f"/v1/receipts/{receipt['key']}" for receipt in receipts]
    paths += [f"/v1/reservations/{name}" for name in names]
    paths += [f"/v1/{view}/{sku}" for view in ("stock", "ledger") for sku in ("FILTER-A", "FILTER-B")]
    digests = await bench.get("/v1/receipts/digests")
    paths += [f"/v1/receipts/digests?prefix={part['prefix']}" for part in digests.document["ranges"]]
    seen = [feed, digests, *[await bench.get(path) for path in paths]]
    assert {exchange.status for exchange in seen} == {200}
    return [exchange.body for exchange in seen]


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    """Every kind of receipt, and all that they come to, from the log alone; and the same answers, byte for byte."""

    async def story(bench: Bench) -> list[bytes]:
        first = await bench.deliver("FILTER-A", 10, "cf1-delivery-of-a-g1")
        answers = [first, await bench.deliver("FILTER-B", 1, "cf1-delivery-of-b-g1")]
        taken = await bench.reserve("FILTER-A", 2, "cf1-taken-at-once-g1", reference="Łódź ☂")
        answers += [taken, await bench.move(taken.receipt["reservation_id"], "release", "cf1-given-back-later-g1")]
        held = await bench.reserve("FILTER-A", 3, "cf1-held-for-a-time-g1", hold_seconds=900)
        answers += [held, await bench.reserve("FILTER-B", 1, "cf1-still-held-g1", hold_seconds=900)]
        answers += [await bench.move(held.receipt["reservation_id"], "confirm", "cf1-confirmed-hold-g1")]
        answers += [await bench.reserve("FILTER-A", 99, "cf1-more-than-there-is-g1")]
        former = ["cf1-done-once-more-g1", "cf1-more-than-there-is-g1"]
        answers += [await bench.reserve("FILTER-A", 1, "cf1-done-once-more-g2", supersedes=former)]
        answers += [await bench.reserve("FILTER-A", 1, "cf1-taken-at-once-g2", supersedes=["cf1-confirmed-hold-g1"])]
        await bench.void("cf1-nothing-ever-comes-g1")
        answers += [await bench.deliver("FILTER-A", 1, "cf1-nothing-ever-comes-g1")]
        statuses = [answer.status for answer in answers]
        assert statuses == [201, 201, 201, 200, 201, 201, 200, 409, 201, 409, 410]
        return [answer.body for answer in answers]

    told: list[list[bytes]] = []
    seen: list[list[bytes]] = []
    for _ in range(2):
        with served({TOKEN: (Inventory(str(tmp_path / "second.db")), True)}) as url:
            async with connect(url, TOKEN) as http:
                bench = Bench(http, rounds=1)
                seen += [await everything(bench)] if told else []
                told.append(await story(bench))
                seen.append(await everything(bench))
    assert told[0] == told[1]
    assert seen[0] == seen[1] == seen[2]


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
