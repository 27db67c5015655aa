"""Receipts that the real inventory signs, read by the client: two codes, one signature."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.inventory_client import InventoryClient
from services.database import migrate
from services.effects.records import Answer, Seen
from services.effects.states import EffectState
from tests.activities.bench import intent_now
from tests.activities.sending import after, mark
from tests.services.effects.halves import make_row
from tests.services.inventory.conftest import Caller, Service, connect, running

ROW = make_row(intent_now())
REFUSED = make_row(intent_now(scope="INC-2042", request={"lines": [{"sku": "NOBODY-S", "quantity": 2}]}))
CLOSED = make_row(intent_now(scope="INC-2043"))


@pytest.fixture
def signing(tmp_path: Path) -> Iterator[Service]:
    """An inventory that signs with the first of its keys, and 10 FILTER-A."""
    url = f"sqlite:///{tmp_path / 'inventory.db'}"
    migrate("inventory", url)
    with running(url, {"token-a": "acme"}, signing_keys=(b"key-1", b"key-0")) as service:
        with connect(service.url, "token-a") as http:
            assert Caller(http).deliver().status_code == 201
        yield service


async def _answers(service: Service, *signing_keys: bytes) -> list[Answer]:
    """A reserve, a tombstone, the look-ups of both, and a rejection, by a reader with these keys."""
    client = InventoryClient(service.url, "token-a", clock=service.clock, signing_keys=signing_keys)
    try:
        return [
            await client.send(ROW, mark(ROW)),
            await client.void(CLOSED.key),
            await client.look_up(ROW.key),
            await client.look_up(CLOSED.key),
            await client.send(REFUSED, mark(REFUSED)),
        ]
    finally:
        await client.close()


@pytest.mark.parametrize(
    "keys", [(), (b"key-1",), (b"key-2", b"key-1")], ids=["none", "its own", "the next and its own"]
)
async def test_what_the_inventory_signed_is_believed_whoever_reads_it(
    signing: Service, keys: tuple[bytes, ...]
) -> None:
    """Committed, voided and rejected, heard at once or looked up."""
    reserved, closed, found, tombstone, refused = await _answers(signing, *keys)
    for answer, row, state in (
        (reserved, ROW, EffectState.COMMITTED),
        (found, ROW, EffectState.COMMITTED),
        (closed, CLOSED, EffectState.VOIDED),
        (tombstone, CLOSED, EffectState.VOIDED),
        (refused, REFUSED, EffectState.REJECTED),
    ):
        assert after(answer, row)[0] is state
        assert answer.receipt is not None
        assert answer.receipt.body["signature"].startswith("hmac-sha256:")


async def test_what_another_key_signed_settles_nothing(signing: Service) -> None:
    """The inventory's older key is no longer this reader's: everything is unknown, and says why."""
    for answer in await _answers(signing, b"key-0"):
        assert answer.seen is Seen.UNKNOWN
        assert "its signature is not by any key of ours" in answer.reason
