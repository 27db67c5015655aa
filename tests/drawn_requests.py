"""`make schemathesis`: requests drawn from the OpenAPI document, before the live service, on both databases.

Schemathesis is no part of this environment: it gets one of its own in var/schemathesis. What the form of a request
cannot say is in schemathesis.toml.
"""

import asyncio
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import httpx

from services.database import migrate
from services.drill.postgres import PostgresServer
from services.drill.processes import Processes, free_port, wait_until

VERSION = "4.32.5"
ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "var" / "schemathesis"
TOKEN = "drawn-requests"  # noqa: S105 - of a service of our own, which ends with this process


def program() -> Path:
    """Schemathesis, installed if it is not there."""
    installed = FOLDER / "bin" / "schemathesis"
    if not installed.exists():
        subprocess.run([sys.executable, "-m", "venv", str(FOLDER)], check=True)
        subprocess.run([str(FOLDER / "bin" / "pip"), "install", "--quiet", f"schemathesis=={VERSION}"], check=True)
    return installed


def run(schemathesis: Path, processes: Processes, folder: Path, database_url: str, examples: str) -> int:
    """One run on one database; schemathesis' exit code."""
    migrate("inventory", database_url)
    url = f"http://127.0.0.1:{free_port()}"
    service = processes.start(
        [str(Path(sysconfig.get_path("scripts")) / "counterfoil"), "inventory", "--port", url.rpartition(":")[2]],
        name="The inventory",
        log=folder / "inventory.log",
        env={
            "COUNTERFOIL_INVENTORY_DATABASE_URL": database_url,
            "COUNTERFOIL_INVENTORY_TOKENS": f"drawn={TOKEN}",
        },
    )
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False) as http:

        def ready() -> bool:
            try:
                return http.get("/readyz").is_success
            except httpx.TransportError:
                return False

        asyncio.run(wait_until(ready, timeout_seconds=30, what="the inventory"))
        for number, sku in enumerate(("FILTER-A", "HOSE-B")):
            headers = {"Idempotency-Key": f"drawn-delivery-{number}", "Effect-Not-After": "2999-01-01T00:00:00Z"}
            delivery = {"sku": sku, "quantity": 1_000_000_000}
            http.post("/v1/deliveries", json=delivery, headers=headers).raise_for_status()
    command = ["run", f"{url}/openapi.json", "--header", f"Authorization: Bearer {TOKEN}", "--checks", "all"]
    done = subprocess.run([str(schemathesis), *command, "--max-examples", examples], check=False, cwd=ROOT)
    service.terminate()
    return done.returncode


def main(examples: str = "200") -> int:
    """Both databases; the worse exit code."""
    schemathesis = program()
    with tempfile.TemporaryDirectory(prefix="counterfoil-drawn-") as name, Processes() as processes:
        folder = Path(name)
        postgres = PostgresServer(processes, folder / "postgres")
        postgres.start()
        postgres.create_database("drawn")
        urls = (f"sqlite:///{folder / 'inventory.db'}", postgres.url("drawn"))
        return max(run(schemathesis, processes, folder, url, examples) for url in urls)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
