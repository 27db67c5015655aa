"""What a worker shows of its journal to machines: figures at /metrics, and a line of its log for each new alarm.

- The figures are Temporal's own and, beside them, `counterfoil_effects{state}`, `counterfoil_alarms{kind}`,
  `counterfoil_oldest_unknown_seconds` and `counterfoil_looked_at_seconds`, the time of the look that they are from.
- Every worker reads the journal for itself: its figures are never another one's, and never older than its last look.
- No label has a key, a scope or a name in it: there would be a series for each effect. Lines of the log have them.
"""

import json
import logging
from collections import Counter, defaultdict
from datetime import UTC, datetime
from typing import Final

from temporalio.common import MetricMeter
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from services.journal.rows import timestamp
from services.reconciliation.alarms import Alarm, AlarmKind, Readings
from services.settings import SettingsError, variable

# An outage's thousands are one line more, not thousands.
LINES_AT_ONCE: Final = 100

_LOG = logging.getLogger(__name__)


def runtime(metrics_address: str | None) -> Runtime | None:
    """Temporal's runtime that serves figures at an address; None where nobody wants any.

    Raises:
        SettingsError: they cannot be served there.
    """
    if metrics_address is None:
        return None
    metrics = PrometheusConfig(bind_address=metrics_address, durations_as_seconds=True, unit_suffix=True)
    try:
        return Runtime(telemetry=TelemetryConfig(metrics=metrics, attach_service_name=False))
    except ValueError as error:
        raise SettingsError(
            f"{variable('metrics_address')} is not usable ({str(error).rpartition(': ')[2]}). Nothing was started or "
            "lost. Every worker of a host needs an address of its own, or none."
        ) from None


class Telemetry:
    """What one worker has shown so far.

    Args:
        meter: where the figures go.
    """

    def __init__(self, meter: MetricMeter) -> None:
        self._effects = meter.create_gauge("counterfoil_effects", "Effects in the journal by state.")
        self._alarms = meter.create_gauge("counterfoil_alarms", "Effects that a person has to look at, by reason.")
        self._oldest = meter.create_gauge_float(
            "counterfoil_oldest_unknown_seconds", "Age of the oldest effect whose outcome is unknown; 0 without one."
        )
        self._looked = meter.create_gauge_float(
            "counterfoil_looked_at_seconds", "When these figures were read, in seconds since 1970."
        )
        self._shown: frozenset[tuple[AlarmKind, str]] = frozenset()

    def show(self, readings: Readings) -> None:
        """Show what a look has found; in the log, what is new in it and what is over."""
        for state, count in readings.counts.items():
            self._effects.set(count, {"state": state.value})
        kinds = Counter(alarm.kind for alarm in readings.alarms)
        for kind in AlarmKind:
            self._alarms.set(kinds[kind], {"kind": kind.value})
        self._oldest.set(readings.oldest_unknown_seconds)
        self._looked.set(datetime.now(UTC).timestamp())
        new = [alarm for alarm in readings.alarms if (alarm.kind, alarm.key) not in self._shown]
        now = frozenset((alarm.kind, alarm.key) for alarm in readings.alarms)
        _say(new)
        for kind, key in sorted(self._shown - now):
            _LOG.info("over=%s key=%s", kind, key)
        self._shown = now


def _say(alarms: list[Alarm]) -> None:
    by_kind: defaultdict[AlarmKind, list[Alarm]] = defaultdict(list)
    for alarm in alarms:
        by_kind[alarm.kind].append(alarm)
    for kind, found in by_kind.items():
        for alarm in found[:LINES_AT_ONCE]:
            _LOG.warning(
                "alarm=%s key=%s scope=%s name=%s workflow_id=%s since=%s said=%s",
                kind,
                alarm.key,
                json.dumps(alarm.scope),
                json.dumps(alarm.name),
                json.dumps(alarm.workflow_id),
                timestamp(alarm.since),
                json.dumps(alarm.said),
            )
        if len(found) > LINES_AT_ONCE:
            _LOG.warning("alarm=%s more=%d said=%s", kind, len(found) - LINES_AT_ONCE, json.dumps("effects list"))
