"""What a child can be told to do: each command is the real one, between real stores, with seams around it.

A command's effect is a reservation of two FILTER-A, by its scope and name.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from temporalio.testing import ActivityEnvironment

from activities.attempt import Attempts
from activities.contracts import SEND_DEADLINE_SECONDS, SettleRequest
from activities.effects import EffectActivities
from activities.inventory_client import InventoryClient
from services import worker
from services.database import open_engine
from services.effect_desk import EffectDesk
from services.effects.commands import ToSend
from services.effects.records import Intent, decide
from services.effects.settle import SEND_WINDOW
from services.effects.states import EffectState
from services.journal.operator import OperatorJournal
from services.process_identity import identity
from services.reconciliation.sweep import Sweep
from services.settings import WorkerSettings
from services.temporal import connect
from tests.faults.seams.watching import SeamInterceptor, Seams, SeamTransport
from tests.services.drill.intents import intent
from workflows.effects import command_workflow_id

# Closer to nothing than to any clock's grain: what was decided is over at once, by the provider's clock too.
NO_TIME_SECONDS: Final = 0.001
OPERATOR, REASON = "mara", "the technician has the part"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a child works, and when what it works at was decided: for every child the same."""

    origin: str
    journal_url: str
    inventory_url: str
    token: str
    decided_at: str
    temporal_address: str = ""

    def intent(self, scope: str, name: str) -> Intent:
        """The first generation of an effect."""
        return replace(intent(self.origin, scope, name), decided_at=datetime.fromisoformat(self.decided_at))


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a command works with."""

    journal: OperatorJournal
    provider: InventoryClient
    origin: str


@asynccontextmanager
async def _parts(
    place: Place, seams: Seams, *, window: timedelta = SEND_WINDOW, margin: timedelta = timedelta(minutes=5)
) -> AsyncIterator[Parts]:
    seams.watch_sql()
    engine = open_engine(place.journal_url)
    provider = InventoryClient(place.inventory_url, place.token, transport=SeamTransport(seams))
    journal = OperatorJournal(engine, recorded_by=f"child {os.getpid()}", send_window=window, margin=margin)
    try:
        yield Parts(journal=journal, provider=provider, origin=place.origin)
    finally:
        await provider.close()
        engine.dispose()


async def _attempt(place: Place, seams: Seams, _say: Any, *, scope: str, name: str) -> Any:
    """One attempt of an effect, as its activity makes it."""
    async with _parts(place, seams) as parts:
        attempts = Attempts(parts.journal, parts.provider, asdict(identity()))
        return await attempts.run(place.intent(scope, name), task_token="")


async def _settle(place: Place, seams: Seams, _say: Any, *, scope: str, name: str, given_up: str = "") -> Any:
    """The activity `effects.settle`."""
    async with _parts(place, seams) as parts:
        activity = EffectActivities(parts.journal, parts.provider, parts.origin)
        request = SettleRequest(intent=place.intent(scope, name), given_up=given_up)
        return await ActivityEnvironment().run(activity.settle, request)


async def _sweep(place: Place, seams: Seams, _say: Any, *, over: bool = False, wrongly: bool = False) -> dict[str, int]:
    """A whole sweep.

    Args:
        place: where.
        seams: of this process.
        over: every send window is over, as the provider's clock says too.
        wrongly: whoever made a mark is taken for dead.
    """
    window, margin = (timedelta(seconds=NO_TIME_SECONDS), timedelta(0)) if over else (SEND_WINDOW, timedelta(minutes=5))
    async with _parts(place, seams, window=window, margin=margin) as parts:
        sweep = Sweep(
            parts.journal,
            parts.provider,
            send_deadline=timedelta(seconds=SEND_DEADLINE_SECONDS),
            provably_dead=(lambda _who: True) if wrongly else worker._worker_is_dead,
        )
        page = await sweep.page(after_key="", limit=500)
        assert page.next_after is None
        return page.counts


async def _desk(
    place: Place,
    seams: Seams,
    _say: Any,
    *,
    scope: str,
    name: str,
    command: str,
    by: str = OPERATOR,
    **arguments: Any,
) -> Any:
    """A person's command about an effect's first generation, and at once what has to be sent for it."""
    async with _parts(place, seams) as parts:
        desk = EffectDesk(parts.journal, parts.provider, origin=place.origin)
        if "to" in arguments:
            arguments["to"] = EffectState(arguments["to"])
        key = place.intent(scope, name).key
        if command == "adopt":
            arguments |= {"scope": scope, "name": name, "generation": 1}
        ruling = await getattr(desk, command)(key, by=by, reason=REASON, **arguments)
        standing = None if ruling.send is None else await _send(parts, ruling.send)
        return {"ruling": told(ruling), "sent": None if standing is None else told(standing)}


async def _send(parts: Parts, send: ToSend) -> Any:
    """What the workflow does that performs a command's effect."""
    asked = decide(
        send.effect,
        origin=parts.origin,
        scope=send.scope,
        decided_at=datetime.now(UTC),
        why=send.why,
        workflow_id=command_workflow_id(send.key),
        workflow_type="EffectCommand",
        first_run_id="run-1",
        generation=int(send.key.rpartition("-g")[2]),
    )
    assert asked.key == send.key
    return await Attempts(parts.journal, parts.provider, asdict(identity())).run(asked, task_token="")


async def _worker(place: Place, seams: Seams, say: Callable[[str], None]) -> None:
    """A worker, until it is ended from outside."""
    seams.watch_sql()
    os.environ |= {
        "TEMPORAL_ADDRESS": place.temporal_address,
        "COUNTERFOIL_ORIGIN": place.origin,
        "COUNTERFOIL_JOURNAL_DATABASE_URL": place.journal_url,
        "COUNTERFOIL_INVENTORY_URL": place.inventory_url,
        "COUNTERFOIL_INVENTORY_TOKEN": place.token,
    }
    worker.build = partial(worker.build, interceptors=[SeamInterceptor(seams)])
    worker.InventoryClient = partial(InventoryClient, transport=SeamTransport(seams))  # type: ignore[attr-defined, assignment]
    await worker.run(WorkerSettings.read(), await connect(), asyncio.Event(), started=lambda: say("works"))


COMMANDS: Final[Mapping[str, Callable[..., Coroutine[Any, Any, Any]]]] = {
    "attempt": _attempt,
    "settle": _settle,
    "sweep": _sweep,
    "desk": _desk,
    "worker": _worker,
}


def told(answer: Any) -> Any:
    """An answer as JSON has it."""
    return _plain(asdict(answer)) if is_dataclass(answer) and not isinstance(answer, type) else _plain(answer)


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(name): _plain(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case datetime():
            return value.isoformat()
        case None | bool() | int() | float() | str():
            return value
        case _:
            return repr(value)
