"""Redos: of the generations of one effect at most one stands. Looked up by the page, not one by one."""

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa

from services.inventory.contract import Kind, Outcome, ReservationState
from services.inventory.tables import RECEIPTS, RESERVATIONS
from services.inventory.verification import documents
from services.inventory.verification.findings import Fault, Rule, shown

_AT_ONCE = 200
_OVER = {ReservationState.RELEASED, ReservationState.EXPIRED}


class Redos:
    """One tenant's redos as its receipts go by, and what they superseded."""

    def __init__(self, connection: sa.Connection, tenant: str) -> None:
        self._connection = connection
        self._tenant = tenant
        self._waiting: list[tuple[Mapping[str, Any], list[Any], tuple[str, str] | None]] = []

    def add(self, row: Mapping[str, Any], document: Mapping[str, Any]) -> None:
        """Take a receipt; it is looked at with the next page of redos."""
        former = document.get("supersedes")
        if former:
            self._waiting.append((row, former if isinstance(former, list) else [former], documents.predecessor(row)))

    def settle(self, *, last: bool = False) -> Iterator[Fault]:
        """Look at those that wait, once there is a page of them or these are the last."""
        if not self._waiting or (len(self._waiting) < _AT_ONCE and not last):
            return
        waiting, self._waiting = self._waiting, []
        known = self._former({str(key) for _, former, _ in waiting for key in former})
        for row, former, predecessor in waiting:
            for key in former:
                yield from _check(row, str(key), known.get(str(key)))
            if predecessor is not None:
                key, digest = predecessor
                stands = known.get(key) if key in former else None
                if stands is None or stands.receipt_sha256 != digest:
                    stored = f"predecessor {shown(key)} in the problem of {shown(row['key'])}"
                    yield Rule.PROBLEM, stored, "the receipt of one of the keys that it supersedes, word for word"

    def _former(self, keys: set[str]) -> dict[str, sa.Row[Any]]:
        statement: sa.Select[Any] = (
            sa.select(
                RECEIPTS.c.key,
                RECEIPTS.c.sequence,
                RECEIPTS.c.kind,
                RECEIPTS.c.outcome,
                RECEIPTS.c.receipt_sha256,
                RESERVATIONS.c.state,
            )
            .outerjoin(
                RESERVATIONS,
                sa.and_(
                    RESERVATIONS.c.tenant == RECEIPTS.c.tenant,
                    RESERVATIONS.c.reservation_id == RECEIPTS.c.reservation_id,
                ),
            )
            .where(RECEIPTS.c.tenant == self._tenant, RECEIPTS.c.key.in_(sorted(keys)))
        )
        return {row.key: row for row in self._connection.execute(statement)}


def _check(row: Mapping[str, Any], key: str, former: sa.Row[Any] | None) -> Iterator[Fault]:
    redo = f"the redo {shown(row['key'])} (receipt-{row['sequence']})"
    if former is None or former.sequence >= row["sequence"]:
        yield Rule.REDO, f"no receipt before {redo} of {shown(key)}, which it supersedes", "one: a redo closes it"
    elif (
        row["outcome"] == Outcome.COMMITTED
        and former.outcome == Outcome.COMMITTED
        and (former.kind not in {Kind.RESERVE, Kind.CONFIRM} or former.state not in _OVER)
    ):
        stored = f"{redo} and {shown(key)}, both committed and not released"
        yield Rule.REDO, stored, "one of them: a redo is refused while a former generation stands"
