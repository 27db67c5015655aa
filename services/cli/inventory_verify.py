"""`counterfoil inventory verify`: is everything that the inventory has stored what the contract says?"""

import importlib
import textwrap
from dataclasses import asdict
from typing import Any

import click

from services.cli.output import Command, CommandError, ExitCode, Output, finish, pass_output
from services.database import check_schema, describe, open_engine, parse_url
from services.settings import InventoryDatabaseSettings, InventorySigningSettings

WIDTH = 100
_COUNTED = ("tenants", "receipts", "keys", "reservations", "skus", "movements", "ranges")


def passwordless(database_url: str) -> str:
    """A URL from the command line.

    Raises:
        CommandError: it holds a password.
    """
    parsed = parse_url(database_url)
    if parsed.password is not None or "password" in parsed.query:
        raise CommandError(
            "--database-url may not hold a password: everybody on this machine can read a command line. Nothing was "
            "started. Set COUNTERFOIL_INVENTORY_DATABASE_URL instead."
        )
    return database_url


@click.command(cls=Command, short_help="Say whether everything stored is what the contract says.")
@click.option(
    "--database-url",
    help="The inventory's database, without a password.  [default: COUNTERFOIL_INVENTORY_DATABASE_URL]",
)
@pass_output
def verify(output: Output, database_url: str | None) -> None:
    """Say whether everything that the inventory has stored is what the contract says. Nothing is changed.

    It reads one moment of the live database while writers go on, and stops at the first violation: receipts, stock,
    ledger, reservations, digests and what keeps them. With COUNTERFOIL_INVENTORY_SIGNING_KEYS signatures are checked
    too.

    Exit codes: 0 nothing is wrong, 1 something is, 2 wrong use, 3 the database is unreachable.
    """
    if database_url is None:
        url = InventoryDatabaseSettings.read().inventory_database_url.get_secret_value()
    else:
        url = passwordless(database_url)
    keys = InventorySigningSettings.read().signing_keys
    # By name: no other command has to wait for its import.
    verification: Any = importlib.import_module("services.inventory.verification.run")
    engine = open_engine(url)
    try:
        check_schema("inventory", engine)
        found = verification.verify(engine, keys, lambda count: output.note(f"{count:,} receipts looked at."))
    finally:
        engine.dispose()
    violation = found.violation
    document = {
        "clean": violation is None,
        "violation": None
        if violation is None
        else {**asdict(violation), "what_to_do": violation.what_to_do, "sentence": violation.sentence},
        "checked": asdict(found.checked),
        "database": describe(parse_url(url)),
    }
    output.result(document, people=lambda: _show(output, document, signatures=bool(keys)))
    if violation is not None:
        finish(ExitCode.FOUND)


def _show(output: Output, document: dict[str, Any], *, signatures: bool) -> None:
    checked, violation = document["checked"], document["violation"]
    output.say(f"{document['database']}")
    counted = (*_COUNTED, "signatures") if signatures else _COUNTED
    output.table(("checked", "how many"), [(_name(name), f"{checked[name]:,}") for name in counted])
    output.say("")
    if checked["expired_receipts"]:
        output.say(f"Retention has taken the bodies of {checked['expired_receipts']:,} of the receipts.")
    if not signatures:
        output.say("Signatures were not looked at: COUNTERFOIL_INVENTORY_SIGNING_KEYS is not set.")
    if violation is None:
        output.say("Every record is what the contract says: S1 to S10 hold, and what keeps the records is in force.")
        return
    output.say(textwrap.fill(violation["sentence"], WIDTH, break_long_words=False, break_on_hyphens=False))
    output.say("\nIt is the first one; there may be others. Nothing was changed.")


def _name(counted: str) -> str:
    return {"skus": "SKUs", "ranges": "ranges of keys"}.get(counted, counted)
