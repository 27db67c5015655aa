"""Everything that a tenant's inventory holds, read over HTTP when all is over; and that its database adds up."""

import asyncio
import json
import subprocess
from typing import Any

from tests.faults.inventory.caller import LIMIT_SECONDS, Caller, Request, Told, look_up, read, void
from tests.faults.inventory.story import Kept, contradictions
from tests.faults.servers import COUNTERFOIL, Inventory, environment

_PAGE = 1000


async def read_kept(caller: Caller) -> Kept:
    """The whole feed, and the stock and the ledger of every SKU that it names."""
    receipts: list[dict[str, Any]] = []
    while True:
        after = receipts[-1]["sequence"] if receipts else 0
        page = (await _found(caller, f"/v1/receipts?after={after}&limit={_PAGE}"))["receipts"]
        receipts += page
        if len(page) < _PAGE:
            break
    skus = sorted({sku for receipt in receipts for sku in receipt["stock_versions"]})
    stock = {sku: await _found(caller, f"/v1/stock/{sku}") for sku in skus}
    ledger = {sku: await _ledger(caller, sku) for sku in skus}
    return Kept(receipts=receipts, stock=stock, ledger=ledger)


async def _ledger(caller: Caller, sku: str) -> list[dict[str, Any]]:
    movements: list[dict[str, Any]] = []
    while True:
        page = await _found(caller, f"/v1/ledger/{sku}?after_version={len(movements)}")
        movements += page["movements"]
        if page["next_after_version"] >= page["version"]:
            return movements


async def _found(caller: Caller, path: str) -> dict[str, Any]:
    told = await caller.ask(read(path))
    assert told.status == 200, told
    return told.body


async def one_story(caller: Caller, heard: list[Told]) -> Kept:
    """Read what is kept: it, and everything that was heard, must be one story."""
    kept = await read_kept(caller)
    assert contradictions(heard, kept) == []
    return kept


async def definitive(caller: Caller, request: Request) -> bool:
    """Whether a key is not stuck: a look-up, the same request again and a void all tell one receipt."""
    assert request.key is not None
    told = [await caller.ask(each) for each in (look_up(request.key), request, void(request.key))]
    return all(each.receipt is not None and each.receipt == told[0].receipt for each in told)


async def adds_up(inventory: Inventory) -> None:
    """What `counterfoil inventory verify` says of the database, of all tenants."""
    done = await asyncio.to_thread(
        subprocess.run,
        [COUNTERFOIL, "inventory", "verify", "--json"],
        env=environment(COUNTERFOIL_INVENTORY_DATABASE_URL=inventory.database_url),
        capture_output=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    assert done.returncode == 0, (json.loads(done.stdout)["violation"], done.stderr)
