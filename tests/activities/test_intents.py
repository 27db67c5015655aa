"""The intent before the call: what is committed when the first byte is at the peer, and what stays whatever follows."""

import asyncio
from pathlib import Path

import pytest

from services.effects.records import Answer, OutcomeState, Seen, Source
from services.effects.settle import AttemptClass, fold
from services.effects.signatures import sign
from services.effects.states import EffectState
from services.journal.store import Journal, Observed
from tests.activities.peer import http, problem
from tests.activities.sending import COMMITTED, INTENT, OK, Line
from tests.activities.story import Story, another, story_on
from tests.activities.test_breaks import close_after_the_request
from tests.services.effects.halves import make_receipt

ABSENT = problem(404, "receipt-not-found", observed_at="2026-03-01T12:01:00Z")


class Unwritable(Journal):
    """A journal whose transaction is rolled back each time that something was observed."""

    def observe(self, key: str, answer: Answer, *, attempt_id: str | None = None) -> Observed:
        """Come to the end, and roll back."""
        del key, answer, attempt_id
        raise OSError("the disk is full")


async def test_the_intent_is_committed_before_the_call_and_stays_whatever_follows(story: Story) -> None:
    """I34: the peer looks at the journal when the request is there; rolling back what followed takes nothing away."""
    kinds: list[list[str]] = []
    story.before_answering = lambda: kinds.append([entry.kind for entry in story.journal.entries(INTENT.key)])
    good, story.journal = story.journal, Unwritable(
        story.journal._engine, recorded_by="story", clock=story.clock
    )  # fmt: skip
    story.answers.append(OK)
    with pytest.raises(OSError, match="the disk is full"):
        await story.attempt()
    assert kinds == [["decision", "intent", "attempt"]]
    story.journal = good
    assert story.row().state is EffectState.PENDING
    assert fold(story.journal.attempts(INTENT.key)) is AttemptClass.UNKNOWN


@pytest.mark.parametrize("owner", [EffectState.COMMITTED, EffectState.VOIDED])
async def test_giving_up_after_a_rollback_asks_the_provider_and_is_never_nothing_to_do(
    story: Story, owner: EffectState
) -> None:
    """I25: the effect is outside, its record was rolled back: cancelling finds the receipt, or closes the key."""
    good, story.journal = story.journal, Unwritable(
        story.journal._engine, recorded_by="story", clock=story.clock
    )  # fmt: skip
    story.answers.append(OK if owner is EffectState.COMMITTED else close_after_the_request)
    with pytest.raises(OSError, match="the disk is full"):
        await story.attempt()
    story.journal = good
    found = http(200, make_receipt(INTENT, owner).body)
    story.answers.extend([found] if owner is EffectState.COMMITTED else [ABSENT, found])
    standing = await story.settle(given_up="cancelled")
    assert standing is not None
    assert (standing.state, standing.outcome is not None) == (owner, True)
    assert story.methods == ["POST", "GET"] if owner is EffectState.COMMITTED else ["POST", "GET", "PUT"]


async def test_of_a_batch_only_what_failed_is_tried_again_and_each_keeps_its_key(story: Story) -> None:
    """I47: one of three goes unheard: it alone is asked for and sent again, under its own key; none is lost."""
    batch = [another(number) for number in (1, 2, 3)]
    receipts = [http(201, make_receipt(intent).body) for intent in batch]
    story.answers.extend([receipts[0], close_after_the_request, receipts[2]])
    first = [await story.attempt(intent) for intent in batch]
    assert [standing is None for standing in first] == [False, True, False]
    story.answers.extend([ABSENT, receipts[1]])
    again = [await story.attempt(intent) for intent in batch]
    assert [standing.state for standing in again if standing] == [EffectState.COMMITTED] * 3
    assert story.methods == ["POST", "POST", "POST", "GET", "POST"]
    keys = [intent.key for intent in batch]
    assert [request.key for request in story.posts] == [*keys, keys[1]]
    assert story.posts[1].body == story.posts[3].body


async def test_all_attempts_of_all_workers_carry_one_key(story: Story) -> None:
    """I35: captured from the wire over four tries, two of them at once: key, body and deadline are the row's."""
    for answer in (close_after_the_request, http(500, b""), close_after_the_request):
        if story.asked:
            story.answers.append(ABSENT)
        story.answers.append(answer)
        assert await story.attempt() is None
    story.answers.extend([http(200, COMMITTED), http(200, COMMITTED)])
    standings = await asyncio.gather(story.attempt(), story.attempt())
    assert [standing and standing.outcome and standing.outcome.state for standing in standings] == [
        OutcomeState.COMMITTED
    ] * 2
    assert story.methods == ["POST", "GET", "POST", "GET", "POST", "GET", "GET"]
    assert {(one.key, one.body, one.headers["effect-not-after"]) for one in story.posts} == {
        (INTENT.key, INTENT.request.encode(), "2026-03-02T12:00:00.000000Z")
    }


async def test_an_unsigned_receipt_settles_nothing_where_receipts_are_signed(
    line: Line, journal_path: Path, tmp_path: Path
) -> None:
    """Unknown, with the reason: it is asked for again, and settles when it comes signed."""
    signed = COMMITTED | {"signature": sign(COMMITTED, b"key-1")}
    forged = COMMITTED | {"signature": sign(COMMITTED, b"key-9")}
    async with story_on(line, journal_path, tmp_path, signing_keys=(b"key-2", b"key-1")) as story:
        standing = await story.perform(OK, http(200, forged), http(200, signed))
        assert (story.methods, standing.state) == (["POST", "GET", "GET"], EffectState.COMMITTED)
        (mark,) = story.journal.attempts(INTENT.key)
        assert mark.seen is Seen.UNKNOWN
        said = [
            entry.body["reason"] for entry in story.journal.entries(INTENT.key)
            if entry.kind == "observation" and entry.body["source"] != Source.VOID
        ]  # fmt: skip
        assert "it is not signed" in said[0]
        assert "not by any key of ours" in said[1]
