"""`counterfoil inventory`: serve the mock inventory; see and deliver stock, verify its records, check a provider.

A delivery is a keyed effect that a person sends by hand, so its key is printed before its first byte leaves: whatever
happens then, the same command with the same key finishes it, and never delivers twice.
"""

import contextlib
import importlib
import re
import sys
import uuid
from dataclasses import asdict
from typing import Any

import click

from services.cli.conformance import conformance
from services.cli.inventory_client import Delivery, command_line, deliver, read_stock
from services.cli.inventory_verify import passwordless, verify
from services.cli.output import CommandError, ExitCode, Group, Output, finish, pass_output
from services.database import describe, parse_url
from services.effects.keys import PROVIDER_KEY
from services.settings import InventoryClientSettings, InventoryServingSettings, InventorySettings

HOST = "127.0.0.1"
# Beside Temporal's 7233 and 8233, and not the 8080 that everything else takes.
PORT = 8090

_SKU = re.compile(r"[A-Z0-9][A-Z0-9._-]{0,63}")
_QUANTITY_LIMIT = 1_000_000_000


@click.group(cls=Group, invoke_without_command=True)
@click.option("--host", default=HOST, show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="The port to listen on.")
@click.option(
    "--database-url",
    help="The inventory's database, without a password.  [default: COUNTERFOIL_INVENTORY_DATABASE_URL]",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the log on stderr is written: a line for each request, for people or as JSON.",
)
@click.pass_context
def inventory(ctx: click.Context, host: str, port: int, database_url: str | None, log_format: str) -> None:
    """Serve the mock inventory; or, with a command, see and deliver stock, verify its records, check any provider.

    Serving needs COUNTERFOIL_INVENTORY_TOKENS (acme=token-a,acme:read=token-b: tenant and token, :read for one that may
    only read). Prometheus reads /metrics. The first Ctrl-C or SIGTERM lets what has begun be answered, the second does
    not.

    Exit codes: 0 ended by Ctrl-C or SIGTERM, 2 wrong use, an address that is taken, or a database to migrate first, 3
    the database is unreachable, 130 or 143 ended at once by a second signal.
    """
    if ctx.invoked_subcommand is None:
        _serve(host, port, database_url, log_format)
        return
    for name in ("host", "port", "database_url", "log_format"):
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} is for serving: leave it out before a command.")


@pass_output
def _serve(output: Output, host: str, port: int, database_url: str | None, log_format: str) -> None:
    url, settings = _serving(database_url)
    database = describe(parse_url(url))
    # By name: no other command has to wait for the server's import.
    server: Any = importlib.import_module("services.inventory.serve")
    tokens: Any = importlib.import_module("services.inventory.tokens")

    def ready(address: str) -> None:
        output.note(f"The inventory answers at {address} from {database}. Ctrl-C ends it.")

    try:
        parsed = tokens.parse_tokens(settings.inventory_tokens.get_secret_value())
        with contextlib.redirect_stdout(sys.stderr):  # a server's log is not an answer
            server.serve(
                host=host,
                port=port,
                database_url=url,
                tokens=parsed,
                retention=settings.retention,
                signing_keys=settings.signing_keys,
                log_format=log_format,
                ready=ready if log_format == "text" else None,  # JSON's readers want nothing else
            )
    except tokens.TokensError as error:
        raise CommandError(f"COUNTERFOIL_INVENTORY_TOKENS is not usable. {error} Nothing was started.") from error
    except server.AddressError as error:
        raise CommandError(f"{error} Nothing was started.") from error
    served = {"host": host, "port": port, "database": database}
    output.result({"served": served}, people="The inventory has ended; what it answered is kept.")


def _serving(database_url: str | None) -> tuple[str, InventoryServingSettings]:
    if database_url is None:
        settings = InventorySettings.read()
        return settings.inventory_database_url.get_secret_value(), settings
    return passwordless(database_url), InventoryServingSettings.read()


inventory.add_command(conformance)
inventory.add_command(verify)


def _delivery(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    return tuple(_sku_and_quantity(value) for value in values)


def _sku_and_quantity(value: str) -> tuple[str, int]:
    sku, _, digits = value.partition("=")
    if not _SKU.fullmatch(sku) or not re.fullmatch(r"[0-9]{1,10}", digits) or not 1 <= int(digits) <= _QUANTITY_LIMIT:
        raise click.BadParameter("write SKU=QUANTITY, for example FILTER-A=10 (1 to 1000000000).")
    return sku, int(digits)


def _skus(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _SKU.fullmatch(value):
            raise click.BadParameter(f"{value!r} is not a SKU: 1-64 of A-Z, 0-9, '.', '_' and '-'.")
    return tuple(dict.fromkeys(values))


def _key(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not PROVIDER_KEY.fullmatch(value):
        raise click.BadParameter("a key is 16-128 of A-Z, a-z, 0-9, '.', '_', '~', ':' and '-'.")
    return value


@inventory.command(short_help="Show the stock of SKUs, or deliver stock.")
@click.argument("skus", metavar="[SKU]...", nargs=-1, callback=_skus)
@click.option(
    "--deliver",
    "deliveries",
    metavar="SKU=QUANTITY",
    multiple=True,
    callback=_delivery,
    help="Deliver stock; repeatable.",
)
@click.option("--key", callback=_key, help="The key of the one delivery; a fresh one is made and printed without it.")
@pass_output
def stock(output: Output, skus: tuple[str, ...], deliveries: tuple[tuple[str, int], ...], key: str | None) -> None:
    """Show the stock of each SKU, or deliver stock, for the tenant of COUNTERFOIL_INVENTORY_TOKEN.

    Exit codes: 0 shown or delivered, 1 a SKU is not known to the inventory, 2 wrong use or refused, 3 the inventory is
    unreachable or its answer was not heard; then the command to repeat is said, whose key never delivers twice.
    """
    if skus and deliveries:
        raise click.UsageError("Name SKUs to see them, or deliver: not both at once.")
    if not skus and not deliveries:
        raise click.UsageError("Name at least one SKU, for example FILTER-A, or --deliver FILTER-A=10.")
    if key is not None and len(deliveries) != 1:
        raise click.UsageError("--key goes with exactly one --deliver: a key stands for one delivery.")
    settings = InventoryClientSettings.read()
    if skus:
        _show(output, settings, skus)
    else:
        keyed = [Delivery(sku=sku, quantity=count, key=key or f"delivery-{uuid.uuid4()}") for sku, count in deliveries]
        _deliver(output, settings, keyed)


def _show(output: Output, settings: InventoryClientSettings, skus: tuple[str, ...]) -> None:
    token = settings.inventory_token.get_secret_value()
    found = read_stock(settings.inventory_url, token, skus, ca_file=settings.inventory_ca_file)
    known = [balance for balance in found.values() if balance is not None]
    unknown = [sku for sku, balance in found.items() if balance is None]

    def people() -> None:
        if known:
            columns = ("SKU", "available", "held", "consumed", "received")
            output.table(columns, [(b.sku, b.available, b.held, b.consumed, b.received) for b in known])
        for sku in unknown:
            output.say(f"{sku} is not known to the inventory: nothing of it was ever delivered to this tenant.")

    output.result({"stock": [asdict(balance) for balance in known], "unknown": unknown}, people=people)
    if unknown:
        finish(ExitCode.FOUND)


def _deliver(output: Output, settings: InventoryClientSettings, deliveries: list[Delivery]) -> None:
    for delivery in deliveries:
        output.note(f"Delivering {delivery.quantity} {delivery.sku} under the key {delivery.key}")
    token = settings.inventory_token.get_secret_value()
    done: list[dict[str, Any]] = []
    for index, delivery in enumerate(deliveries):
        try:
            replayed, receipt_id = deliver(settings.inventory_url, token, delivery, ca_file=settings.inventory_ca_file)
        except CommandError as error:
            raise _stopped(error, deliveries, index, done) from error
        except KeyboardInterrupt:
            output.note(f"Interrupted: whether it was delivered is unknown. Repeat: {delivery.command}")
            raise
        done.append({**asdict(delivery), "replayed": replayed, "receipt_id": receipt_id})

    def people() -> None:
        for each in done:
            what = f"{each['quantity']} {each['sku']} (key {each['key']}, receipt {each['receipt_id']})"
            output.say(f"Already delivered, nothing was added: {what}" if each["replayed"] else f"Delivered: {what}")

    output.result({"deliveries": done}, people=people)


def _stopped(error: CommandError, deliveries: list[Delivery], index: int, done: list[dict[str, Any]]) -> CommandError:
    """The error with what was delivered before it and what was not sent after it."""
    message = error.message
    rest = deliveries[index + 1 :]
    if done:
        message += f"\nDelivered before that: {', '.join(each['sku'] for each in done)}."
    if rest:
        unsent = command_line(*(f"{delivery.sku}={delivery.quantity}" for delivery in rest))
        message += f"\nNot sent: {', '.join(delivery.sku for delivery in rest)}; then run: {unsent}"
    details = {**error.details, "delivered": done, "not_sent": [asdict(delivery) for delivery in rest]}
    return CommandError(message, error.exit_code, details=details)
