"""The verification: is everything that the inventory has stored what the contract says?

    verify(engine) -> Verified

- It reads one snapshot of the live database and changes nothing; writers go on.
- It streams: each table goes by in order, receipts with what belongs to them beside them, so that memory grows neither
  with the receipts nor with the movements, and no row is asked for alone.
- It reads what is stored and not what it stands for. Damage is a violation, never a failure of the verification.
- Rules S1 to S10 come first, tenant by tenant; what keeps the records comes last.
"""

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from services.database import DatabaseUnreachable, describe
from services.inventory.contract import Kind, Outcome, parse_read_key
from services.inventory.problems import Refused
from services.inventory.tables import (
    COUNTERS,
    DIGESTS,
    KEYS,
    METADATA,
    MOVEMENTS,
    RESERVATIONS,
)
from services.inventory.verification import documents, effects, keeping, ledger, statements
from services.inventory.verification.documents import Signatures
from services.inventory.verification.findings import Checked, Fault, Rule, Verified, Violation, shown
from services.inventory.verification.numbers import Numbers
from services.inventory.verification.redo import Redos
from services.stored import as_stored, rows, snapshot, stored

PROGRESS_EVERY = 100_000

_KINDS = frozenset(kind.value for kind in Kind)
_OUTCOMES = frozenset(outcome.value for outcome in Outcome)


def verify(
    engine: sa.Engine, signing_keys: Sequence[bytes] = (), progress: Callable[[int], None] = lambda _: None
) -> Verified:
    """Verify the whole database, up to the first violation.

    Args:
        engine: the inventory's, at this build's schema.
        signing_keys: any of them may have signed a receipt; without any, signatures are not looked at.
        progress: told how many receipts have been looked at, now and then.

    Raises:
        DatabaseUnreachable: the connection was lost.
    """
    checked = Checked()
    try:
        with (
            snapshot(engine) as connection,
            contextlib.closing(_Verification(connection, signing_keys, progress, checked).run()) as violations,
        ):
            violation = next(violations, None)
        return Verified(violation=violation, checked=checked)
    except sa.exc.DBAPIError as error:
        if error.connection_invalidated or isinstance(error, sa.exc.InterfaceError):
            raise DatabaseUnreachable(
                f"The database {describe(engine.url)} was lost while it was read. Nothing was changed. Repeat."
            ) from error
        reason = next(iter(str(error.orig).strip().splitlines()), "no reason")
        return Verified(violation=_unreadable(reason), checked=checked)


def _unreadable(reason: str) -> Violation:
    stored_ = f"something that the database cannot read ({shown(reason)})"
    return Violation(rule=Rule.ROW, tenant="", where="the database", stored=stored_, expected="rows that can be read")


class _Verification:
    def __init__(
        self,
        connection: sa.Connection,
        signing_keys: Sequence[bytes],
        progress: Callable[[int], None],
        checked: Checked,
    ) -> None:
        self._connection = connection
        self._signing_keys = signing_keys
        self._progress = progress
        self._checked = checked

    def run(self) -> Generator[Violation, None, None]:
        """Every violation, in order."""
        yield from self._check_types()
        yield from self._check_uniqueness()
        tenants = sorted(self._connection.execute(statements.TENANTS).scalars())
        for tenant in tenants:
            if not (tenant.isascii() and tenant.isprintable() and "\\" not in tenant):
                yield _violation(tenant, "its name", (Rule.ROW, shown(tenant), "a name that a tenant can have"))
            yield from self._check_tenant(tenant)
            self._checked.tenants += 1
        for fault in itertools.chain(keeping.check(self._connection), keeping.check_file(self._connection)):
            yield _violation("", "the schema" if fault[0] is Rule.KEPT else "the file", fault)

    def _check_types(self) -> Iterator[Violation]:
        """No value of another type, and none missing where there has to be one."""
        for table in METADATA.sorted_tables:
            for row in rows(self._connection, statements.mistyped(table, self._connection.dialect.name)):
                column = row.pop("wrong")
                key = ", ".join(shown(value) for value in row.values())
                fault = (Rule.ROW, f"a value of {column} that is none of its type", "what the service writes there")
                yield _violation("", f"{table.name} ({key})", fault)

    def _check_uniqueness(self) -> Iterator[Violation]:
        for rule, columns in statements.UNIQUE:
            for row in rows(self._connection, statements.doubled(columns)):
                key = ", ".join(shown(value) for value in row.values())
                names = ", ".join(column.name for column in columns)
                fault = (rule, "more than one row", "one")
                yield _violation("", f"{columns[0].table.name} with {names} {key}", fault)

    def _check_tenant(self, tenant: str) -> Iterator[Violation]:
        yield from self._check_ledger(tenant)
        yield from self._check_receipts(tenant)
        for rule, what, expected, statement in statements.STRAYS:
            for row in rows(self._connection, statement.params(tenant=tenant)):
                key = ", ".join(shown(value) for value in row.values())
                yield _violation(tenant, f"{what} {key}", (rule, "the row", expected))
        for table, name in ((KEYS, "keys"), (RESERVATIONS, "reservations")):
            count = sa.select(sa.func.count()).select_from(table).where(table.c.tenant == tenant)
            setattr(self._checked, name, getattr(self._checked, name) + self._connection.execute(count).scalar_one())

    def _check_ledger(self, tenant: str) -> Iterator[Violation]:
        movements = rows(self._connection, statements.LEDGER.params(tenant=tenant))
        for sku, of_sku in itertools.groupby(movements, key=lambda movement: movement["sku"]):
            self._checked.skus += 1
            for fault in ledger.check(_counting(of_sku, self._count_movement)):
                yield _violation(tenant, f"SKU {shown(sku)}", fault)

    def _count_movement(self) -> None:
        self._checked.movements += 1

    def _check_receipts(self, tenant: str) -> Iterator[Violation]:
        counter = next(stored(self._connection, as_stored(COUNTERS).where(COUNTERS.c.tenant == tenant), COUNTERS), None)
        numbers = Numbers(counter)
        signatures = Signatures(self._signing_keys)
        redos = Redos(self._connection, tenant)
        times = ("created_at", "expired_at", "ends_at")
        receipts = rows(self._connection, statements.RECEIPTS_AND_MORE.params(tenant=tenant), times)
        beside = statements.beside(self._connection, tenant)
        for fault in numbers.begin():
            yield _violation(tenant, "the counter", fault)
        for row in receipts:
            self._count_receipt(row)
            where = f"receipt-{row['sequence']}, key {shown(row['key'])}"
            for fault in _readable(row):
                yield _violation(tenant, where, fault)
                return
            lines, movements, units = (each.take(row["sequence"]) for each in beside.values())
            done = effects.Done(
                row=row,
                lines=[(line["sku"], line["requested"], line["granted"]) for line in lines],
                movements=movements,
                units=[(line["sku"], line["quantity"]) for line in units],
            )
            for fault in itertools.chain(
                _check_body(done, signatures, redos), effects.check(done), numbers.check(row), redos.settle()
            ):
                yield _violation(tenant, where, fault)
        for fault in itertools.chain(redos.settle(last=True), numbers.end(self._ranges(tenant))):
            yield _violation(tenant, "after its last receipt", fault)
        for name, each in beside.items():
            for stray in each.strays():
                rule = Rule.S5 if name == MOVEMENTS.name else Rule.RECEIPT
                where = f"{name} of {shown(stray['sku'])} with sequence {stray['sequence']}"
                yield _violation(tenant, where, (rule, "the row", "its receipt beside it"))
        self._checked.signatures += signatures.checked

    def _count_receipt(self, row: Mapping[str, Any]) -> None:
        self._checked.receipts += 1
        self._checked.expired_receipts += row["expired_at"] is not None
        if self._checked.receipts % PROGRESS_EVERY == 0:
            self._progress(self._checked.receipts)

    def _ranges(self, tenant: str) -> Iterator[Mapping[str, Any]]:
        for row in stored(self._connection, as_stored(DIGESTS).where(DIGESTS.c.tenant == tenant), DIGESTS):
            self._checked.ranges += 1
            yield row


def _readable(row: Mapping[str, Any]) -> Iterator[Fault]:
    """What the rest takes for granted of a receipt."""
    try:
        parse_read_key(row["key"])
    except Refused:
        yield Rule.ROW, f"key {shown(row['key'])}", "a key that a receipt can have"
    for name in ("created_at", "expired_at", "ends_at"):
        if isinstance(row[name], str):
            yield Rule.ROW, f"{name} {shown(row[name])}", "a time as the service writes it"
    if row["kind"] not in _KINDS or row["outcome"] not in _OUTCOMES:
        yield Rule.RECEIPT, f"kind {shown(row['kind'])} and outcome {shown(row['outcome'])}", "those of the contract"


def _check_body(done: effects.Done, signatures: Signatures, redos: Redos) -> Iterator[Fault]:
    row = done.row
    if row["receipt"] is None or row["expired_at"] is not None:
        return
    yield from documents.check_text(row)
    document = documents.read(row["receipt"])
    versions = {movement["sku"]: movement["version"] for movement in done.movements}
    yield from documents.check_members(row, document, done.lines, versions)
    if document is None:
        return
    yield from signatures.check(document)
    yield from documents.check_problem(row, document)
    redos.add(row, document)


def _counting(each: Iterable[Mapping[str, Any]], count: Callable[[], None]) -> Iterator[Mapping[str, Any]]:
    for one in each:
        count()
        yield one


def _violation(tenant: str, where: str, fault: Fault) -> Violation:
    rule, what, expected = fault
    return Violation(rule=rule, tenant=shown(tenant) if tenant else "", where=where, stored=what, expected=expected)
