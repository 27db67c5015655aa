"""The checker against a correct history with one thing changed: each change is found, and named for what it is."""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from services.effects.records import Receipt
from services.effects.states import EffectState
from services.journal.fold import Snapshot, WrittenEntry
from services.journal.rows import entry_digest, text, timestamp
from services.journal.tables import EFFECTS, ENTRIES
from services.reconciliation import provider_half
from services.reconciliation.checker import check, compare
from services.reconciliation.findings import WHAT_TO_DO, Report, Rule
from services.reconciliation.provider_half import Movement, ProviderHalf
from tests.services.effects.halves import make_intent, make_receipt, make_row
from tests.services.inventory.conftest import NOW
from tests.services.reconciliation.world import ORIGIN, TOKEN, intent, running_world

TAKEN = intent("INC-1").key
KEPT = intent("INC-2").key
REJECTED = intent("INC-3").key
VOIDED = intent("INC-4").key
REFUSED_BEFORE = intent("INC-5").key
REDONE = intent("INC-5", generation=2).key
RECOVERED = intent("INC-6").key
RELEASED = intent("INC-1", release_of="reservation-1").key


@dataclass(frozen=True)
class History:
    """Both halves."""

    journal: Snapshot
    provider: ProviderHalf

    def check(self) -> Report:
        """The checker's report on them."""
        return check(self.journal, self.provider, origin=ORIGIN)

    def found(self) -> set[tuple[Rule, str]]:
        """Rule and key of each finding."""
        return {(finding.rule, finding.key) for finding in self.check().findings}

    def entries_of(self, key: str) -> list[WrittenEntry]:
        """A key's entries."""
        return [entry for entry in self.journal.entries if entry.key == key]

    def with_rows(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> "History":
        """Each row changed, or left out where the change gives None."""
        rows = tuple(row for row in map(change, map(dict, self.journal.effects)) if row is not None)
        return replace(self, journal=replace(self.journal, effects=rows))

    def with_row(self, key: str, **values: Any) -> "History":
        """One row changed."""
        return self.with_rows(lambda row: row | values if row["key"] == key else row)

    def with_entries(self, entries: list[WrittenEntry]) -> "History":
        """Other entries, in order of their ids."""
        ordered = tuple(sorted(entries, key=lambda entry: entry.id))
        return replace(self, journal=replace(self.journal, entries=ordered))

    def forgetting(self, key: str) -> "History":
        """The journal without anything of a key."""
        kept = [entry for entry in self.journal.entries if entry.key != key]
        return self.with_entries(kept).with_rows(lambda row: None if row["key"] == key else row)

    def appending(self, key: str, kind: str, body: dict[str, Any]) -> "History":
        """One more entry, as the store writes them."""
        return self.with_entries([*self.journal.entries, _entry(self.journal.entries[-1], key, kind, body)])

    def with_receipts(self, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> "History":
        """Each receipt changed, or left out where the change gives None."""
        bodies = [change(dict(receipt.body)) for receipt in self.provider.receipts]
        receipts = tuple(Receipt(body) for body in bodies if body is not None)
        return replace(self, provider=replace(self.provider, receipts=receipts))

    def with_receipt(self, key: str, **members: Any) -> "History":
        """One receipt changed."""
        return self.with_receipts(lambda body: body | members if body["key"] == key else body)

    def without_receipt(self, key: str) -> "History":
        """One receipt gone."""
        return self.with_receipts(lambda body: None if body["key"] == key else body)

    def with_more_receipts(self, *bodies: dict[str, Any]) -> "History":
        """Further receipts."""
        receipts = (*self.provider.receipts, *map(Receipt, bodies))
        return replace(self, provider=replace(self.provider, receipts=receipts))

    def with_ledger(self, change: Callable[[list[Movement]], list[Movement]], sku: str = "FILTER-A") -> "History":
        """One SKU's ledger changed."""
        ledgers = {**self.provider.ledgers, sku: tuple(change(list(self.provider.ledgers[sku])))}
        return replace(self, provider=replace(self.provider, ledgers=ledgers))

    def with_movement(self, key: str, **values: Any) -> "History":
        """A key's movement of FILTER-A changed."""
        return self.with_ledger(lambda ledger: [replace(m, **values) if m.key == key else m for m in ledger])

    def with_another_movement(self, **values: Any) -> "History":
        """One more movement of FILTER-A, a reserve of 2."""
        return self.with_ledger(
            lambda ledger: [
                *ledger,
                replace(next(m for m in ledger if m.key == KEPT), version=len(ledger) + 1, **values),
            ]
        )

    def with_stock(self, **changes: int) -> "History":
        """FILTER-A's stock with so much added to each."""
        stock = self.provider.stock["FILTER-A"]
        other = replace(stock, **{name: getattr(stock, name) + change for name, change in changes.items()})
        return replace(self, provider=replace(self.provider, stock={**self.provider.stock, "FILTER-A": other}))

    def body_of(self, key: str) -> dict[str, Any]:
        """A receipt's members."""
        return next(dict(receipt.body) for receipt in self.provider.receipts if receipt.key == key)


def _entry(like: WrittenEntry, key: str, kind: str, body: dict[str, Any]) -> WrittenEntry:
    return _sealed(replace(like, id=like.id + 1, key=key, kind=kind, body=text(body)))


def _sealed(entry: WrittenEntry) -> WrittenEntry:
    digest = entry_digest(entry.key, entry.kind, entry.body, entry.recorded_at, entry.recorded_by)
    return replace(entry, digest=digest)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """A correct history, made by real sends and read over HTTP."""
    with running_world(tmp_path_factory.mktemp("history")) as world:
        asyncio.run(world.fill())
        yield History(world.journal.snapshot(), asyncio.run(provider_half.read(world.service.url, TOKEN)))


def test_a_correct_history_has_no_findings(history: History) -> None:
    """It has every kind of end: what follows changes one thing in it at a time."""
    assert history.check().findings == ()
    states = {row["state"] for row in history.journal.effects}
    assert states == {"committed", "rejected", "voided"}
    kinds = {entry.kind for entry in history.journal.entries}
    assert kinds == {"decision", "intent", "attempt", "observation", "given_up"}


def test_every_rule_says_what_to_do() -> None:
    """A finding without a next step helps nobody."""
    assert set(WHAT_TO_DO) == set(Rule)


Change = Callable[[History], History]

_HALVES: dict[str, tuple[Change, Rule, str]] = {
    "the journal forgot a committed effect": (lambda h: h.forgetting(KEPT), Rule.LOST, KEPT),
    "the journal forgot a release": (lambda h: h.forgetting(RELEASED), Rule.LOST, RELEASED),
    "the journal forgot a redo": (lambda h: h.forgetting(REDONE), Rule.LOST, REDONE),
    "the journal forgot a rejection": (lambda h: h.forgetting(REJECTED), Rule.ORPHAN, REJECTED),
    "the journal forgot a tombstone": (lambda h: h.forgetting(VOIDED), Rule.ORPHAN, VOIDED),
    "the provider forgot a commit": (lambda h: h.without_receipt(KEPT), Rule.LOST, KEPT),
    "the provider forgot a release": (lambda h: h.without_receipt(RELEASED), Rule.LOST, RELEASED),
    "the provider forgot a rejection": (lambda h: h.without_receipt(REJECTED), Rule.RECEIPT_MISSING, REJECTED),
    "the provider forgot a tombstone": (lambda h: h.without_receipt(VOIDED), Rule.RECEIPT_MISSING, VOIDED),
    "committed here and rejected there": (lambda h: h.with_receipt(KEPT, outcome="rejected"), Rule.LOST, KEPT),
    "committed here and voided there": (lambda h: h.with_receipt(KEPT, outcome="voided"), Rule.LOST, KEPT),
    "rejected here and committed there": (lambda h: h.with_receipt(REJECTED, outcome="committed"), Rule.LOST, REJECTED),
    "voided here and committed there": (
        lambda h: h.with_receipt(VOIDED, outcome="committed", fingerprint="f" * 64),
        Rule.LOST,
        VOIDED,
    ),
    "rejected here and voided there": (
        lambda h: h.with_receipt(REJECTED, outcome="voided"),
        Rule.STATES_DISAGREE,
        REJECTED,
    ),
    "voided here and rejected there": (
        lambda h: h.with_receipt(VOIDED, outcome="rejected", fingerprint="f" * 64),
        Rule.STATES_DISAGREE,
        VOIDED,
    ),
    "another receipt than the one that settled": (
        lambda h: h.with_receipt(KEPT, reservation_id="reservation-99"),
        Rule.RECEIPT_DIFFERS,
        KEPT,
    ),
    "another fingerprint there": (lambda h: h.with_receipt(KEPT, fingerprint="f" * 64), Rule.PAYLOAD, KEPT),
    "another fingerprint here": (lambda h: h.with_row(KEPT, fingerprint="f" * 64), Rule.PAYLOAD, KEPT),
    "another request here": (lambda h: h.with_row(KEPT, request='{"lines":[]}'), Rule.PAYLOAD, KEPT),
    "more granted than was asked for": (
        lambda h: h.with_receipt(KEPT, lines=[{"sku": "FILTER-A", "requested": 2, "granted": 3}]),
        Rule.PAYLOAD,
        KEPT,
    ),
    "a key of another scope": (lambda h: h.with_row(KEPT, scope="INC-99"), Rule.KEY, KEPT),
    "a receipt of another program": (
        lambda h: h.with_more_receipts(h.body_of(REJECTED) | {"key": "another-programs-key", "request": {}}),
        Rule.ORPHAN,
        "another-programs-key",
    ),
    "a committed receipt whose reference is not its key's": (
        lambda h: h.with_more_receipts(h.body_of(KEPT) | {"key": "another-programs-key"}),
        Rule.ORPHAN,
        "another-programs-key",
    ),
    "two generations stand": (
        lambda h: h.with_row(REFUSED_BEFORE, state="committed"),
        Rule.DOUBLED,
        REDONE,
    ),
    "a late observation": (lambda h: h.with_row(KEPT, alarmed=True), Rule.LATE, KEPT),
    "in doubt": (
        lambda h: h.with_row(KEPT, state="in_doubt", settled_at=None, receipt=None),
        Rule.UNRESOLVED,
        KEPT,
    ),
}

_LEDGER: dict[str, tuple[Change, Rule, str]] = {
    "two receipts under one key": (lambda h: h.with_more_receipts(h.body_of(KEPT)), Rule.DOUBLED, KEPT),
    "a key moved twice": (lambda h: h.with_another_movement(), Rule.DOUBLED, KEPT),
    "given back twice": (
        lambda h: h.with_another_movement(
            key="another-release-key",
            available=2,
            consumed=-2,
            reservation_id=h.body_of(TAKEN)["reservation_id"],
        ),
        Rule.DOUBLED,
        "another-release-key",
    ),
    "a commit without its movement": (
        lambda h: h.with_ledger(lambda ledger: [m for m in ledger if m.key != KEPT]),
        Rule.LOST,
        KEPT,
    ),
    "a commit without one of its two movements": (
        lambda h: h.with_ledger(lambda ledger: [m for m in ledger if m.key != TAKEN], "FAN:B"),
        Rule.LOST,
        TAKEN,
    ),
    "a rejection that moved": (lambda h: h.with_another_movement(key=REJECTED), Rule.MOVEMENT, REJECTED),
    "a tombstone that moved": (lambda h: h.with_another_movement(key=VOIDED), Rule.MOVEMENT, VOIDED),
    "a movement of a key that nobody knows": (
        lambda h: h.with_another_movement(key="another-programs-key"),
        Rule.MOVEMENT,
        "another-programs-key",
    ),
    "a movement for another receipt": (lambda h: h.with_movement(KEPT, receipt_id="receipt-99"), Rule.MOVEMENT, KEPT),
    "too much moved": (lambda h: h.with_movement(KEPT, available=-3, consumed=3), Rule.MOVEMENT, KEPT),
    "moved the wrong way": (lambda h: h.with_movement(KEPT, available=2, consumed=-2), Rule.MOVEMENT, KEPT),
    "a reserve that received": (lambda h: h.with_movement(KEPT, received=2, available=2), Rule.MOVEMENT, KEPT),
    "units that vanish": (lambda h: h.with_movement(KEPT, consumed=0), Rule.STOCK, "FILTER-A"),
    "units that appear": (lambda h: h.with_movement(KEPT, held=1), Rule.STOCK, "FILTER-A"),
    "below zero on the way": (
        lambda h: h.with_ledger(lambda ledger: [replace(m, version=n) for n, m in enumerate(reversed(ledger), 1)]),
        Rule.STOCK,
        "FILTER-A",
    ),
    "a version is missing": (
        lambda h: h.with_ledger(lambda ledger: [m for m in ledger if m.version != 2]),
        Rule.STOCK,
        "FILTER-A",
    ),
    "the newest version is missing": (lambda h: h.with_ledger(lambda ledger: ledger[:-1]), Rule.STOCK, "FILTER-A"),
    "stock with a unit more": (lambda h: h.with_stock(available=1), Rule.STOCK, "FILTER-A"),
    "stock with a unit moved over": (lambda h: h.with_stock(available=-1, held=1), Rule.STOCK, "FILTER-A"),
    "stock that received more": (lambda h: h.with_stock(received=1, consumed=1), Rule.STOCK, "FILTER-A"),
    "stock of an older version": (lambda h: h.with_stock(version=-1), Rule.STOCK, "FILTER-A"),
}


@pytest.mark.parametrize("name", [*_HALVES, *_LEDGER])
def test_one_change_of_either_half_is_found_and_named(history: History, name: str) -> None:
    """By its rule and its key, in words of both halves."""
    change, rule, key = (_HALVES | _LEDGER)[name]
    report = change(history).check()
    found = [finding for finding in report.findings if (finding.rule, finding.key) == (rule, key)]
    assert len(found) == 1, report.findings
    assert found[0].journal
    assert found[0].provider
    assert report.stock_conserved is not any(finding.rule is Rule.STOCK for finding in report.findings)


@pytest.mark.parametrize("column", [column.name for column in EFFECTS.columns if column.name != "key"])
@pytest.mark.parametrize("key", [KEPT, VOIDED])
def test_a_row_that_is_not_the_fold_of_its_entries_is_found(history: History, key: str, column: str) -> None:
    """Whichever column was changed."""
    changed = history.with_rows(lambda row: row | {column: _other(row[column], column)} if row["key"] == key else row)
    assert (Rule.FOLD, key) in changed.found()


def _other(value: Any, column: str) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if hasattr(value, "tzinfo"):
        return value + timedelta(microseconds=1)
    if column == "state":
        return "in_doubt"
    if column == "receipt":
        return text(json.loads(value) | {"reservation_id": "reservation-99"})
    if value is None:
        return NOW
    return {"path": '{"id":"x"}', "supersedes": '["x"]'}.get(column, f"{value}x")


@pytest.mark.parametrize("column", [column.name for column in ENTRIES.columns if column.name != "id"])
def test_an_entry_that_is_not_what_was_written_is_found(history: History, column: str) -> None:
    """Whichever of its members was changed, in each entry."""
    for entry in history.journal.entries:
        value = getattr(entry, column)
        values: dict[str, Any] = {column: value + timedelta(microseconds=1) if column == "recorded_at" else f"{value} "}
        changed = history.with_entries(
            [replace(each, **values) if each.id == entry.id else each for each in history.journal.entries]
        )
        assert (Rule.ENTRY_DIGEST, f"entry {entry.id}") in changed.found()


def test_an_entry_that_is_missing_is_found(history: History) -> None:
    """Each one that moved its row: what is left does not come to the row, or stands out of order."""
    for entry in history.journal.entries:
        if (entry.kind, json.loads(entry.body).get("state")) == ("observation", "pending"):
            continue  # it moved nothing, and ids may have gaps
        left = history.with_entries([each for each in history.journal.entries if each.id != entry.id])
        assert left.found() & {(Rule.FOLD, entry.key), (Rule.ENTRY_ORDER, entry.key)}, entry


def test_two_entries_of_a_key_that_changed_places_are_found(history: History) -> None:
    """Decision before intent, intent before attempt, attempt before its observation, giving up before the void."""
    for key in {entry.key for entry in history.journal.entries}:
        of_key = history.entries_of(key)
        for one, next_one in itertools.pairwise(of_key):
            if "attempt" not in {one.kind, next_one.kind} and one.kind != "decision":
                continue
            swapped = [replace(one, id=next_one.id), replace(next_one, id=one.id)]
            rest = [entry for entry in history.journal.entries if entry.id not in {one.id, next_one.id}]
            assert (Rule.ENTRY_ORDER, key) in history.with_entries([*rest, *swapped]).found(), (one.kind, next_one.kind)


@pytest.mark.parametrize("key", [KEPT, REJECTED, VOIDED])
def test_an_attempt_after_the_end_is_found(history: History, key: str) -> None:
    """Its digest is right; it may not stand there."""
    body = json.loads(next(entry for entry in history.entries_of(KEPT) if entry.kind == "attempt").body)
    assert (Rule.ENTRY_ORDER, key) in history.appending(key, "attempt", body | {"number": 2}).found()


def test_a_move_out_of_an_end_is_found(history: History) -> None:
    """What was committed stays committed."""
    body = {"source": "look_up", "seen": "receipt", "reason": "", "state": "voided", "receipt": {}}
    assert (Rule.ENTRY_ORDER, KEPT) in history.appending(KEPT, "observation", body).found()


def test_an_attempt_of_an_effect_that_nobody_wanted_is_found(history: History) -> None:
    """No attempt without an intent."""
    body = json.loads(next(entry for entry in history.entries_of(KEPT) if entry.kind == "attempt").body)
    assert (Rule.ENTRY_ORDER, "another-programs-key") in history.appending(
        "another-programs-key", "attempt", body
    ).found()


def test_a_decision_alone_is_no_finding(history: History) -> None:
    """A person may decide that nothing is done."""
    body = {"scope": "INC-9", "name": "approval", "generation": 1, "decided_at": timestamp(_now(history)), "why": {}}
    assert history.appending(intent("INC-9").key, "decision", body).found() == set()


def _now(history: History) -> Any:
    return history.journal.entries[-1].recorded_at


def test_a_changed_request_is_found_even_under_a_new_digest(history: History) -> None:
    """Whoever can write digests still has not changed the provider's half."""
    asked = '{"lines":[{"quantity":1,"sku":"FILTER-A"}]}'
    entries = [
        _sealed(replace(entry, body=text(json.loads(entry.body) | {"request": asked})))
        if (entry.key, entry.kind) == (KEPT, "intent")
        else entry
        for entry in history.journal.entries
    ]
    found = history.with_entries(entries).with_row(KEPT, request=asked).found()
    assert found == {(Rule.PAYLOAD, KEPT)}


def test_an_entry_that_cannot_be_read_is_a_finding_and_no_crash(history: History) -> None:
    """The rest is checked all the same."""
    entries = [
        replace(entry, body="{") if (entry.key, entry.kind) == (RECOVERED, "intent") else entry
        for entry in history.journal.entries
    ]
    assert (Rule.FOLD, RECOVERED) in history.with_entries(entries).found()


def test_a_row_that_cannot_be_read_is_a_finding_and_no_crash(history: History) -> None:
    """The rest is checked all the same."""
    assert (Rule.FOLD, KEPT) in history.with_row(KEPT, receipt="{}").found()


def test_pending_agrees_with_no_entry_after_its_mark(history: History) -> None:
    """A copy of the journal that ends at the mark: unresolved, and the receipt is shown."""
    last = next(entry.id for entry in history.entries_of(RECOVERED) if entry.kind == "observation")
    cut = history.with_entries([entry for entry in history.journal.entries if entry.id < last])
    cut = cut.with_row(RECOVERED, state="pending", settled_at=None, receipt=None, version=2)
    assert cut.found() == {(Rule.UNRESOLVED, RECOVERED)}


def test_what_moved_after_the_stock_was_read_is_no_finding(history: History) -> None:
    """The ledger reaches further than the stock, and the rest of the feed further than the ledger."""
    without = history.with_ledger(lambda ledger: ledger[:-1]).with_stock(version=-1, available=2, consumed=-2)
    newest = history.body_of(RECOVERED)["sequence"]
    early = replace(without, provider=replace(without.provider, covered=newest - 1))
    assert early.found() == set()
    assert (Rule.LOST, RECOVERED) in without.found()
    ahead = history.with_stock(version=-1, available=2, consumed=-2)
    assert ahead.found() == set()


def test_a_tombstone_that_a_redo_made_is_no_orphan(history: History) -> None:
    """The redo names it."""
    forgotten = history.forgetting(REFUSED_BEFORE).with_receipt(
        REFUSED_BEFORE, outcome="voided", kind="void", fingerprint=None, request=None, lines=[]
    )
    assert forgotten.found() == set()


def test_what_was_released_does_not_stand_beside_a_redo(history: History) -> None:
    """A generation that was given back may be followed by another; one that was not may not."""
    committed = next(dict(row) for row in history.journal.effects if row["key"] == TAKEN)
    again = intent("INC-1", {"FILTER-A": 2, "FAN:B": 1}, generation=2)
    redone = committed | {"key": again.key, "generation": 2}
    rows = replace(history.journal, effects=(*history.journal.effects, redone))
    with_redo = replace(history, journal=rows)
    assert (Rule.DOUBLED, again.key) not in with_redo.found()
    assert (Rule.DOUBLED, again.key) in with_redo.with_row(RELEASED, state="rejected").found()


def test_one_effect_is_compared_alone() -> None:
    """As the operator sees it: unsettled, agreeing, contradicted."""
    wanted = make_intent()
    receipt = make_receipt(wanted)
    settled = make_row(wanted, state=EffectState.COMMITTED, settled_at=NOW, receipt=receipt)
    assert [finding.rule for finding in compare(make_row(wanted), None)] == [Rule.UNRESOLVED]
    assert [finding.rule for finding in compare(make_row(wanted), receipt)] == [Rule.UNRESOLVED]
    assert compare(settled, receipt) == []
    assert [finding.rule for finding in compare(settled, None)] == [Rule.LOST]
    rejected = make_receipt(wanted, EffectState.REJECTED)
    assert [finding.rule for finding in compare(settled, rejected)] == [Rule.LOST]
