"""`counterfoil inventory conformance` as a real process."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from services.database import migrate
from services.drill.processes import Processes
from tests.faults.servers import Inventory
from tests.services.cli.conftest import NOBODY, Run, TinyInventory
from tests.services.conformance.conftest import TOKEN, listening
from tests.services.conformance.lacking import NoVoid

FEW = ("--rounds", "2")


@pytest.fixture
async def inventory_url(tmp_path: Path) -> AsyncIterator[str]:
    """Where a real inventory answers."""
    database_url = f"sqlite:///{tmp_path / 'inventory.db'}"
    migrate("inventory", database_url)
    with Processes() as processes:
        inventory = Inventory(processes, tmp_path, database_url)
        await inventory.start()
        yield inventory.url


async def run_at(counterfoil: Run, url: str, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """A run of few rounds."""
    return await asyncio.to_thread(counterfoil, "inventory", "conformance", "--url", url, *FEW, *arguments, **settings)


async def test_a_provider_that_keeps_the_contract_is_said_to(
    counterfoil: Run, inventory_url: str, tmp_path: Path
) -> None:
    """Exit code 0, every capability held, and the token read from its file."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    done = await run_at(counterfoil, inventory_url, "--token-file", str(file))
    assert done.returncode == 0, done.stdout
    assert "The provider keeps the contract." in done.stdout
    assert "lacking" not in done.stdout
    assert "Checking supersedes" in done.stderr
    assert TOKEN not in done.stdout + done.stderr


async def test_what_a_provider_lacks_is_named_with_the_exchange(counterfoil: Run, inventory_url: str) -> None:
    """Exit code 1, as text and as one JSON document."""
    app: ASGIApp = NoVoid(inventory_url)
    with listening(app) as url:
        said = await run_at(counterfoil, url, COUNTERFOIL_INVENTORY_TOKEN=TOKEN)
        as_json = await run_at(counterfoil, url, "--json", COUNTERFOIL_INVENTORY_TOKEN=TOKEN)
    assert (said.returncode, as_json.returncode) == (1, 1)
    assert "The provider lacks: void." in said.stdout
    assert "void: a void can be repeated: lacking" in said.stdout
    assert "    > PUT /v1/receipts/CONFORMANCE-" in said.stdout
    assert "    < 404" in said.stdout
    document = json.loads(as_json.stdout)
    assert (document["conforms"], document["lacking"]) == (False, ["void"])
    assert document["url"] == url
    (void,) = [one for one in document["capabilities"] if one["capability"] == "void"]
    assert all(check["sentence"] and check["exchanges"][0]["status"] == 404 for check in void["checks"])


async def test_a_token_that_is_refused_is_wrong_use(counterfoil: Run, inventory: TinyInventory) -> None:
    """Exit code 2, and the token is not repeated."""
    refused = await run_at(counterfoil, inventory.url, "--json", COUNTERFOIL_INVENTORY_TOKEN="secret-of-another")  # noqa: S106
    assert refused.returncode == 2
    assert "refused the token (401 unauthorized)" in json.loads(refused.stdout)["error"]["message"]
    assert "secret-of-another" not in refused.stdout + refused.stderr


async def test_a_token_that_may_only_read_is_told_from_one_that_is_unknown(counterfoil: Run) -> None:
    """Exit code 2: what to mend differs."""

    async def forbidden(_request: Request) -> JSONResponse:
        return JSONResponse({"type": "/problems/forbidden"}, status_code=403)

    with listening(Starlette(routes=[Route("/v1/deliveries", forbidden, methods=["POST"])])) as url:
        refused = await run_at(counterfoil, url, COUNTERFOIL_INVENTORY_TOKEN=TOKEN)
    assert refused.returncode == 2
    assert "(403 forbidden): it may only read." in refused.stderr


async def test_a_web_server_that_is_no_provider_is_said_to_be_none(counterfoil: Run) -> None:
    """Exit code 1, one exchange and one sentence, instead of a report in which every check says the same."""
    with listening(Starlette()) as url:
        wrong = await run_at(counterfoil, url, COUNTERFOIL_INVENTORY_TOKEN=TOKEN)
    assert wrong.returncode == 1
    assert wrong.stdout.count("The contract says:") == 1
    assert "    < content-type: text/plain" in wrong.stdout
    assert "What answers is no provider of this contract:" in wrong.stdout
    assert "Check --url" in wrong.stdout


async def test_nobody_there_is_unreachable(counterfoil: Run) -> None:
    """Exit code 3."""
    gone = await run_at(counterfoil, f"http://{NOBODY}", "--json", COUNTERFOIL_INVENTORY_TOKEN=TOKEN)
    assert gone.returncode == 3
    assert json.loads(gone.stdout)["error"]["dependency"] == "provider"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--url"),
        (("--url", "ftp://x"), "http://"),
        (("--url", "http://user:secret@host"), "nothing secret"),
        (("--url", "http://127.0.0.1:1"), "COUNTERFOIL_INVENTORY_TOKEN"),
        (("--url", "http://127.0.0.1:1", "--token-file", "/nowhere"), "/nowhere"),
        (("--url", "http://127.0.0.1:1", "--rounds", "1"), "rounds"),
    ],
)
def test_wrong_use_is_said_before_anything_is_sent(counterfoil: Run, arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2."""
    wrong = counterfoil("inventory", "conformance", *arguments)
    assert wrong.returncode == 2
    assert said in wrong.stderr


def test_a_token_file_without_a_token_is_refused(counterfoil: Run, tmp_path: Path) -> None:
    """What is in it is not repeated."""
    file = tmp_path / "token"
    file.write_text("two words")
    wrong = counterfoil("inventory", "conformance", "--url", "http://127.0.0.1:1", "--token-file", str(file))
    assert wrong.returncode == 2
    assert "printable ASCII" in wrong.stderr
    assert "two words" not in wrong.stderr
    file.write_text("\n")
    empty = counterfoil("inventory", "conformance", "--url", "http://127.0.0.1:1", "--token-file", str(file))
    assert (empty.returncode, f"There is no token in {file}. Nothing was sent." in empty.stderr) == (2, True)


def test_the_help_says_what_is_left_behind(counterfoil: Run) -> None:
    """Before anybody points it at a tenant that matters."""
    text = " ".join(counterfoil("inventory", "conformance", "--help").stdout.split())
    assert "LEAVES TRACES" in text
    assert "CONFORMANCE-" in text
    assert "Exit codes: 0" in text
