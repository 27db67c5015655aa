"""The servers that the cases of a session share: Temporal and the inventory, real processes both."""

import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
from temporalio.client import Client

from services.drill.processes import Child, Processes, TemporalServer, free_port, wait_until
from tests.faults.stores import Stores

if TYPE_CHECKING:
    from tests.faults.programs import Programs

COUNTERFOIL = str(Path(sys.executable).with_name("counterfoil"))
TENANTS = 400
# Far above what anything takes here, so that only what never comes is said to be missing.
LIMIT_SECONDS = 40.0


def environment(**settings: str) -> dict[str, str]:
    """This process's environment with exactly these settings of ours and of Temporal's."""
    own = ("COUNTERFOIL_", "TEMPORAL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)} | settings


class Inventory:
    """The inventory's process: it may be killed and started again on the same database and port."""

    def __init__(
        self, processes: Processes, folder: Path, database_url: str, *, tenants: int = TENANTS, name: str = "inventory"
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.database_url = database_url
        tokens = ",".join(f"tenant-{number}=token-{number}" for number in range(1, tenants + 1))
        self.child = processes.add(
            Child(
                [COUNTERFOIL, "inventory", "--port", str(self.port)],
                name="The inventory",
                log=folder / f"{name}.log",
                env=environment(COUNTERFOIL_INVENTORY_TOKENS=tokens, COUNTERFOIL_INVENTORY_DATABASE_URL=database_url),
            )
        )

    async def start(self) -> None:
        """Start it and wait until it answers."""
        self.child.start()
        await wait_until(self._answers, timeout_seconds=LIMIT_SECONDS, what="the inventory answers")

    async def _answers(self) -> bool:
        self.child.require_alive()
        async with httpx.AsyncClient(base_url=self.url, trust_env=False) as http:
            with suppress(httpx.TransportError):
                return (await http.get("/readyz")).is_success
        return False


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What the cases of a session share."""

    folder: Path
    processes: Processes
    programs: "Programs"
    temporal: TemporalServer
    client: Client
    inventory: Inventory
    stores: Stores
