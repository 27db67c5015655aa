"""What people say of late reports: each report by itself, and each word once."""

from typing import Any

import pytest

from services.effects.commands import Command, CommandName, RulingKind
from services.effects.records import Source
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal, Refused
from services.journal.verification import verify
from tests.services.effects.halves import make_intent, make_mark, make_receipt, make_release, shows
from tests.services.journal.test_operator import command, late, resolutions, settled

ONE = make_intent()


@pytest.fixture(autouse=True)
def _every_row_is_the_fold_of_its_entries(journal: OperatorJournal) -> Any:
    """G15: at the end of each test, whatever was commanded."""
    yield
    assert verify(journal._engine).first is None


def again(journal: OperatorJournal, receipt_id: str) -> None:
    """One more report that it is committed, by another receipt."""
    report = make_receipt(ONE, receipt_id=receipt_id)
    assert journal.observe(ONE.key, shows(report, Source.LOOK_UP)).row.alarmed


def word(name: CommandName, reason: str) -> Command:
    """A person's, about one report."""
    return command(name, reason=reason)


def test_a_believed_report_stands_though_a_later_one_is_dismissed(journal: OperatorJournal) -> None:
    """G9: who dismisses the second says nothing of the first; only a release, or a write-off, ends that."""
    late(journal, ONE)
    journal.rule_late(word(CommandName.ACCEPT, "seen on the shelf"), RulingKind.BELIEVED)
    again(journal, "receipt-of-another-shop")
    journal.rule_late(word(CommandName.RESOLVE, "a copy of the first"), RulingKind.DISMISSED)
    with pytest.raises(Refused, match="committed and not released"):
        journal.decide_redo(command())
    settled(journal, make_release(), EffectState.COMMITTED)
    assert journal.decide_redo(command()).decision.generation == 2


def test_a_believed_report_may_be_written_off_later(journal: OperatorJournal) -> None:
    """Nothing comes back of it, says a person by name; then it bars no redo."""
    late(journal, ONE)
    journal.rule_late(word(CommandName.ACCEPT, "seen on the shelf"), RulingKind.BELIEVED)
    row = journal.rule_late(word(CommandName.WRITE_OFF, "stolen"), RulingKind.WRITTEN_OFF)
    assert journal.rule_late(word(CommandName.WRITE_OFF, "stolen"), RulingKind.WRITTEN_OFF) == row
    assert [body.get("ruling") for body in resolutions(journal)] == ["believed", "written-off"]
    assert journal.decide_redo(command()).decision.generation == 2


def test_writing_off_a_late_report_lets_nobody_redo_what_is_committed_by_its_own_receipt(
    journal: OperatorJournal,
) -> None:
    """G9: that it was done a second time is written off; that it was done is not."""
    settled(journal, ONE, EffectState.COMMITTED)
    again(journal, "receipt-of-a-second-time")
    journal.rule_late(word(CommandName.WRITE_OFF, "stolen"), RulingKind.WRITTEN_OFF)
    with pytest.raises(Refused, match="committed and not released"):
        journal.decide_redo(command())


def test_what_was_written_off_as_an_orphan_stands_once_it_has_a_row(journal: OperatorJournal) -> None:
    """G9: the journal got its effect back, by adoption or by its workflow; it is committed."""
    journal.write_off(word(CommandName.WRITE_OFF, "nobody's"))
    settled(journal, ONE, EffectState.COMMITTED)
    with pytest.raises(Refused, match="committed and not released"):
        journal.decide_redo(command())


@pytest.mark.parametrize("ruling", [RulingKind.BELIEVED, RulingKind.DISMISSED, RulingKind.WRITTEN_OFF])
def test_a_word_repeated_rules_on_no_report_that_has_come_since(journal: OperatorJournal, ruling: RulingKind) -> None:
    """Whoever said it has not seen that one: the alarm stays until somebody has."""
    late(journal, ONE)
    said = word(CommandName.ACCEPT, "seen")
    journal.rule_late(said, ruling)
    again(journal, "receipt-of-another-shop")
    with pytest.raises(Refused, match="another report has come since"):
        journal.rule_late(said, ruling)
    row = journal.effect(ONE.key)
    assert row is not None
    assert row.alarmed
    assert not journal.rule_late(word(CommandName.ACCEPT, "seen that one too"), ruling).alarmed


def test_of_two_who_rule_on_one_report_the_second_is_told(journal: OperatorJournal) -> None:
    """He read the alarm before it was dealt with; that his word stands would be wrong."""
    late(journal, ONE)
    journal.rule_late(command(CommandName.ACCEPT), RulingKind.BELIEVED)
    with pytest.raises(Refused, match="somebody has dealt with it"):
        journal.rule_late(command(CommandName.RESOLVE, by="bob"), RulingKind.DISMISSED)
    assert [body["ruling"] for body in resolutions(journal)] == ["believed"]


def test_marks_are_refused_under_every_late_report(journal: OperatorJournal) -> None:
    """The second report bars the name as the first did."""
    late(journal, ONE)
    journal.rule_late(word(CommandName.WRITE_OFF, "stolen"), RulingKind.WRITTEN_OFF)
    redone = journal.decide_redo(command())
    again(journal, "receipt-of-another-shop")
    begun = journal.begin(make_intent(generation=redone.decision.generation), make_mark("second"))
    assert begun.attempt is None
    assert "late observation" in begun.refused
