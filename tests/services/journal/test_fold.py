"""The fold: the store's rows, computed again from the entries alone."""

from dataclasses import replace
from datetime import timedelta

import pytest

from services.effects.records import Seen, Source
from services.effects.states import EffectState
from services.journal.fold import OutOfOrder, Snapshot, Unfoldable, fold
from services.journal.store import Journal
from tests.services.effects.halves import DECIDED_AT, make_answer, make_intent, make_mark, make_receipt, shows


def _agrees(snapshot: Snapshot) -> bool:
    (row,) = snapshot.effects
    return fold(snapshot.entries) == row


def test_after_every_step_the_row_is_the_fold_of_its_entries(journal: Journal) -> None:
    """From the first mark over an unknown outcome, an earlier history, doubt and settlement to a late observation."""
    intent = make_intent()
    earlier = replace(intent, decided_at=DECIDED_AT - timedelta(hours=1))
    receipt = make_receipt(intent)
    contradiction = shows(make_receipt(intent, EffectState.VOIDED), Source.LOOK_UP)
    steps = (
        lambda: journal.begin(intent, make_mark("a1")),
        lambda: journal.observe(intent.key, make_answer(Seen.UNKNOWN), attempt_id="a1"),
        lambda: journal.mark(earlier, make_mark("a2")),
        lambda: journal.observe(intent.key, make_answer(Seen.KEY_REUSED), attempt_id="a2"),
        lambda: journal.give_up(intent, why="cancelled"),
        lambda: journal.observe(intent.key, shows(receipt, Source.LOOK_UP)),
        lambda: journal.observe(intent.key, contradiction),
    )
    for step in steps:
        step()
        assert _agrees(journal.snapshot())
    (row,) = journal.snapshot().effects
    assert (row["state"], row["attempts"], row["given_up"], row["alarmed"]) == ("committed", 2, True, True)


def test_a_decision_alone_is_no_row(journal: Journal) -> None:
    """A person may decide without an effect."""
    journal.record_decision(origin="demo", scope="INC-1", name="approval", decided_at=DECIDED_AT, body={})
    assert fold(journal.snapshot().entries) is None


def test_an_attempt_needs_an_intent_and_an_intent_its_decision(journal: Journal) -> None:
    """What stands too early is refused by its id."""
    journal.begin(make_intent(), make_mark("a1"))
    decision, intent, attempt = journal.snapshot().entries
    with pytest.raises(OutOfOrder, match="entry 3 is of kind attempt without an earlier intent"):
        fold([decision, attempt])
    with pytest.raises(OutOfOrder, match="entry 2 is an intent without an earlier decision"):
        fold([intent, decision])


def test_a_kind_that_no_build_writes_for_an_effect_is_refused(journal: Journal) -> None:
    """It is not taken for nothing."""
    journal.begin(make_intent(), make_mark("a1"))
    entries = journal.snapshot().entries
    with pytest.raises(Unfoldable, match="kind hold"):
        fold([*entries, replace(entries[-1], id=9, kind="hold")])


def test_a_body_that_cannot_be_read_is_refused(journal: Journal) -> None:
    """By its id and kind."""
    journal.begin(make_intent(), make_mark("a1"))
    decision, intent, _ = journal.snapshot().entries
    for body in ("{", "[]", "{}"):
        with pytest.raises(Unfoldable, match=r"entry 2 \(intent\) cannot be read"):
            fold([decision, replace(intent, body=body)])


def test_every_entry_that_the_store_writes_is_intact(journal: Journal) -> None:
    """Its digest is that of the text that was written."""
    journal.begin(make_intent(), make_mark("a1"))
    for entry in journal.snapshot().entries:
        assert entry.intact
        assert not replace(entry, body=entry.body + " ").intact
