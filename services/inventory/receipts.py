"""Receipts in the database: how they are numbered, written once and found again.

- A receipt's text, its SHA-256 and, for a rejection or a tombstone, the whole problem document are written together and
  never again; what is answered later is that text.
- Sequences are commit-ordered per tenant: see `take_numbers`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from services.inventory.contract import SCHEMA_VERSION, Answer, Kind, Outcome, Receipt, rfc3339, to_json
from services.inventory.problems import STATUS, Problem, document
from services.inventory.tables import COUNTERS, RECEIPT_LINES, RECEIPTS

Clock = Callable[[], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a transaction was handed: the last of its sequences, its reservation number, and the time."""

    sequence: int
    reservation: int
    now: datetime


def take_numbers(connection: sa.Connection, tenant: str, clock: Clock, *, receipts: int, reservations: int) -> Numbers:
    """Hand out a tenant's next numbers, with the database's time.

    The row stays locked until this transaction ends, on PostgreSQL too. So a higher number is handed out only after
    every lower one has committed or has been given back by a rollback: no feed ever has a gap that fills up later.
    It is taken last, so that the tenant's other writers wait for as little as possible.
    """
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    upsert = dialect.insert(COUNTERS).values(tenant=tenant, last_sequence=receipts, last_reservation=reservations)
    # SQLite has no clock but this process's.
    now: sa.ColumnElement[Any] = sa.null() if connection.dialect.name == "sqlite" else sa.func.clock_timestamp()
    row = connection.execute(
        upsert.on_conflict_do_update(
            index_elements=[COUNTERS.c.tenant],
            set_={
                "last_sequence": COUNTERS.c.last_sequence + upsert.excluded.last_sequence,
                "last_reservation": COUNTERS.c.last_reservation + upsert.excluded.last_reservation,
            },
        ).returning(COUNTERS.c.last_sequence, COUNTERS.c.last_reservation, now.label("now"))
    ).one()
    return Numbers(sequence=row.last_sequence, reservation=row.last_reservation, now=row.now or clock())


def find(connection: sa.Connection, tenant: str, key: str) -> sa.Row[Any] | None:
    """A key's receipt, if the tenant has one."""
    query = sa.select(RECEIPTS).where(RECEIPTS.c.tenant == tenant, RECEIPTS.c.key == key)
    return connection.execute(query).one_or_none()


def replay(row: sa.Row[Any]) -> Answer:
    """The answer that a stored receipt was first given with."""
    return Answer(
        http_status=row.http_status,
        body=(row.problem or row.receipt).encode(),
        outcome=Outcome(row.outcome),
        replayed=True,
    )


def write(
    connection: sa.Connection,
    tenant: str,
    receipt: Receipt,
    now: datetime,
    *,
    problem: dict[str, Any] | None = None,
    reference: str | None = None,
) -> Answer:
    """Write a receipt; the answer that its request gets, and every repetition of it."""
    text = to_json(receipt.document())
    body = None if problem is None else to_json({**problem, "receipt": receipt.document()})
    connection.execute(
        RECEIPTS.insert().values(
            tenant=tenant,
            sequence=receipt.sequence,
            key=receipt.key,
            kind=receipt.kind.value,
            outcome=receipt.outcome.value,
            reason=receipt.reason,
            fingerprint=receipt.fingerprint,
            fingerprint_version=receipt.fingerprint_version,
            reservation_id=receipt.reservation_id,
            reference=reference,
            http_status=receipt.http_status,
            created_at=now,
            receipt=text,
            receipt_sha256=hashlib.sha256(text.encode()).hexdigest(),
            problem=body,
        )
    )
    if receipt.lines:
        connection.execute(
            RECEIPT_LINES.insert(),
            [
                {
                    "tenant": tenant,
                    "sku": line.sku,
                    "sequence": receipt.sequence,
                    "requested": line.requested,
                    "granted": line.granted,
                }
                for line in receipt.lines
            ],
        )
    return Answer(
        http_status=receipt.http_status, body=(body or text).encode(), outcome=receipt.outcome, replayed=False
    )


def write_tombstone(
    connection: sa.Connection, tenant: str, key: str, *, sequence: int, now: datetime, reason: str
) -> Receipt:
    """Close a key under which nothing happened, and nothing ever will."""
    receipt = Receipt(
        schema_version=SCHEMA_VERSION,
        receipt_id=f"receipt-{sequence}",
        sequence=sequence,
        key=key,
        kind=Kind.VOID,
        outcome=Outcome.VOIDED,
        reason=reason,
        request=None,
        fingerprint=None,
        fingerprint_version=None,
        supersedes=(),
        reservation_id=None,
        lines=(),
        stock_versions={},
        expires_at=None,
        http_status=STATUS[Problem.KEY_VOIDED],
        created_at=rfc3339(now),
        signature=None,
    )
    detail = "This key was closed before anything came under it. Nothing was executed, and nothing ever will be."
    write(connection, tenant, receipt, now, problem=document(Problem.KEY_VOIDED, detail))
    return receipt
