"""docker-compose.yml as it is written, without containers: the same commands, environments, order and checks."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
import yaml

from services.database import open_engine
from services.drill.postgres import PostgresServer, programs_folder
from services.drill.processes import Child, Processes, TemporalServer, free_port, wait_until
from tests.services.cli.conftest import INCIDENT
from workflows import policies

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docker-compose.yml").read_text()
VARIABLE = re.compile(r"\$\{([A-Z_]+):-([^}]*)\}")
SECRET = re.compile("PASSWORD|TOKEN|SIGNING_KEYS")
HOST_AND_PORT = re.compile(r"\b(?:postgres|inventory|temporal):(?=[0-9])")
# What runs where a service of our image names no other program.
ENTRYPOINT: list[str] = json.loads(re.findall("(?m)^ENTRYPOINT (.*)$", (ROOT / "Dockerfile").read_text())[0])
START_SECONDS = 60.0


def read(values: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """The services, with these variables set and the others at their defaults."""
    text = VARIABLE.sub(lambda found: (values or {}).get(found[1], found[2]), TEXT)
    services: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return services


# Every secret another one, so that a password which one service gives to another's role is refused.
# As long as a signing key must be.
SECRETS = {
    name: f"secret-{number:025d}"
    for number, name in enumerate(sorted({name for name, _ in VARIABLE.findall(TEXT)}))
    if SECRET.search(name)
}
SERVICES = read(SECRETS)


def test_each_service_has_its_own_database_and_no_other() -> None:
    """By URL and role: the worker never sees the inventory's, setup none at all, and owners only migrate."""
    urls = {
        (name, variable): value
        for name, service in SERVICES.items()
        for variable, value in service.get("environment", {}).items()
        if "://" in value and not value.startswith("http")
    }
    at = "@postgres:5432"
    assert urls == {
        ("migrate-journal", "COUNTERFOIL_JOURNAL_DATABASE_URL"): (
            f"postgresql://counterfoil_journal_owner{at}/counterfoil_journal"
        ),
        ("migrate-inventory", "COUNTERFOIL_INVENTORY_DATABASE_URL"): (
            f"postgresql://counterfoil_inventory_owner{at}/counterfoil_inventory"
        ),
        ("inventory", "COUNTERFOIL_INVENTORY_DATABASE_URL"): (
            f"postgresql://counterfoil_inventory{at}/counterfoil_inventory"
        ),
        ("worker", "COUNTERFOIL_JOURNAL_DATABASE_URL"): f"postgresql://counterfoil_worker{at}/counterfoil_journal",
    }


def test_secrets_come_by_environment_and_say_that_they_are_for_development() -> None:
    """None in a command line, none written down, and each default names itself."""
    defaults = {name: default for name, default in VARIABLE.findall(TEXT) if SECRET.search(name)}
    assert defaults.pop("INVENTORY_SIGNING_KEYS") == ""  # no signatures
    assert set(defaults.values()) == {"development-only"}
    for service in SERVICES.values():
        lists = (service.get("entrypoint"), service.get("command"), service.get("healthcheck", {}).get("test"))
        words = [word for each in lists for word in each or []]
        assert not [word for word in words if any(secret in word for secret in SECRETS.values())]
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                assert any(secret in value for secret in SECRETS.values()), f"{variable} is written down"


def test_signing_keys_and_retention_are_set_by_one_variable_each_where_they_belong() -> None:
    """The service signs by the keys that the workers believe; by default there are none, and nothing is dropped."""
    for values, keys, seconds in (
        ({}, "", ""),
        ({"INVENTORY_SIGNING_KEYS": "next,last", "INVENTORY_RETENTION_SECONDS": "86400"}, "next,last", "86400"),
    ):
        services = read(values)
        for variable, value, users in (
            ("COUNTERFOIL_INVENTORY_SIGNING_KEYS", keys, {"inventory", "worker"}),
            ("COUNTERFOIL_INVENTORY_RETENTION_SECONDS", seconds, {"inventory", "worker"}),
        ):
            found = {name: service["environment"][variable] for name, service in services.items()
                     if variable in service.get("environment", {})}  # fmt: skip
            assert found == dict.fromkeys(users, value)


def test_a_process_that_serves_comes_back_and_has_time_to_end() -> None:
    """A crash is started again; a worker's drain is over before it would be killed."""
    for name in ("postgres", "inventory", "temporal", "worker"):
        assert SERVICES[name]["restart"] == "unless-stopped"
    assert SERVICES["worker"]["scale"] == 2
    assert timedelta(seconds=int(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))) > policies.DRAIN


def test_postgresql_takes_every_connection_that_its_clients_may_open() -> None:
    """Its default is 100, of which two workers and the inventory may want 120; here with twice as many workers."""
    engine = open_engine("postgresql://nobody@127.0.0.1/nothing")
    assert isinstance(engine.pool, sa.QueuePool)
    of_one = engine.pool.size() + engine.pool._max_overflow
    told = [word for word in SERVICES["postgres"].get("command", []) if word.startswith("max_connections=")]
    taken = int(told[0].removeprefix("max_connections=")) if told else 100
    assert taken >= of_one * (2 * SERVICES["worker"]["scale"] + 1)


def test_temporal_is_told_what_the_embedded_one_is_told(tmp_path: Path) -> None:
    """Recovery takes about a second in both, by the same settings."""
    embedded = TemporalServer(Processes(), database=tmp_path / "temporal.db", log=tmp_path / "log").child.argv
    settings = [word for word in embedded if word.startswith("history.")]
    assert settings
    assert [f"--dynamic-config-value={word}" for word in settings] == [
        word for word in SERVICES["temporal"]["command"] if word.startswith("--dynamic-config-value=")
    ]


class Local:
    """Runs the file's services as processes of this machine: hosts, ports and volumes are the local ones."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._server = PostgresServer(processes, folder)
        self._ports = {"5432": str(self._server.port)} | {port: str(free_port()) for port in ("7233", "8090", "8233")}
        self.children: dict[str, list[Child]] = {}

    def remove(self) -> None:
        """What was made outside the test's folder."""
        self._server.remove()

    def environment(self, name: str) -> dict[str, str]:
        """A service's environment, and a PATH that stands for its image."""
        paths = [str(Path(sys.executable).parent), str(programs_folder()), os.defpath]
        found = {
            variable: "127.0.0.1" if variable == "PGHOST" else self._here(HOST_AND_PORT.sub("127.0.0.1:", value))
            for variable, value in SERVICES[name].get("environment", {}).items()
        }
        return found | {"PATH": os.pathsep.join(paths), "PGPORT": self._ports["5432"]}

    async def start(self, name: str) -> None:
        """Start a service once those are as far as it says that it depends on."""
        service = SERVICES[name]
        for other, how in service.get("depends_on", {}).items():
            await self._as_far_as(other, how["condition"])
        if name == "postgres":
            self._start_postgres(service["environment"]["POSTGRES_PASSWORD"])
            return
        ours = ENTRYPOINT if "build" in service else []
        argv = [self._here(word) for word in [*service.get("entrypoint", ours), *service["command"]]]
        self.children[name] = [
            self._processes.start(
                argv,
                name=f"{name} {number}",
                log=self._folder / f"{name}-{number}.log",
                env=self.environment(name),
            )
            for number in range(service.get("scale", 1))
        ]

    async def completed(self, name: str) -> None:
        """Wait until a service has ended well."""
        (child,) = self.children[name]
        await wait_until(lambda: not child.alive, timeout_seconds=START_SECONDS, what=f"{name} has ended")
        assert child.exit_code == 0, child.log_tail()

    async def _as_far_as(self, name: str, condition: str) -> None:
        if condition == "service_completed_successfully":
            await self.completed(name)
            return
        assert condition == "service_healthy"
        check = SERVICES[name]["healthcheck"]["test"]
        assert check[0] == "CMD"
        environment = self.environment(name)

        def healthy() -> bool:
            for child in self.children.get(name, []):
                child.require_alive()
            argv = [self._here(word) for word in check[1:]]
            return subprocess.run(argv, env=environment, capture_output=True, check=False, timeout=30).returncode == 0

        await wait_until(healthy, timeout_seconds=START_SECONDS, what=f"{name} is healthy")

    def _start_postgres(self, password: str) -> None:
        """As the image does it: the superuser has this password, and whoever comes has to show his."""
        self._server.start()
        with self._server.connect() as connection:
            connection.execute(f"ALTER ROLE postgres PASSWORD '{password}'")
            (rules,) = connection.execute("SELECT current_setting('hba_file')").fetchone() or ("",)
            Path(rules).write_text("host all all 127.0.0.1/32 scram-sha-256\n")
            connection.execute("SELECT pg_reload_conf()")

    def _here(self, text: str) -> str:
        text = re.sub(r"\b(5432|7233|8090|8233)\b", lambda found: self._ports[found[0]], text)
        text = text.replace("0.0.0.0", "127.0.0.1")  # noqa: S104 - what a container listens on
        return text.replace("/data/", f"{self._folder}/").replace("/deploy/", f"{ROOT}/deploy/")

    async def run(self, *arguments: str, stdin: str = "") -> tuple[int, dict[str, Any]]:
        """A `counterfoil` command inside a worker's container: its exit code and its document."""
        done = await asyncio.to_thread(
            subprocess.run,
            [*ENTRYPOINT, *arguments, "--json"],
            env=self.environment("worker"),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return done.returncode, json.loads(done.stdout)

    def connect(self, database: str) -> "psycopg.Connection[Any]":
        """A connection with what the worker has."""
        environment = self.environment("worker")
        return psycopg.connect(
            host="127.0.0.1",
            port=self._ports["5432"],
            user="counterfoil_worker",
            password=environment["PGPASSWORD"],
            dbname=database,
            autocommit=True,
        )


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Local]:
    """This machine as the containers' host."""
    with Processes() as processes:
        local = Local(processes, tmp_path)
        yield local
        local.remove()


@pytest.mark.temporal
@pytest.mark.timeout(300)
async def test_the_services_come_up_as_written_and_an_incident_goes_through(local: Local) -> None:
    """In the file's order; then the books agree, the worker cannot change them, and everything may be repeated."""
    for name in SERVICES:
        await local.start(name)
    delivered, _ = await local.run("inventory", "stock", "--deliver", "FILTER-A=10")
    ended, incidents = await local.run("incident", "start", "-", "--wait-seconds", "60", stdin=json.dumps(INCIDENT))
    assert (delivered, ended) == (0, 0)
    assert incidents["ended"]["INC-1"]["status"] == "done"
    assert (await local.run("inventory", "stock", "FILTER-A"))[1]["stock"][0]["available"] == 8
    audited, report = await local.run("audit")
    assert audited == 0, report

    with local.connect("counterfoil_journal") as worker:
        assert worker.execute("SELECT count(*) FROM entries").fetchone() != (0,)
        for change in (
            "UPDATE entries SET body = ''",
            "DELETE FROM entries",
            "ALTER TABLE entries DISABLE TRIGGER ALL",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(change)
    with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
        local.connect("counterfoil_inventory")

    for name in ("databases", "migrate-journal", "migrate-inventory", "setup"):
        await local.start(name)
        await local.completed(name)
    for worker_process in local.children["worker"]:
        worker_process.send_signal(signal.SIGTERM)
        assert worker_process.wait(float(SERVICES["worker"]["stop_grace_period"].removesuffix("s"))) == 0
