"""The two-way comparison of both halves: pure, in linear time; its rules are in `services.reconciliation.findings`.

check(snapshot, provider, origin=...) -> Report      everything
compare(row, receipt) -> findings                    one effect whose halves are both at hand
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from services.effects import keys
from services.effects.commands import LATE_RULINGS, RulingKind
from services.effects.errors import InvalidEffect
from services.effects.records import EffectRow, Receipt
from services.effects.settle import mismatch
from services.effects.states import EffectState, agree
from services.journal import rows
from services.journal.fold import OutOfOrder, Snapshot, Unfoldable, WrittenEntry, decided, differences, fold
from services.reconciliation.findings import Finding, Report, Rule
from services.reconciliation.ledger import JOURNAL_HAS_NO_PART, check_ledger
from services.reconciliation.provider_half import ProviderHalf, Remains

NO_RECEIPT = "no receipt"
NO_ROW = "no such effect"
_DELIVERY = "inventory.deliver"
RULINGS = LATE_RULINGS | {RulingKind.ASSERTED}
# Disagreements between the halves: a person may have said which one is right, or that nothing will come back.
UP_TO_A_PERSON = frozenset(
    {
        Rule.LOST,
        Rule.ORPHAN,
        Rule.RECEIPT_MISSING,
        Rule.STATES_DISAGREE,
        Rule.RECEIPT_DIFFERS,
        Rule.PAYLOAD,
    }
)


def check(snapshot: Snapshot, provider: ProviderHalf, *, origin: str | None = None) -> Report:
    """Compare both halves completely, both ways.

    Args:
        snapshot: the journal at one moment.
        provider: the provider's half, read after it.
        origin: this deployment; it tells its own receipts where the journal has none of them any more.
    """
    journal, findings = _read(snapshot)
    findings += _journal(snapshot)
    receipts = {receipt.key: receipt for receipt in provider.receipts}
    for row in journal.values():
        findings += compare(row, receipts.get(row.key) or provider.dropped.get(row.key))
    findings += _standing_twice(journal.values(), _expired(provider))
    origins = {row.origin for row in journal.values()}
    if origin is not None:
        origins.add(origin)
    seen = _seen_before(provider, journal)
    findings += _without_row(provider, seen, journal, origins)
    findings += check_ledger(provider, seen)
    ruled = _dealt_with(snapshot, journal, {**provider.dropped, **receipts})
    first: dict[tuple[Rule, str], Finding] = {}
    resolved: set[str] = set()
    for finding in findings:
        if finding.key in ruled and finding.rule in UP_TO_A_PERSON:
            resolved.add(finding.key)
        else:
            first.setdefault((finding.rule, finding.key), _with_words(finding, journal.get(finding.key)))
    return Report(
        effects=len(snapshot.effects),
        receipts=len(provider.receipts),
        expired=len(provider.dropped),
        resolved=len(resolved),
        findings=tuple(first.values()),
    )


def compare(row: EffectRow, receipt: Receipt | Remains | None) -> list[Finding]:
    """What is wrong between the two halves of one effect.

    Args:
        row: the journal's half.
        receipt: the provider's, or what retention has left of it, or None when it has none.
    """
    findings: list[Finding] = []

    def found(rule: Rule, provider: str, journal: str = "") -> None:
        findings.append(Finding(rule=rule, key=row.key, journal=journal or stands(row), provider=provider))

    theirs = NO_RECEIPT if receipt is None else says(receipt)
    if row.alarmed:
        found(Rule.LATE, theirs, f"{stands(row)}, and a late observation contradicts it")
    if not row.state.terminal:
        found(Rule.UNRESOLVED, theirs)
    elif receipt is None:
        found(Rule.LOST if row.state is EffectState.COMMITTED else Rule.RECEIPT_MISSING, theirs)
    elif EffectState.COMMITTED in {row.state, receipt.outcome} and row.state is not receipt.outcome:
        found(Rule.LOST, theirs)
    elif row.state is not receipt.outcome:
        found(Rule.STATES_DISAGREE, theirs)
    elif row.receipt is not None and not _same(row.receipt, receipt):
        found(Rule.RECEIPT_DIFFERS, theirs, f"{stands(row)} by {says(row.receipt)}")
    why = _payload(row, receipt)
    if why:
        found(Rule.PAYLOAD, why, f"{row.kind} {row.request}")
    return findings


def stands(row: EffectRow) -> str:
    """What the journal says of an effect, in a few words."""
    since = row.settled_at or row.created_at
    attempts = "" if row.state.terminal else f", {row.attempts} attempt{'' if row.attempts == 1 else 's'}"
    word = " by a person's word" if row.asserted else ""
    return f"{row.state.replace('_', ' ')}{word} since {since:%Y-%m-%d %H:%M:%S}{attempts}"


def says(receipt: Receipt | Remains) -> str:
    """What a receipt says, in a few words."""
    reservation = f", {receipt.reservation_id}" if receipt.reservation_id else ""
    if isinstance(receipt, Remains):
        return f"{receipt.receipt_id} {receipt.outcome}{reservation}; retention has taken its body"
    reason = f" ({receipt.reason})" if receipt.reason and receipt.outcome is not EffectState.VOIDED else ""
    return f"{receipt.receipt_id} {receipt.outcome}{reason}{reservation}"


def _same(ours: Receipt, theirs: Receipt | Remains) -> bool:
    if isinstance(theirs, Remains):
        return Remains.of(ours) == theirs
    return keys.canonical(ours.body) == keys.canonical(theirs.body)


def _payload(row: EffectRow, receipt: Receipt | Remains | None) -> str | None:
    try:
        own = keys.fingerprint(row.kind, row.path, json.loads(row.request))
    except (InvalidEffect, ValueError, AttributeError):
        own = ""
    if row.fingerprint_version == keys.FINGERPRINT_VERSION and own != row.fingerprint:
        return "the journal's request is not the one that was fingerprinted"
    return mismatch(row, receipt) if isinstance(receipt, Receipt) else None


def _read(snapshot: Snapshot) -> tuple[dict[str, EffectRow], list[Finding]]:
    """The rows by key; what cannot be read is a finding."""
    journal: dict[str, EffectRow] = {}
    findings = []
    for values in snapshot.effects:
        key = str(values["key"])
        try:
            # Before the first mark a row has no deadline of its own, and none is needed here.
            row = rows.effect_row(values, timedelta(0))
            identity = keys.derive_key(row.origin, row.scope, row.name, row.generation)
        except (ValueError, KeyError, TypeError) as error:
            findings.append(_of_journal(Rule.FOLD, key, f"the row cannot be read: {error}"))
            continue
        journal[key] = row
        if identity != key:
            findings.append(_of_journal(Rule.KEY, key, f"{row.scope}/{row.name} g{row.generation} has key {identity}"))
    return journal, findings


def _of_journal(rule: Rule, key: str, journal: str) -> Finding:
    return Finding(rule=rule, key=key, journal=journal, provider="the provider has no part in this")


def _journal(snapshot: Snapshot) -> Iterator[Finding]:
    """The journal against itself: digests, order, and the fold."""
    entries: defaultdict[str, list[WrittenEntry]] = defaultdict(list)
    for entry in snapshot.entries:
        entries[entry.key].append(entry)
        if not entry.intact:
            yield _of_journal(Rule.ENTRY_DIGEST, f"entry {entry.id}", f"{entry.kind} of {entry.key} has another digest")
    by_key = {str(values["key"]): values for values in snapshot.effects}
    for key in sorted(entries.keys() | by_key.keys()):
        try:
            folded = fold(entries[key])
        except OutOfOrder as error:
            yield _of_journal(Rule.ENTRY_ORDER, key, str(error))
            continue
        except Unfoldable as error:
            yield _of_journal(Rule.FOLD, key, str(error))
            continue
        row = by_key.get(key)
        if row is None and folded is None:
            yield from _never_begun(key, entries[key])
        elif row is None and folded is not None:
            yield _of_journal(Rule.FOLD, key, "there are entries of an intent, and no row")
        elif row is not None and folded is None:
            yield _of_journal(Rule.ENTRY_ORDER, key, "there is a row, and no entry of an intent")
        elif row is not None and folded is not None:
            other = differences(row, folded)
            if other:
                yield _of_journal(Rule.FOLD, key, other)


def _never_begun(key: str, entries: list[WrittenEntry]) -> Iterator[Finding]:
    """A redo that was decided and that no workflow has begun: nothing in the journal but this says that it is due."""
    with suppress(Unfoldable):  # the verification says so
        decision = decided(entries)
        if decision is not None and decision["generation"] > 1:
            why = json.loads(decision["body"])
            said = f"decided at {decision['recorded_at']:%Y-%m-%d %H:%M:%S} by {why.get('by', 'its workflow')}"
            what = f"{decision['scope']}/{decision['name']} (generation {decision['generation']})"
            journal = f"{said} and never begun: the same redo again sends it"
            yield Finding(rule=Rule.UNRESOLVED, key=key, journal=journal, provider=NO_RECEIPT, what=what)


def _dealt_with(
    snapshot: Snapshot, journal: Mapping[str, EffectRow], theirs: Mapping[str, Receipt | Remains]
) -> set[str]:
    """The keys of which a person has said what holds of what the provider shows now: of nothing that came since."""
    ruled: set[str] = set()
    late: defaultdict[str, set[str]] = defaultdict(set)
    for entry in snapshot.entries:
        if entry.kind not in {"resolution", "late_observation"}:
            continue
        try:
            body = json.loads(entry.body)
            if entry.kind == "late_observation":
                late[entry.key].add(body["receipt"]["receipt_id"])
            elif body.get("ruling") in RULINGS:
                ruled.add(entry.key)
        except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
            continue  # the fold says so
    return {key for key in ruled if key not in journal or _said_of(journal[key], theirs.get(key), late[key])}


def _said_of(row: EffectRow, shown: Receipt | Remains | None, late: set[str]) -> bool:
    """Whether a person's word on an effect is about what the provider shows of it now."""
    if row.alarmed:
        return False
    if shown is not None and shown.receipt_id in late:
        return True
    # An assertion stands where the provider cannot say: this effect's own receipt says it.
    if isinstance(shown, Receipt) and mismatch(row, shown) is None and not agree(row.state, shown.outcome):
        return False
    return row.asserted


def _expired(provider: ProviderHalf) -> set[str]:
    """The keys of the holds that ran out: committed, and standing no more."""
    expiries = {receipt.key for receipt in provider.receipts if receipt.body.get("kind") == keys.EXPIRY}
    expiries |= {key for key, left in provider.dropped.items() if left.outcome is EffectState.COMMITTED}
    return {parent for key in expiries if (parent := keys.expired_key(key)) is not None}


def _seen_before(provider: ProviderHalf, journal: Mapping[str, EffectRow]) -> dict[str, Receipt]:
    """The receipts that retention has taken and the journal still has, where what is left of them agrees."""
    pairs = ((key, journal[key].receipt, left) for key, left in provider.dropped.items() if key in journal)
    return {key: ours for key, ours, left in pairs if ours is not None and _same(ours, left)}


def _standing_twice(journal: Iterable[EffectRow], expired: set[str]) -> Iterator[Finding]:
    """Effects of which more than one generation is committed, and neither given back nor expired."""
    committed = [row for row in journal if row.state is EffectState.COMMITTED and row.key not in expired]
    names = {(row.origin, row.scope, row.name) for row in committed}
    standing: defaultdict[tuple[str, str, str], list[EffectRow]] = defaultdict(list)
    for row in committed:
        if len(row.name) > keys.NAME_LIMIT or keys.released_name(row.name) is not None:
            continue
        if (row.origin, row.scope, keys.release_name(row.name, row.generation)) not in names:
            standing[row.origin, row.scope, row.name].append(row)
    for generations in standing.values():
        if len(generations) > 1:
            newest = max(generations, key=lambda row: row.generation)
            numbers = ", ".join(str(row.generation) for row in sorted(generations, key=lambda row: row.generation))
            said = f"generations {numbers} are committed, and none of them is released"
            provider = says(newest.receipt) if newest.receipt else NO_RECEIPT
            yield Finding(rule=Rule.DOUBLED, key=newest.key, journal=said, provider=provider)


def _without_row(
    provider: ProviderHalf, seen: Mapping[str, Receipt], journal: dict[str, EffectRow], origins: set[str]
) -> Iterator[Finding]:
    """Receipts of which the journal has no intent: lost when this origin's and committed, orphans otherwise.

    Whose it was that moved stock and has no body left is not said any more.
    """
    known = journal.keys() | {receipt.key for receipt in provider.receipts} | provider.dropped.keys()
    for key, left in provider.dropped.items():
        # Without a reservation it is a delivery.
        if key not in journal and left.reservation_id is not None and keys.expired_key(key) not in known:
            yield Finding(rule=Rule.ORPHAN, key=key, journal=NO_ROW, provider=says(left))
    strangers = [
        receipt for receipt in provider.receipts if receipt.key not in journal and receipt.body.get("kind") != _DELIVERY
    ]
    if not strangers:
        return
    superseded = {key for row in journal.values() for key in row.supersedes}
    for receipt in provider.receipts:
        superseded.update(receipt.body.get("supersedes") or ())
    makers = {
        receipt.reservation_id: receipt
        for receipt in (*seen.values(), *provider.receipts)
        if receipt.body.get("kind") == "inventory.reserve" and receipt.reservation_id is not None
    }
    for receipt in strangers:
        if receipt.outcome is EffectState.VOIDED and receipt.key in superseded:
            continue
        if receipt.body.get("kind") == keys.EXPIRY and keys.expired_key(receipt.key) in known:
            continue  # its hold's: where that has no row, that is what is said
        ours = receipt.outcome is EffectState.COMMITTED and any(
            _is_ours(receipt, makers.get(receipt.reservation_id or ""), origin) for origin in origins
        )
        yield Finding(
            rule=Rule.LOST if ours else Rule.ORPHAN,
            key=receipt.key,
            journal=NO_ROW,
            provider=says(receipt),
            what=_reference_words(receipt),
        )


def _reference(receipt: Receipt | None) -> tuple[str, str, int] | None:
    """Scope, name and generation that a receipt's reference says."""
    request = None if receipt is None else receipt.body.get("request")
    if not isinstance(request, dict):
        return None
    try:
        reference = json.loads(request["reference"])
        return str(reference["scope"]), str(reference["name"]), int(reference["generation"])
    except (KeyError, TypeError, ValueError):
        return None


def _reference_words(receipt: Receipt) -> str:
    named = _reference(receipt)
    return "" if named is None else f"{named[0]}/{named[1]}"


def _is_ours(receipt: Receipt, maker: Receipt | None, origin: str) -> bool:
    """Whether a key comes out of what the receipt refers to, or else of what made the reservation that it is about."""
    try:
        named = _reference(receipt)
        if named is not None:
            return keys.derive_key(origin, *named) == receipt.key
        taken = _reference(maker)
        if taken is None:
            return False
        scope, name, generation = taken
        return any(
            keys.derive_key(origin, scope, derived, again) == receipt.key
            for derived in (keys.release_name(name, generation), keys.confirm_name(name, generation))
            for again in range(1, keys.LAST_GENERATION + 1)
        )
    except InvalidEffect:
        return False


def _with_words(finding: Finding, row: EffectRow | None) -> Finding:
    if row is None:
        return finding
    generation = "" if row.generation == 1 else f" (generation {row.generation})"
    journal = stands(row) if finding.journal == JOURNAL_HAS_NO_PART else finding.journal
    return replace(finding, what=f"{row.scope}/{row.name}{generation}", journal=journal)
