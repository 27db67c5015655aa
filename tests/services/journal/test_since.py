"""What was committed since a seal: all of it, and nothing that was committed before."""

import sqlalchemy as sa

from services.effects.records import Source
from services.effects.states import EffectState
from services.journal.seals import seal
from services.journal.since import since
from services.journal.store import Journal
from tests.services.effects.halves import make_intent, make_mark, make_receipt, shows
from tests.services.journal.conftest import Clock


def _journal(engine: sa.Engine) -> Journal:
    return Journal(engine, recorded_by="test", clock=Clock())


def test_what_was_committed_before_the_seal_is_not_told_and_what_came_after_is(either: sa.Engine) -> None:
    """By its key and by what it reserved."""
    journal = _journal(either)
    early, late = make_intent(name="early"), make_intent(name="late")
    for intent in (early, late):
        journal.begin(intent, make_mark(intent.name))
    journal.observe(early.key, shows(make_receipt(early)), attempt_id="early")
    seal(either, sealed_by="test")
    journal.observe(late.key, shows(make_receipt(late)), attempt_id="late")
    seal(either, sealed_by="test")
    found = since(either, 1)
    assert [each.key for each in found.committed] == [late.key]
    assert found.committed[0].receipt_id == make_receipt(late).receipt_id
    assert found.at is not None
    assert found.at.number == 1
    assert found.stands.seal is not None
    assert found.stands.seal.number == 2
    assert {each.key for each in since(either, 0).committed} == {early.key, late.key}
    assert since(either).committed == ()


def test_an_effect_that_was_heard_of_again_was_committed_before(either: sa.Engine) -> None:
    """A later entry of a settled effect is no new effect."""
    journal = _journal(either)
    intent = make_intent()
    journal.begin(intent, make_mark("one"))
    journal.observe(intent.key, shows(make_receipt(intent)), attempt_id="one")
    seal(either, sealed_by="test")
    journal.observe(intent.key, shows(make_receipt(intent, EffectState.VOIDED), Source.LOOK_UP))
    found = since(either, 1)
    assert found.stands.unsealed == 1
    assert found.committed == ()


def test_what_nobody_knows_the_outcome_of_is_pending(either: sa.Engine) -> None:
    """Until a receipt settles it; a rejection is settled too, and nothing was committed."""
    journal = _journal(either)
    intent = make_intent()
    journal.begin(intent, make_mark("one"))
    assert since(either).pending == (intent.key,)
    journal.observe(intent.key, shows(make_receipt(intent, EffectState.REJECTED)), attempt_id="one")
    found = since(either, 0)
    assert (found.pending, found.committed) == ((), ())


def test_a_seal_that_the_journal_does_not_have_is_none(either: sa.Engine) -> None:
    """A journal that was put back has fewer: that is said, not guessed."""
    seal(either, sealed_by="test")
    assert since(either, 7).at is None
