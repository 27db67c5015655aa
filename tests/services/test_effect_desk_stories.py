"""What people do at the desk over more than one command, on a real inventory and both kinds of journal."""

import itertools
import json
from collections.abc import AsyncIterator

import pytest

from services.effects.commands import Ruling, What
from services.effects.keys import release_name
from services.effects.records import Effect, Intent, OutcomeState, decide
from services.effects.states import EffectState
from tests.postgres import Databases
from tests.services.inventory.conftest import NOW
from tests.services.reconciliation.world import ORIGIN, intent, reservation
from tests.services.standing import Standing, standings_in

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
async def standings(
    tmp_path_factory: pytest.TempPathFactory, postgres: Databases
) -> AsyncIterator[dict[str, Standing]]:
    """One deployment on each kind of database."""
    async with standings_in(tmp_path_factory.mktemp("standing"), postgres) as made:
        yield made


@pytest.fixture
def standing(standings: dict[str, Standing], dialect: str) -> Standing:
    """The deployment on this test's database."""
    return standings[dialect]


@pytest.fixture
def scope() -> str:
    """A scope that no other test has."""
    return f"INC-{next(_numbers)}"


async def redo(standing: Standing, key: str, *, by: str = "ada", reason: str = "still needed") -> Ruling:
    """Decide the next generation."""
    return await standing.desk.redo(key, by=by, reason=reason)


async def release(standing: Standing, key: str) -> Ruling:
    """Give it back."""
    return await standing.desk.release(key, by="ada", reason="nobody needs it")


def hold(scope: str) -> Intent:
    """A reservation that holds for a minute."""
    request = {"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 60}
    return decide(
        Effect(name="reserve-filter", kind="inventory.reserve", request=request),
        origin=ORIGIN,
        scope=scope,
        decided_at=NOW,
        why={"approved_by": "ada"},
        workflow_id=scope,
        workflow_type="Incident",
        first_run_id="run-1",
    )


async def test_a_replay_is_the_same_key_and_a_redo_is_another(standing: Standing, scope: str) -> None:
    """E25: what is done is answered by a replay; to do it again on purpose, it is given back first."""
    key = (await standing.reach("committed", scope)).key
    before = standing.world.caller.available()
    replayed = await standing.desk.replay(key, by="ada", reason="was it done?", workflow_open=False)
    assert (replayed.what, replayed.state, replayed.send) == (What.DONE, EffectState.COMMITTED, None)
    refused = await redo(standing, key)
    assert (refused.what, refused.new_key) == (What.REFUSED, None)
    assert "is committed and not released" in refused.said
    assert standing.world.caller.available() == before


async def test_each_redo_is_a_generation_of_its_own_and_is_seen(standing: Standing, scope: str) -> None:
    """E26: the second redo is not swallowed, and the same command again is no third one."""
    first = (await standing.reach("rejected", scope)).key
    second = await redo(standing, first)
    assert (await standing.perform(second)).row.state is EffectState.REJECTED
    assert second.new_key is not None
    third = await redo(standing, second.new_key)
    again = await redo(standing, second.new_key)
    assert third.new_key == again.new_key == intent(scope, generation=3).key
    assert (third.repeated, again.repeated) == (False, True)
    decided = standing.journal.decisions(origin=ORIGIN, scope=scope)
    assert [each.generation for each in decided] == [1, 2, 3]
    assert [each.body.get("by") for each in decided] == [None, "ada", "ada"]


async def test_a_redo_of_a_redone_generation_names_who_decided_it(standing: Standing, scope: str) -> None:
    """The first one stands; a colleague hears of it and repeats nothing."""
    key = (await standing.reach("voided", scope)).key
    await redo(standing, key)
    other = await redo(standing, key, by="bo")
    assert (other.what, other.send) == (What.REFUSED, None)
    assert "ada" in other.said


@pytest.mark.parametrize("wanted", [EffectState.COMMITTED, EffectState.REJECTED])
async def test_a_receipt_that_was_lost_with_its_answer_is_found_by_the_key(
    standing: Standing, scope: str, wanted: EffectState
) -> None:
    """E37: nobody needs the receipt's own number; and it is the end, whatever was wanted."""
    key = (await standing.reach("unheard", scope)).key
    said = await standing.desk.resolve(key, to=wanted, evidence="the shelf is empty", by="ada", reason="lost answer")
    assert said.state is EffectState.COMMITTED
    assert said.what is (What.DONE if wanted is EffectState.COMMITTED else What.REFUSED)
    held = standing.world.caller.receipt(key).json()
    assert said.receipt_id == held["receipt_id"]


async def test_a_rejection_stays_under_its_key_when_the_stock_has_come(standing: Standing, scope: str) -> None:
    """E41: a replay answers the rejection and sends nothing, also now that there is enough; a redo may land."""
    key = (await standing.reach("rejected", scope)).key
    assert standing.world.caller.deliver(2000).status_code == 201
    before = standing.world.caller.available()
    replayed = await standing.desk.replay(key, by="ada", reason="there is enough now", workflow_open=False)
    assert (replayed.state, replayed.send) == (EffectState.REJECTED, None)
    assert standing.world.caller.available() == before
    assert (await standing.perform(await redo(standing, key))).row.state is EffectState.COMMITTED
    assert standing.world.caller.available() == before - 1000


async def test_what_was_given_back_may_be_done_again_and_given_back_again(standing: Standing, scope: str) -> None:
    """E49, A06: the release closes generation 1; generation 2 has a release of its own, and the stock is whole."""
    before = standing.world.caller.available()
    first = (await standing.reach("committed", scope)).key
    released = await release(standing, first)
    assert (await standing.perform(released)).row.state is EffectState.COMMITTED
    second = await redo(standing, first)
    assert (await standing.perform(second)).row.state is EffectState.COMMITTED
    assert second.new_key is not None
    assert standing.world.caller.available() == before - 2
    released_too = await release(standing, second.new_key)
    assert (await standing.perform(released_too)).row.state is EffectState.COMMITTED
    assert released.new_key != released_too.new_key
    assert standing.world.caller.available() == before
    answered = standing.journal.outcome(second.new_key)
    assert answered is not None
    assert answered.state is OutcomeState.RELEASED


async def test_resolved_to_voided_every_way_to_the_key_is_closed(standing: Standing, scope: str) -> None:
    """E56: "not done" is said once the key is closed; a request that comes then does nothing."""
    wanted = await standing.reach("pending", scope)
    before = standing.world.caller.available()
    said = await standing.desk.resolve(
        wanted.key, to=EffectState.VOIDED, evidence="the shelf is full", by="ada", reason="never arrived"
    )
    assert (said.what, said.state) == (What.DONE, EffectState.VOIDED)
    late = standing.world.caller.post("/v1/reservations", json.loads(wanted.request), wanted.key)
    assert late.status_code == 410
    assert standing.world.caller.available() == before


async def test_a_release_that_the_inventory_refused_gives_nothing_back(standing: Standing, scope: str) -> None:
    """E70: released is what has a release's receipt; before, neither a redo nor an answer says so."""
    taken = await standing.world.perform(intent(scope))
    key = taken.row.key
    elsewhere = Effect(
        name=release_name("reserve-filter", 1), kind="inventory.release", path={"id": "reservation-none"}, request={}
    )
    wrong = decide(
        elsewhere, origin=ORIGIN, scope=scope, decided_at=NOW, why={}, workflow_id=scope, workflow_type="Incident",
        first_run_id="run-1",
    )  # fmt: skip
    await standing.world.perform(wrong)
    assert (await standing.world.recover(wrong)).row.state is EffectState.VOIDED
    said = await release(standing, key)
    assert (said.what, said.send) == (What.REFUSED, None)
    assert wrong.key in said.said
    answered = standing.journal.outcome(key)
    assert answered is not None
    assert answered.state is OutcomeState.COMMITTED
    assert (await redo(standing, key)).what is What.REFUSED
    assert standing.world.caller.http.get(f"/v1/reservations/{reservation(taken)}").json()["state"] != "released"


async def test_two_people_who_cannot_reach_the_inventory_settle_nothing(standing: Standing, scope: str) -> None:
    """A08: a bare word stands only where the inventory has answered; both requests are journaled, and repeated."""
    key = (await standing.reach("pending", scope)).key
    async with standing.unreachable() as away:
        for by in ("ada", "bo"):
            said = await away.resolve(key, to=EffectState.VOIDED, evidence="I saw it", by=by, reason="never arrived")
            assert (said.what, said.state) == (What.UNCONFIRMED, EffectState.PENDING)
    assert [entry.body["by"] for entry in standing.journal.entries(key) if entry.kind == "resolution"] == ["ada", "bo"]
    for by, repeated in (("ada", True), ("bo", True)):
        said = await standing.desk.resolve(
            key, to=EffectState.VOIDED, evidence="I saw it", by=by, reason="never arrived"
        )
        assert (said.what, said.state, said.repeated) == (What.DONE, EffectState.VOIDED, repeated)
        assert said.receipt_id is not None


async def test_a_hold_that_ran_out_is_given_back_and_may_be_redone(standing: Standing, scope: str) -> None:
    """A21: its release is refused with hold-expired, and that is as good as a release: generation 2 may land."""
    taken = await standing.world.perform(hold(scope))
    assert taken.row.receipt is not None
    standing.world.service.end_hold(standing.world.caller, taken.row.receipt.body)
    given_back = await standing.perform(await release(standing, taken.row.key))
    assert given_back.row.state is EffectState.REJECTED
    assert given_back.row.receipt is not None
    assert given_back.row.receipt.reason == "hold-expired"
    second = await redo(standing, taken.row.key)
    assert second.what is What.DONE
    assert (await standing.perform(second)).row.state is EffectState.COMMITTED
