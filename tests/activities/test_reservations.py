"""What is done to a reservation, over a raw wire: confirmed, given back, expired; each an effect of its own."""

from typing import Any

import pytest

from services.effects.records import Intent, OutcomeState
from services.effects.states import EffectState
from tests.activities.peer import http, problem
from tests.activities.sending import COMMITTED, INTENT, OK, refused
from tests.activities.story import Story
from tests.activities.test_breaks import close_after_the_request
from tests.services.effects.halves import make_intent, make_receipt, make_release

LINES = [{"sku": "FILTER-A", "requested": 2, "granted": 2}]
ABSENT = problem(404, "receipt-not-found", observed_at="2026-03-01T12:01:00Z")
RELEASE = make_release()
CONFIRM = make_intent(
    name="reserve-filter.g1.confirm", kind="inventory.confirm", request={}, path={"id": "reservation-1"}
)
AFTER = {"confirm": CONFIRM, "release": RELEASE}


def done(intent: Intent, **members: Any) -> dict[str, Any]:
    """The receipt of what was done to the reservation."""
    return make_receipt(intent, lines=LINES, **members).body


@pytest.mark.parametrize("verb", AFTER)
async def test_a_reservation_is_named_in_the_path_and_the_body_is_the_journaled_one(story: Story, verb: str) -> None:
    """Each has its own key, and the receipt's reservation and lines are compared."""
    intent = AFTER[verb]
    standing = await story.perform(http(200, done(intent)), intent=intent)
    assert standing.state is EffectState.COMMITTED
    (request,) = story.asked
    assert (request.method, request.path) == ("POST", f"/v1/reservations/reservation-1/{verb}")
    assert (request.key, request.body) == (intent.key, b"{}")


@pytest.mark.parametrize("verb", AFTER)
@pytest.mark.parametrize(
    "wrong",
    [{"reservation_id": "reservation-2"}, {"lines": [{"sku": "FILTER-A", "requested": 2, "granted": 1}]}],
    ids=["another reservation", "a part of it"],
)
async def test_a_receipt_for_another_reservation_or_for_a_part_of_it_halts(
    story: Story, verb: str, wrong: dict[str, Any]
) -> None:
    """I46: in doubt, with the receipt asked for and nothing sent again."""
    intent = AFTER[verb]
    standing = await story.perform(http(200, done(intent) | wrong), ABSENT, intent=intent)
    assert (standing.state, story.methods) == (EffectState.IN_DOUBT, ["POST", "GET"])


@pytest.mark.parametrize("verb", AFTER)
@pytest.mark.parametrize("heard", [True, False], ids=["heard", "looked up"])
async def test_a_confirmation_or_a_release_after_the_expiry_is_a_kept_rejection(
    story: Story, verb: str, *, heard: bool
) -> None:
    """I23: 409 hold-expired carries its receipt: the outcome is a rejection, and is never asked for again."""
    intent = AFTER[verb]
    rejection = make_receipt(intent, EffectState.REJECTED, reason="hold-expired").body
    answers = [refused("hold-expired", rejection)] if heard else [close_after_the_request, http(200, rejection)]
    for _ in range(2):
        standing = await story.perform(*answers, intent=intent)
        answers = []
        assert standing.outcome is not None
        assert (standing.outcome.state, standing.outcome.receipt["reason"]) == (OutcomeState.REJECTED, "hold-expired")
    assert story.methods == (["POST"] if heard else ["POST", "GET"])


@pytest.mark.parametrize("ends", ["release", "expiry"])
async def test_what_was_reserved_is_unanswered_until_its_release_or_its_expiry_is_journaled(
    story: Story, ends: str
) -> None:
    """I22: the workflow has failed after the reserve: the intent to give back is pending, and shown, till it ends."""
    assert (await story.perform(OK)).outcome is not None
    story.answers.append(close_after_the_request)
    assert await story.attempt(RELEASE) is None
    assert story.row(RELEASE).state is EffectState.PENDING
    assert [row.key for row in story.journal.unsettled(after_key="", limit=9)] == [RELEASE.key]
    reserved = await story.attempt()
    assert reserved is not None
    assert (reserved.outcome, reserved.state) == (None, EffectState.COMMITTED)
    assert "its release is under way" in reserved.waiting
    expired = make_receipt(RELEASE, EffectState.REJECTED, reason="hold-expired").body
    await story.perform(http(200, done(RELEASE) if ends == "release" else expired), intent=RELEASE)
    assert story.journal.unsettled(after_key="", limit=9) == ()
    reserved = await story.attempt()
    assert reserved is not None
    assert reserved.outcome is not None
    assert reserved.outcome.state is (OutcomeState.RELEASED if ends == "release" else OutcomeState.COMMITTED)
    assert story.methods == ["POST", "POST", "GET"]


async def test_a_hold_is_sent_with_its_seconds_and_fingerprinted_with_them(story: Story) -> None:
    """Another time to hold is another payload: the receipt of a reserve without it is not the hold's."""
    hold = make_intent(request={"lines": [{"sku": "FILTER-A", "quantity": 2}], "hold_seconds": 900})
    assert hold.key == INTENT.key
    assert hold.fingerprint != INTENT.fingerprint
    standing = await story.perform(http(201, COMMITTED), ABSENT, intent=hold)
    assert b'"hold_seconds":900' in story.posts[0].body
    assert standing.state is EffectState.IN_DOUBT
