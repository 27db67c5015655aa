"""docs/operations.md: its runbooks are executed as they are written, on real parts."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.database import migrate
from services.drill.copies import copy_of, put_back
from services.drill.processes import Processes, wait_until
from services.drill.stack import Stack, running_stack
from services.effects.keys import derive_key
from services.effects.records import Answer, Intent, Receipt, Seen, Source
from services.effects.states import EffectState
from services.reconciliation.alarms import AlarmKind
from tests.services.cli.conftest import INCIDENT
from tests.services.drill.intents import intent
from tests.services.inventory.conftest import Caller, connect, running

# A runbook is up to a dozen commands, each a process of its own: on a busy machine that is minutes.
pytestmark = [pytest.mark.temporal, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "operations.md").read_text()
ORIGIN = "workshop"
OTHER_PAYLOAD = {"lines": [{"sku": "FILTER-A", "quantity": 1}]}
LIMIT_SECONDS = 60.0
SECTIONS: Mapping[str, str] = dict(re.findall(r"^### (.*)\n((?:(?!^##).*\n)*)", DOCUMENT, re.MULTILINE))
_ENDS_WITH = re.compile(r"  # ends with (\d)(:.*)?$", re.MULTILINE)


def commands(section: str) -> list[tuple[str, int]]:
    """The commands of a runbook in order, each with the exit code that it is said to end with."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", SECTIONS[section], re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [(_ENDS_WITH.sub("", line), int(said[1]) if (said := _ENDS_WITH.search(line)) else 0) for line in lines]


@dataclass
class Ground:
    """A deployment, and the alarms that are raised on it."""

    stack: Stack
    folder: Path

    async def start(self, scope: str, **members: Any) -> str:
        """An incident that needs two FILTER-A; the key of its effect."""
        (self.folder / "incidents.jsonl").write_text(json.dumps(INCIDENT | {"id": scope} | members) + "\n")
        await self.stack.run(f"start of {scope}", "incident", "start", str(self.folder / "incidents.jsonl"))
        return derive_key(ORIGIN, scope, "reserve-filter", 1)

    async def is_in(self, key: str, state: EffectState) -> None:
        """Wait until the journal has it so."""

        def reached() -> bool:
            row = self.stack.journal.effect(key)
            return row is not None and row.state is state

        await wait_until(reached, timeout_seconds=LIMIT_SECONDS, what=f"{key} is {state}")

    async def terminated_while_pending(self, scope: str) -> str:
        """An incident that could not send, and was terminated."""
        await self.stack.proxy.down()
        key = await self.start(scope)
        await self.is_in(key, EffectState.PENDING)
        await self.stack.client.get_workflow_handle(scope).terminate()
        await self.stack.proxy.up()
        return key

    async def left_standing(self, scope: str) -> str:
        """An effect that is committed, of a workflow that was terminated while it waited for the next one."""
        second = INCIDENT["effects"][0] | {"name": "reserve-second"}
        await self.send(derive_key(ORIGIN, scope, "reserve-second", 1), OTHER_PAYLOAD)
        key = await self.start(scope, effects=[*INCIDENT["effects"], second])
        await self.is_in(key, EffectState.COMMITTED)
        await self.stack.client.get_workflow_handle(scope).terminate()
        return key

    async def voided(self, scope: str) -> Intent:
        """An effect that was given up; its key is closed."""
        wanted = intent(ORIGIN, scope, "reserve-filter")
        self.stack.journal.give_up(wanted, why="the incident was cancelled")
        await self.stack.run(f"sweep after {scope}", "reconcile")
        await self.is_in(wanted.key, EffectState.VOIDED)
        return wanted

    async def put_inventory_back(self, copy: str) -> None:
        """Put the inventory, and nothing else, back to a copy."""
        await asyncio.to_thread(self.stack.inventory.terminate, LIMIT_SECONDS)
        put_back(self.stack.inventory_database_url, copy)
        self.stack.inventory.start()

        async def answers() -> bool:
            try:
                return bool(await self.stack.get("/v1/stock/FILTER-A"))
            except httpx.TransportError:
                return False

        await wait_until(answers, timeout_seconds=LIMIT_SECONDS, what="the inventory answers")

    async def send(self, key: str, request: Mapping[str, Any], *, path: str = "/v1/reservations") -> Receipt:
        """Send a request past the journal."""
        token = self.stack.environment()["COUNTERFOIL_INVENTORY_TOKEN"]
        headers = {
            "Authorization": f"Bearer {token}",
            "Idempotency-Key": key,
            "Effect-Not-After": f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}",
        }
        async with httpx.AsyncClient(
            base_url=self.stack.inventory_url, headers=headers, trust_env=False, timeout=LIMIT_SECONDS
        ) as other:
            answer = await other.post(path, json=request)
        assert answer.is_success
        return Receipt(answer.json())

    def report(self, wanted: Intent, receipt: Receipt) -> None:
        """Let the journal hear of a receipt."""
        self.stack.journal.observe(wanted.key, Answer(seen=Seen.RECEIPT, source=Source.LOOK_UP, receipt=receipt))

    async def execute(self, section: str, **variables: str) -> None:
        """Run a runbook as it is written."""
        env = (
            self.stack.environment()
            | variables
            | {"COUNTERFOIL_INVENTORY_DATABASE_URL": self.stack.inventory_database_url}
        )
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        for line, code in commands(section):
            ran = await asyncio.to_thread(
                subprocess.run, ["bash", "-c", line], env=env, cwd=self.folder, capture_output=True, text=True,
                timeout=300, check=False,
            )  # fmt: skip
            assert (line, ran.returncode) == (line, code), ran.stdout + ran.stderr


@asynccontextmanager
async def standing_ground(folder: Path) -> AsyncIterator[Ground]:
    """A deployment of real processes, with one worker behind the proxy."""
    with Processes() as processes:
        async with running_stack(processes, folder, stock={"FILTER-A": 100}, origin=ORIGIN, workers=1) as stack:
            yield Ground(stack, folder)


@pytest.fixture(scope="module")
async def ground(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Ground]:
    """One deployment for the runbooks that leave the others alone."""
    async with standing_ground(tmp_path_factory.mktemp("operations")) as made:
        yield made


@pytest.fixture
async def ground_of_its_own(tmp_path: Path) -> AsyncIterator[Ground]:
    """A deployment for a runbook that is about everything there is."""
    async with standing_ground(tmp_path) as made:
        yield made


def reported_elsewhere(wanted: Intent, folder: Path) -> Receipt:
    """A committed receipt of the same key, from another inventory."""
    database_url = f"sqlite:///{folder}/elsewhere-{wanted.scope}.db"
    migrate("inventory", database_url)
    with running(database_url, {"token-e": "elsewhere"}) as service, connect(service.url, "token-e") as http:
        caller = Caller(http, not_after=f"{datetime.now(UTC) + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}")
        assert caller.deliver(10).status_code == 201
        sent = caller.post("/v1/reservations", json.loads(wanted.request), wanted.key)
    assert sent.status_code == 201
    return Receipt(sent.json())


async def test_in_doubt(ground: Ground) -> None:
    """Another program has used the key, and has given back since what it took."""
    key = derive_key(ORIGIN, "INC-1", "reserve-filter", 1)
    taken = await ground.send(key, OTHER_PAYLOAD)
    await ground.send("the-old-shops-release", {}, path=f"/v1/reservations/{taken.reservation_id}/release")
    await ground.start("INC-1")
    await ground.is_in(key, EffectState.IN_DOUBT)
    await ground.execute("`in_doubt`: no rule can settle it", KEY=key, SCOPE="INC-1")
    await ground.is_in(derive_key(ORIGIN, "INC-1", "reserve-filter", 2), EffectState.COMMITTED)


async def test_unknown_too_long(ground_of_its_own: Ground) -> None:
    """E56, A22: the inventory was away, and two workflows were terminated."""
    key = await ground_of_its_own.terminated_while_pending("INC-1")
    unwanted = await ground_of_its_own.terminated_while_pending("INC-2")
    section = "`unknown_too_long`: nobody hears how it ended"
    await ground_of_its_own.execute(section, KEY=key, UNWANTED=unwanted, SCOPE="INC-1")
    await ground_of_its_own.is_in(key, EffectState.COMMITTED)
    await ground_of_its_own.is_in(derive_key(ORIGIN, "INC-2", "reserve-filter", 2), EffectState.COMMITTED)


async def test_late_observation(ground: Ground) -> None:
    """One is another inventory's; the other is true, since the inventory has forgotten that the key was closed."""
    wrong = await ground.voided("INC-11")
    ground.report(wrong, reported_elsewhere(wrong, ground.folder))
    copy = copy_of(ground.stack.inventory_database_url, "before")
    true = await ground.voided("INC-12")
    await ground.put_inventory_back(copy)
    ground.report(true, await ground.send(true.key, json.loads(true.request)))
    before = (await ground.stack.get("/v1/stock/FILTER-A"))["available"]
    section = "`late_observation`: settled, and then reported otherwise"
    await ground.execute(section, KEY=wrong.key, TRUE=true.key)
    assert (await ground.stack.get("/v1/stock/FILTER-A"))["available"] == before + 2


async def test_closed_otherwise(ground: Ground) -> None:
    """Two incidents were terminated between their effects."""
    key, unwanted = await ground.left_standing("INC-21"), await ground.left_standing("INC-22")
    await ground.stack.run("sweep", "reconcile")
    assert {row.key for row in ground.stack.journal.left_standing()} >= {key, unwanted}
    section = "`closed_otherwise`: done, and its workflow did not complete"
    await ground.execute(section, KEY=key, UNWANTED=unwanted, SCOPE="INC-21")
    assert not {row.key for row in ground.stack.journal.left_standing()} & {key, unwanted}


async def test_stuck_workflow(ground: Ground) -> None:
    """A run begins again, and waits for the approval that it waited for."""
    await ground.start("INC-31", approval="required")
    handle = ground.stack.client.get_workflow_handle("INC-31")
    before = (await handle.describe()).run_id
    await ground.execute("`stuck_workflow`: its workflow cannot go on", SCOPE="INC-31")
    assert (await handle.describe()).run_id != before


async def test_credentials_refused(ground: Ground) -> None:
    """What could not be asked is asked when the token is good."""
    wanted = intent(ORIGIN, "INC-41", "reserve-filter")
    ground.stack.journal.give_up(wanted, why="the incident was cancelled")
    await ground.execute("The inventory refuses the credentials", KEY=wanted.key)


async def test_an_orphan(ground_of_its_own: Ground) -> None:
    """Ours, of which the journal knows nothing, and another program's."""
    ours = intent(ORIGIN, "INC-51", "reserve-filter")
    await ground_of_its_own.send(ours.key, json.loads(ours.request))
    stranger = "the-old-shops-key"
    await ground_of_its_own.send(stranger, OTHER_PAYLOAD)
    section = "`orphan`, or `lost` without an effect, in the audit"
    await ground_of_its_own.execute(section, KEY=ours.key, SCOPE="INC-51", STRANGER=stranger)


async def test_doubled_or_lost(ground: Ground) -> None:
    """The journal has a receipt that the inventory has not."""
    wanted = intent(ORIGIN, "INC-61", "reserve-filter")
    ground.stack.journal.own(wanted)
    ground.report(wanted, reported_elsewhere(wanted, ground.folder))
    await ground.execute("`doubled` or `lost` in the audit", KEY=wanted.key)


def test_every_alarm_that_a_worker_raises_has_a_runbook() -> None:
    """By the name that stands in its log."""
    assert {f"`{kind.value}`" for kind in AlarmKind} <= {heading.partition(":")[0] for heading in SECTIONS}


def test_every_runbook_is_executed() -> None:
    """A heading without a test would be a promise."""
    executed = re.findall(r'"(.*)"', Path(__file__).read_text())
    assert len(SECTIONS) == 8
    assert all(any(heading in line for line in executed) for heading in SECTIONS)
    assert all(commands(heading) for heading in SECTIONS)
