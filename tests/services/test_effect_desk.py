"""The desk: what each command does, on a real journal and the real inventory."""

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from services.effect_desk import EffectDesk
from services.effects.commands import Ruling, What
from services.effects.errors import InvalidCommand
from services.effects.keys import derive_key
from services.effects.records import Seen, Source
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal
from tests.activities.bench import Bench, bench_of, instead, intent_now, inventory, journal_path, response_lost
from tests.services.effects.halves import make_intent
from tests.services.inventory.conftest import Service

INTENT = intent_now()
ADA: dict[str, Any] = {"by": "ada", "reason": "the incident is over"}
VOIDED: dict[str, Any] = {"to": EffectState.VOIDED, "evidence": "ticket 7"}
UNHEARD = instead(Seen.UNKNOWN, Source.LOOK_UP)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """An inventory that drops what is older than a month."""
    with inventory(tmp_path_factory.mktemp("desk"), retention=timedelta(days=30)) as service:
        yield service


@pytest.fixture
async def bench(service: Service, journal_path: Path, tmp_path: Path) -> AsyncIterator[Bench]:
    """A journal and a tenant that nobody has used."""
    async with bench_of(service, journal_path, tmp_path) as bench:
        yield bench


@pytest.fixture
def desk(bench: Bench) -> EffectDesk:
    """A person's desk."""
    return EffectDesk(bench.journal, bench.between, origin="demo")


__all__ = ["journal_path"]  # a fixture


def commands(bench: Bench, key: str = INTENT.key) -> list[dict[str, Any]]:
    """What has been commanded about a key."""
    return [entry.body for entry in bench.journal.entries(key) if entry.kind == "resolution"]


async def perform(bench: Bench, ruling: Ruling) -> Any:
    """What an EffectCommand's activity does with what a ruling asks to send."""
    assert ruling.send is not None
    effect = ruling.send.effect
    row = bench.journal.effect(ruling.key)
    assert row is not None
    generation = row.generation + (ruling.command == "redo")
    intent = make_intent(
        name=effect.name,
        generation=generation if effect.name == row.name else 1,
        kind=effect.kind,
        request=dict(effect.request),
        path=dict(effect.path),
        decided_at=bench.clock.now,
    )
    assert intent.key == ruling.send.key
    return await bench.attempt(intent)


async def test_giving_up_closes_a_key_that_was_never_seen(bench: Bench, desk: EffectDesk) -> None:
    """E50: whatever was on its way meets a closed key; the same word again has the same answer."""
    bench.pending(INTENT)
    first = await desk.give_up(INTENT.key, **ADA)
    again = await desk.give_up(INTENT.key, **ADA)
    assert (first.what, first.state, first.repeated) == (What.DONE, EffectState.VOIDED, False)
    assert (again.what, again.state, again.repeated) == (What.DONE, EffectState.VOIDED, True)
    assert [body["command"] for body in commands(bench)] == ["give-up"]
    assert bench.caller.available() == 10


async def test_giving_up_what_was_done_says_so(bench: Bench, desk: EffectDesk) -> None:
    """E16, E50: too late is committed, and never "cancelled"."""
    bench.between.sends.append(response_lost)
    with pytest.raises(Exception, match="nothing is sent before that"):
        await bench.attempt(INTENT)
    ruling = await desk.give_up(INTENT.key, **ADA)
    assert (ruling.what, ruling.state) == (What.REFUSED, EffectState.COMMITTED)
    assert "ended committed (receipt-" in ruling.said
    assert ruling.receipt_id is not None


async def test_giving_up_while_nobody_answers_is_unconfirmed_and_goes_on(bench: Bench, desk: EffectDesk) -> None:
    """Nothing more is sent from then on; the same command, or the sweep, closes the key."""
    bench.pending(INTENT)
    bench.between.look_ups.append(UNHEARD)
    ruling = await desk.give_up(INTENT.key, **ADA)
    assert (ruling.what, ruling.state) == (What.UNCONFIRMED, EffectState.PENDING)
    assert bench.row(INTENT).given_up
    again = await desk.give_up(INTENT.key, **ADA)
    assert (again.what, again.state, again.repeated) == (What.DONE, EffectState.VOIDED, True)


async def test_a_command_is_journaled_before_the_provider_is_asked(bench: Bench, desk: EffectDesk) -> None:
    """A crash after it leaves what was wanted, and by whom."""
    bench.pending(INTENT)

    async def look(exchange: Any) -> Any:
        assert [body["command"] for body in commands(bench)] == ["resolve"]
        return await exchange()

    bench.between.look_ups.append(look)
    await desk.resolve(INTENT.key, **VOIDED, **ADA)
    assert not bench.between.look_ups


async def test_a_bare_word_settles_nothing_that_the_provider_can_settle(bench: Bench, desk: EffectDesk) -> None:
    """A08: the resolution waits for the void's answer."""
    bench.pending(INTENT)
    bench.between.look_ups.append(UNHEARD)
    ruling = await desk.resolve(INTENT.key, **VOIDED, **ADA)
    assert (ruling.what, ruling.state) == (What.UNCONFIRMED, EffectState.PENDING)
    other = await desk.resolve(INTENT.key, **VOIDED, by="bob", reason="me too")
    assert (other.what, other.state) == (What.DONE, EffectState.VOIDED)
    assert bench.row(INTENT).receipt is not None
    assert [body["by"] for body in commands(bench)] == ["ada", "bob"]


async def test_the_receipt_decides_and_not_who_resolves(bench: Bench, desk: EffectDesk) -> None:
    """Wanted: voided. It was done, and that is its end."""
    bench.between.sends.append(response_lost)
    with pytest.raises(Exception, match="nothing is sent before that"):
        await bench.attempt(INTENT)
    ruling = await desk.resolve(INTENT.key, **VOIDED, **ADA)
    assert (ruling.what, ruling.state) == (What.REFUSED, EffectState.COMMITTED)
    assert "and not voided; that is final" in ruling.said


async def test_what_nobody_has_a_receipt_of_is_not_resolved_to_done(bench: Bench, desk: EffectDesk) -> None:
    """It may be closed, and never asserted: the provider can say."""
    bench.pending(INTENT)
    ruling = await desk.resolve(INTENT.key, to=EffectState.COMMITTED, evidence="I saw it", **ADA)
    assert (ruling.what, ruling.state) == (What.REFUSED, EffectState.PENDING)
    assert "`--as voided` closes the key" in ruling.said


async def test_where_the_provider_cannot_say_a_persons_word_stands(
    bench: Bench, desk: EffectDesk, service: Service
) -> None:
    """Retention has taken the receipt: in doubt, then asserted, and a redo needs two people."""
    bench.between.sends.append(response_lost)
    with pytest.raises(Exception, match="nothing is sent before that"):
        await bench.attempt(INTENT)
    bench.later(timedelta(days=40))
    service.housekeeping()
    ruling = await desk.resolve(INTENT.key, **VOIDED, **ADA)
    assert (ruling.what, ruling.state, ruling.receipt_id) == (What.DONE, EffectState.VOIDED, None)
    assert "asserted by a person" in ruling.said
    assert [body.get("ruling") for body in commands(bench)] == [None, "asserted"]
    alone = await desk.redo(INTENT.key, **ADA)
    assert (alone.what, "second person" in alone.said) == (What.REFUSED, True)
    both = await desk.redo(INTENT.key, by="bob", reason="once more", second="eve")
    assert (both.what, both.new_key) == (What.DONE, derive_key("demo", INTENT.scope, INTENT.name, 2))


async def test_what_is_older_than_the_retention_is_not_closed_but_asserted(bench: Bench) -> None:
    """Nor by hand: the provider would close a key whose effect it did and forgot (G10)."""
    journal = OperatorJournal(bench.engine, recorded_by="old", clock=bench.clock, retention=timedelta(days=30))
    desk = EffectDesk(journal, bench.between, origin="demo")
    bench.pending(INTENT)
    bench.later(timedelta(days=40))
    given_up = await desk.give_up(INTENT.key, **ADA)
    assert (given_up.what, given_up.state) == (What.REFUSED, EffectState.IN_DOUBT)
    ruling = await desk.resolve(INTENT.key, **VOIDED, **ADA)
    assert (ruling.what, ruling.state, ruling.receipt_id) == (What.DONE, EffectState.VOIDED, None)
    assert bench.wire.count()["PUT"] == 0
    alone = await desk.redo(INTENT.key, **ADA)
    assert (alone.what, "second person" in alone.said) == (What.REFUSED, True)


async def test_a_key_that_is_another_payloads_was_never_this_effects(bench: Bench, desk: EffectDesk) -> None:
    """In doubt by a mismatch: voided may be asserted, committed never."""
    bench.caller.reserve(quantity=1, key=INTENT.key)
    bench.pending(INTENT)
    refused = await desk.resolve(INTENT.key, to=EffectState.COMMITTED, evidence="a mail", **ADA)
    assert (refused.what, refused.state) == (What.REFUSED, EffectState.IN_DOUBT)
    ruling = await desk.resolve(INTENT.key, **VOIDED, **ADA)
    assert (ruling.what, ruling.state, ruling.receipt_id) == (What.DONE, EffectState.VOIDED, None)


async def test_no_fresh_key_is_made_while_nobody_knows_what_became_of_the_last_one(bench: Bench) -> None:
    """E46: an hour later it is still unknown, and a redo is refused; nor is it made once the receipt has turned up."""
    desk = EffectDesk(bench.journal, bench.between, origin="demo")
    bench.between.sends.append(response_lost)
    with pytest.raises(Exception, match="nothing is sent before that"):
        await bench.attempt(INTENT)
    bench.later(timedelta(hours=1))
    unknown = await desk.redo(INTENT.key, **ADA)
    assert (unknown.what, unknown.send, "is pending: settle it first" in unknown.said) == (What.REFUSED, None, True)
    assert (await bench.attempt(INTENT)).state is EffectState.COMMITTED
    committed = await desk.redo(INTENT.key, **ADA)
    assert (committed.what, "committed and not released" in committed.said) == (What.REFUSED, True)
    assert bench.journal.decision(origin="demo", scope=INTENT.scope, name=INTENT.name, generation=2) is None
    assert (bench.posts(), bench.caller.available()) == (1, 8)


async def test_a_redo_is_sent_with_all_that_came_before_it(bench: Bench, desk: EffectDesk) -> None:
    """E25: another generation, decided once; its reservation is the only one."""
    bench.pending(INTENT)
    await desk.give_up(INTENT.key, **ADA)
    ruling = await desk.redo(INTENT.key, **ADA)
    assert (ruling.what, ruling.repeated) == (What.DONE, False)
    standing = await perform(bench, ruling)
    assert standing.outcome.committed
    assert standing.outcome.generation == 2
    again = await desk.redo(INTENT.key, **ADA)
    assert (again.what, again.repeated, again.new_key) == (What.DONE, True, ruling.new_key)
    assert bench.caller.available() == 8
    third = await desk.redo(str(ruling.new_key), **ADA)
    assert (third.what, "committed and not released" in third.said) == (What.REFUSED, True)


async def test_an_own_hold_is_superseded_only_once_it_is_closed_at_the_provider(bench: Bench, desk: EffectDesk) -> None:
    """E52: held or stale, its units are counted until its release; so nobody else is sold what it still holds."""
    request = {"lines": [{"sku": "FILTER-A", "quantity": 10}], "hold_seconds": 3600}
    hold = intent_now(request=request)
    await bench.attempt(hold)
    refused = await desk.redo(hold.key, **ADA)
    assert (refused.what, "committed and not released" in refused.said) == (What.REFUSED, True)
    stranger = bench.caller.reserve(quantity=1)
    assert stranger.json()["type"].endswith("insufficient-stock")
    await perform(bench, await desk.release(hold.key, **ADA))
    redone = await perform(bench, await desk.redo(hold.key, **ADA))
    assert redone.outcome.committed
    assert bench.caller.stock()["held"] == 10


async def test_a_replay_answers_what_is_settled_and_sends_only_what_is_not(bench: Bench, desk: EffectDesk) -> None:
    """E25: the same key; the receipt first, and the same bytes only after an absence."""
    bench.pending(INTENT)
    running = await desk.replay(INTENT.key, **ADA, workflow_open=True)
    assert (running.what, running.send) == (What.DONE, None)
    ruling = await desk.replay(INTENT.key, **ADA, workflow_open=False)
    standing = await perform(bench, ruling)
    assert standing.outcome.committed
    assert bench.wire.requests[-2:] == ["GET", "POST"]
    settled = await desk.replay(INTENT.key, **ADA, workflow_open=False)
    assert (settled.what, settled.send, settled.state) == (What.DONE, None, EffectState.COMMITTED)


async def test_a_release_is_an_effect_of_its_own_and_is_asked_for_once(bench: Bench, desk: EffectDesk) -> None:
    """E70, A22: released only with the release's own receipt."""
    await bench.attempt(INTENT)
    ruling = await desk.release(INTENT.key, **ADA)
    assert ruling.new_key == derive_key("demo", INTENT.scope, f"{INTENT.name}.g1.release", 1)
    assert bench.caller.available() == 8
    standing = await perform(bench, ruling)
    assert standing.outcome.committed
    assert bench.caller.available() == 10
    again = await desk.release(INTENT.key, **ADA)
    assert (again.what, again.send, again.repeated) == (What.DONE, None, True)
    assert "is released (receipt-" in again.said


async def test_what_holds_nothing_cannot_be_released(bench: Bench, desk: EffectDesk) -> None:
    """Nor what is not settled."""
    bench.pending(INTENT)
    assert (await desk.release(INTENT.key, **ADA)).what is What.REFUSED
    await desk.give_up(INTENT.key, **ADA)
    assert (await desk.release(INTENT.key, **ADA)).what is What.REFUSED


async def test_accepted_is_what_an_ended_workflow_left(bench: Bench, desk: EffectDesk) -> None:
    """Once, by name; of an open workflow there is nothing to accept."""
    await bench.attempt(INTENT)
    early = await desk.accept(INTENT.key, **ADA)
    assert early.what is What.REFUSED
    bench.journal.closed([INTENT.key], "terminated", run_id="run-1")
    first = await desk.accept(INTENT.key, **ADA)
    again = await desk.accept(INTENT.key, **ADA)
    assert (first.what, first.repeated, again.what, again.repeated) == (What.DONE, False, What.DONE, True)
    assert bench.journal.left_standing() == ()


async def test_an_orphan_is_adopted_where_its_name_makes_its_key(bench: Bench, desk: EffectDesk) -> None:
    """And then it is an effect like any other: it can be released."""
    assert bench.caller.post("/v1/reservations", json.loads(INTENT.request), INTENT.key).status_code == 201
    named: dict[str, Any] = {"scope": INTENT.scope, "name": INTENT.name, "generation": 1}
    wrong = await desk.adopt(INTENT.key, **(named | {"generation": 2}), **ADA)
    assert (wrong.what, "has the key" in wrong.said) == (What.REFUSED, True)
    first = await desk.adopt(INTENT.key, **named, **ADA)
    again = await desk.adopt(INTENT.key, **named, **ADA)
    assert (first.what, first.state, again.repeated) == (What.DONE, EffectState.COMMITTED, True)
    standing = await perform(bench, await desk.release(INTENT.key, **ADA))
    assert standing.outcome.committed


async def test_an_orphan_is_written_off_once(bench: Bench, desk: EffectDesk) -> None:
    """What nobody knows is not."""
    nothing = await desk.write_off(INTENT.key, **ADA)
    assert (nothing.what, "Nobody knows" in nothing.said) == (What.REFUSED, True)
    bench.caller.reserve(key=INTENT.key)
    first = await desk.write_off(INTENT.key, **ADA)
    again = await desk.write_off(INTENT.key, **ADA)
    assert [(one.what, one.repeated) for one in (first, again)] == [(What.DONE, False), (What.DONE, True)]


async def test_a_dry_run_changes_nothing_and_asks_nobody(bench: Bench, desk: EffectDesk) -> None:
    """Whatever the command and the state."""
    committed, pending = intent_now(name="committed"), intent_now(name="pending")
    await bench.attempt(committed)
    bench.pending(pending)
    before, asked = bench.journal.all_entries(), len(bench.wire.requests)
    for intent in (committed, pending):
        for ruling in (
            await desk.give_up(intent.key, **ADA, dry_run=True),
            await desk.resolve(intent.key, **VOIDED, **ADA, dry_run=True),
            await desk.redo(intent.key, **ADA, dry_run=True),
            await desk.replay(intent.key, **ADA, workflow_open=False, dry_run=True),
            await desk.release(intent.key, **ADA, dry_run=True),
            await desk.accept(intent.key, **ADA, dry_run=True),
            await desk.write_off(intent.key, **ADA, dry_run=True),
        ):
            assert ruling.send is None
            assert ruling.dry_run == ruling.said.startswith("Would be done")
    assert bench.journal.all_entries() == before
    assert len(bench.wire.requests) == asked


async def test_another_deployments_effects_are_left_alone(bench: Bench) -> None:
    """Its tenant is another: a void would close a key of nobody's."""
    bench.pending(INTENT)
    desk = EffectDesk(bench.journal, bench.between, origin="elsewhere")
    with pytest.raises(InvalidCommand, match="is of origin demo"):
        await desk.give_up(INTENT.key, **ADA)
    assert commands(bench) == []
