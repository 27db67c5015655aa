"""`counterfoil inventory`: serving is refused in words, stock is shown, a delivery never leaves its key behind."""

import json
import os
import shlex
import signal
import socket
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from services.database import migrate
from tests.services.cli.conftest import COUNTERFOIL, Run, TinyInventory, environment, problem

KEY = "delivery-of-monday-1"


def test_a_password_on_the_command_line_is_refused(counterfoil: Run) -> None:
    """It is not repeated either."""
    done = counterfoil(
        "inventory", "--database-url", "postgresql://me:hunter2@db/x", COUNTERFOIL_INVENTORY_TOKENS="acme=token-a"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "COUNTERFOIL_INVENTORY_DATABASE_URL" in done.stderr
    assert "hunter2" not in done.stderr


def test_serving_needs_tokens_and_a_database(counterfoil: Run) -> None:
    """Both variables are named at once."""
    done = counterfoil("inventory")
    assert done.returncode == 2
    assert "COUNTERFOIL_INVENTORY_TOKENS is not set" in done.stderr
    assert "COUNTERFOIL_INVENTORY_DATABASE_URL is not set" in done.stderr


def test_the_log_of_a_service_is_lines_of_json_if_asked(tmp_path: Path) -> None:
    """From its start to its end: stderr holds nothing else, and stdout one document. No token, no body."""
    settings = {
        "COUNTERFOIL_INVENTORY_DATABASE_URL": f"sqlite:///{tmp_path / 'inventory.db'}",
        "COUNTERFOIL_INVENTORY_TOKENS": "acme=s3cret-a,acme:read=s3cret-b",
        "COUNTERFOIL_INVENTORY_RETENTION_SECONDS": "86400",
        "COUNTERFOIL_INVENTORY_SIGNING_KEYS": "s3cret-" * 5,
    }
    migrate("inventory", settings["COUNTERFOIL_INVENTORY_DATABASE_URL"])
    with subprocess.Popen(
        [COUNTERFOIL, "inventory", "--port", "0", "--log-format", "json", "--json"],
        env=environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        started = json.loads(process.stderr.readline())
        headers = {
            "Authorization": "Bearer s3cret-a",
            "Idempotency-Key": KEY,
            "Effect-Not-After": "2100-01-01T00:00:00Z",
            "X-Request-Id": "mine-1",
        }
        with httpx.Client(base_url=started["url"], trust_env=False) as http:
            delivered = http.post("/v1/deliveries", headers=headers, json={"sku": "FILTER-A", "quantity": 1})
            headers["Authorization"] = "Bearer s3cret-b"
            refused = http.post("/v1/deliveries", headers=headers, json={"sku": "FILTER-A", "quantity": 1})
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=30)
    assert (delivered.status_code, refused.status_code, process.returncode) == (201, 403, 0)
    assert "served" in json.loads(stdout)
    assert delivered.json()["signature"].startswith("hmac-sha256:")
    lines = [json.loads(line) for line in stderr.splitlines()]
    assert [started["event"], *(line["event"] for line in lines)] == [
        "started",
        "request",
        "request",
        "ending",
        "ended",
    ]
    seen = ("status", "route", "outcome", "problem", "tenant", "key", "request_id")
    assert [tuple(line[name] for name in seen) for line in lines[:2]] == [
        (201, "/v1/deliveries", "committed", None, "acme", KEY, "mine-1"),
        (403, "/v1/deliveries", "none", "forbidden", "acme", KEY, "mine-1"),
    ]
    assert "s3cret" not in stderr + stdout
    assert "FILTER-A" not in stderr


def test_an_option_for_serving_before_a_command_is_refused(counterfoil: Run) -> None:
    """A --port that would be ignored is an error."""
    done = counterfoil("inventory", "--port", "1", "stock", "FILTER-A")
    assert done.returncode == 2
    assert "--port is for serving" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "Name at least one SKU"),
        (("fan",), "is not a SKU"),
        (("A", "--deliver", "A=1"), "not both"),
        (("--deliver", "A"), "write SKU=QUANTITY"),
        (("--deliver", "A=0"), "write SKU=QUANTITY"),
        (("--deliver", "A=-1"), "write SKU=QUANTITY"),
        (("--deliver", "A=1", "--key", "short"), "a key is 16-128"),
        (("--deliver", "A=1", "--deliver", "B=1", "--key", KEY), "exactly one --deliver"),
        (("A", "--key", KEY), "exactly one --deliver"),
    ],
)
def test_wrong_use_of_stock_is_said_before_anything_is_read(
    counterfoil: Run, arguments: tuple[str, ...], words: str
) -> None:
    """No settings are needed to hear it."""
    done = counterfoil("inventory", "stock", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_stock_is_shown_and_an_unknown_sku_is_found(counterfoil: Run, inventory: TinyInventory) -> None:
    """Known ones are shown all the same; the code is 1."""
    inventory.stock["FILTER-A"] = 10
    done = counterfoil("inventory", "stock", "FILTER-A", "NOTHING", "--json", **inventory.settings)
    assert done.returncode == 1
    assert json.loads(done.stdout) == {
        "stock": [{"sku": "FILTER-A", "received": 10, "available": 10, "held": 0, "consumed": 0, "version": 1}],
        "unknown": ["NOTHING"],
    }
    people = counterfoil("inventory", "stock", "FILTER-A", **inventory.settings)
    assert people.returncode == 0
    assert [line.split() for line in people.stdout.splitlines()] == [
        ["SKU", "available", "held", "consumed", "received"],
        ["FILTER-A", "10", "0", "0", "10"],
    ]


def test_an_inventory_that_is_down_is_3_with_address_and_remedy(counterfoil: Run) -> None:
    """A proxy in the environment is not asked."""
    settings = {"COUNTERFOIL_INVENTORY_URL": "http://127.0.0.1:1", "COUNTERFOIL_INVENTORY_TOKEN": "x"}
    done = counterfoil("inventory", "stock", "FILTER-A", **settings, HTTP_PROXY="http://127.0.0.1:2")
    assert (done.returncode, done.stdout) == (3, "")
    assert "The inventory at http://127.0.0.1:1 cannot be reached" in done.stderr
    assert "counterfoil inventory" in done.stderr


def test_a_delivery_is_done_once_however_often_it_is_repeated(counterfoil: Run, inventory: TinyInventory) -> None:
    """The same key again is a replay, and said so."""
    command = ("inventory", "stock", "--deliver", "FILTER-A=10", "--key", KEY)
    first = counterfoil(*command, **inventory.settings)
    again = counterfoil(*command, **inventory.settings)
    assert (first.returncode, again.returncode) == (0, 0)
    assert first.stdout == f"Delivered: 10 FILTER-A (key {KEY}, receipt receipt-1)\n"
    assert again.stdout.startswith("Already delivered, nothing was added: 10 FILTER-A")
    assert inventory.stock == {"FILTER-A": 10}
    assert json.loads(counterfoil(*command, "--json", **inventory.settings).stdout) == {
        "deliveries": [{"sku": "FILTER-A", "quantity": 10, "key": KEY, "replayed": True, "receipt_id": "receipt-1"}]
    }


def test_each_delivery_without_a_key_gets_a_fresh_one(counterfoil: Run, inventory: TinyInventory) -> None:
    """The keys that were printed are the keys that were sent."""
    done = counterfoil("inventory", "stock", "--deliver", "A=1", "--deliver", "B=2", "--json", **inventory.settings)
    keys = [delivery["key"] for delivery in json.loads(done.stdout)["deliveries"]]
    assert len(set(keys)) == 2
    assert list(inventory.receipts) == keys
    assert [line.split()[-1] for line in done.stderr.splitlines()] == keys


def test_a_delivery_whose_answer_is_lost_is_unknown_and_the_printed_command_settles_it(
    counterfoil: Run, inventory: TinyInventory, silent: tuple[socket.socket, dict[str, str]]
) -> None:
    """Exit code 3, the key was printed before it was sent, and the command runs as it is printed."""
    listening, settings = silent
    with subprocess.Popen(
        [COUNTERFOIL, "inventory", "stock", "--deliver", "FILTER-A=10", "--deliver", "B=1", "--json"],
        env=environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        connection, _ = listening.accept()
        with connection:
            assert process.stderr is not None
            key = process.stderr.readline().split()[-1]
            while b"FILTER-A" not in connection.recv(65536):
                pass
        stdout, _ = process.communicate(timeout=30)
    error = json.loads(stdout)["error"]
    assert (process.returncode, error["kind"], error["outcome"]) == (3, "unreachable", "unknown")
    assert "outcome is unknown" in error["message"]
    assert error["key"] == key
    assert [each["sku"] for each in error["not_sent"]] == ["B"]
    words = shlex.split(error["repeat"])
    assert words[0] == "counterfoil"
    done = counterfoil(*words[1:], **inventory.settings)
    assert done.returncode == 0
    assert list(inventory.receipts) == [key]


def test_ctrl_c_during_a_delivery_ends_with_130_and_the_command_to_repeat(
    silent: tuple[socket.socket, dict[str, str]],
) -> None:
    """No traceback, and the key is not lost."""
    listening, settings = silent
    with subprocess.Popen(
        [COUNTERFOIL, "inventory", "stock", "--deliver", "FILTER-A=10", "--key", KEY, "--json"],
        env=environment(settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        connection, _ = listening.accept()
        with connection:
            while b"FILTER-A" not in connection.recv(65536):
                pass
            os.kill(process.pid, signal.SIGINT)
            stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(stdout)["error"]["kind"] == "interrupted"
    assert f"Repeat: counterfoil inventory stock --deliver FILTER-A=10 --key {KEY}" in stderr
    assert "Traceback" not in stderr


def test_a_refused_delivery_of_several_says_what_was_done_and_what_was_not(
    counterfoil: Run, inventory: TinyInventory
) -> None:
    """2, and the rest is not sent."""
    inventory.instead = problem(410, "key-voided")
    done = counterfoil("inventory", "stock", "--deliver", "A=1", "--deliver", "B=2", **inventory.settings)
    assert done.returncode == 2
    assert "closed for good" in done.stderr
    assert "Not sent: B; then run: counterfoil inventory stock --deliver B=2" in done.stderr
    assert len(inventory.headers) == 1


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A migrated inventory."""
    url = f"sqlite:///{tmp_path / 'inventory.db'}"
    migrate("inventory", url)
    return url


def test_an_inventory_that_adds_up_is_0(counterfoil: Run, database: str) -> None:
    """For people and for programs."""
    told = counterfoil("inventory", "verify", COUNTERFOIL_INVENTORY_DATABASE_URL=database)
    assert (told.returncode, told.stdout) == (0, "0 receipts, 0 movements.\nEverything adds up.\n")
    told = counterfoil("inventory", "verify", "--json", COUNTERFOIL_INVENTORY_DATABASE_URL=database)
    assert json.loads(told.stdout) == {"adds_up": True, "receipts": 0, "movements": 0, "flaws": [], "found": {}}


def test_an_inventory_that_does_not_add_up_is_1_and_says_where(counterfoil: Run, database: str) -> None:
    """A key that nothing can ever be told of."""
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as connection, connection:
        connection.execute("INSERT INTO keys (tenant, key) VALUES ('acme', 'stuck-key-0000001')")
    told = counterfoil("inventory", "verify", COUNTERFOIL_INVENTORY_DATABASE_URL=database)
    assert told.returncode == 1
    assert "stuck-key-0000001" in told.stdout
    assert "the key is taken and has no receipt" in told.stdout
    told = counterfoil("inventory", "verify", "--json", COUNTERFOIL_INVENTORY_DATABASE_URL=database)
    assert (told.returncode, json.loads(told.stdout)["found"]) == (1, {"S8": 1})


def test_an_inventory_of_another_schema_is_not_verified(counterfoil: Run, tmp_path: Path) -> None:
    """Wrong use, with what to run."""
    told = counterfoil("inventory", "verify", COUNTERFOIL_INVENTORY_DATABASE_URL=f"sqlite:///{tmp_path / 'new.db'}")
    assert told.returncode == 2
    assert "counterfoil migrate inventory" in told.stderr
