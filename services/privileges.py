"""What a process's role may do in a PostgreSQL store: what it needs and nothing else.

What this module guarantees:

- To a process a table is append-only (SELECT and INSERT) unless the table itself says otherwise (`may`). A role cannot
  switch triggers off in tables that it does not own, so this holds where the append-only triggers do, and beside them.
- Afterwards the role has exactly that: what it was granted in this schema before is taken back in the same transaction.
- A role that nothing can be kept from (a superuser, the owner) is refused, and so is one that has more by another role
  or by PUBLIC: that is not ours to take back.
"""

from typing import Any

import sqlalchemy as sa

from services.database import DatabaseError, describe, open_engine, reading, writing

APPEND_ONLY = ("SELECT", "INSERT")
_VERSION_TABLE = "alembic_version"  # a process compares it with its own build's
_PRIVILEGES = "counterfoil_privileges"
# A member of the owner may become the owner, and switch the triggers off.
# Whoever owns the schema (the database's owner that of `public`) may drop what is in it.
_ABOVE = sa.text(
    "SELECT rolsuper OR pg_has_role(oid, current_user, 'MEMBER') OR EXISTS (SELECT FROM pg_namespace "
    "WHERE nspname = current_schema() AND pg_has_role(pg_roles.oid, nspowner, 'MEMBER')) "
    "FROM pg_roles WHERE rolname = :role"
)
_CHANGES = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "TRIGGER")
_HAS = sa.text("SELECT has_table_privilege(:role, to_regclass(:table), :verb)")


def may(*privileges: str) -> dict[str, Any]:
    """The `info` of a table in which a process may do something else than append."""
    return {_PRIVILEGES: privileges}


def privileges(metadata: sa.MetaData) -> dict[str, tuple[str, ...]]:
    """What a process may do, table by table."""
    granted = {table.name: table.info.get(_PRIVILEGES, APPEND_ONLY) for table in metadata.sorted_tables}
    return granted | {_VERSION_TABLE: ("SELECT",)}


def require_grantable(url: str, role: str) -> None:
    """Refuse what `grant` would refuse: before a migration rather than after it.

    Raises:
        DatabaseError: not PostgreSQL, no such role, or one that may do everything anyway. Nothing was changed.
    """
    engine = open_engine(url)
    try:
        if engine.dialect.name != "postgresql":
            raise DatabaseError(
                f"{describe(engine.url)} has no roles: SQLite's only guard is who may write to the file. Nothing was "
                "changed. Leave --grant-to out."
            )
        with reading(engine) as connection:
            above = connection.execute(_ABOVE, {"role": role}).scalar_one_or_none()
    finally:
        engine.dispose()
    if above is None:
        raise DatabaseError(f"PostgreSQL has no role {role}. Nothing was changed. Make it: CREATE ROLE ... LOGIN")
    if above:
        raise DatabaseError(
            f"The role {role} may do what the owner of the tables may, or is a superuser: nothing could be kept from "
            "it. Nothing was changed. Name a role of the process's own."
        )


def grant(url: str, metadata: sa.MetaData, role: str) -> dict[str, tuple[str, ...]]:
    """Let an existing role do what a process of this store does; safe to repeat. What it may do, table by table.

    Args:
        url: the store's database, as its owner, migrated.
        metadata: the store's tables.
        role: whose it will be.

    Raises:
        DatabaseError: `require_grantable` says why; or it has more by another role. Nothing was changed.
    """
    require_grantable(url, role)
    granted = privileges(metadata)
    engine = open_engine(url)
    try:
        with writing(engine) as connection:
            _grant(connection, granted, role)
            _require_no_more(connection, granted, role)
    finally:
        engine.dispose()
    return granted


def _grant(connection: sa.Connection, granted: dict[str, tuple[str, ...]], role: str) -> None:
    quote = connection.dialect.identifier_preparer.quote_identifier
    to, schema, database = quote(role), quote(_name(connection, "schema")), quote(_name(connection, "database"))
    for kind in ("TABLES", "SEQUENCES"):
        connection.exec_driver_sql(f"REVOKE ALL ON ALL {kind} IN SCHEMA {schema} FROM {to}")
    connection.exec_driver_sql(f"GRANT CONNECT ON DATABASE {database} TO {to}")
    connection.exec_driver_sql(f"GRANT USAGE ON SCHEMA {schema} TO {to}")
    for table, verbs in granted.items():
        connection.exec_driver_sql(f"GRANT {', '.join(verbs)} ON TABLE {schema}.{quote(table)} TO {to}")
    # The numbers of the rows that it may insert.
    connection.exec_driver_sql(f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {to}")


def _require_no_more(connection: sa.Connection, granted: dict[str, tuple[str, ...]], role: str) -> None:
    quote = connection.dialect.identifier_preparer.quote_identifier
    schema = quote(_name(connection, "schema"))
    more = [
        f"{verb} on {table}"
        for table, verbs in granted.items()
        for verb in _CHANGES
        if verb not in verbs
        and connection.execute(_HAS, {"role": role, "table": f"{schema}.{quote(table)}", "verb": verb}).scalar_one()
    ]
    if more:
        raise DatabaseError(
            f"The role {role} has {', '.join(more)} by another role or by PUBLIC, and would keep it. Nothing was "
            "changed. Take that back, or name a role of the process's own."
        )


def _name(connection: sa.Connection, what: str) -> str:
    return str(connection.exec_driver_sql(f"SELECT current_{what}()").scalar_one())
