"""`counterfoil migrate`: bring a store's database to a schema revision, and let a process's role work in it."""

from collections.abc import Mapping
from typing import Any

import click
import sqlalchemy as sa

from services.cli.output import Group, Output, pass_output
from services.database import Section, describe, parse_url
from services.database import migrate as migrate_store
from services.inventory.tables import METADATA as INVENTORY
from services.journal.tables import METADATA as JOURNAL
from services.privileges import grant, require_grantable
from services.settings import InventoryDatabaseSettings, JournalSettings

_TABLES: Mapping[Section, sa.MetaData] = {"journal": JOURNAL, "inventory": INVENTORY}

_grant_to = click.option(
    "--grant-to",
    "role",
    metavar="ROLE",
    help="On PostgreSQL: then let this existing role do what a process needs, and nothing else.",
)


@click.group(cls=Group)
def migrate() -> None:
    """Bring a database to this build's schema, or to another revision.

    Safe to repeat: a database that is there already is left alone. Each store reads its own URL, so neither can be
    migrated with the other's.

    Exit codes: 0 at the revision, 2 wrong use or another store's database, 3 the database is unreachable.
    """


@migrate.command(short_help="Migrate the journal.")
@click.argument("revision", default="head")
@_grant_to
@pass_output
def journal(output: Output, revision: str, role: str | None) -> None:
    """Migrate the journal at COUNTERFOIL_JOURNAL_DATABASE_URL to REVISION (head by default).

    With --grant-to a worker's role may read and append, and update `effects`; not the entries, nor delete anything, nor
    switch a trigger off.
    """
    url = JournalSettings.read().journal_database_url.get_secret_value()
    _migrate(output, "journal", url, revision, role)


@migrate.command(short_help="Migrate the inventory.")
@click.argument("revision", default="head")
@_grant_to
@pass_output
def inventory(output: Output, revision: str, role: str | None) -> None:
    """Migrate the inventory at COUNTERFOIL_INVENTORY_DATABASE_URL to REVISION (head by default)."""
    url = InventoryDatabaseSettings.read().inventory_database_url.get_secret_value()
    _migrate(output, "inventory", url, revision, role)


def _migrate(output: Output, store: Section, url: str, revision: str, role: str | None) -> None:
    if role is not None and revision != "head":
        raise click.UsageError("--grant-to goes with this build's own schema: leave the revision out.")
    database = describe(parse_url(url))
    if role is not None:
        require_grantable(url, role)
    output.note(f"Migrating the {store} at {database} to {revision}.")
    reached = migrate_store(store, url, revision)
    document: dict[str, Any] = {"store": store, "database": database, "revision": reached}
    words = f"The {store} at {database} is at revision {reached}."
    if role is not None:
        document |= {"granted_to": role, "granted": grant(url, _TABLES[store], role)}
        words += f"\n{role} may now use it as a process does, and no further."
    output.result(document, people=words)
