"""The feed and transactions that commit late: no reader ever passes a receipt that is still to come."""

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from services.database import open_engine
from services.inventory.contract import KeyedCall, Kind, fingerprint
from services.inventory.feed import FeedQuery, Reader
from services.inventory.stock import StockKeeper
from services.inventory.verification.run import verify
from tests.postgres import WAITING_FOR_LOCKS
from tests.services.inventory.conftest import NOW, Clock, hours

pytestmark = pytest.mark.parametrize("dialect", ["postgresql"])


def delivery(name: str) -> KeyedCall:
    """One unit of a SKU of its own."""
    request = {"quantity": 1, "sku": name}
    return KeyedCall(
        tenant="acme",
        key=f"late-commit-of-{name}",
        kind=Kind.DELIVER,
        request=request,
        fingerprint=fingerprint(Kind.DELIVER, {}, request),
        not_after=NOW + hours(1),
        supersedes=(),
        quantities={name: 1},
    )


def page(reader: Reader, after: int, limit: int = 100) -> dict[str, Any]:
    """A page of the feed."""
    document: dict[str, Any] = json.loads(reader.feed("acme", FeedQuery(after=after, limit=limit)))
    return document


@contextmanager
def opened(database_url: str, number: int) -> Iterator[list[sa.Engine]]:
    """Engines that share nothing, as of so many processes."""
    with ExitStack() as stack:
        engines = [open_engine(database_url) for _ in range(number)]
        for engine in engines:
            stack.callback(engine.dispose)
        yield engines


def test_who_took_the_first_number_and_commits_late_is_read_first(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second transaction waits for the first; until then nobody sees either, and the watermark stands."""
    monkeypatch.setattr("services.inventory.stock.LOCK_TIMEOUT_SECONDS", 60.0)  # a busy machine may take that long
    with opened(database_url, 3) as (first, second, reading), ThreadPoolExecutor(2) as pool:
        reader = Reader(reading, Clock())
        written, may_commit = threading.Event(), threading.Event()

        def hold(_connection: sa.Connection) -> None:
            written.set()
            assert may_commit.wait(60)

        sa.event.listen(first, "commit", hold)
        one = pool.submit(StockKeeper(first, Clock()).perform, delivery("first"))
        assert written.wait(60)
        other = pool.submit(StockKeeper(second, Clock()).perform, delivery("second"))
        try:
            with reading.connect() as connection:
                while connection.execute(WAITING_FOR_LOCKS).scalar_one() == 0 and not other.done():
                    connection.rollback()
            assert not other.done()
            assert page(reader, 0) == {"receipts": [], "next_after": 0, "watermark": 0}
        finally:
            may_commit.set()
        assert (json.loads(one.result().body)["sequence"], json.loads(other.result().body)["sequence"]) == (1, 2)
        assert [receipt["key"] for receipt in page(reader, 0)["receipts"]] == [
            "late-commit-of-first",
            "late-commit-of-second",
        ]


def test_what_commits_while_a_page_is_read_is_on_the_next_page(database_url: str) -> None:
    """The watermark is read first, so that a page never says to have passed what it has not seen."""
    with opened(database_url, 2) as (writing, reading):
        reader = Reader(reading, Clock())
        late = [delivery("late")]

        def write(*_arguments: Any) -> None:
            if late:
                StockKeeper(writing, Clock()).perform(late.pop())

        with reading.connect():  # so that the first statement heard is the reader's own
            pass
        sa.event.listen(reading, "after_cursor_execute", write)
        got = page(reader, 0)
        assert late == []
        assert [*got["receipts"], *page(reader, got["next_after"])["receipts"]] == page(reader, 0)["receipts"]
        assert len(page(reader, 0)["receipts"]) == 1


def test_paging_reads_each_receipt_once_while_others_write(database_url: str) -> None:
    """Four processes write, one reads page after page and never goes back."""
    writers, each = 4, 30
    with opened(database_url, writers + 1) as engines, ThreadPoolExecutor(writers) as pool:

        def write(number: int) -> None:
            keeper = StockKeeper(engines[number], Clock())
            for one in range(each):
                keeper.perform(delivery(f"SKU-{number}-{one}"))

        reader = Reader(engines[-1], Clock())
        writing = [pool.submit(write, number) for number in range(writers)]
        seen: list[str] = []
        after = 0
        for limit in itertools.cycle((1, 3, 7)):
            got = page(reader, after, limit)
            assert [receipt["sequence"] for receipt in got["receipts"]] == list(
                range(after + 1, after + 1 + len(got["receipts"]))
            )
            seen += [receipt["key"] for receipt in got["receipts"]]
            after = got["next_after"]
            if len(seen) == writers * each or any(one.done() and one.exception() for one in writing):
                break
        for one in writing:
            one.result()
        assert len(set(seen)) == len(seen) == writers * each
        assert verify(engines[-1]).violation is None
