"""Who of this host's workers has died is known from their marks, and told once."""

import asyncio
import logging
import subprocess
from dataclasses import asdict

import pytest
import sqlalchemy as sa

from services import worker as process
from services.database import writing
from services.journal.tables import ENTRIES
from services.process_identity import ProcessIdentity, identity, provably_dead
from services.reconciliation.neighbours import Neighbours
from tests.activities.bench import Bench, intent_now
from tests.services.test_process_identity import child

pytestmark = pytest.mark.linux


def neighbours_of(bench: Bench) -> Neighbours:
    """A worker's view of the others, its own marks among theirs."""
    return Neighbours(
        bench.journal,
        host=identity().host,
        provably_dead=lambda worker: provably_dead(ProcessIdentity(**worker)),  # type: ignore[arg-type]
    )


def marked(bench: Bench, who: ProcessIdentity, scope: str) -> None:
    """A worker marks an attempt."""
    bench.worker = asdict(who)
    bench.pending(intent_now(scope=scope))


def damage(bench: Bench, key: str, kind: str, body: str) -> None:
    """An entry that no build of ours has written."""
    values = {"key": key, "kind": kind, "body": body, "recorded_at": bench.clock(), "recorded_by": "?", "digest": "?"}
    with writing(bench.engine) as connection:
        connection.execute(sa.insert(ENTRIES), values)


def end(process: subprocess.Popen[str]) -> None:
    """SIGKILL."""
    process.kill()
    process.wait()


async def test_a_worker_that_dies_is_told_once_whenever_it_was_that_it_marked(bench: Bench) -> None:
    """Before we looked for the first time, between two looks, or just before its death."""
    with child("input()") as (before, one), child("input()") as (between, two), child("input()") as (just, three):
        marked(bench, identity(), "INC-ours")
        marked(bench, one, "INC-before")
        neighbours = neighbours_of(bench)
        assert neighbours.newly_dead() == []
        marked(bench, two, "INC-between")
        assert neighbours.newly_dead() == []
        await asyncio.to_thread(end, before)
        assert neighbours.newly_dead() == [asdict(one)]
        await asyncio.to_thread(end, between)
        marked(bench, three, "INC-just")
        await asyncio.to_thread(end, just)
        told = neighbours.newly_dead()
        assert sorted(worker["pid"] for worker in told) == sorted([two.pid, three.pid])
        assert neighbours.newly_dead() == []


async def test_of_another_host_and_another_build_nothing_is_ever_proven(bench: Bench) -> None:
    """They are not even asked about."""
    with child("input()") as (process, who):
        bench.worker = asdict(who) | {"host": "elsewhere"}
        bench.pending(intent_now(scope="INC-elsewhere"))
        bench.worker = {"name": "of another build"}
        bench.pending(intent_now(scope="INC-other-build"))
        neighbours = neighbours_of(bench)
        await asyncio.to_thread(end, process)
        assert neighbours.newly_dead() == []


@pytest.mark.parametrize(
    "body", ["{", "[]", "{}", '{"worker": 7}', '{"worker": {"host": []}}', '{"worker": {"host": {"a": 1}}}']
)
async def test_a_mark_that_cannot_be_read_keeps_no_worker_from_watching(bench: Bench, body: str) -> None:
    """Entries stay for ever: one damaged mark would let no worker start any more."""
    with child("input()") as (process, who):
        marked(bench, who, "INC-before")
        damage(bench, "cf1-damaged", "attempt", body)
        neighbours = neighbours_of(bench)
        assert neighbours.newly_dead() == []
        await asyncio.to_thread(end, process)
        assert neighbours.newly_dead() == [asdict(who)]


async def test_what_keeps_a_worker_from_watching_is_said_once_and_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Five times a second it would fill the log of an outage; and whatever it was, the next death is told."""
    looks = iter([ValueError("one"), KeyError("two"), OSError("three")])
    told = asyncio.Event()

    class Others(Neighbours):
        def __init__(self) -> None:
            """Of no journal."""

        def newly_dead(self) -> list[dict[str, str | int]]:
            for error in looks:
                raise error
            return [{"pid": 7}]

    async def trigger(_client: object, _origin: str) -> None:
        told.set()

    monkeypatch.setattr(process, "WATCH_EVERY_SECONDS", 0)
    monkeypatch.setattr(process, "trigger_sweep", trigger)
    with caplog.at_level(logging.WARNING, logger=process.__name__):
        watching = asyncio.create_task(process._watch(None, Others(), "demo"))  # type: ignore[arg-type]
        await asyncio.wait_for(told.wait(), 60)
        watching.cancel()
    assert [record.getMessage() for record in caplog.records] == ["the other workers are not watched for a moment: one"]
