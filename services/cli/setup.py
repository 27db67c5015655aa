"""`counterfoil setup`: what a deployment needs in Temporal and at the inventory, made once and safe to repeat."""

import asyncio

import click

from services.cli.inventory_client import Delivery, deliver
from services.cli.output import Command, CommandError, Output, pass_output
from services.settings import InventoryClientSettings, OriginSettings
from services.temporal import add_search_attributes, connect, ensure_schedule, schedule_id

# One key for every origin: the second origin at the same tenant meets the first one's payload and is refused.
TENANT_KEY = "counterfoil-tenant-origin"


@click.command(cls=Command)
@pass_output
def setup(output: Output) -> None:
    """Register the search attributes and the sweep's Schedule, and mark the inventory's tenant as this origin's.

    Safe to repeat: what is there is compared and left. Exit codes: 0 done, 2 the namespace or the tenant belongs to
    something else, 3 Temporal or the inventory is unreachable.
    """
    origin = OriginSettings.read().origin
    client = InventoryClientSettings.read()
    added, new_schedule = asyncio.run(_temporal(origin))
    marked = _mark_tenant(origin, client)
    document = {
        "origin": origin,
        "search_attributes_added": added,
        "schedule": schedule_id(origin),
        "schedule_created": new_schedule,
        "tenant_marked": marked,
    }
    words = [
        f"Search attributes: {', '.join(added) + ' added' if added else 'all there'}.",
        f"Schedule {schedule_id(origin)}: {'made' if new_schedule else 'brought to this build'}.",
        f"The inventory's tenant: {'marked as' if marked else 'marked before as'} origin {origin}.",
        "Pending effects in Temporal's UI: PendingEffects > 0 AND ExecutionStatus = 'Running'",
    ]
    output.result(document, people="\n".join(words))


async def _temporal(origin: str) -> tuple[list[str], bool]:
    client = await connect()
    return await add_search_attributes(client), await ensure_schedule(client, origin)


def _mark_tenant(origin: str, client: InventoryClientSettings) -> bool:
    marker = Delivery(sku=f"ORIGIN-{origin}", quantity=1, key=TENANT_KEY)
    try:
        replayed, _ = deliver(client.inventory_url, client.inventory_token.get_secret_value(), marker)
    except CommandError as error:
        if error.details.get("problem") != "idempotency-key-reused":
            raise
        raise CommandError(
            f"The inventory's tenant belongs to another origin than {origin}: two origins at one tenant would mix "
            "their receipts. Nothing was changed. Use another tenant's token, or the COUNTERFOIL_ORIGIN it belongs to."
        ) from error
    return not replayed
