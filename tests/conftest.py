"""What every test may use."""

import gc
import os
import platform
import random
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from services.drill import processes
from tests.certificates import Authority
from tests.postgres import Databases, databases

# An example has no deadline, and drawing it none either: whose process is not run for a while has found nothing.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio: temporalio knows nothing else."""
    return "asyncio"


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """Databases on a real PostgreSQL, started when the first test wants one."""
    with databases(tmp_path_factory.mktemp("postgres")) as made:
        yield made


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A private authority that the tests' servers are vouched for by."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(params=["sqlite", "postgresql"])
def dialect(request: pytest.FixtureRequest) -> str:
    """Which database a store's test runs on: each, unless the test names one by parametrizing `dialect`."""
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the fault campaigns are told."""
    parser.addoption("--long", action="store_true", help="the fault campaigns with their full counts: make faults")
    parser.addoption("--seed", type=int, help="what the fault campaigns draw from; each run has its own by default")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which seed repeats this run."""
    return f"fault campaigns: {'full' if config.getoption('long') else 'short'}, --seed {config.getoption('seed')}"


def pytest_collection_finish() -> None:
    """Take thousands of collected tests out of the garbage collector's way.

    A full collection in the middle of a workflow's task would take longer than the task has.
    """
    gc.collect()
    gc.freeze()


def pytest_configure(config: pytest.Config) -> None:
    """Choose a seed, which pytest-xdist hands on, and undo what nohup and a shell's & leave.

    Children would inherit ignored signals that the tests send them.
    """
    if config.option.seed is None:
        config.option.seed = random.SystemRandom().randrange(10**9)
    # Each process of pytest-xdist chooses among ports of its own: what one has chosen and not yet used, no other sees.
    if "PYTEST_XDIST_WORKER" in os.environ:
        number, count = (os.environ[f"PYTEST_XDIST_WORKER{more}"] for more in ("", "_COUNT"))
        processes._PORTS = processes._PORTS[int(number.removeprefix("gw")) :: int(count)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only Linux has, on anything else."""
    if platform.system() == "Linux":
        return
    left_out = [item for item in items if item.get_closest_marker("linux")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
