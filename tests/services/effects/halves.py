"""Both halves of an effect, made up: intents and rows of the journal, receipts of the provider."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from services.effects import keys
from services.effects.records import Answer, Effect, EffectRow, Intent, Mark, Receipt, Seen, Source, decide
from services.effects.states import EffectState

DECIDED_AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW = timedelta(hours=24)
LINES = [{"sku": "FILTER-A", "quantity": 2}]


def make_intent(
    *,
    scope: str = "INC-2041",
    name: str = "reserve-filter",
    generation: int = 1,
    decided_at: datetime = DECIDED_AT,
    kind: str = "inventory.reserve",
    request: dict[str, Any] | None = None,
    path: dict[str, str] | None = None,
) -> Intent:
    """What a workflow decided."""
    return decide(
        Effect(name=name, kind=kind, request={"lines": LINES} if request is None else request, path=path or {}),
        origin="demo",
        scope=scope,
        decided_at=decided_at,
        why={"approved_by": "ada"},
        workflow_id=scope,
        workflow_type="Incident",
        first_run_id="run-1",
        generation=generation,
    )


def make_release(*, of: str = "reserve-filter", generation: int = 1, again: int = 1) -> Intent:
    """The effect that gives another back."""
    return make_intent(
        name=keys.release_name(of, generation),
        kind="inventory.release",
        request={},
        path={"id": "reservation-1"},
        generation=again,
    )


def make_row(intent: Intent, **changes: Any) -> EffectRow:
    """The journal's row of an intent, as an attempt bore it."""
    row = EffectRow(
        key=intent.key,
        origin=intent.origin,
        scope=intent.scope,
        name=intent.name,
        generation=intent.generation,
        kind=intent.kind,
        provider=intent.provider,
        path=intent.path,
        request=intent.request,
        fingerprint=intent.fingerprint,
        fingerprint_version=intent.fingerprint_version,
        supersedes=intent.supersedes,
        decided_at=intent.decided_at,
        deadline=intent.decided_at + WINDOW,
        born_by="attempt",
        given_up=False,
        alarmed=False,
        state=EffectState.PENDING,
        version=1,
        attempts=1,
        workflow_id=intent.workflow_id,
        workflow_type=intent.workflow_type,
        first_run_id=intent.first_run_id,
        created_at=intent.decided_at,
    )
    return replace(row, **changes)


def make_receipt(intent: Intent, outcome: EffectState = EffectState.COMMITTED, **members: Any) -> Receipt:
    """The provider's half of an intent."""
    body: dict[str, Any] = {
        "schema_version": 1,
        "receipt_id": f"receipt-{outcome}",
        "key": intent.key,
        "kind": intent.kind,
        "outcome": str(outcome),
        "reason": None,
        "fingerprint": None if outcome is EffectState.VOIDED else intent.fingerprint,
        "reservation_id": "reservation-1" if outcome is EffectState.COMMITTED else None,
        "created_at": "2026-03-01T12:00:01.000000Z",
    }
    if intent.kind == "inventory.reserve" and outcome is not EffectState.VOIDED:
        granted = 2 if outcome is EffectState.COMMITTED else 0
        body["lines"] = [{"sku": "FILTER-A", "requested": 2, "granted": granted}]
    return Receipt(body | members)


def make_answer(seen: Seen, source: Source = Source.SEND, **changes: Any) -> Answer:
    """What one exchange showed."""
    return Answer(seen=seen, source=source, **changes)


def shows(receipt: Receipt, source: Source = Source.SEND) -> Answer:
    """An exchange that showed a receipt."""
    return Answer(seen=Seen.RECEIPT, source=source, receipt=receipt)


def make_mark(attempt_id: str) -> Mark:
    """What a worker journals before it sends."""
    return Mark(attempt_id=attempt_id, task_token=attempt_id, worker={"host": "worker-1", "pid": 7})
