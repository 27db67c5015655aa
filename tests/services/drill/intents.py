"""Intents for tests that need one in a journal."""

from datetime import UTC, datetime

from services.effects.records import Effect, Intent, decide


def intent(origin: str, scope: str, name: str) -> Intent:
    """A reservation of two FILTER-A, decided now."""
    request = {"lines": [{"sku": "FILTER-A", "quantity": 2}]}
    return decide(
        Effect(name=name, kind="inventory.reserve", request=request),
        origin=origin,
        scope=scope,
        decided_at=datetime.now(UTC),
        why={},
        workflow_id=scope,
        workflow_type="Incident",
        first_run_id="run-1",
    )
