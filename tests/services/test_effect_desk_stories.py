"""What people do at the desk over more than one command, on a real inventory and both kinds of journal."""

import itertools
import json

import pytest

from services.effects.commands import Ruling, What
from services.effects.keys import release_name
from services.effects.records import Answer, Effect, Intent, OutcomeState, Receipt, Seen, Source, decide
from services.effects.states import EffectState
from tests.services.inventory.conftest import NOW
from tests.services.reconciliation.world import ORIGIN, intent, reservation
from tests.services.standing import Standing, standing, standings

__all__ = ["standing", "standings"]  # fixtures

_numbers = itertools.count(1)


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
    await standing.perform(await redo(standing, key))
    other = await redo(standing, key, by="bo")
    assert (other.what, other.send) == (What.REFUSED, None)
    assert "ada" in other.said


async def test_what_somebody_decided_and_died_over_is_sent_for_a_colleague(standing: Standing, scope: str) -> None:
    """The decision is the first one's, and is said to be; the colleague's command gets the same answer ever after."""
    key = (await standing.reach("voided", scope)).key
    before = standing.world.caller.available()
    first = await redo(standing, key)  # and nobody has started what sends it
    other = await redo(standing, key, by="bo")
    assert (other.what, other.repeated, other.new_key) == (What.DONE, False, first.new_key)
    assert " by ada (still needed), and that decision stands." in other.said
    assert (await standing.perform(other)).row.state is EffectState.COMMITTED
    again = await redo(standing, key, by="bo")
    assert (again.what, again.repeated, again.said, again.send) == (What.DONE, True, other.said, other.send)
    assert standing.world.caller.available() == before - 2
    decided = standing.journal.decisions(origin=ORIGIN, scope=scope)
    assert [each.body.get("by") for each in decided] == [None, "ada"]
    assert (await redo(standing, key, by="cyd")).what is What.REFUSED


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
    taken = await standing.world.perform(intent(scope, hold_seconds=60))
    assert taken.row.receipt is not None
    standing.world.service.end_hold(standing.world.caller, taken.row.receipt.body)
    given_back = await standing.perform(await release(standing, taken.row.key))
    assert given_back.row.state is EffectState.REJECTED
    assert given_back.row.receipt is not None
    assert given_back.row.receipt.reason == "hold-expired"
    second = await redo(standing, taken.row.key)
    assert second.what is What.DONE
    assert (await standing.perform(second)).row.state is EffectState.COMMITTED


async def test_what_was_reported_late_is_given_back_once_it_is_believed(standing: Standing, scope: str) -> None:
    """A09: dismissed, there is nothing to give back; believed, its own reservation, and once."""
    key = (await standing.reach("late report", scope)).key
    assert "a person says first" in (await release(standing, key)).said
    closing = await standing.desk.give_up(key, by="ada", reason="over")
    assert (closing.what, "reported otherwise" in closing.said) == (What.REFUSED, True)
    await standing.desk.accept(key, by="ada", reason="seen on the shelf")
    for said in (
        await standing.desk.give_up(key, by="bo", reason="over"),
        await standing.desk.resolve(key, to=EffectState.VOIDED, evidence="none", by="bo", reason="over"),
    ):
        assert (said.what, "is believed" in said.said) == (What.REFUSED, True)
    first = await release(standing, key)
    assert first.send is not None
    own = intent(scope, release_of=first.send.effect.path["id"])
    assert own.key == first.new_key
    standing.journal.begin(own, standing.world.mark())
    given_back = standing.other.release(own.path["id"], key=own.key)
    standing.journal.observe(own.key, Answer(seen=Seen.RECEIPT, source=Source.SEND, receipt=Receipt(given_back.json())))
    again = await release(standing, key)
    assert (again.what, again.send, again.repeated) == (What.DONE, None, True)
    assert "is released (receipt-" in again.said
    assert (await redo(standing, key)).what is What.DONE


@pytest.mark.parametrize("how", ["dismissed", "written off"])
async def test_of_a_late_report_that_is_wrong_or_written_off_nothing_is_given_back(
    standing: Standing, scope: str, how: str
) -> None:
    """A colleague's release would contradict who said so; and it may be another's."""
    key = (await standing.reach("late report", scope)).key
    if how == "dismissed":
        word = await standing.desk.resolve(key, to=EffectState.VOIDED, evidence="a copy", by="bo", reason="wrong")
    else:
        word = await standing.desk.write_off(key, by="bo", reason="stolen")
    assert word.what is What.DONE
    said = await release(standing, key)
    assert (said.what, said.send) == (What.REFUSED, None)


async def test_a_believed_report_may_still_be_written_off(standing: Standing, scope: str) -> None:
    """As docs/operations.md says; then it bars no redo."""
    key = (await standing.reach("late report", scope)).key
    await standing.desk.accept(key, by="ada", reason="seen on the shelf")
    assert (await redo(standing, key)).what is What.REFUSED
    for repeated in (False, True):
        said = await standing.desk.write_off(key, by="ada", reason="stolen since")
        assert (said.what, said.repeated) == (What.DONE, repeated)
    assert (await redo(standing, key)).what is What.DONE


async def test_a_dry_run_of_a_redo_says_who_has_decided(standing: Standing, scope: str) -> None:
    """As the run itself would."""
    key = (await standing.reach("voided", scope)).key
    first = await redo(standing, key)
    written = standing.written
    said = await standing.desk.redo(key, by="bo", reason="me too", dry_run=True)
    assert (said.what, "generation 2 is sent" in said.said, "ada" in said.said) == (What.DONE, True, True)
    assert standing.written == written
    await standing.perform(first)
    said = await standing.desk.redo(key, by="bo", reason="me too", dry_run=True)
    assert (said.what, "ada" in said.said) == (What.REFUSED, True)


async def test_an_accepted_report_is_no_acceptance_of_what_a_workflow_left_later(
    standing: Standing, scope: str
) -> None:
    """The same words, another matter: it is done, and not only said to have been."""
    wanted = await standing.reach("committed", scope)
    row = standing.journal.effect(wanted.key)
    assert row is not None
    assert row.receipt is not None
    report = Receipt(row.receipt.body | {"receipt_id": "receipt-once-more"})
    standing.journal.observe(wanted.key, Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=report))
    await standing.desk.accept(wanted.key, by="ada", reason="it stands")
    standing.journal.closed([wanted.key], "terminated", run_id="run-1")
    assert [left.key for left in standing.journal.left_standing(scope=scope)] == [wanted.key]
    assert (await standing.desk.accept(wanted.key, by="ada", reason="it stands")).what is What.DONE
    assert standing.journal.left_standing(scope=scope) == ()


async def test_a_release_that_was_begun_goes_on_as_it_was_journaled(standing: Standing, scope: str) -> None:
    """G18: of an earlier build's workflow, with its reason in the request; that workflow is gone."""
    taken = await standing.world.perform(intent(scope))
    effect = Effect(
        name=release_name("reserve-filter", 1),
        kind="inventory.release",
        path={"id": reservation(taken)},
        request={"reason": "the incident was cancelled"},
    )
    begun = decide(
        effect, origin=ORIGIN, scope=scope, decided_at=NOW, why={}, workflow_id=scope, workflow_type="Incident",
        first_run_id="run-1",
    )  # fmt: skip
    standing.world.begin(begun)
    said = await release(standing, taken.row.key)
    assert said.send is not None
    assert (said.send.key, said.send.effect.request) == (begun.key, begun_request(begun))


async def test_the_release_of_what_had_run_out_is_answered_the_same_again(standing: Standing, scope: str) -> None:
    """A21: it is back; nobody is sent to redo its release."""
    taken = await standing.world.perform(intent(scope, hold_seconds=60))
    assert taken.row.receipt is not None
    standing.world.service.end_hold(standing.world.caller, taken.row.receipt.body)
    await standing.perform(await release(standing, taken.row.key))
    again = await release(standing, taken.row.key)
    assert (again.what, again.send) == (What.DONE, None)
    assert "back already" in again.said


async def test_a_release_that_is_redone_is_the_one_that_is_sent(standing: Standing, scope: str) -> None:
    """Its first generation was given up; the second is decided, and no further one is asked for."""
    taken = await standing.world.perform(intent(scope))
    own = intent(scope, release_of=reservation(taken))
    standing.world.begin(own)
    await standing.desk.give_up(own.key, by="ada", reason="not yet")
    assert "redo it" in (await release(standing, taken.row.key)).said
    redone = await redo(standing, own.key)
    said = await release(standing, taken.row.key)
    assert (said.what, said.send is not None) == (What.DONE, True)
    assert (await standing.perform(redone)).row.state is EffectState.COMMITTED
    assert "is released (receipt-" in (await release(standing, taken.row.key)).said


def begun_request(begun: Intent) -> dict[str, str]:
    """What an intent asks for."""
    request: dict[str, str] = json.loads(begun.request)
    return request
