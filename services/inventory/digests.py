"""Digests per range of keys, kept in the receipts' own transaction: an audit costs what differs, not what there is.

- A key's place is SHA-256(key); a range is the first two or four hex digits of it.
- A receipt's item is SHA-256 over the RFC 8785 form of `["cf-rd1", key, outcome, receipt_id]`. A range's digest is the
  sum of its items modulo 2**256: it does not matter in which order they came.
- What an item is made of is never dropped, so retention changes no digest.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from services.inventory import statements
from services.inventory.contract import to_json

_MODULUS = 2**256
# Digits of a range, of one within it, and so on: 256 ranges of 256.
DEPTHS = (2, 4)


def place(key: str) -> str:
    """The deepest range that a key is in."""
    return hashlib.sha256(key.encode()).hexdigest()[: DEPTHS[-1]]


def item(key: str, outcome: str, receipt_id: str) -> int:
    """What one receipt adds to its ranges' digests."""
    # Nothing in it has to be escaped, so that our JSON of it is its RFC 8785 form.
    return int.from_bytes(hashlib.sha256(to_json(["cf-rd1", key, outcome, receipt_id]).encode()).digest())


def total(items: Iterable[int]) -> int:
    """The digest of a range as a number."""
    return sum(items) % _MODULUS


def to_hex(digest: int) -> str:
    """A digest as it is stored and shown."""
    return f"{digest:064x}"


def sums(receipts: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str], tuple[int, int]]:
    """Count and digest of receipts (key, outcome, receipt id each) in every range (parent, prefix) they are in."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for key, outcome, receipt_id in receipts:
        own, digest = place(key), item(key, outcome, receipt_id)
        for parent, prefix in (("", own[: DEPTHS[0]]), (own[: DEPTHS[0]], own)):
            count, before = found.get((parent, prefix), (0, 0))
            found[parent, prefix] = (count + 1, total((before, digest)))
    return found


def add(connection: sa.Connection, tenant: str, receipts: Iterable[tuple[str, str, str]]) -> None:
    """Add receipts, each as key, outcome and receipt id; the caller holds the tenant's counter."""
    changes = sums(receipts)
    parameters = {
        "of_tenant": tenant,
        "of_parents": sorted({parent for parent, _ in changes}),
        "of_prefixes": sorted(prefix for _, prefix in changes),
    }
    before = {(row.parent, row.prefix): row for row in connection.execute(statements.DIGESTS_READ, parameters)}
    rows: list[dict[str, Any]] = []
    for (parent, prefix), (count, digest) in sorted(changes.items()):
        known = before.get((parent, prefix))
        rows.append(
            {
                "tenant": tenant,
                "parent": parent,
                "prefix": prefix,
                "count": count + (known.number if known else 0),
                "digest": to_hex(total((digest, int(known.digest, 16) if known else 0))),
            }
        )
    connection.execute(statements.DIGESTS_PUT[connection.dialect.name], rows).all()
