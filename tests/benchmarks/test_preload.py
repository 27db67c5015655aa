"""Copies of receipts, beside receipts that the service itself has written."""

import json
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from benchmarks import callers, preload
from services.database import migrate, open_engine, reading
from services.inventory.tables import METADATA
from tests.postgres import Databases
from tests.services.inventory.conftest import connect, running

RECEIPTS = 3 * callers.SKUS + 5
# The time, which no two receipts share, and what follows from it.
_OF_ITS_TIME = {"created_at", "receipt_sha256"}


@pytest.fixture
def urls(dialect: str, tmp_path: Path, request: pytest.FixtureRequest) -> list[str]:
    """Two migrated databases."""
    if dialect == "postgresql":
        postgres: Databases = request.getfixturevalue("postgres")
        return [postgres.migrated("inventory") for _ in range(2)]
    made = [f"sqlite:///{tmp_path / name}.db" for name in ("one", "two")]
    for url in made:
        migrate("inventory", url)
    return made


def write(url: str, receipts: int) -> None:
    """Let the service itself write so many."""
    with running(url, {"token": preload.TENANT}) as service, connect(service.url, "token") as http:
        headers = {"Effect-Not-After": "2999-01-01T00:00:00Z"}
        for number in range(callers.SKUS):
            body = {"sku": callers.names(number)["sku"], "quantity": 1000}
            key = {"Idempotency-Key": f"bench-delivery-{number:03d}"}
            assert http.post("/v1/deliveries", json=body, headers=headers | key).status_code == 201
        for number in range(receipts):
            named = callers.names(number)
            lines = [{"sku": named["sku"], "quantity": 1}]
            key = {"Idempotency-Key": named["key"]}
            assert http.post("/v1/reservations", json={"lines": lines}, headers=headers | key).status_code == 201


def content(url: str) -> dict[str, list[dict[str, Any]]]:
    """Every row of every table, without the time."""
    engine = open_engine(url)
    found = {}
    with reading(engine) as connection:
        for table in METADATA.sorted_tables:
            rows = connection.execute(sa.select(table).order_by(*table.primary_key.columns)).mappings()
            found[table.name] = [
                {name: told(value) for name, value in row.items() if name not in _OF_ITS_TIME} for row in rows
            ]
    engine.dispose()
    return found


def told(value: Any) -> Any:
    """A receipt's text without the time."""
    if not isinstance(value, str) or not value.startswith("{"):
        return value
    return {name: each for name, each in json.loads(value).items() if name not in _OF_ITS_TIME}


def test_a_copied_receipt_is_what_the_service_would_have_written(urls: list[str]) -> None:
    """All tables are the same, to the last column, but for the time."""
    copied, written = urls
    write(copied, callers.SKUS)
    preload.fill(copied, RECEIPTS)
    write(written, RECEIPTS)
    assert content(copied) == content(written)


def test_the_service_goes_on_after_what_was_copied(urls: list[str]) -> None:
    """Its next receipt has the next number, and a copied one is found with its hash."""
    write(urls[0], callers.SKUS)
    preload.fill(urls[0], RECEIPTS)
    with running(urls[0], {"token": preload.TENANT}) as service, connect(service.url, "token") as http:
        last = http.get(f"/v1/receipts/{callers.names(RECEIPTS - 1)['key']}").raise_for_status().json()
        body = {"lines": [{"sku": last["lines"][0]["sku"], "quantity": 1}]}
        headers = {"Idempotency-Key": "bench-the-next-one", "Effect-Not-After": "2999-01-01T00:00:00Z"}
        following = http.post("/v1/reservations", json=body, headers=headers)
    assert following.status_code == 201
    assert following.json()["sequence"] == last["sequence"] + 1
    assert following.json()["stock_versions"] == {sku: version + 1 for sku, version in last["stock_versions"].items()}
