"""What a command has sent, and whom it wakes: with real workers, and with none."""

import asyncio
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from services.cli.main import counterfoil as main
from services.cli.output import run
from services.drill.processes import wait_until
from services.drill.stack import Stack
from services.effects.keys import derive_key
from services.effects.states import EffectState
from services.temporal import connect
from tests.services.cli.conftest import COUNTERFOIL, INCIDENT, Ask

pytestmark = pytest.mark.temporal

WHO = ("--by", "ada", "--reason", "still needed")
WAITING = (*WHO, "--wait-seconds", "90", "--json")
LIMIT_SECONDS = 30.0
SKU = "FILTER-R"


def key_of(scope: str, generation: int = 1) -> str:
    """The key of the one effect of an incident."""
    return derive_key("workshop", scope, "reserve-filter", generation)


class Desk:
    """The command line against the deployment, on a stock of its own."""

    def __init__(self, stack: Stack, ask: Ask, folder: Path) -> None:
        self.stack = stack
        self.ask = ask
        self._file = folder / "incidents.jsonl"

    async def start(self, scope: str) -> None:
        """An incident that waits for nobody and needs two."""
        line = INCIDENT | {"id": scope, "effects": [{"name": "reserve-filter", "lines": [{"sku": SKU, "quantity": 2}]}]}
        self._file.write_text(json.dumps(line) + "\n")
        assert (await self.ask("incident", "start", str(self._file))).returncode == 0

    async def result(self, scope: str) -> dict[str, Any]:
        """How the incident's newest run ended."""
        ended: dict[str, Any] = await self.stack.client.get_workflow_handle(scope).result()
        return ended

    async def terminated(self, *scopes: str) -> list[str]:
        """Incidents whose requests could not be sent, and whose workflows were terminated then; their keys.

        No worker runs at that moment: one that had just been told to send would do it as soon as it can.
        """
        await self.stack.proxy.down()
        for scope in scopes:
            await self.start(scope)
            await self.is_in(key_of(scope), EffectState.PENDING)
        await self.stack.stop_workers()
        for scope in scopes:
            await self.stack.client.get_workflow_handle(scope).terminate()
        await self.stack.proxy.up()
        await self.stack.start_workers()
        return [key_of(scope) for scope in scopes]

    async def is_in(self, key: str, state: EffectState) -> None:
        """Wait until the journal has it so."""

        def reached() -> bool:
            row = self.stack.journal.effect(key)
            return row is not None and row.state is state

        await wait_until(reached, timeout_seconds=LIMIT_SECONDS, what=f"{key} is {state}")

    async def taken(self, key: str, request: dict[str, Any]) -> None:
        """Let another program of this tenant use the key for something else."""
        token = self.stack.environment()["COUNTERFOIL_INVENTORY_TOKEN"]
        headers = {
            "Authorization": f"Bearer {token}",
            "Idempotency-Key": key,
            "Effect-Not-After": f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}",
        }
        async with httpx.AsyncClient(base_url=self.stack.inventory_url, headers=headers, trust_env=False) as other:
            assert (await other.post("/v1/reservations", json=request)).status_code == 201

    async def reset(self, scope: str) -> None:
        """Reset an incident to its first workflow task, as an operator does."""
        argv = (str(Path(COUNTERFOIL).with_name("temporal")), "workflow", "reset", "--workflow-id", scope)
        address = ("--address", self.stack.temporal.address)
        reset = await asyncio.create_subprocess_exec(
            *argv, "--type", "FirstWorkflowTask", "--reason", "a test", *address,
            stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert await reset.wait() == 0

    async def available(self) -> int:
        """Units in stock."""
        return int((await self.stack.get(f"/v1/stock/{SKU}"))["available"])

    async def command(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Give a command for one key; its result."""
        done = await self.ask("effects", *arguments)
        assert (done.returncode, done.stderr) == (code, "")
        (result,) = json.loads(done.stdout)["results"]
        return dict(result)


@pytest.fixture
async def desk(deployment: Stack, ask: Ask, tmp_path: Path) -> Desk:
    """The desk, with more units than any test takes."""
    assert (await ask("inventory", "stock", "--deliver", f"{SKU}=20")).returncode == 0
    return Desk(deployment, ask, tmp_path)


async def test_for_a_terminated_workflow_a_command_has_its_own_send(desk: Desk) -> None:
    """A22: given up, redone and given back, each sent by an EffectCommand workflow; nothing waits for the dead one."""
    before = await desk.available()
    (key,) = await desk.terminated("INC-501")
    assert (await desk.command("give-up", key, *WHO, "--json"))["state"] == "voided"
    redone = await desk.command("redo", key, *WAITING)
    second = key_of("INC-501", 2)
    assert (redone["new_key"], redone["sent_by"], redone["ended"]) == (second, f"effect-command-{second}", "committed")
    assert await desk.available() == before - 2
    assert (await desk.ask("reconcile")).returncode == 0
    assert (await desk.ask("effects", "list", "--closed", "--scope", "INC-501", "--keys")).stdout == f"{second}\n"
    released = await desk.command("release", second, *WAITING)
    assert (released["ended"], released["repeated"]) == ("committed", False)
    assert await desk.available() == before
    again = await desk.command("release", second, *WAITING)
    assert (again["sent_by"], again["repeated"], again["new_key"]) == (None, True, released["new_key"])


async def test_a_replay_goes_on_for_a_terminated_workflow_under_the_same_key(desk: Desk) -> None:
    """A22: a second one attaches to the first, or finds its end."""
    before = await desk.available()
    (key,) = await desk.terminated("INC-502")
    replayed = await desk.command("replay", key, *WAITING)
    assert (replayed["new_key"], replayed["sent_by"], replayed["ended"]) == (None, f"effect-command-{key}", "committed")
    again = await desk.command("replay", key, *WAITING)
    assert (again["state"], again["sent_by"], again["repeated"]) == ("committed", None, True)
    assert await desk.available() == before - 2


async def test_a_replay_of_a_running_workflow_wakes_it_and_starts_no_other(desk: Desk) -> None:
    """Two senders would not do it twice; one is enough."""
    await desk.stack.proxy.down()
    await desk.start("INC-503")
    await desk.is_in(key_of("INC-503"), EffectState.PENDING)
    replayed = await desk.command("replay", key_of("INC-503"), *WHO, "--json")
    assert (replayed["what"], replayed["sent_by"]) == ("done", None)
    await desk.stack.proxy.up()
    assert (await desk.result("INC-503"))["outcomes"][0]["state"] == "committed"


async def test_what_is_settled_while_no_worker_runs_wakes_its_workflow_later(desk: Desk) -> None:
    """A11: the word is in the workflow's history, and the outcome in the journal, when a worker comes back."""
    key = key_of("INC-504")
    other = {"lines": [{"sku": SKU, "quantity": 1}]}
    await desk.taken(key, other)
    await desk.start("INC-504")
    await desk.is_in(key, EffectState.IN_DOUBT)
    await desk.stack.stop_workers()
    evidence = ("--as", "voided", "--evidence", "ticket 12: the receipt is another program's")
    said = await desk.command("resolve", key, *evidence, *WHO, "--json")
    assert (said["what"], said["state"], said["receipt_id"]) == ("done", "voided", None)
    await desk.stack.start_workers()
    (outcome,) = (await desk.result("INC-504"))["outcomes"]
    assert (outcome["state"], outcome["asserted"], outcome["receipt"]) == ("voided", True, {})


async def test_a_run_reset_to_before_what_was_given_back_is_answered_released(desk: Desk) -> None:
    """A02: not committed, and nothing is sent; to go on is a redo, which the run then answers for."""
    before = await desk.available()
    await desk.start("INC-505")
    assert (await desk.result("INC-505"))["outcomes"][0]["state"] == "committed"
    key = key_of("INC-505")
    assert (await desk.command("release", key, *WAITING))["ended"] == "committed"
    await desk.reset("INC-505")
    assert (await desk.result("INC-505"))["outcomes"][0]["state"] == "released"
    assert await desk.available() == before
    redone = await desk.command("redo", key, *WAITING)
    await desk.reset("INC-505")
    (outcome,) = (await desk.result("INC-505"))["outcomes"]
    assert (outcome["key"], outcome["state"], outcome["generation"]) == (redone["new_key"], "committed", 2)
    assert await desk.available() == before - 2


async def test_a_redo_in_bulk_is_one_command(desk: Desk) -> None:
    """The way on after an outage: what the list prints is what is redone, and each has a workflow of its own."""
    scopes = ("INC-506", "INC-507", "INC-508")
    keys = await desk.terminated(*scopes)
    done = await desk.ask("effects", "give-up", *keys, *WHO, "--json")
    assert (done.returncode, json.loads(done.stdout)["done"]) == (0, 3)
    done = await desk.ask("effects", "redo", *keys, *WAITING)
    assert done.returncode == 0
    results = json.loads(done.stdout)["results"]
    assert [each["new_key"] for each in results] == [key_of(scope, 2) for scope in scopes]
    assert {each["ended"] for each in results} == {"committed"}


async def test_who_does_not_wait_is_told_who_sends(desk: Desk) -> None:
    """And whoever waits and has no worker is told to ask again: 3."""
    (key,) = await desk.terminated("INC-509")
    await desk.command("give-up", key, *WHO, "--json")
    await desk.stack.stop_workers()
    people = await desk.ask("effects", "redo", key, *WHO)
    second = key_of("INC-509", 2)
    assert (people.returncode, people.stderr) == (0, "")
    assert people.stdout == (
        f"Generation 2 is decided; its key is {second}. The workflow effect-command-{second} sends it.\n"
    )
    waited = await desk.ask("effects", "redo", key, *WHO, "--wait-seconds", "0.5")
    assert waited.returncode == 3
    assert "How it ends is not known yet: repeat the same command." in waited.stdout
    assert waited.stderr == (
        "Not ended yet: 1. Their workflows go on, or wait for a person: effects list, effects list --alarmed.\n"
    )
    await desk.stack.start_workers()
    assert (await desk.command("redo", key, *WAITING))["ended"] == "committed"


class Deaf(Client):
    """Temporal that is gone when somebody waits for one workflow's end."""

    def __init__(self, real: Client, workflow_id: str, error: Exception) -> None:
        self._real, self._lost, self._error = real, workflow_id, error

    def __getattribute__(self, name: str) -> Any:
        """What a real client has, but for the handle of one who waits."""
        own = {"_real", "_lost", "_error", "get_workflow_handle_for"}
        return object.__getattribute__(self, name) if name in own else getattr(self._real, name)

    def get_workflow_handle_for(self, workflow: Any, workflow_id: str, **options: Any) -> Any:
        """A handle, or what fails like a lost connection."""
        if workflow_id == self._lost:
            raise self._error
        return self._real.get_workflow_handle_for(workflow, workflow_id, **options)


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (RPCError("no", RPCStatusCode.UNAVAILABLE, b""), "cannot be reached (UNAVAILABLE)"),
        (KeyError("state"), "This is a defect of counterfoil (KeyError"),
    ],
    ids=["temporal", "defect"],
)
async def test_what_is_lost_while_one_waits_takes_no_answer_with_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, says: str
) -> None:
    """The ends that were heard of are said, and of the other that it is not known yet: 3."""
    scopes = ("INC-510", "INC-511") if isinstance(error, RPCError) else ("INC-512", "INC-513")
    keys = await desk.terminated(*scopes)
    assert (await desk.ask("effects", "give-up", *keys, *WHO)).returncode == 0
    for name, value in desk.stack.environment().items():
        monkeypatch.setenv(name, value)

    async def connected() -> Client:
        return Deaf(await connect(), f"effect-command-{key_of(scopes[0], 2)}", error)

    monkeypatch.setattr("services.cli.rulings.connect", connected)
    code = await asyncio.to_thread(run, main, ["effects", "redo", *keys, *WAITING], name="counterfoil")
    lost, heard = json.loads(capsys.readouterr().out)["results"]
    assert (code, lost["what"], lost["ended"]) == (3, "unconfirmed", None)
    assert lost["said"].startswith("Generation 2 is decided")
    assert "How it ends is not known yet" in lost["said"]
    assert says in lost["said"]
    assert (heard["what"], heard["ended"]) == ("done", "committed")
    monkeypatch.undo()
    assert (await desk.command("redo", keys[0], *WAITING))["ended"] == "committed"


async def test_a_temporal_without_the_namespace_takes_no_answer_with_it(desk: Desk) -> None:
    """Somebody has to mend a setting: 2; what was decided is said, and sent by the same command then."""
    keys = await desk.terminated("INC-514", "INC-515")
    assert (await desk.ask("effects", "give-up", *keys, *WHO)).returncode == 0
    done = await desk.ask("effects", "redo", *keys, *WHO, "--json", TEMPORAL_NAMESPACE="nowhere")
    results = json.loads(done.stdout)["results"]
    assert (done.returncode, [each["what"] for each in results]) == (2, ["unconfirmed"] * 2)
    for each in results:
        assert each["said"].startswith("Generation 2 is decided")
        assert "has no namespace nowhere" in each["said"]
    assert (await desk.ask("effects", "redo", *keys, *WAITING)).returncode == 0
