"""Sealing in the background: it goes on whatever happens, and says once what does."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from services.database import migrate, open_engine
from services.journal.seals import watermark
from services.sealing import keep_sealing
from tests.services.journal.lives import live

pytestmark = pytest.mark.anyio


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    """A file without a table."""
    engine = open_engine(f"sqlite:///{tmp_path}/journal.db")
    yield engine
    engine.dispose()


async def _until_sealed(engine: sa.Engine) -> None:
    while (await asyncio.to_thread(watermark, engine)).unsealed:
        pass


async def test_what_is_committed_is_sealed_again_and_again(engine: sa.Engine) -> None:
    """Until the task is cancelled."""
    migrate("journal", str(engine.url))
    sealing = asyncio.create_task(keep_sealing(engine, sealed_by="test", every_seconds=0))
    for scope in ("INC-1", "INC-2"):
        await asyncio.to_thread(live, engine, scope)
        await _until_sealed(engine)
    sealing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sealing


async def test_what_goes_wrong_is_said_once_and_sealing_goes_on_after_it(
    engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the tables are missing for a while."""
    failed = asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()
    sa.event.listen(engine, "handle_error", lambda _: loop.call_soon_threadsafe(failed.release))
    with caplog.at_level(logging.WARNING, logger="services.sealing"):
        sealing = asyncio.create_task(keep_sealing(engine, sealed_by="test", every_seconds=0))
        for _ in range(3):
            await failed.acquire()
        assert not sealing.done()
        assert [record.getMessage()[:26] for record in caplog.records] == ["The journal is not sealed "]
        await asyncio.to_thread(migrate, "journal", str(engine.url))
        await asyncio.to_thread(live, engine, "INC-1")
        await _until_sealed(engine)
        sealing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sealing
    assert len(caplog.records) == 1
