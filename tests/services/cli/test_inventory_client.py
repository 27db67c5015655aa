"""What one delivery concludes from each answer, and what is sent."""

import re
import socket
import threading
from datetime import UTC, datetime, timedelta

import pytest
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

from services.cli.inventory_client import Delivery, deliver, read_stock
from services.cli.output import CommandError, ExitCode
from tests.services.cli.conftest import TOKEN, TinyInventory, problem

DELIVERY = Delivery(sku="FILTER-A", quantity=10, key="delivery-of-monday-1")
RECEIPT = {"key": DELIVERY.key, "fingerprint": DELIVERY.fingerprint, "outcome": "committed", "receipt_id": "r-1"}


def test_a_delivery_carries_its_key_and_a_deadline_minutes_from_now(inventory: TinyInventory) -> None:
    """The key is quoted, the deadline is UTC."""
    assert deliver(inventory.url, TOKEN, DELIVERY) == (False, "receipt-1")
    assert deliver(inventory.url, TOKEN, DELIVERY) == (True, "receipt-1")
    headers = inventory.headers[0]
    assert headers["Idempotency-Key"] == f'"{DELIVERY.key}"'
    left = datetime.fromisoformat(headers["Effect-Not-After"]) - datetime.now(UTC)
    assert timedelta(minutes=1) < left < timedelta(minutes=10)


@pytest.mark.parametrize(
    ("answer", "code", "outcome"),
    [
        (problem(410, "key-voided"), 2, "refused"),
        (problem(410, "key-expired"), 2, "refused"),
        (problem(412, "not-after-passed"), 2, "refused"),
        (problem(422, "idempotency-key-reused"), 2, "refused"),
        (problem(400, "validation-failed"), 2, "refused"),
        (problem(409, "request-in-progress"), 3, "unknown"),
        (problem(503, "overloaded"), 3, "unknown"),
        (problem(500, "internal"), 3, "unknown"),
        (problem(418, "brand-new"), 3, "unknown"),
        (HTMLResponse("<h1>Bad gateway</h1>", 502), 3, "unknown"),
        (HTMLResponse("<h1>Log in</h1>", 200), 3, "unknown"),
        (RedirectResponse("/v1/stock/FILTER-A", 303), 3, "unknown"),
        (JSONResponse(["nothing"], 201), 3, "unknown"),
        (JSONResponse(RECEIPT | {"key": "delivery-of-another"}, 201), 3, "unknown"),
        (JSONResponse(RECEIPT | {"fingerprint": "0" * 64}, 201), 3, "unknown"),
        (JSONResponse(RECEIPT | {"outcome": "rejected"}, 200), 3, "unknown"),
        (Response(b"x" * 2_000_000, 201), 3, "unknown"),
    ],
)
def test_only_a_matching_receipt_delivers_and_only_a_known_refusal_refuses(
    inventory: TinyInventory, answer: Response, code: int, outcome: str
) -> None:
    """Everything else is unknown, with the command that repeats the same key."""
    inventory.instead = answer
    with pytest.raises(CommandError) as caught:
        deliver(inventory.url, TOKEN, DELIVERY)
    assert (caught.value.exit_code, caught.value.details["outcome"]) == (code, outcome)
    assert caught.value.details["key"] == DELIVERY.key
    assert (DELIVERY.command in caught.value.message) is (code == ExitCode.UNREACHABLE)


def test_a_refused_token_delivers_nothing_and_is_not_shown(inventory: TinyInventory) -> None:
    """2: the environment has to be changed."""
    with pytest.raises(CommandError, match="COUNTERFOIL_INVENTORY_TOKEN") as caught:
        deliver(inventory.url, "hunter2", DELIVERY)
    assert caught.value.exit_code == ExitCode.WRONG_USE
    assert "hunter2" not in caught.value.message
    assert inventory.receipts == {}


def test_without_a_connection_it_is_said_that_nothing_was_sent() -> None:
    """Not unknown: no byte has left."""
    with pytest.raises(CommandError, match="was not sent") as caught:
        deliver("http://127.0.0.1:1", TOKEN, DELIVERY)
    assert (caught.value.exit_code, caught.value.details["outcome"]) == (ExitCode.UNREACHABLE, "not-sent")


def test_a_peer_that_speaks_another_protocol_leaves_the_outcome_unknown() -> None:
    """Whatever the HTTP library raises then."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")

        peer = threading.Thread(target=answer)
        peer.start()
        with pytest.raises(CommandError, match="unknown") as caught:
            deliver(f"http://127.0.0.1:{listening.getsockname()[1]}", TOKEN, DELIVERY)
        peer.join()
    assert caught.value.details["outcome"] == "unknown"


@pytest.mark.parametrize("answer", [problem(404, "not-found"), problem(500, "internal"), JSONResponse({"sku": "A"})])
def test_a_stock_answer_that_makes_no_sense_is_not_taken_for_an_unknown_sku(
    inventory: TinyInventory, answer: Response
) -> None:
    """Only the contract's sku-not-found says that a SKU is unknown."""
    inventory.instead = answer
    with pytest.raises(CommandError, match=re.escape(inventory.url)) as caught:
        read_stock(inventory.url, TOKEN, ["A"])
    assert caught.value.exit_code == ExitCode.UNREACHABLE
