"""Receipts in the database: how they are numbered, written once and found again.

- A receipt's text, its SHA-256 and, for a rejection or a tombstone, the whole problem document are written together and
  never again; what is answered later is that text. Retention may take it away, and nothing else of the row.
- Sequences are commit-ordered per tenant: see `take_numbers`.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.dml import ReturningInsert

from services.inventory import digests, statements
from services.inventory.books import Entry, Known, Stored
from services.inventory.contract import (
    FINGERPRINT_VERSION,
    SCHEMA_VERSION,
    Answer,
    Kind,
    Outcome,
    Receipt,
    rfc3339,
    sign,
    to_json,
)
from services.inventory.problems import STATUS, Problem, document

Clock = Callable[[], datetime]

_SUCCESS = {Kind.RESERVE: 201, Kind.DELIVER: 201, Kind.CONFIRM: 200, Kind.RELEASE: 200, Kind.EXPIRY: 200}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What a transaction was handed: the first of its sequences and of its reservation numbers, and the time."""

    sequence: int
    reservation: int
    now: datetime


def take_numbers(connection: sa.Connection, tenant: str, clock: Clock, *, receipts: int, reservations: int) -> Numbers:
    """Hand out a tenant's next numbers, with the database's time.

    The row stays locked until this transaction ends, on PostgreSQL too. So a higher number is handed out only after
    every lower one has committed or has been given back by a rollback: no feed ever has a gap that fills up later.
    It is taken last, so that the tenant's other writers wait for as little as possible.
    """
    row = connection.execute(
        statements.NUMBERS_TAKEN[connection.dialect.name],
        {"tenant": tenant, "last_sequence": receipts, "last_reservation": reservations},
    ).one()
    return Numbers(
        sequence=row.last_sequence - receipts + 1,
        reservation=row.last_reservation - reservations + 1,
        now=row.now or clock(),
    )


def database_time(connection: sa.Connection, clock: Clock) -> datetime:
    """The database's clock, which ends holds and dates receipts; SQLite has none but this process's."""
    if connection.dialect.name == "sqlite":
        return clock()
    now: datetime = connection.execute(statements.DATABASE_TIME).scalar_one()
    return now


def find(connection: sa.Connection, tenant: str, key: str) -> Stored | None:
    """What a key came to, if the tenant has used it."""
    row = connection.execute(statements.STORED_ONE, {"of_tenant": tenant, "of_key": key}).one_or_none()
    return None if row is None else _stored(row)


def find_all(connection: sa.Connection, tenant: str, keys: Iterable[str]) -> dict[str, Stored]:
    """What each of these keys came to that the tenant has used."""
    wanted = list(dict.fromkeys(keys))
    if not wanted:
        return {}
    if len(wanted) == 1:
        one = find(connection, tenant, wanted[0])
        return {} if one is None else {one.key: one}
    rows = connection.execute(statements.STORED_MANY, {"of_tenant": tenant, "of_keys": wanted})
    return {row.key: _stored(row) for row in rows}


def _stored(row: sa.Row[*tuple[Any, ...]]) -> Stored:
    return Stored(
        key=row.key,
        kind=Kind(row.kind),
        outcome=Outcome(row.outcome),
        fingerprint=row.fingerprint,
        http_status=row.http_status,
        receipt_id=f"receipt-{row.sequence}",
        sequence=row.sequence,
        reservation_id=row.reservation_id,
        receipt=row.receipt,
        problem=row.problem,
    )


class Answers:
    """The receipts that a batch has made, in the exact form in which they are stored and answered."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Receipt, str, str | None]] = {}

    def add(self, entry: Entry, receipt: Receipt) -> tuple[str, str | None]:
        """Take a numbered receipt; its text and, for a rejection or a tombstone, the text of its problem document."""
        members = receipt.document()
        text, problem = to_json(members), None
        if entry.outcome is not Outcome.COMMITTED:
            name = Problem.KEY_VOIDED if entry.kind is Kind.VOID else Problem(entry.reason or "")
            former = None if entry.predecessor is None else self._document(entry.predecessor)
            more = {} if former is None else {"predecessor": former}
            problem = to_json(document(name, entry.detail, **more, receipt=members))
        self._made[entry.key] = (receipt, text, problem)
        return text, problem

    def receipts(self) -> list[Receipt]:
        """All of them, in order."""
        return [receipt for receipt, _, _ in self._made.values()]

    def receipt(self, entry: Entry) -> Receipt:
        """An entry's receipt."""
        return self._made[entry.key][0]

    def _document(self, known: Known) -> dict[str, Any] | None:
        if isinstance(known, Entry):
            return self.receipt(known).document()
        return None if known.receipt is None else dict(json.loads(known.receipt))

    def of(self, known: Known, *, replayed: bool, as_receipt: bool) -> Answer:
        """What a key came to, as an answer: a void's is always the receipt itself."""
        if isinstance(known, Stored):
            status, text, problem = known.http_status, known.receipt or "", known.problem
        else:
            receipt, text, problem = self._made[known.key]
            status = receipt.http_status
        return Answer(
            http_status=200 if as_receipt else status,
            body=(text if as_receipt else problem or text).encode(),
            outcome=known.outcome,
            replayed=replayed,
        )


def write(
    connection: sa.Connection,
    tenant: str,
    entries: Sequence[Entry],
    numbers: Numbers,
    signing_key: bytes | None,
) -> Answers:
    """Number entries in order and write their receipts, lines and digests."""
    answers = Answers()
    rows: list[dict[str, Any]] = []
    reservations = itertools.count(numbers.reservation)
    for sequence, entry in enumerate(entries, start=numbers.sequence):
        _number_reservation(entry, reservations, numbers.now)
        receipt = _receipt(entry, sequence, numbers.now)
        if signing_key is not None:
            receipt = sign(receipt, signing_key)
        text, problem = answers.add(entry, receipt)
        rows.append(_row(tenant, entry, receipt, numbers.now) | _texts(text, problem))
    insert_all(connection, statements.RECEIPTS_WRITTEN, rows)
    lines = [
        {
            "tenant": tenant,
            "sku": line.sku,
            "sequence": receipt.sequence,
            "requested": line.requested,
            "granted": line.granted,
        }
        for receipt in answers.receipts()
        for line in receipt.lines
    ]
    insert_all(connection, statements.RECEIPT_LINES_WRITTEN, lines)
    digests.add(connection, tenant, [(one.key, one.outcome.value, one.receipt_id) for one in answers.receipts()])
    return answers


def _number_reservation(entry: Entry, numbers: Iterator[int], now: datetime) -> None:
    reservation = entry.reservation
    if reservation is None or reservation.reservation_id is not None:
        return
    reservation.reservation_id = f"reservation-{next(numbers)}"
    if reservation.hold_seconds is not None:
        reservation.expires_at = now + timedelta(seconds=reservation.hold_seconds)


def _receipt(entry: Entry, sequence: int, now: datetime) -> Receipt:
    call, reservation = entry.call, entry.reservation
    ends = reservation.expires_at if reservation is not None and entry.kind is Kind.RESERVE else None
    return Receipt(
        schema_version=SCHEMA_VERSION,
        receipt_id=f"receipt-{sequence}",
        sequence=sequence,
        key=entry.key,
        kind=entry.kind,
        outcome=entry.outcome,
        reason=entry.reason,
        request=None if call is None else dict(call.request),
        fingerprint=None if call is None else call.fingerprint,
        fingerprint_version=None if call is None else FINGERPRINT_VERSION,
        supersedes=() if call is None else call.supersedes,
        reservation_id=None if reservation is None else reservation.reservation_id,
        lines=entry.lines,
        stock_versions={movement.sku: movement.version for movement in entry.movements},
        expires_at=None if ends is None else rfc3339(ends),
        http_status=_status(entry),
        created_at=rfc3339(now),
        signature=None,
    )


def _row(tenant: str, entry: Entry, receipt: Receipt, now: datetime) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "sequence": receipt.sequence,
        "key": receipt.key,
        "kind": receipt.kind.value,
        "outcome": receipt.outcome.value,
        "reason": receipt.reason,
        "fingerprint": receipt.fingerprint,
        "fingerprint_version": receipt.fingerprint_version,
        "reservation_id": receipt.reservation_id,
        "reference": entry.reference,
        "http_status": receipt.http_status,
        "created_at": now,
        "key_range": digests.place(receipt.key),
    }


def _texts(text: str, problem: str | None) -> dict[str, Any]:
    return {"receipt": text, "receipt_sha256": hashlib.sha256(text.encode()).hexdigest(), "problem": problem}


def _status(entry: Entry) -> int:
    if entry.kind is Kind.VOID:
        return STATUS[Problem.KEY_VOIDED]
    return _SUCCESS[entry.kind] if entry.outcome is Outcome.COMMITTED else STATUS[Problem(entry.reason or "")]


def insert_all(connection: sa.Connection, statement: ReturningInsert[Any], rows: Sequence[dict[str, Any]]) -> None:
    """Insert rows, if there are any, by one of `statements`."""
    if rows:
        connection.execute(statement, rows).all()
