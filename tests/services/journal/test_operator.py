"""What a person's commands write."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from services.effects.commands import Command, CommandName, RulingKind
from services.effects.records import EffectRow, Intent, OutcomeState, Seen, Source
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal, Refused
from services.journal.verification import verify
from tests.services.effects.halves import (
    make_answer,
    make_intent,
    make_mark,
    make_receipt,
    make_release,
    shows,
)
from tests.services.journal.conftest import Clock

ONE = make_intent()
TWO = make_intent(generation=2)


def command(name: CommandName = CommandName.REDO, key: str = ONE.key, **changes: Any) -> Command:
    """A person's word."""
    said = {"by": "ada", "reason": "the incident goes on"} | changes
    return Command(name=name, key=key, **said)


def settled(journal: OperatorJournal, intent: Intent, state: EffectState = EffectState.VOIDED) -> EffectRow:
    """An effect that its receipt has settled."""
    journal.begin(intent, make_mark(f"{intent.key} first"))
    return journal.observe(intent.key, shows(make_receipt(intent, state))).row


def late(journal: OperatorJournal, intent: Intent) -> EffectRow:
    """A voided effect that is reported as committed."""
    settled(journal, intent)
    return journal.observe(intent.key, shows(make_receipt(intent), Source.LOOK_UP)).row


def in_doubt(journal: OperatorJournal, intent: Intent) -> EffectRow:
    """An effect that no rule settles."""
    journal.begin(intent, make_mark("first"))
    return journal.observe(intent.key, make_answer(Seen.KEY_EXPIRED, Source.LOOK_UP)).row


@pytest.fixture(autouse=True)
def _every_row_is_the_fold_of_its_entries(journal: OperatorJournal) -> Any:
    """G15: at the end of each test, whatever was commanded."""
    yield
    assert verify(journal._engine).first is None


def resolutions(journal: OperatorJournal, key: str = ONE.key) -> list[dict[str, Any]]:
    """The bodies of a key's resolutions."""
    return [entry.body for entry in journal.entries(key) if entry.kind == "resolution"]


def test_a_command_is_journaled_once_however_often_it_is_given(journal: OperatorJournal) -> None:
    """Who, why and what; another word is another command."""
    in_doubt(journal, ONE)
    asked = command(CommandName.RESOLVE, arguments={"wanted": "voided", "evidence": "ticket 7"})
    assert [journal.commanded(asked), journal.commanded(asked)] == [False, True]
    assert resolutions(journal) == [asked.body()]
    assert not journal.commanded(command(CommandName.RESOLVE, by="bob"))
    assert len(resolutions(journal)) == 2


def test_asking_moves_nothing(journal: OperatorJournal) -> None:
    """A resolution is a request: the state moves on the provider's answer."""
    before = in_doubt(journal, ONE)
    journal.commanded(command(CommandName.RESOLVE))
    assert journal.effect(ONE.key) == before


def test_nothing_is_marked_after_a_person_has_given_up(journal: OperatorJournal) -> None:
    """G7: in the mark's own transaction."""
    journal.begin(ONE, make_mark("first"))
    row = journal.forbid(command(CommandName.GIVE_UP))
    assert row.given_up
    assert journal.forbid(command(CommandName.GIVE_UP)) == row
    assert journal.mark(ONE, make_mark("second")).refused == "it has been given up"


def test_a_person_settles_what_the_provider_cannot_say_and_the_first_end_stands(journal: OperatorJournal) -> None:
    """Marked by its missing receipt, in the row and in the answer."""
    in_doubt(journal, ONE)
    row = journal.assert_end(command(CommandName.RESOLVE), EffectState.COMMITTED)
    assert (row.state, row.asserted, row.receipt) == (EffectState.COMMITTED, True, None)
    assert journal.assert_end(command(CommandName.RESOLVE, by="bob"), EffectState.VOIDED) == row
    outcome = journal.outcome(ONE.key)
    assert outcome is not None
    assert (outcome.state, outcome.asserted, outcome.receipt) == (OutcomeState.COMMITTED, True, {})


def test_a_receipt_that_came_before_the_assertion_stands(journal: OperatorJournal) -> None:
    """G6: first settlement wins, a person's as little as anybody's."""
    row = settled(journal, ONE, EffectState.COMMITTED)
    assert journal.assert_end(command(CommandName.RESOLVE), EffectState.VOIDED) == row
    assert not row.asserted


def test_a_receipt_that_contradicts_an_assertion_is_a_late_observation(journal: OperatorJournal) -> None:
    """A person can be wrong: it is shown, and nothing is overwritten."""
    in_doubt(journal, ONE)
    journal.assert_end(command(CommandName.RESOLVE), EffectState.VOIDED)
    observed = journal.observe(ONE.key, shows(make_receipt(ONE), Source.LOOK_UP))
    assert (observed.row.state, observed.row.alarmed) == (EffectState.VOIDED, True)


@pytest.mark.parametrize("ruling", [RulingKind.BELIEVED, RulingKind.DISMISSED, RulingKind.WRITTEN_OFF])
def test_a_late_observation_that_was_dealt_with_bars_nothing_more(journal: OperatorJournal, ruling: RulingKind) -> None:
    """The name is answered for again; the same word again changes nothing."""
    assert late(journal, ONE).alarmed
    assert journal.outcome(ONE.key) is None
    row = journal.rule_late(command(CommandName.ACCEPT), ruling)
    assert not row.alarmed
    assert journal.rule_late(command(CommandName.ACCEPT), ruling) == row
    assert journal.outcome(ONE.key) is not None
    assert len(resolutions(journal)) == 1


def test_the_same_late_report_raises_no_second_alarm(journal: OperatorJournal) -> None:
    """The sweep of the provider's feed sees it again and again."""
    late(journal, ONE)
    journal.rule_late(command(CommandName.ACCEPT), RulingKind.BELIEVED)
    assert not journal.observe(ONE.key, shows(make_receipt(ONE), Source.LOOK_UP)).row.alarmed


def test_a_redo_is_a_decision_of_the_journals_own_time(journal: OperatorJournal, clock: Clock) -> None:
    """G17, A25: its window runs from then, the same for every caller, also long after the first one's has passed."""
    settled(journal, ONE)
    clock.now += timedelta(days=3)
    redone = journal.decide_redo(command())
    assert (redone.key, redone.repeated) == (TWO.key, False)
    assert (redone.decision.generation, redone.decision.decided_at) == (2, clock.now)
    clock.now += timedelta(minutes=1)
    begun = journal.begin(TWO, make_mark("second"))
    assert begun.attempt is not None
    assert begun.attempt.not_after == redone.decision.decided_at + timedelta(hours=24)


def test_the_same_redo_is_the_same_generation_and_another_word_is_refused(journal: OperatorJournal) -> None:
    """E26: a redo is never swallowed in silence, and never made two of."""
    settled(journal, ONE)
    first = journal.decide_redo(command())
    again = journal.decide_redo(command())
    assert (again.key, again.repeated, again.decision) == (first.key, True, first.decision)
    journal.begin(TWO, make_mark("second"))
    assert journal.decide_redo(command()) == again
    with pytest.raises(Refused, match=r"generation 2 was decided at .* by ada \(the incident goes on\)"):
        journal.decide_redo(command(by="bob"))
    assert len(resolutions(journal)) == 1


def test_a_redo_that_nobody_has_begun_is_anybodys_to_send_and_stays_its_authors(journal: OperatorJournal) -> None:
    """The first one's process may have died over it; each command is journaled once, and gets the same answer again."""
    settled(journal, ONE)
    first = journal.decide_redo(command())
    assert first.by_another == ""
    others = [journal.decide_redo(command(by="bob")) for _ in range(2)]
    journal.begin(TWO, make_mark("second"))
    others.append(journal.decide_redo(command(by="bob")))
    assert [other.repeated for other in others] == [False, True, True]
    for other in others:
        assert (other.key, other.decision) == (first.key, first.decision)
        assert other.by_another.endswith(" by ada (the incident goes on)")
    with pytest.raises(Refused, match="by ada"):
        journal.decide_redo(command(by="bob", reason="once more"))
    assert [body["by"] for body in resolutions(journal)] == ["ada", "bob"]


def test_each_redo_has_a_generation_of_its_own(journal: OperatorJournal) -> None:
    """E26: the third try is generation 3."""
    settled(journal, ONE)
    journal.decide_redo(command())
    settled(journal, TWO, EffectState.REJECTED)
    assert journal.decide_redo(command(key=TWO.key)).decision.generation == 3


def test_two_who_redo_at_once_decide_one_generation(journal: OperatorJournal) -> None:
    """The first one wins, and the other is told who."""
    settled(journal, ONE)

    def redo(by: str, reason: str = "me too") -> str:
        try:
            return journal.decide_redo(command(by=by, reason=reason)).decision.body["by"]
        except Refused as error:
            return str(error)

    names = [f"person-{number}" for number in range(8)]
    with ThreadPoolExecutor(len(names)) as pool:
        answers = set(pool.map(redo, names))
    (winner,) = answers
    assert winner in names
    (_, decision) = journal.decisions(origin=ONE.origin, scope=ONE.scope)
    assert (decision.generation, decision.body["by"]) == (2, winner)
    journal.begin(TWO, make_mark("second"))
    assert f"by {winner} (me too)" in redo(winner, "once more")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda journal: journal.own(ONE), "is pending"),
        (lambda journal: in_doubt(journal, ONE), "is in doubt"),
        (lambda journal: settled(journal, ONE, EffectState.COMMITTED), "committed and not released"),
        (lambda journal: late(journal, ONE), "late observation"),
        (lambda journal: [settled(journal, TWO), settled(journal, ONE, EffectState.COMMITTED)], "generation 1"),
    ],
    ids=["pending", "in doubt", "committed", "late", "former"],
)
def test_nothing_is_redone_over_what_may_still_stand(
    journal: OperatorJournal, prepare: Callable[[OperatorJournal], Any], said: str
) -> None:
    """G9: and nothing is recorded of it."""
    prepare(journal)
    key = ONE.key if journal.effect(TWO.key) is None else TWO.key
    before = journal.all_entries()
    with pytest.raises(Refused, match=said):
        journal.decide_redo(command(key=key))
    assert said in journal.redo_refused(command(key=key))
    assert journal.all_entries() == before


def test_what_would_be_refused_is_said_of_a_generation_that_somebody_else_has_decided(journal: OperatorJournal) -> None:
    """As the redo itself says it; whoever decided it may ask again."""
    settled(journal, ONE)
    journal.decide_redo(command())
    assert journal.redo_refused(command(by="bo")) == ""
    journal.begin(TWO, make_mark("second"))
    with pytest.raises(Refused) as refused:
        journal.decide_redo(command(by="bo"))
    assert journal.redo_refused(command(by="bo")) == str(refused.value)
    assert journal.redo_refused(command()) == ""


def test_what_was_released_may_be_redone_and_has_a_release_of_its_own(journal: OperatorJournal) -> None:
    """A06, E49: two generations, two releases."""
    settled(journal, ONE, EffectState.COMMITTED)
    settled(journal, make_release(), EffectState.COMMITTED)
    journal.decide_redo(command())
    settled(journal, TWO, EffectState.COMMITTED)
    with pytest.raises(Refused, match="generation 2 is committed and not released"):
        journal.decide_redo(command(key=TWO.key))
    settled(journal, make_release(generation=2), EffectState.COMMITTED)
    assert journal.decide_redo(command(key=TWO.key)).decision.generation == 3


def test_a_believed_report_stands_until_it_is_released_or_written_off(journal: OperatorJournal) -> None:
    """The row says voided; the journal knows better since."""
    late(journal, ONE)
    journal.rule_late(command(CommandName.ACCEPT), RulingKind.BELIEVED)
    with pytest.raises(Refused, match="committed and not released"):
        journal.decide_redo(command())
    settled(journal, make_release(), EffectState.COMMITTED)
    journal.decide_redo(command())


@pytest.mark.parametrize("ruling", [RulingKind.DISMISSED, RulingKind.WRITTEN_OFF])
def test_a_report_that_is_wrong_or_written_off_bars_no_redo(journal: OperatorJournal, ruling: RulingKind) -> None:
    """A person has said so, by name."""
    late(journal, ONE)
    journal.rule_late(command(CommandName.WRITE_OFF), ruling)
    assert journal.decide_redo(command()).decision.generation == 2


def test_an_asserted_end_is_redone_by_two_people(journal: OperatorJournal) -> None:
    """A08: no receipt says that the first did nothing."""
    in_doubt(journal, ONE)
    journal.assert_end(command(CommandName.RESOLVE, by="bob"), EffectState.VOIDED)
    with pytest.raises(Refused, match="second person"):
        journal.decide_redo(command())
    redone = journal.decide_redo(command(arguments={"second": "eve"}), second="eve")
    assert redone.decision.body["second"] == "eve"


def test_a_release_that_was_only_asserted_is_answered_so_and_redone_by_two_people(journal: OperatorJournal) -> None:
    """What it took counts as given back, by a word: that is marked, and one person's haste redoes nothing over it."""
    settled(journal, ONE, EffectState.COMMITTED)
    release = make_release()
    in_doubt(journal, release)
    assert journal.outcome(ONE.key) is None
    journal.assert_end(command(CommandName.RESOLVE, key=release.key, by="cyd"), EffectState.COMMITTED)
    outcome = journal.outcome(ONE.key)
    assert outcome is not None
    assert (outcome.state, outcome.asserted) == (OutcomeState.RELEASED, True)
    with pytest.raises(Refused, match="the release of generation 1 by cyd"):
        journal.decide_redo(command())
    assert journal.decide_redo(command(arguments={"second": "eve"}), second="eve").decision.generation == 2


def test_an_orphan_gets_its_row_and_its_receipt_in_one_word(journal: OperatorJournal) -> None:
    """Born by recovery, decided by the person, and accepted: nobody is asked about its workflow."""
    adopt = command(CommandName.ADOPT)
    observed = journal.adopt(adopt, ONE, shows(make_receipt(ONE), Source.LOOK_UP))
    row = observed.row
    assert (row.state, row.born_by, row.accepted) == (EffectState.COMMITTED, "recovery", True)
    assert journal.was_commanded(adopt)
    assert journal.watched() == ()


def test_an_orphan_is_written_off_without_a_row(journal: OperatorJournal) -> None:
    """And may still be adopted."""
    assert not journal.write_off(command(CommandName.WRITE_OFF))
    assert journal.write_off(command(CommandName.WRITE_OFF))
    assert journal.effect(ONE.key) is None
    assert verify(journal._engine).first is None
    journal.adopt(command(CommandName.ADOPT), ONE, shows(make_receipt(ONE), Source.LOOK_UP))


def test_only_what_stands_for_a_workflow_that_did_not_complete_is_listed(journal: OperatorJournal) -> None:
    """G11: released, accepted and completed ones are not; nor are releases."""
    names = ("open", "completed", "terminated", "released", "accepted", "rejected")
    intents = {name: make_intent(name=name) for name in names}
    for name, intent in intents.items():
        settled(journal, intent, EffectState.REJECTED if name == "rejected" else EffectState.COMMITTED)
    settled(journal, make_release(of="released"), EffectState.COMMITTED)
    journal.closed([intents["completed"].key], "completed", run_id="run-1")
    journal.closed([intents[name].key for name in ("terminated", "released", "accepted")], "terminated", run_id="run-1")
    journal.accept(command(CommandName.ACCEPT, key=intents["accepted"].key))
    assert {row.name for row in journal.watched()} == {"open", "terminated"}
    assert [row.name for row in journal.left_standing()] == ["terminated"]
    assert journal.left_standing(after_key=intents["terminated"].key) == ()


def test_how_a_workflow_ended_is_recorded_when_it_is_news(journal: OperatorJournal) -> None:
    """A run that was reset is open again, and completes."""
    settled(journal, ONE, EffectState.COMMITTED)
    for closed_as in ("terminated", "terminated", None, "completed"):
        journal.closed([ONE.key], closed_as, run_id="run-1")
    seen = [entry.body.get("closed_as", "") for entry in journal.entries(ONE.key) if entry.kind == "observation"]
    assert seen == ["", "terminated", None, "completed"]
    row = journal.effect(ONE.key)
    assert row is not None
    assert (row.closed_as, row.state) == ("completed", EffectState.COMMITTED)


def test_the_highest_decided_generation_is_told(journal: OperatorJournal) -> None:
    """For whoever asks for a former one."""
    row = settled(journal, ONE)
    assert journal.later(row) is None
    redone = journal.decide_redo(command())
    assert journal.later(row) == redone.decision
    assert journal.begin(ONE, make_mark("again")).later == redone.decision


def test_alarmed_effects_are_found(journal: OperatorJournal) -> None:
    """For whoever raises the alarm."""
    settled(journal, make_intent(name="fine"))
    late(journal, ONE)
    assert [row.key for row in journal.alarmed()] == [ONE.key]
