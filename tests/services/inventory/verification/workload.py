"""A workload with everything in it, over HTTP, and a database that holds it."""

from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from services.database import writing
from services.inventory.housekeeping import Housekeeping
from services.inventory.stock import StockKeeper
from services.inventory.tables import RESERVATIONS
from tests.services.inventory.conftest import Caller, Service, connect, running

SIGNING_KEY = b"a-key-for-the-tests-and-for-nothing-else"


def end_hold(service: Service, caller: Caller, receipt: dict[str, Any]) -> None:
    """Let a hold end, and let its end be again what its receipt says: nobody may turn PostgreSQL's clock."""
    of = (RESERVATIONS.c.tenant == caller.tenant, RESERVATIONS.c.reservation_id == receipt["reservation_id"])
    with service.engine.connect() as connection:
        ends_at = connection.execute(sa.select(RESERVATIONS.c.expires_at).where(*of)).scalar_one()
    service.end_hold(caller, receipt)
    service.housekeeping()
    with writing(service.engine) as connection:
        connection.execute(RESERVATIONS.update().where(*of).values(expires_at=ends_at))


def mixed(service: Service, caller: Caller, run: int = 1) -> None:
    """Every kind, every outcome and every reason; each at least twice where a mistake could hide in the first."""
    for sku in ("FILTER-A", "FILTER-B", "FILTER-A"):
        caller.deliver(20, sku)
    lines = [{"sku": "FILTER-B", "quantity": 1}, {"sku": "FILTER-A", "quantity": 2}, {"sku": "FILTER-B", "quantity": 2}]
    reference = '{"generation":1,"name":"reserve","scope":"INC-1"}'
    taken = caller.post("/v1/reservations", {"lines": lines, "reference": reference}).json()
    caller.post(f"/v1/reservations/{taken['reservation_id']}/release", {"reason": "not wanted any more"})
    caller.reserve(3)
    held = [
        caller.post("/v1/reservations", {"lines": lines, "hold_seconds": 60 + each, "reference": f"hold {each}"}).json()
        for each in range(5)
    ]
    caller.confirm(held[0]["reservation_id"])
    caller.confirm(held[1]["reservation_id"])
    caller.release(held[1]["reservation_id"])
    caller.release(held[2]["reservation_id"])
    end_hold(service, caller, held[3])
    for refused in (
        caller.confirm(held[3]["reservation_id"]),
        caller.release(held[2]["reservation_id"]),
        caller.confirm(held[0]["reservation_id"]),
        caller.reserve(10_000),
        caller.reserve(1, "UNKNOWN"),
    ):
        assert refused.status_code == 409
    for number in range(2):
        caller.void(f"closed-key-{run}-000000{number}")
    redo(caller, run)


def redo(caller: Caller, run: int) -> None:
    """A redo over what never came, over what was released, and over what stands."""
    first, second, third, fourth = (f"redone-key-{run}-000001-g{generation}" for generation in range(1, 5))
    caller.reserve(1, key=second, headers={"Effect-Supersedes": first})
    refused = caller.reserve(1, key=third, headers={"Effect-Supersedes": f"{second}, {first}"})
    assert refused.json()["predecessor"]["key"] == second
    caller.release(caller.receipt(second).json()["reservation_id"])
    supersedes = f"{third}, {second}, {first}"
    assert caller.reserve(1, key=fourth, headers={"Effect-Supersedes": supersedes}).status_code == 201
    headers = {"Effect-Supersedes": fourth}
    refused = caller.release("reservation-2", key=f"redone-key-{run}-000001-g5", headers=headers)
    assert refused.json()["type"] == "/problems/predecessor-committed"


def fill(database_url: str) -> None:
    """Two tenants with the workload; the first has it twice, and retention has taken the bodies of the first time."""
    tokens = {"token-a": "acme", "token-b": "globex"}
    with (
        running(database_url, tokens, signing_keys=(SIGNING_KEY,)) as service,
        connect(service.url, "token-a") as first,
        connect(service.url, "token-b") as second,
    ):
        acme, globex = Caller(first), Caller(second, tenant="globex")
        mixed(service, acme)
        service.clock.now += timedelta(seconds=1)
        keeper = StockKeeper(service.engine, service.clock)
        assert Housekeeping(service.engine, keeper, service.clock, timedelta(0)).drop_expired() > 0
        mixed(service, globex)
        mixed(service, acme, 2)
