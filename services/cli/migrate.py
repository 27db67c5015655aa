"""`counterfoil migrate`: bring a store's database to a schema revision."""

import click

from services.cli.output import Group, Output, pass_output
from services.database import Section, describe, parse_url
from services.database import migrate as migrate_store
from services.settings import InventoryDatabaseSettings, JournalSettings


@click.group(cls=Group)
def migrate() -> None:
    """Bring a database to this build's schema, or to another revision.

    Safe to repeat: a database that is there already is left alone. Each store reads its own URL, so neither can be
    migrated with the other's.

    Exit codes: 0 at the revision, 2 wrong use or another store's database, 3 the database is unreachable.
    """


@migrate.command(short_help="Migrate the journal.")
@click.argument("revision", default="head")
@pass_output
def journal(output: Output, revision: str) -> None:
    """Migrate the journal at COUNTERFOIL_JOURNAL_DATABASE_URL to REVISION (head by default)."""
    _migrate(output, "journal", JournalSettings.read().journal_database_url.get_secret_value(), revision)


@migrate.command(short_help="Migrate the inventory.")
@click.argument("revision", default="head")
@pass_output
def inventory(output: Output, revision: str) -> None:
    """Migrate the inventory at COUNTERFOIL_INVENTORY_DATABASE_URL to REVISION (head by default)."""
    _migrate(output, "inventory", InventoryDatabaseSettings.read().inventory_database_url.get_secret_value(), revision)


def _migrate(output: Output, store: Section, url: str, revision: str) -> None:
    database = describe(parse_url(url))
    output.note(f"Migrating the {store} at {database} to {revision}.")
    reached = migrate_store(store, url, revision)
    output.result(
        {"store": store, "database": database, "revision": reached},
        people=f"The {store} at {database} is at revision {reached}.",
    )
