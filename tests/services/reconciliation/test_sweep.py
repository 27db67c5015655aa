"""The sweep: what it touches, what it leaves, and that its numbers add up."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import timedelta

import pytest

from activities.contracts import SEND_DEADLINE_SECONDS, Swept
from services.effects.provider import Provider
from services.effects.records import Answer, Intent, Seen, Source
from services.effects.states import EffectState
from services.journal.store import Observed
from services.process_identity import ProcessIdentity, identity, provably_dead
from services.reconciliation.sweep import AT_ONCE_PER_SCOPE, Sweep, SweptRow
from tests.activities.bench import Bench, Between, Many, instead, intent_now, none_heard, response_lost
from tests.services.reconciliation.test_neighbours import damage

LONG_AGO = timedelta(minutes=1)
ONE = {"lines": [{"sku": "FILTER-A", "quantity": 1}]}


def intents(number: int) -> list[Intent]:
    """So many effects, by key."""
    return sorted((intent_now(scope=f"INC-{one}") for one in range(number)), key=lambda intent: intent.key)


def sweep_of(bench: Bench, provider: Provider | None = None) -> Sweep:
    """A worker's sweep, on the bench's clock."""
    return Sweep(
        bench.journal,
        provider or bench.between,
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
    bench.between.batches.append(none_heard)
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


async def test_a_page_is_looked_up_in_one_exchange(bench: Bench) -> None:
    """Receipts, absences and a key to be closed: one question for all of them, one call only for what is closed."""
    committed, given_up, waits = (intent_now(scope=f"INC-{name}") for name in ("committed", "given-up", "waits"))
    bench.between.sends.append(response_lost)
    await asyncio.gather(bench.attempt(committed), return_exceptions=True)
    for intent in (given_up, waits):
        bench.pending(intent)
    bench.journal.give_up(given_up, why="cancelled")
    bench.later(LONG_AGO)
    bench.wire.requests.clear()
    assert await swept(bench) == {"looked_at": 3, "matched": 1, "voided": 1, "waiting": 1}
    assert bench.wire.requests == ["LOOKUP", "PUT"]


@pytest.mark.parametrize("left_out", [True, False], ids=["left out", "unheard"])
async def test_what_the_look_up_of_many_says_nothing_of_is_asked_for_by_itself(bench: Bench, *, left_out: bool) -> None:
    """A receipt that is not in the answer, or cannot be read, has its own look-up; none waits for another's."""
    for intent in intents(3):
        bench.between.sends.append(response_lost)
        await asyncio.gather(bench.attempt(intent), return_exceptions=True)
    bench.later(LONG_AGO)

    async def nothing_of_the_first(keys: Sequence[str], exchange: Many) -> Mapping[str, Answer]:
        answers = dict(await exchange())
        first = {} if left_out else await none_heard(keys[:1], exchange)
        return {key: answers[key] for key in keys[1:]} | dict(first)

    bench.between.batches.append(nothing_of_the_first)
    assert await swept(bench) == {"looked_at": 3, "matched": 3}


async def test_what_a_page_says_is_journaled_side_by_side(bench: Bench) -> None:
    """Four observations are always under way at once: those are committed together."""
    for intent in intents(24):
        bench.pending(intent)
    bench.later(LONG_AGO)
    four = threading.Barrier(4)
    observe = bench.journal.observe

    def beside_three_others(key: str, answer: Answer) -> Observed:
        four.wait(30)
        return observe(key, answer)

    bench.journal.observe = beside_three_others  # type: ignore[method-assign,assignment]
    assert await swept(bench) == {"looked_at": 24, "waiting": 24}
    assert [entry.kind for entry in bench.journal.all_entries()].count("observation") == 24


class Held(Between):
    """Holds every void of the keys named until it is let go."""

    def __init__(self, bench: Bench, keys: set[str]) -> None:
        super().__init__(bench.between)
        self._keys = keys
        self.asked: list[str] = []
        self.let_go = asyncio.Event()

    async def void(self, key: str) -> Answer:
        """Close the key, or wait."""
        self.asked.append(key)
        if key in self._keys:
            await self.let_go.wait()
        return await super().void(key)


async def test_a_slow_scope_delays_no_other(bench: Bench) -> None:
    """G14, E22: twenty effects of one scope hang in the provider; every other one is settled and told of meanwhile."""
    slow = [intent_now(scope="INC-slow", name=f"reserve-{number}") for number in range(20)]
    others = intents(20)
    for intent in slow + others:
        bench.pending(intent)
        bench.journal.give_up(intent, why="cancelled")
    bench.later(LONG_AGO)
    held = Held(bench, {intent.key for intent in slow})
    sweep = sweep_of(bench, held)
    told: list[str] = []
    all_others = asyncio.Event()

    async def tell(one: SweptRow) -> None:
        told.append(one.row.scope)
        if len(told) == len(others):
            all_others.set()

    page = asyncio.create_task(sweep.page(after_key="", limit=64, told=tell))
    await asyncio.wait_for(all_others.wait(), 60)
    assert "INC-slow" not in told
    assert len({intent.key for intent in slow} & set(held.asked)) == AT_ONCE_PER_SCOPE
    held.let_go.set()
    assert (await page).counts == {"looked_at": 40, "voided": 40}


async def test_a_scope_whose_calls_have_taken_their_time_is_left_for_the_next_sweep(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G14: a page ends however many effects of one scope are in it; none of them is left for ever."""
    monkeypatch.setattr("services.reconciliation.sweep.SCOPE_SECONDS", 1e-9)
    for number in range(6):
        intent = intent_now(scope="INC-1", name=f"reserve-{number}")
        bench.pending(intent)
        bench.journal.give_up(intent, why="cancelled")
    bench.later(LONG_AGO)
    first = await swept(bench)
    assert 1 <= first["voided"] <= AT_ONCE_PER_SCOPE
    assert first == {"looked_at": 6, "voided": first["voided"], "unheard": 6 - first["voided"]}
    for _ in range(5):
        await swept(bench)
    assert bench.journal.unsettled() == ()


async def test_a_claim_ends_with_its_attempt_and_the_record_stays(
    bench: Bench, dead_worker: dict[str, str | int]
) -> None:
    """E67: a worker that cannot be proven dead owns a key for seconds, and what it recorded outlives the claim."""
    bench.worker = dead_worker | {"host": "elsewhere"}
    (intent,) = intents(1)
    row = bench.pending(intent)
    await bench.between.send(row, bench.journal.attempts(intent.key)[0])
    assert await swept(bench) == {"looked_at": 1, "owned": 1}
    bench.later(timedelta(seconds=SEND_DEADLINE_SECONDS + 1))
    assert await swept(bench) == {"looked_at": 1, "matched": 1}
    again = await bench.attempt(intent)
    assert (again.state, again.outcome.replayed, bench.posts(), bench.caller.available()) == ("committed", False, 1, 8)


async def test_a_provider_that_never_says_more_than_busy_is_asked_once_a_sweep_and_journaled_once(
    bench: Bench,
) -> None:
    """E40: however often "processing" is answered; once it says that there is nothing, the key is closed."""
    (intent,) = intents(1)
    bench.pending(intent)
    bench.later(timedelta(hours=25))
    bench.between.look_ups.extend([instead(Seen.BUSY, Source.LOOK_UP)] * 5)
    for _ in range(5):
        assert await swept(bench) == {"looked_at": 1, "unheard": 1}
    assert bench.kinds(intent).count("observation") == 1
    assert bench.state(intent) is EffectState.PENDING
    assert await swept(bench) == {"looked_at": 1, "voided": 1}


async def test_a_reading_that_lags_closes_nothing_that_is_done(bench: Bench) -> None:
    """E65: "absent" of a copy that is behind, past the window: the void's answer is the receipt, and it settles."""
    (intent,) = intents(1)
    bench.between.sends.append(response_lost)
    await asyncio.gather(bench.attempt(intent), return_exceptions=True)
    bench.later(timedelta(hours=25))
    bench.between.look_ups.append(instead(Seen.ABSENT, Source.LOOK_UP, observed_at=bench.clock.now))
    assert await swept(bench) == {"looked_at": 1, "matched": 1}
    assert (bench.state(intent), bench.caller.available()) == (EffectState.COMMITTED, 8)


async def test_a_batch_that_is_delivered_again_is_done_once(bench: Bench) -> None:
    """E34: of fifty, forty-four have been begun, and half of these unheard: fifty intents, fifty receipts."""
    assert bench.caller.deliver(100).status_code == 201
    fifty = [intent_now(scope=f"INC-{one}", request=ONE) for one in range(50)]
    for number, intent in enumerate(fifty[:44]):
        if number % 2:
            bench.between.sends.append(response_lost)
        await asyncio.gather(bench.attempt(intent), return_exceptions=True)
    bench.later(LONG_AGO)
    assert await swept(bench) == {"looked_at": 22, "matched": 22}
    for intent in fifty:
        await bench.attempt(intent)
    settled = [row.receipt.receipt_id for row in bench.journal.effects() if row.receipt is not None]
    assert (len(settled), len(set(settled)), bench.posts(), bench.caller.available()) == (50, 50, 50, 60)
