"""What a person has dealt with is no finding any more; what comes after it is."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.effects.commands import Command, CommandName, RulingKind
from services.effects.records import Answer, EffectRow, Receipt, Seen, Source
from services.effects.states import EffectState
from services.reconciliation.audit import audit
from services.reconciliation.findings import Report, Rule
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
