"""What a worker shows of its journal to machines."""

import logging
import socket
from dataclasses import replace
from datetime import UTC, datetime

import httpx
import pytest
from temporalio.common import MetricMeter

from services.drill.processes import free_port
from services.effects.states import EffectState
from services.reconciliation.alarms import Alarm, AlarmKind, Readings
from services.settings import SettingsError
from services.telemetry import LINES_AT_ONCE, Telemetry, runtime

ALARM = Alarm(
    kind=AlarmKind.IN_DOUBT,
    key="cf1-key-g1",
    scope="INC-1 of\nFRA",
    name="reserve-filter",
    workflow_id="INC-1",
    since=datetime(2026, 3, 1, 12, tzinfo=UTC),
    said="no rule can settle it",
)
NOTHING = Readings(counts=dict.fromkeys(EffectState, 0), oldest_unknown_seconds=0.0, alarms=())


def free_address() -> str:
    """An address that nobody serves at."""
    return f"127.0.0.1:{free_port()}"


def figures(address: str) -> dict[str, float]:
    """Our own, as Prometheus reads them."""
    lines = httpx.get(f"http://{address}/metrics", trust_env=False).text.splitlines()
    read = (line.rpartition(" ") for line in lines if line.startswith("counterfoil_"))
    return {name: float(value) for name, _, value in read}


def test_figures_are_those_of_the_last_look() -> None:
    """Each state and each kind has its own from the first look on; what is over is 0, not what it was."""
    address = free_address()
    serving = runtime(address)
    assert serving is not None
    telemetry = Telemetry(serving.metric_meter)
    counts = NOTHING.counts | {EffectState.PENDING: 3}  # type: ignore[operator]
    telemetry.show(Readings(counts=counts, oldest_unknown_seconds=12.5, alarms=(ALARM, replace(ALARM, key="other"))))
    first = figures(address)
    assert first.pop("counterfoil_looked_at_seconds") == pytest.approx(datetime.now(UTC).timestamp(), abs=60)
    assert {name: value for name, value in first.items() if value} == {
        'counterfoil_effects{state="pending"}': 3,
        'counterfoil_alarms{kind="in_doubt"}': 2,
        "counterfoil_oldest_unknown_seconds": 12.5,
    }
    assert len(first) == len(EffectState) + len(AlarmKind) + 1
    telemetry.show(NOTHING)
    then = figures(address)
    then.pop("counterfoil_looked_at_seconds")
    assert set(then) == set(first)
    assert not any(then.values())


def test_an_alarm_is_one_line_when_it_appears_and_one_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """E23: not one in each look; a name with a line break in it is still one line."""
    caplog.set_level(logging.INFO)
    telemetry = Telemetry(MetricMeter.noop)
    raised = replace(NOTHING, alarms=(ALARM,))
    for readings in (raised, raised, NOTHING, NOTHING, raised):
        telemetry.show(readings)
    line = (
        'alarm=in_doubt key=cf1-key-g1 scope="INC-1 of\\nFRA" name="reserve-filter" workflow_id="INC-1" '
        'since=2026-03-01T12:00:00.000000Z said="no rule can settle it"'
    )
    assert [record.getMessage() for record in caplog.records] == [line, "over=in_doubt key=cf1-key-g1", line]


def test_thousands_of_alarms_are_not_thousands_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    """Of each kind, some with their keys, and how many more there are."""
    many = [replace(ALARM, key=f"key-{number}") for number in range(LINES_AT_ONCE + 7)]
    other = replace(ALARM, kind=AlarmKind.STUCK_WORKFLOW)
    Telemetry(MetricMeter.noop).show(replace(NOTHING, alarms=(*many, other)))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_AT_ONCE + 2
    assert 'alarm=in_doubt more=7 said="effects list"' in lines


def test_an_address_that_is_taken_is_said_in_one_sentence() -> None:
    """Two workers of one host with the same address: the second one does not start."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(SettingsError, match=r"^COUNTERFOIL_METRICS_ADDRESS is not usable \(Address already in use"):
            runtime(address)


def test_nothing_is_served_where_nobody_asks() -> None:
    """The process's own runtime, without an exporter."""
    assert runtime(None) is None
