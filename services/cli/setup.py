"""`counterfoil setup`: what a deployment needs in Temporal and at the inventory, made once and safe to repeat."""

import asyncio
import time
from dataclasses import dataclass

import click
from temporalio.client import Client

from services.cli.inventory_client import Delivery, deliver
from services.cli.output import Command, CommandError, ExitCode, Output, pass_output
from services.saved_queries import saved_queries
from services.settings import InventoryClientSettings, OriginSettings, TemporalUiSettings
from services.temporal import TemporalUnreachable, add_search_attributes, connect, ensure_schedule, schedule_id

# One key for every origin: the second origin at the same tenant meets the first one's payload and is refused.
TENANT_KEY = "counterfoil-tenant-origin"
# A service that a script has started in the line before answers after a second or two, and later on a busy machine.
PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.25


@click.command(cls=Command)
@click.option(
    "--wait-seconds",
    type=click.FloatRange(min=0),
    default=PATIENCE_SECONDS,
    show_default=True,
    help="Wait this long for Temporal and for the inventory to answer.",
)
@click.option(
    "--ui-url",
    help="Where Temporal's UI is, for the links; by default COUNTERFOIL_TEMPORAL_UI_URL, or a dev server's own.",
)
@pass_output
def setup(output: Output, *, wait_seconds: float, ui_url: str | None) -> None:
    """Mark the inventory's tenant as this origin's; register the search attributes and the sweep's Schedule.

    Safe to repeat: what is there is compared and left. Services that just start are waited for. Ends with the
    saved queries: what is pending, what is unknown, as links into Temporal's UI.

    Exit codes: 0 done, 2 the namespace or the tenant belongs to something else, 3 Temporal or the inventory is
    unreachable.
    """
    origin = OriginSettings.read().origin
    inventory = InventoryClientSettings.read()
    where = ui_url or TemporalUiSettings.read().temporal_ui_url
    made = asyncio.run(_set_up(origin, inventory, output, wait_seconds))
    queries = saved_queries(where, made.namespace)
    document = {
        "origin": origin,
        "search_attributes_added": made.attributes_added,
        "schedule": schedule_id(origin),
        "schedule_created": made.new_schedule,
        "tenant_marked": made.tenant_marked,
        "saved_queries": queries,
    }
    added = ", ".join(made.attributes_added)
    words = [
        f"Search attributes: {added + ' added' if added else 'all there'}.",
        f"Schedule {schedule_id(origin)}: {'made' if made.new_schedule else 'there, in the form of this build'}.",
        f"The inventory's tenant: {'marked as' if made.tenant_marked else 'marked before as'} origin {origin}.",
        "Saved queries for Temporal's UI:",
        *(f"  {saved['title']}\n    {saved['query']}\n    {saved['url']}" for saved in queries),
    ]
    output.result(document, people="\n".join(words))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Made:
    """What was new, and where."""

    namespace: str
    tenant_marked: bool
    attributes_added: list[str]
    new_schedule: bool


async def _set_up(origin: str, inventory: InventoryClientSettings, output: Output, wait_seconds: float) -> _Made:
    client = await _reach_temporal(output, wait_seconds)
    # The tenant first: a worker starts once the Schedule is there, and two origins at one tenant must not get so far.
    marked = await _mark_tenant(origin, inventory, output, wait_seconds)
    return _Made(
        namespace=client.namespace,
        tenant_marked=marked,
        attributes_added=await add_search_attributes(client),
        new_schedule=await ensure_schedule(client, origin),
    )


async def _reach_temporal(output: Output, wait_seconds: float) -> Client:
    deadline = time.monotonic() + wait_seconds
    waiting = False
    while True:
        try:
            return await connect()
        except TemporalUnreachable as error:
            if time.monotonic() > deadline:
                raise
            if not waiting:
                output.note(f"Waiting up to {wait_seconds:g} s for Temporal at {error.where}.")
        waiting = True
        await asyncio.sleep(_PAUSE_SECONDS)


async def _mark_tenant(origin: str, inventory: InventoryClientSettings, output: Output, wait_seconds: float) -> bool:
    """Mark the tenant as this origin's; whether it was unmarked. An inventory that just starts is waited for."""
    url, token = inventory.inventory_url, inventory.inventory_token.get_secret_value()
    marker = Delivery(sku=f"ORIGIN-{origin}", quantity=1, key=TENANT_KEY)
    deadline = time.monotonic() + wait_seconds
    waiting = False
    while True:
        try:
            replayed, _ = await asyncio.to_thread(deliver, url, token, marker, ca_file=inventory.inventory_ca_file)
        except CommandError as error:
            if error.details.get("outcome") != "not-sent" or time.monotonic() > deadline:
                raise _not_marked(error, origin, url) from error
        else:
            return not replayed
        if not waiting:
            output.note(f"Waiting up to {wait_seconds:g} s for the inventory at {url}.")
        waiting = True
        await asyncio.sleep(_PAUSE_SECONDS)


def _not_marked(error: CommandError, origin: str, url: str) -> CommandError:
    """The delivery's error in this command's words: nobody who sets up knows of a delivery."""
    details = {"dependency": "inventory", "where": url}
    if error.details.get("problem") == "idempotency-key-reused":
        return CommandError(
            f"The inventory's tenant belongs to another origin than {origin}: two origins at one tenant would mix "
            "their receipts. Nothing was changed. Use another tenant's token, or the COUNTERFOIL_ORIGIN it belongs to."
        )
    if error.details.get("outcome") == "not-sent":
        return CommandError(
            f"The inventory at {url} cannot be reached. Nothing was changed. Start it with `counterfoil inventory`, or "
            "check COUNTERFOIL_INVENTORY_URL, and repeat: counterfoil setup",
            ExitCode.UNREACHABLE,
            details=details,
        )
    if error.exit_code is ExitCode.UNREACHABLE:
        return CommandError(
            f"The inventory at {url} did not say whether its tenant is marked. Nothing else was changed. Look at the "
            "service, and repeat: counterfoil setup",
            ExitCode.UNREACHABLE,
            details=details,
        )
    return error
