"""The sweep: what it touches, what it leaves, and that its numbers add up."""

import asyncio
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from activities.contracts import SEND_DEADLINE_SECONDS, Swept
from services.effects.records import Intent, Seen, Source
from services.effects.states import EffectState
from services.process_identity import ProcessIdentity, identity, provably_dead
from services.reconciliation.sweep import Sweep
from tests.activities.bench import Bench, instead, intent_now, response_lost
from tests.services.reconciliation.test_neighbours import damage

LONG_AGO = timedelta(minutes=1)


def intents(number: int) -> list[Intent]:
    """So many effects, by key."""
    return sorted((intent_now(scope=f"INC-{one}") for one in range(number)), key=lambda intent: intent.key)


def sweep_of(bench: Bench) -> Sweep:
    """A worker's sweep, on the bench's clock."""
    return Sweep(
        bench.journal,
        bench.between,
        send_deadline=timedelta(seconds=SEND_DEADLINE_SECONDS),
        provably_dead=lambda worker: provably_dead(ProcessIdentity(**worker)),  # type: ignore[arg-type]
        clock=bench.clock,
    )


async def swept(bench: Bench, limit: int = 100) -> dict[str, int]:
    """Sweep all of it; counts that are not 0."""
    counts: Counter[str] = Counter()
    after_key: str | None = ""
    while after_key is not None:
        page = await sweep_of(bench).page(after_key=after_key, limit=limit)
        assert Swept(**page.counts).looked_at == sum(page.counts.values()) - page.counts["looked_at"]
        counts += Counter(page.counts)
        after_key = page.next_after
    return dict(counts)


async def test_what_a_live_attempt_owns_is_left_alone(bench: Bench) -> None:
    """A fresh mark of a living process; later it is nobody's."""
    bench.worker = asdict(identity())
    (intent,) = intents(1)
    bench.pending(intent)
    assert await swept(bench) == {"looked_at": 1, "owned": 1}
    assert bench.wire.requests == []
    bench.later(timedelta(seconds=SEND_DEADLINE_SECONDS + 1))
    assert await swept(bench) == {"looked_at": 1, "waiting": 1}
    assert bench.wire.requests == ["GET"]


@pytest.fixture
def dead_worker() -> dict[str, str | int]:
    """The identity of a process that was and is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return asdict(replace(identity(), pid=process.pid))


async def test_what_a_provably_dead_worker_marked_is_matched_at_once(
    bench: Bench, dead_worker: dict[str, str | int]
) -> None:
    """Same host, same boot, no such process: its receipt is found within the second."""
    bench.worker = dead_worker
    (intent,) = intents(1)
    row = bench.pending(intent)
    await bench.between.send(row, bench.journal.attempts(intent.key)[0])
    assert await swept(bench) == {"looked_at": 1, "matched": 1}
    assert bench.state(intent) is EffectState.COMMITTED
    assert bench.caller.available() == 8


async def test_only_an_attempt_that_was_under_way_when_its_worker_died_is_a_dead_one(
    bench: Bench, dead_worker: dict[str, str | int]
) -> None:
    """By the token in its mark; neither a living worker's, nor another host's, nor one that was answered."""
    others = {"living": asdict(identity()), "elsewhere": dead_worker | {"host": "elsewhere"}}
    for name, worker in others.items():
        bench.worker = worker
        bench.pending(intent_now(scope=f"INC-{name}"))
    bench.worker = dead_worker
    dead, heard = intent_now(scope="INC-dead"), intent_now(scope="INC-heard")
    bench.pending(dead)
    bench.between.sends.append(instead(Seen.NOT_SENT))
    await asyncio.gather(bench.attempt(heard), return_exceptions=True)
    bench.later(LONG_AGO)
    page = await sweep_of(bench).page(after_key="", limit=10)
    assert page.counts == {"looked_at": 4, "waiting": 4}
    assert {swept.row.key: swept.dead.task_token for swept in page.rows if swept.dead} == {dead.key: "token-0"}


async def test_each_kind_of_row_ends_where_it_belongs(bench: Bench) -> None:
    """Receipts are matched, given-up and overdue ones voided, fresh ones wait, unheard ones stay; nothing is sent."""
    matched, given_up, rejected, waits, unheard, settled = (
        intent_now(scope=f"INC-{name}") for name in ("matched", "given-up", "rejected", "waits", "unheard", "settled")
    )
    rejected = intent_now(scope="INC-rejected", request={"lines": [{"sku": "FILTER-A", "quantity": 100}]})
    await bench.attempt(settled)
    for intent in (matched, rejected):
        bench.between.sends.append(response_lost)
        await asyncio.gather(bench.attempt(intent), return_exceptions=True)
    for intent in (given_up, waits):
        bench.pending(intent)
    bench.journal.give_up(given_up, why="cancelled")
    bench.later(LONG_AGO)
    before = bench.posts()
    assert await swept(bench, 2) == {"looked_at": 4, "matched": 2, "voided": 1, "waiting": 1}
    bench.pending(unheard)
    bench.later(LONG_AGO)
    bench.between.look_ups.extend([instead(Seen.UNKNOWN, Source.LOOK_UP)] * 2)
    assert await swept(bench) == {"looked_at": 2, "unheard": 2}
    bench.later(timedelta(hours=25))
    assert await swept(bench) == {"looked_at": 2, "voided": 2}
    assert await swept(bench) == {}
    assert bench.posts() == before
    states = [bench.state(one) for one in (matched, given_up, rejected, waits, unheard, settled)]
    assert states == ["committed", "voided", "rejected", "voided", "voided", "committed"]
    assert bench.caller.available() == 6


async def test_pages_go_by_key_and_miss_nothing(bench: Bench) -> None:
    """Each row once; the page after the last full one is empty and the last."""
    all_of_them = intents(7)
    for intent in all_of_them:
        bench.pending(intent)
    bench.later(LONG_AGO)
    seen: list[str] = []
    for intent in all_of_them:
        bench.journal.give_up(intent, why="cancelled")
    after_key: str | None = ""
    while after_key is not None:
        page = await sweep_of(bench).page(after_key=after_key, limit=3)
        seen += [swept.row.key for swept in page.rows if swept.row.state.terminal]
        after_key = page.next_after
    assert seen == [intent.key for intent in all_of_them]


async def test_two_sweeps_at_once_settle_each_effect_once(bench: Bench) -> None:
    """One observation that moved the row, one tombstone; both tell the same."""
    all_of_them = intents(12)
    for intent in all_of_them:
        bench.pending(intent)
        bench.journal.give_up(intent, why="cancelled")
    bench.later(LONG_AGO)
    both = await asyncio.gather(swept(bench), swept(bench))
    assert list(both) == [{"looked_at": 12, "voided": 12}] * 2
    for intent in all_of_them:
        entries = bench.journal.entries(intent.key)
        moved = [entry for entry in entries if entry.kind == "observation" and entry.body["state"] == "voided"]
        assert len([entry for entry in moved if "receipt" in entry.body]) == 1
        assert "late_observation" not in bench.kinds(intent)


async def test_a_row_that_cannot_be_read_keeps_no_other_row_from_being_swept_and_told_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """One damaged entry: its row stays as it is, whoever waits for another is woken, and later pages come."""
    all_of_them = intents(5)
    for intent in all_of_them:
        bench.pending(intent)
        bench.journal.give_up(intent, why="cancelled")
    bench.later(LONG_AGO)
    damaged, *others = all_of_them
    damage(bench, damaged.key, "observation", "{")
    assert await swept(bench, 2) == {"looked_at": 5, "unheard": 1, "voided": 4}
    assert [bench.state(intent) for intent in others] == ["voided"] * 4
    assert bench.state(damaged) is EffectState.PENDING
    assert [damaged.key in record.getMessage() for record in caplog.records] == [True]


async def test_an_empty_page_is_the_last_one(bench: Bench) -> None:
    """Nothing unsettled: nothing is asked."""
    page = await sweep_of(bench).page(after_key="", limit=10)
    assert (page.counts, page.next_after) == ({"looked_at": 0}, None)
    assert bench.wire.requests == []
