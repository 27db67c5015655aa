"""What a person has dealt with is no finding any more, and nothing else is hidden by it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from services.effects.commands import RulingKind, What
from services.effects.records import Receipt
from services.effects.states import EffectState
from services.reconciliation.audit import audit
from services.reconciliation.checker import compare
from services.reconciliation.findings import Rule
from tests.services.reconciliation.world import ORIGIN, TOKEN
from tests.services.standing import Standing, standing_in


@pytest.fixture
async def standing(tmp_path: Path) -> AsyncIterator[Standing]:
    """A deployment of the test's own."""
    async with standing_in(tmp_path) as made:
        yield made


async def found(standing: Standing) -> set[tuple[Rule, str]]:
    """What an audit finds: rule and key."""
    report = await audit(standing.journal, standing.world.service.url, TOKEN, origin=ORIGIN)
    return {(finding.rule, finding.key) for finding in report.findings}


async def test_an_orphan_that_was_written_off_is_listed_no_more(standing: Standing) -> None:
    """It alone: the next one is found."""
    first = (await standing.reach("orphan", "INC-1")).key
    second = (await standing.reach("orphan", "INC-2")).key
    before = await found(standing)
    assert {key for _, key in before} == {first, second}
    ruling = await standing.desk.write_off(first, by="ada", reason="a former system's")
    assert ruling.what is What.DONE
    assert {key for _, key in await found(standing)} == {second}


async def test_an_end_asserted_over_another_programs_receipt_is_no_finding(standing: Standing) -> None:
    """In doubt it is one."""
    wanted = await standing.reach("in doubt", "INC-1")
    assert {key for _, key in await found(standing)} == {wanted.key}
    await standing.desk.resolve(wanted.key, to=EffectState.VOIDED, evidence="ticket", by="ada", reason="another's")
    assert await found(standing) == set()


@pytest.mark.parametrize(
    ("ruled", "rules"),
    [
        (None, [Rule.LOST]),
        (RulingKind.DISMISSED, [Rule.LOST]),
        (RulingKind.BELIEVED, []),
        (RulingKind.WRITTEN_OFF, []),
    ],
)
async def test_a_late_report_that_is_known_to_be_true_is_no_loss(
    standing: Standing, ruled: RulingKind | None, rules: list[Rule]
) -> None:
    """Voided here and committed there; who dismisses it contradicts the inventory, and that stays a finding."""
    wanted = await standing.reach("voided", "INC-1")
    row = standing.journal.effect(wanted.key)
    assert row is not None
    committed = standing.other.post("/v1/reservations", json.loads(wanted.request), wanted.key)
    findings = compare(row, Receipt(committed.json()), ruled=ruled)
    assert [finding.rule for finding in findings] == rules
