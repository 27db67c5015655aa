"""Holds that end, digests per range of keys, receipts whose body retention takes, and triggers that keep the rest.

Revision: inventory_0002, after inventory_0001.
"""

import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from services.database import UtcDateTime

revision = "inventory_0002"
down_revision = "inventory_0001"
branch_labels = None
depends_on = None

_FINGERPRINT = "(fingerprint IS NULL) = (kind = 'void')"
_PROBLEM = "(problem IS NULL) = (outcome = 'committed')"
_STATE = "state IN ('consumed', 'released')"
_RELEASED_BY = "(released_by IS NULL) = (state = 'consumed')"
_MOVEMENT_KIND = "kind IN ('delivery', 'reserve', 'release')"

_RECEIPT_RULES = {
    "fingerprint": "(fingerprint IS NULL) = (kind IN ('void', 'expiry'))",
    "expired": "(receipt IS NULL) = (expired_at IS NOT NULL)",
    "problem": "(problem IS NULL) = (outcome = 'committed' OR expired_at IS NOT NULL)",
}
_RESERVATION_RULES = {
    "state": "state IN ('held', 'consumed', 'released', 'expired')",
    "released_by": "(released_by IS NOT NULL) = (state = 'released')",
    "expired_by": "(expired_by IS NOT NULL) = (state = 'expired')",
    "confirmed_by": "confirmed_by IS NULL OR state IN ('consumed', 'released')",
    "expires_at": "expires_at IS NOT NULL OR (state IN ('consumed', 'released') AND confirmed_by IS NULL)",
    "confirmed": "state <> 'consumed' OR (expires_at IS NULL) = (confirmed_by IS NULL)",
}
_MOVEMENT_KIND_2 = "kind IN ('delivery', 'reserve', 'hold', 'confirm', 'release', 'expiry')"

_KEPT = ("keys", "receipts", "receipt_lines", "reservation_lines", "movements")
_MODULUS = 2**256
_PAGE = 1000
_RECEIPTS = sa.table(
    "receipts",
    sa.column("tenant", sa.Text),
    sa.column("sequence", sa.BigInteger),
    sa.column("key", sa.Text),
    sa.column("outcome", sa.Text),
    sa.column("key_range", sa.Text),
)


def upgrade() -> None:
    op.add_column("counters", sa.Column("expired_through", sa.BigInteger(), nullable=False, server_default="0"))
    _change_receipts()
    _change_reservations()
    with op.batch_alter_table("movements", copy_from=_movements()) as batch:
        batch.drop_constraint(_old("movements", "kind"), type_="check")
        batch.create_check_constraint(op.f("ck_movements_kind"), _MOVEMENT_KIND_2)
    op.create_table(
        "digests",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.CheckConstraint("count > 0", name=op.f("ck_digests_count")),
        sa.PrimaryKeyConstraint("tenant", "parent", "prefix", name="pk_digests"),
    )
    _fill_digests()
    for table in _KEPT:
        _keep(table)
    _check_references()


def downgrade() -> None:
    """Refused by the old constraints where there are holds, expiries or receipts without a body."""
    for table in _KEPT:
        _keep_no_longer(table)
    op.drop_table("digests")
    op.drop_index("ix_receipts_tenant_key_range", "receipts")
    with op.batch_alter_table("receipts", copy_from=_receipts(upgraded=True)) as batch:
        for name in ("fingerprint", "expired", "problem"):
            batch.drop_constraint(op.f(f"ck_receipts_{name}"), type_="check")
        batch.drop_column("expired_at")
        batch.drop_column("key_range")
        batch.alter_column("receipt", existing_type=sa.Text(), nullable=False)
        batch.create_check_constraint(_old("receipts", "fingerprint"), _FINGERPRINT)
        batch.create_check_constraint(_old("receipts", "problem"), _PROBLEM)
    _index_references()
    op.drop_index("ix_reservations_held", "reservations")
    with op.batch_alter_table("reservations", copy_from=_reservations(upgraded=True)) as batch:
        for name in _RESERVATION_RULES:
            batch.drop_constraint(op.f(f"ck_reservations_{name}"), type_="check")
        for moved_by in ("confirmed_by", "expired_by"):
            batch.drop_constraint(op.f(f"fk_reservations_receipts_{moved_by}"), type_="foreignkey")
            batch.drop_column(moved_by)
        batch.drop_column("expires_at")
        batch.create_check_constraint(_old("reservations", "state"), _STATE)
        batch.create_check_constraint(_old("reservations", "released_by"), _RELEASED_BY)
    with op.batch_alter_table("movements", copy_from=_movements(upgraded=True)) as batch:
        batch.drop_constraint(op.f("ck_movements_kind"), type_="check")
        batch.create_check_constraint(_old("movements", "kind"), _MOVEMENT_KIND)
    op.drop_column("counters", "expired_through")
    _check_references()


def _change_receipts() -> None:
    op.add_column("receipts", sa.Column("expired_at", UtcDateTime(), nullable=True))
    op.add_column("receipts", sa.Column("key_range", sa.Text(), nullable=True))
    change = (
        sa.update(_RECEIPTS)
        .where(_RECEIPTS.c.tenant == sa.bindparam("of"), _RECEIPTS.c.sequence == sa.bindparam("at"))
        .values(key_range=sa.bindparam("range"))
    )
    for rows in _pages_of_receipts():
        ranges = [{"of": row.tenant, "at": row.sequence, "range": _hash(row.key)[:4]} for row in rows]
        op.get_bind().execute(change, ranges)
    with op.batch_alter_table("receipts", copy_from=_receipts()) as batch:
        batch.alter_column("receipt", existing_type=sa.Text(), nullable=True)
        batch.alter_column("key_range", existing_type=sa.Text(), nullable=False)
        batch.drop_constraint(_old("receipts", "fingerprint"), type_="check")
        batch.drop_constraint(_old("receipts", "problem"), type_="check")
        for name, rule in _RECEIPT_RULES.items():
            batch.create_check_constraint(op.f(f"ck_receipts_{name}"), rule)
    _index_references()
    op.create_index("ix_receipts_tenant_key_range", "receipts", ["tenant", "key_range"])


def _change_reservations() -> None:
    with op.batch_alter_table("reservations", copy_from=_reservations()) as batch:
        batch.add_column(sa.Column("expires_at", UtcDateTime(), nullable=True))
        for moved_by in ("confirmed_by", "expired_by"):
            batch.add_column(sa.Column(moved_by, sa.BigInteger(), nullable=True))
            batch.create_foreign_key(
                op.f(f"fk_reservations_receipts_{moved_by}"), "receipts", ["tenant", moved_by], ["tenant", "sequence"]
            )
        batch.drop_constraint(_old("reservations", "state"), type_="check")
        batch.drop_constraint(_old("reservations", "released_by"), type_="check")
        for name, rule in _RESERVATION_RULES.items():
            batch.create_check_constraint(op.f(f"ck_reservations_{name}"), rule)
    op.create_index(
        "ix_reservations_held",
        "reservations",
        ["expires_at"],
        sqlite_where=sa.text("state = 'held'"),
        postgresql_where=sa.text("state = 'held'"),
    )


def _fill_digests() -> None:
    """Digests of the receipts that are there: `["cf-rd1", key, outcome, receipt_id]`, summed per range."""
    sums: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0, 0])
    bind = op.get_bind()
    for row in itertools.chain.from_iterable(_pages_of_receipts()):
        # All of it ASCII without a character that JSON escapes: this is its RFC 8785 form.
        item = json.dumps(["cf-rd1", row.key, row.outcome, f"receipt-{row.sequence}"], separators=(",", ":"))
        name = _hash(row.key)
        for parent, prefix in (("", name[:2]), (name[:2], name[:4])):
            total = sums[(row.tenant, parent, prefix)]
            total[0] += 1
            total[1] = (total[1] + int(_hash(item), 16)) % _MODULUS
    columns = ("tenant", "parent", "prefix", "count", "digest")
    table = sa.table("digests", *(sa.column(column) for column in columns))
    rows: list[dict[str, Any]] = [
        dict(zip(columns, (*place, count, f"{digest:064x}"), strict=True)) for place, (count, digest) in sums.items()
    ]
    for start in range(0, len(rows), _PAGE):
        bind.execute(table.insert(), rows[start : start + _PAGE])


def _pages_of_receipts() -> Iterator[Sequence[sa.Row[Any]]]:
    """All of them, in order, however many there are: never more than a page in memory."""
    place = sa.tuple_(_RECEIPTS.c.tenant, _RECEIPTS.c.sequence)
    page: sa.Select[Any] = sa.select(_RECEIPTS).order_by(*place.clauses).limit(_PAGE)
    rows = op.get_bind().execute(page).all()
    while rows:
        yield rows
        after = sa.tuple_(sa.literal(rows[-1].tenant), sa.literal(rows[-1].sequence))
        rows = op.get_bind().execute(page.where(place > after)).all()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _keep(table: str) -> None:
    """Nothing is removed or changed; of a receipt its body may go."""
    body_goes = (
        "NEW.receipt IS NULL AND NEW.problem IS NULL AND OLD.expired_at IS NULL AND NEW.expired_at IS NOT NULL"
        + "".join(f" AND NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in _FACTS)
    )
    if op.get_bind().dialect.name == "sqlite":
        unless = "WHEN NOT (" + body_goes.replace("IS NOT DISTINCT FROM", "IS") + ")" if table == "receipts" else ""
        for verb, condition in (("UPDATE", unless), ("DELETE", "")):
            op.execute(
                f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} {condition} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is kept'); END"
            )
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION kept() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION '% is kept', TG_TABLE_NAME; END $$"
    )
    verbs = "DELETE OR TRUNCATE" if table == "receipts" else "UPDATE OR DELETE OR TRUNCATE"
    op.execute(f"CREATE TRIGGER {table}_kept BEFORE {verbs} ON {table} FOR EACH STATEMENT EXECUTE FUNCTION kept()")
    if table == "receipts":
        op.execute(
            f"CREATE TRIGGER receipts_facts_kept BEFORE UPDATE ON receipts FOR EACH ROW WHEN (NOT ({body_goes})) "
            "EXECUTE FUNCTION kept()"
        )


def _keep_no_longer(table: str) -> None:
    if op.get_bind().dialect.name == "sqlite":
        for verb in ("update", "delete"):
            op.execute(f"DROP TRIGGER {table}_no_{verb}")
        return
    op.execute(f"DROP TRIGGER {table}_kept ON {table}")
    if table == "receipts":
        op.execute("DROP TRIGGER receipts_facts_kept ON receipts")
    if table == _KEPT[-1]:
        op.execute("DROP FUNCTION kept()")


def _index_references() -> None:
    if op.get_bind().dialect.name == "sqlite":  # the copy has lost it
        op.create_index("ix_receipts_tenant_reference_sequence", "receipts", ["tenant", "reference", "sequence"])


def _check_references() -> None:
    """What copying a table may have broken while SQLite looked away."""
    if op.get_bind().dialect.name == "sqlite":
        broken = op.get_bind().exec_driver_sql("PRAGMA foreign_key_check").first()
        if broken is not None:
            raise RuntimeError(f"{broken[0]} would refer to rows of {broken[2]} that are not there")


_FACTS = (
    "tenant",
    "sequence",
    "key",
    "kind",
    "outcome",
    "reason",
    "fingerprint",
    "fingerprint_version",
    "reservation_id",
    "reference",
    "http_status",
    "created_at",
    "receipt_sha256",
    "key_range",
)


def _old(table: str, name: str) -> Any:
    """Revision 1's names of constraints have their prefix twice."""
    return op.f(f"ck_{table}_ck_{table}_{name}")


def _rules(table: str, rules: dict[str, str], *, upgraded: bool) -> list[sa.CheckConstraint]:
    return [
        sa.CheckConstraint(rule, name=op.f(f"ck_{table}_{name}") if upgraded else _old(table, name))
        for name, rule in rules.items()
    ]


def _receipts(*, upgraded: bool = False) -> sa.Table:
    """The table before its constraints change, up or down: SQLite changes a table by copying it."""
    rules = _RECEIPT_RULES if upgraded else {"fingerprint": _FINGERPRINT, "problem": _PROBLEM}
    return sa.Table(
        "receipts",
        sa.MetaData(),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("fingerprint", sa.Text(), nullable=True),
        sa.Column("fingerprint_version", sa.Text(), nullable=True),
        sa.Column("reservation_id", sa.Text(), nullable=True),
        sa.Column("reference", sa.Text(), nullable=True),
        sa.Column("http_status", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("receipt", sa.Text(), nullable=False),
        sa.Column("receipt_sha256", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("expired_at", UtcDateTime(), nullable=True),
        sa.Column("key_range", sa.Text(), nullable=True),
        *_rules("receipts", rules, upgraded=upgraded),
        sa.CheckConstraint("outcome IN ('committed', 'rejected', 'voided')", name="ck_receipts_outcome"),
        sa.PrimaryKeyConstraint("tenant", "sequence", name="pk_receipts"),
        sa.UniqueConstraint("tenant", "key", name="uq_receipts_tenant_key"),
    )


def _reservations(*, upgraded: bool = False) -> sa.Table:
    moved_by = ("reserved_by", "released_by", *(("confirmed_by", "expired_by") if upgraded else ()))
    rules = _RESERVATION_RULES if upgraded else {"state": _STATE, "released_by": _RELEASED_BY}
    return sa.Table(
        "reservations",
        sa.MetaData(),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("reservation_id", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        *((sa.Column("expires_at", UtcDateTime(), nullable=True),) if upgraded else ()),
        *(sa.Column(column, sa.BigInteger(), nullable=column != "reserved_by") for column in moved_by),
        *_rules("reservations", rules, upgraded=upgraded),
        *(
            sa.ForeignKeyConstraint(
                ["tenant", column],
                ["receipts.tenant", "receipts.sequence"],
                name=f"fk_reservations_receipts_{column}",
            )
            for column in moved_by
        ),
        sa.PrimaryKeyConstraint("tenant", "reservation_id", name="pk_reservations"),
        sa.UniqueConstraint("tenant", "reserved_by", name="uq_reservations_tenant_reserved_by"),
    )


def _movements(*, upgraded: bool = False) -> sa.Table:
    return sa.Table(
        "movements",
        sa.MetaData(),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("sku", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("quantity", sa.BigInteger(), nullable=False),
        sa.Column("received", sa.BigInteger(), nullable=False),
        sa.Column("available", sa.BigInteger(), nullable=False),
        sa.Column("held", sa.BigInteger(), nullable=False),
        sa.Column("consumed", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("reservation_id", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        *_rules("movements", {"kind": _MOVEMENT_KIND_2 if upgraded else _MOVEMENT_KIND}, upgraded=upgraded),
        sa.CheckConstraint("received = available + held + consumed", name="ck_movements_balanced"),
        sa.CheckConstraint("version > 0 AND quantity > 0", name="ck_movements_positive"),
        sa.ForeignKeyConstraint(
            ["tenant", "sequence"], ["receipts.tenant", "receipts.sequence"], name="fk_movements_receipts"
        ),
        sa.ForeignKeyConstraint(["tenant", "sku"], ["stock.tenant", "stock.sku"], name="fk_movements_stock"),
        sa.PrimaryKeyConstraint("tenant", "sku", "version", name="pk_movements"),
        sa.UniqueConstraint("tenant", "sequence", "sku", name="uq_movements_tenant_sequence_sku"),
    )
