"""Receipts whose bodies retention has taken, under audit: no alarm of what is right, and what is wrong is found."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.effects.states import EffectState
from services.journal.fold import Snapshot
from services.reconciliation import provider_half
from services.reconciliation.audit import audit
from services.reconciliation.checker import check, compare
from services.reconciliation.findings import Report, Rule
from services.reconciliation.ledger import check_ledger
from services.reconciliation.provider_half import ProviderHalf, Remains
from tests.postgres import Databases
from tests.services.effects.halves import make_intent, make_receipt, make_row
from tests.services.inventory.conftest import NOW
from tests.services.reconciliation.test_audit_holds import about, expired_and_redone, hold
from tests.services.reconciliation.test_holds import CONFIRM, DELIVERY, EXPIRED, HOLD, Books
from tests.services.reconciliation.world import (
    ORIGIN,
    TOKEN,
    World,
    intent,
    reservation,
    running_world,
    world_on,
)

KEPT, REJECTED, VOIDED = intent("INC-2").key, intent("INC-3").key, intent("INC-4").key


@pytest.fixture
def world(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    """An inventory that keeps no body for long, and a journal, on either database."""
    if dialect == "sqlite":
        with running_world(tmp_path / "world", retention=timedelta(0)) as started:
            yield started
    else:
        postgres: Databases = request.getfixturevalue("postgres")
        with world_on(postgres.migrated("inventory"), postgres.migrated("journal"), retention=timedelta(0)) as started:
            yield started


@pytest.fixture
def small_world(tmp_path: Path) -> Iterator[World]:
    """The same, on SQLite alone."""
    with running_world(tmp_path / "world", retention=timedelta(0)) as started:
        yield started


class _Wire(httpx.AsyncHTTPTransport):
    """Notes how many keys each look-up asks for, and may change what it is answered."""

    def __init__(self, change: Callable[[dict[str, Any]], None] = lambda _found: None) -> None:
        super().__init__()
        self._change = change
        self.asked: list[int] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        if request.url.path != "/v1/receipts/lookup":
            return response
        self.asked.append(len(json.loads(await request.aread())["keys"]))
        document = json.loads(await response.aread())
        self._change(document["receipts"])
        return httpx.Response(response.status_code, json=document)


async def _audit(world: World, transport: httpx.AsyncBaseTransport | None = None) -> Report:
    return await audit(world.journal, world.service.url, TOKEN, origin=ORIGIN, transport=transport)


def _found(report: Report) -> set[tuple[Rule, str]]:
    return {(finding.rule, finding.key) for finding in report.findings}


async def test_what_retention_has_taken_is_no_loss_and_its_movements_have_their_receipts(world: World) -> None:
    """Every way to end, and no body left: nothing is found, and how many there were is said."""
    await world.fill()
    world.drop_bodies()
    report = await _audit(world)
    assert report.findings == ()
    # The mark of the tenant's origin is neither in the journal nor in a ledger that either half names.
    assert (report.effects, report.receipts, report.expired) == (8, 0, 10)


async def test_old_receipts_without_their_bodies_and_young_ones_are_audited_together(world: World) -> None:
    """Some are looked up, the rest is in the feed; what was sent and not heard of is unresolved, as ever."""
    await world.fill()
    world.drop_bodies()
    await world.perform(intent("INC-7"))
    await world.perform(intent("INC-2", release_of="reservation-2"))
    assert (await _audit(world)).findings == ()
    await world.send(intent("INC-8"))
    world.begin(intent("INC-9"))
    report = await _audit(world)
    assert _found(report) == {(Rule.UNRESOLVED, intent("INC-8").key), (Rule.UNRESOLVED, intent("INC-9").key)}
    assert (report.receipts, report.expired) == (3, 10)


async def test_without_retention_nothing_is_expired(tmp_path: Path) -> None:
    """And nothing is looked up that the feed has shown."""
    with running_world(tmp_path / "world") as world:
        await world.fill()
        wire = _Wire()
        report = await _audit(world, wire)
        assert (report.findings, report.expired, wire.asked) == ((), 0, [])


async def test_keys_are_looked_up_in_batches(small_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key once, no more at a time than the contract allows."""
    await small_world.fill()
    small_world.drop_bodies()
    assert provider_half.KEYS_AT_ONCE == 500
    monkeypatch.setattr(provider_half, "KEYS_AT_ONCE", 3)
    wire = _Wire()
    report = await _audit(small_world, wire)
    assert (report.findings, report.expired) == ((), 10)
    assert sorted(wire.asked) == [1, 3, 3, 3]


def _other(member: str, value: Any, key: str = KEPT) -> Callable[[dict[str, Any]], None]:
    def change(found: dict[str, Any]) -> None:
        assert found[key]["type"] == "/problems/key-expired"
        found[key]["expired"][member] = value

    return change


def _gone(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda found: found.update({key: None})


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (_other("outcome", "rejected"), {Rule.LOST, Rule.MOVEMENT}),
        (_other("outcome", "voided"), {Rule.LOST, Rule.MOVEMENT}),
        (_other("receipt_id", "receipt-99"), {Rule.RECEIPT_DIFFERS, Rule.MOVEMENT}),
        (_other("sequence", 99), {Rule.RECEIPT_DIFFERS}),
        (_other("reservation_id", "reservation-99"), {Rule.RECEIPT_DIFFERS, Rule.MOVEMENT}),
        (_gone(KEPT), {Rule.LOST, Rule.MOVEMENT}),
        (_other("outcome", "committed", REJECTED), {Rule.LOST}),
        (_other("outcome", "voided", REJECTED), {Rule.STATES_DISAGREE}),
        (_other("outcome", "rejected", VOIDED), {Rule.STATES_DISAGREE}),
        (_other("receipt_id", "receipt-99", VOIDED), {Rule.RECEIPT_DIFFERS}),
        (_gone(REJECTED), {Rule.RECEIPT_MISSING}),
    ],
)
async def test_one_member_that_is_not_what_the_journal_observed_is_found(
    small_world: World, change: Callable[[dict[str, Any]], None], found: set[Rule]
) -> None:
    """Of what is left of a receipt, everything is compared; and a key that nobody knows is lost, as ever."""
    await small_world.fill()
    small_world.drop_bodies()
    report = await _audit(small_world, _Wire(change))
    assert {finding.rule for finding in report.findings} == found
    assert len({finding.key for finding in report.findings}) == 1


async def test_what_was_expired_before_it_was_heard_of_is_unresolved_and_shown(small_world: World) -> None:
    """Pending, then in doubt: the provider's half says what a person needs to decide."""
    wanted = intent("INC-7")
    small_world.caller.deliver(20)
    await small_world.send(wanted)
    small_world.drop_bodies()
    for state in ("pending", "in doubt"):
        (finding,) = (await _audit(small_world)).findings
        assert (finding.rule, finding.key) == (Rule.UNRESOLVED, wanted.key)
        assert finding.journal.startswith(f"{state} since ")
        assert finding.provider == "receipt-2 committed, reservation-1; retention has taken its body"
        await small_world.recover(wanted)


async def test_a_hold_whose_expiry_has_no_body_left_stands_no_more(small_world: World) -> None:
    """Held, confirmed, given back, expired and redone: the ledger names the expiry, and nothing is doubled."""
    assert small_world.caller.deliver(10).status_code == 201
    await small_world.perform(hold("INC-1"))
    for scope, verb in (("INC-2", "confirm"), ("INC-3", "release")):
        taken = reservation(await small_world.perform(hold(scope)))
        await small_world.perform(about(scope, verb, taken))
    await expired_and_redone(small_world)
    small_world.drop_bodies()
    report = await _audit(small_world)
    # Housekeeping has just ended the first hold: an expiry with its body, of a hold without one.
    assert (report.findings, report.receipts, report.expired) == ((), 1, 9)


async def test_what_another_program_took_stays_an_orphan(small_world: World) -> None:
    """Its movement is in the ledger for good; a delivery's belongs to no journal."""
    await small_world.fill()
    small_world.caller.reserve(1, key="another-programs-key")
    small_world.drop_bodies()
    report = await _audit(small_world)
    assert _found(report) == {(Rule.ORPHAN, "another-programs-key")}


async def test_a_journal_that_has_lost_an_effect_is_told_so_while_its_skus_are_known(
    small_world: World,
) -> None:
    """Whose it was is not said any more: an orphan. What it took and gave back later is ours by its reservation."""
    small_world.caller.deliver(20)
    kept = reservation(await small_world.perform(intent("INC-1")))
    await small_world.perform(intent("INC-2"))
    small_world.drop_bodies()
    await small_world.perform(intent("INC-1", release_of=kept))
    snapshot = small_world.journal.snapshot()
    lost = {intent("INC-2").key: Rule.ORPHAN, intent("INC-1", release_of=kept).key: Rule.LOST}
    left = Snapshot(
        effects=tuple(row for row in snapshot.effects if row["key"] not in lost),
        entries=tuple(entry for entry in snapshot.entries if entry.key not in lost),
    )
    half = await provider_half.read(
        small_world.service.url, TOKEN, journaled={row["key"]: row["receipt"] for row in left.effects}
    )
    report = check(left, half, origin=ORIGIN)
    assert {finding.key: finding.rule for finding in report.findings} == lost


async def test_a_movement_that_is_missing_is_a_loss_after_retention_too(small_world: World) -> None:
    """The journal still has what was granted."""
    await small_world.fill()
    small_world.drop_bodies()
    snapshot = small_world.journal.snapshot()
    journaled = {row["key"]: row["receipt"] for row in snapshot.effects}
    half = await provider_half.read(small_world.service.url, TOKEN, journaled=journaled)
    assert check(snapshot, half, origin=ORIGIN).clean
    kept = tuple(movement for movement in half.ledgers["FILTER-A"] if movement.key != KEPT)
    without = replace(half, ledgers={**half.ledgers, "FILTER-A": kept})
    assert (Rule.LOST, KEPT) in _found(check(snapshot, without, origin=ORIGIN))


async def test_a_key_that_no_provider_takes_is_not_asked_for(small_world: World) -> None:
    """One row whose key was changed would otherwise have all of its batch refused."""
    await small_world.fill()
    small_world.drop_bodies()
    half = await provider_half.read(small_world.service.url, TOKEN, journaled={"short": None, KEPT: None})
    assert half.dropped.keys() == {KEPT}


def test_what_is_left_of_a_receipt_is_compared_with_the_one_that_settled() -> None:
    """One effect alone: what is left of its own receipt agrees, and nothing else does."""
    wanted = make_intent()
    receipt = make_receipt(wanted, sequence=4)
    settled = make_row(wanted, state=EffectState.COMMITTED, settled_at=NOW, receipt=receipt)
    left = Remains.of(receipt)
    assert (left.receipt_id, left.sequence, left.outcome, left.reservation_id) == (
        "receipt-committed", 4, EffectState.COMMITTED, "reservation-1",
    )  # fmt: skip
    assert compare(settled, left) == []
    for changes in ({"receipt_id": "x"}, {"sequence": 5}, {"reservation_id": None}):
        (finding,) = compare(settled, replace(left, **changes))
        assert finding.rule is Rule.RECEIPT_DIFFERS
        assert finding.provider.endswith("retention has taken its body")
    assert [finding.rule for finding in compare(make_row(wanted), left)] == [Rule.UNRESOLVED]
    tampered = replace(settled, request='{"lines":[]}')
    assert [finding.rule for finding in compare(tampered, left)] == [Rule.PAYLOAD]


def _dropped(books: Books, **changes: dict[str, Any]) -> ProviderHalf:
    """The books without a receipt's body left, and what is left of some changed."""
    left = {receipt.key: Remains.of(receipt) for receipt in books.receipts}
    left |= {key: replace(left[key], **change) for key, change in changes.items()}
    return replace(books.half, receipts=(), dropped=left)


@pytest.mark.parametrize("books", [Books().hold().expire(), Books().hold().confirm()])
@pytest.mark.parametrize(
    "change", [{"outcome": EffectState.REJECTED}, {"receipt_id": "receipt-99"}, {"reservation_id": "reservation-99"}]
)
def test_a_movement_belongs_to_what_is_left_of_its_receipt(books: Books, change: dict[str, Any]) -> None:
    """Also where no journal knows the key: another receipt, another reservation, or one that committed nothing."""
    assert list(check_ledger(_dropped(books))) == []
    for receipt in books.receipts:
        (finding,) = check_ledger(_dropped(books, **{receipt.key: change}))
        assert (finding.rule, finding.key) == (Rule.MOVEMENT, receipt.key)


def test_what_the_journal_saw_of_a_receipt_is_held_against_its_movements() -> None:
    """Its body is with the journal: a movement that is missing is a loss, and one of other units is wrong."""
    books = Books().hold()
    saw = {receipt.key: receipt for receipt in books.receipts if receipt.key == HOLD.key}
    half = _dropped(books)
    assert list(check_ledger(half, saw)) == []
    ledger = half.ledgers["FILTER-A"]
    without = replace(half, ledgers={"FILTER-A": ledger[:1]})
    assert (Rule.LOST, HOLD.key) in {(finding.rule, finding.key) for finding in check_ledger(without, saw)}
    three = replace(half, ledgers={"FILTER-A": (ledger[0], replace(ledger[1], available=-3, held=3))})
    assert (Rule.MOVEMENT, HOLD.key) in {(finding.rule, finding.key) for finding in check_ledger(three, saw)}


def test_an_expiry_without_its_body_belongs_to_its_hold() -> None:
    """The hold has no row here, and that is said once, of the hold; a delivery belongs to no journal."""
    nothing = Snapshot(effects=(), entries=())
    for books, lost in ((Books().hold().expire(), {HOLD.key}), (Books().hold().confirm(), {HOLD.key, CONFIRM.key})):
        report = check(nothing, _dropped(books))
        assert _found(report) == {(Rule.ORPHAN, key) for key in lost}
        assert report.expired == len(books.receipts)
    stranger = Books().expire("nobodys-hold-of-16@expiry")
    assert (Rule.ORPHAN, "nobodys-hold-of-16@expiry") in _found(check(nothing, _dropped(stranger)))
    living = Books().hold().expire()
    half = replace(
        living.half,
        receipts=tuple(receipt for receipt in living.receipts if receipt.key in {DELIVERY, EXPIRED}),
        dropped={HOLD.key: Remains.of(living.receipts[1])},
    )
    assert _found(check(nothing, half)) == {(Rule.ORPHAN, HOLD.key)}
