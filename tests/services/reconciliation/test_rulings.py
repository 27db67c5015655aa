"""What a person has dealt with is no finding any more; what comes after it is."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.effects.commands import Command, CommandName, RulingKind
from services.effects.records import Answer, EffectRow, Receipt, Seen, Source
from services.effects.states import EffectState
from services.reconciliation.audit import audit
from services.reconciliation.checker import check
from services.reconciliation.findings import Report, Rule
from services.reconciliation.provider_half import ProviderHalf
from tests.services.effects.halves import make_mark
from tests.services.reconciliation.world import ORIGIN, TOKEN, World, intent, running_world

INTENT = intent("INC-1")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A journal and an inventory of the test's own."""
    with running_world(tmp_path / "world") as world:
        world.caller.deliver()
        yield world


def word(name: CommandName, key: str = INTENT.key) -> Command:
    """A person's."""
    return Command(name=name, key=key, by="ada", reason="the audit found it")


def report(world: World) -> Report:
    """What an audit finds."""
    return asyncio.run(audit(world.journal, world.service.url, TOKEN, origin=ORIGIN))


def rules(found: Report) -> list[tuple[Rule, str]]:
    """Which rule, and which key."""
    return [(finding.rule, finding.key) for finding in found.findings]


def in_doubt(world: World) -> EffectRow:
    """The key is another payload's at the provider."""
    world.journal.begin(INTENT, make_mark("first"))
    answer = world.caller.reserve(quantity=1, key=INTENT.key)
    body: dict[str, Any] = answer.json()
    answer_ = Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=Receipt(body))
    return world.journal.observe(INTENT.key, answer_).row


def test_an_orphan_is_found_until_it_is_written_off(world: World) -> None:
    """By its key, and no other orphan with it."""
    world.caller.reserve(key="a-stranger-key-001")
    world.caller.reserve(key="a-stranger-key-002")
    assert rules(report(world)) == [(Rule.ORPHAN, "a-stranger-key-001"), (Rule.ORPHAN, "a-stranger-key-002")]
    world.journal.write_off(word(CommandName.WRITE_OFF, "a-stranger-key-001"))
    found = report(world)
    assert rules(found) == [(Rule.ORPHAN, "a-stranger-key-002")]
    assert found.resolved == 1


def test_an_asserted_end_is_no_finding_and_a_bare_request_is_still_one(world: World) -> None:
    """That somebody has asked for something changes nothing."""
    assert in_doubt(world).state is EffectState.IN_DOUBT
    before = rules(report(world))
    assert (Rule.UNRESOLVED, INTENT.key) in before
    world.journal.commanded(word(CommandName.RESOLVE))
    assert rules(report(world)) == before
    world.journal.assert_end(word(CommandName.RESOLVE), EffectState.VOIDED)
    found = report(world)
    assert (found.clean, found.resolved) == (True, 1)


@pytest.mark.parametrize("ruling", [RulingKind.BELIEVED, RulingKind.DISMISSED, RulingKind.WRITTEN_OFF])
def test_a_late_observation_is_found_until_it_is_dealt_with(world: World, ruling: RulingKind) -> None:
    """The row says voided, the provider committed; a further report is found again."""
    in_doubt(world)
    world.journal.assert_end(word(CommandName.RESOLVE), EffectState.VOIDED)
    receipt = Receipt(world.caller.receipt(INTENT.key).json())
    late = Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=receipt)
    assert world.journal.observe(INTENT.key, late).row.alarmed
    assert (Rule.LATE, INTENT.key) in rules(report(world))
    world.journal.rule_late(word(CommandName.ACCEPT), ruling)
    assert report(world).clean


def test_an_assertion_hides_no_receipt_of_the_effects_own(world: World) -> None:
    """The provider had none to show, and shows one now: it was done, and nobody has said anything of that."""
    world.journal.begin(INTENT, make_mark("first"))
    world.journal.observe(INTENT.key, Answer(seen=Seen.KEY_EXPIRED, source=Source.LOOK_UP))
    world.journal.assert_end(word(CommandName.RESOLVE), EffectState.VOIDED)
    sent = world.caller.post("/v1/reservations", json.loads(INTENT.request), INTENT.key)
    assert sent.status_code == 201
    assert (Rule.LOST, INTENT.key) in rules(report(world))


def test_what_was_said_of_a_late_report_hides_no_receipt_that_is_lost_later(world: World) -> None:
    """It was of that report alone."""
    asyncio.run(world.perform(INTENT))
    row = world.journal.effect(INTENT.key)
    assert row is not None
    assert row.receipt is not None
    report_ = Receipt(row.receipt.body | {"receipt_id": "receipt-once-more"})
    world.journal.observe(INTENT.key, Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=report_))
    world.journal.rule_late(word(CommandName.RESOLVE), RulingKind.DISMISSED)
    assert report(world).clean
    empty = ProviderHalf(receipts=(), covered=0, stock={}, ledgers={})
    assert (Rule.LOST, INTENT.key) in rules(check(world.journal.snapshot(), empty))


def test_a_written_off_orphan_that_became_an_effect_is_looked_at_again(world: World) -> None:
    """What was said of a receipt without an intent says nothing of the effect."""
    world.journal.write_off(word(CommandName.WRITE_OFF))
    asyncio.run(world.perform(INTENT))
    empty = ProviderHalf(receipts=(), covered=0, stock={}, ledgers={})
    assert (Rule.LOST, INTENT.key) in rules(check(world.journal.snapshot(), empty))


def test_a_redo_that_nobody_has_begun_is_found(world: World) -> None:
    """Whoever commanded it may have died before anything was told to send it; nothing else would ever say so."""
    world.journal.give_up(INTENT, why="over")
    asyncio.run(world.recover(INTENT))
    assert report(world).clean
    redone = world.journal.decide_redo(word(CommandName.REDO))
    (found,) = report(world).findings
    assert (found.rule, found.key, found.what) == (
        Rule.UNRESOLVED,
        redone.key,
        "INC-1/reserve-filter (generation 2)",
    )
    assert "by ada and never begun" in found.journal
    asyncio.run(world.perform(intent("INC-1", generation=2)))
    assert report(world).clean
