"""The verification: does everything that the inventory has recorded add up?

    verify(engine) -> Verification

- It changes nothing, and needs the database alone. It reads one snapshot: what was written before its first statement.
- The database finds what breaks a rule; receipts pass through as a stream, so memory does not grow with them.
- It believes neither the schema nor this program: what a constraint holds is looked at all the same, and a text that
  nobody can read is a flaw, never a failure of the verification.

What it cannot find: a change of everything that belongs together, digests included, by somebody who knows how. Digests
that are kept elsewhere tell that (`GET /v1/receipts/digests`).
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa

from services.inventory import digests
from services.inventory.rules import Rule, queries
from services.inventory.tables import DIGESTS, MOVEMENTS, RECEIPTS
from services.stored import as_stored, snapshot, stored

PROGRESS_EVERY = 100_000
# Flaws that are told one by one; the rest are counted.
TOLD = 100
_AT_ONCE = 1000
# What a receipt's text says too, by the column's name.
_SAID_TWICE = (
    "sequence", "key", "kind", "outcome", "reason", "fingerprint", "fingerprint_version", "reservation_id",
    "http_status",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """One thing that is wrong.

    Attributes:
        rule: which rule it breaks.
        tenant: whose it is.
        where: a key, a SKU, a reservation or a range.
        says: what is wrong with it, for people.
    """

    rule: Rule
    tenant: str
    where: str
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came of a verification.

    Attributes:
        receipts: how many there are, of all tenants.
        movements: the same of the ledger.
        flaws: the first ones.
        found: how many there are, by rule.
    """

    receipts: int
    movements: int
    flaws: tuple[Flaw, ...]
    found: Mapping[Rule, int]


def verify(
    engine: sa.Engine, *, progress: Callable[[int], None] = lambda _count: None, told_at_most: int = TOLD
) -> Verification:
    """Look at everything.

    Args:
        engine: the inventory's database, at this build's schema.
        told_at_most: so many flaws are told one by one, and the rest are counted.
        progress: called with the number of receipts looked at, now and then.

    Raises:
        DatabaseUnreachable: it cannot be read.
    """
    told: list[Flaw] = []
    found: Counter[Rule] = Counter()
    with snapshot(engine) as connection:
        receipts, movements = (
            connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (RECEIPTS, MOVEMENTS)
        )
        for flaw in chain(_by_query(connection), _by_text(connection, progress)):
            found[flaw.rule] += 1
            if len(told) < told_at_most:
                told.append(flaw)
    return Verification(receipts=receipts, movements=movements, flaws=tuple(told), found=dict(found))


def _by_query(connection: sa.Connection) -> Iterator[Flaw]:
    for rule, query in queries():
        for tenant, where, says in connection.execute(query, execution_options={"yield_per": _AT_ONCE}):
            yield Flaw(rule=rule, tenant=str(tenant), where=str(where), says=str(says))


def _by_text(connection: sa.Connection, progress: Callable[[int], None]) -> Iterator[Flaw]:
    """Receipts one by one; then what their digests come to."""
    due: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    statement = as_stored(RECEIPTS).order_by(RECEIPTS.c.tenant, RECEIPTS.c.sequence)
    for count, row in enumerate(stored(connection, statement, RECEIPTS), start=1):
        tenant, key = str(row["tenant"]), str(row["key"])
        for says in flaws_of_a_receipt(row):
            yield Flaw(rule=Rule.TEXTS, tenant=tenant, where=key, says=says)
        place = digests.place(key)
        item = digests.item(key, str(row["outcome"]), f"receipt-{row['sequence']}")
        for parent, prefix in (("", place[: digests.DEPTHS[0]]), (place[: digests.DEPTHS[0]], place)):
            kept = due[tenant, parent, prefix]
            kept[0] += 1
            kept[1] = digests.total((kept[1], item))
        if count % PROGRESS_EVERY == 0:
            progress(count)
    for row in stored(connection, as_stored(DIGESTS), DIGESTS):
        number, digest = due.pop((row["tenant"], row["parent"], row["prefix"]), (0, 0))
        if (row["count"], row["digest"]) != (number, digests.to_hex(digest)):
            says = f"its count and digest are not those of its {number} receipts"
            yield Flaw(rule=Rule.DIGESTS, tenant=str(row["tenant"]), where=f"range {row['prefix']}", says=says)
    for tenant, _, prefix in due:
        says = "it has receipts, and neither count nor digest"
        yield Flaw(rule=Rule.DIGESTS, tenant=tenant, where=f"range {prefix}", says=says)


def flaws_of_a_receipt(row: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one row of `receipts` by itself."""
    if row["key_range"] != digests.place(str(row["key"])):
        yield "it is filed under another range than its key's"
    if row["receipt"] is None:
        if row["expired_at"] is None or row["problem"] is not None:
            yield "its text is gone, though no retention took it"
        return
    text = str(row["receipt"])
    if hashlib.sha256(text.encode()).hexdigest() != row["receipt_sha256"]:
        yield "its text is not what was hashed"
    try:
        receipt = json.loads(text)
        said = {name: receipt[name] for name in _SAID_TWICE}
        receipt_id = receipt["receipt_id"]
        carried = receipt if row["problem"] is None else json.loads(row["problem"])["receipt"]
    except (ValueError, TypeError, KeyError, RecursionError):
        yield "its text is not a receipt's"
        return
    if said != {name: row[name] for name in _SAID_TWICE} or receipt_id != f"receipt-{row['sequence']}":
        yield "its text says something else than its row"
    if carried != receipt:
        yield "its problem document carries another receipt"
