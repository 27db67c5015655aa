"""Where Temporal is, what is said when it is not there, and a sweep that is asked for."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest

from activities.contracts import Swept
from services import temporal as module
from services import worker
from services.database import migrate
from services.drill.processes import Processes, TemporalServer
from services.drill.stack import running_stack
from services.effects.records import Mark
from services.settings import WorkerSettings
from services.temporal import NotSetUp, TemporalUnreachable, add_search_attributes, connect, sweep_now
from tests.services.drill.intents import intent

TONIC = (
    "Failed client connect: Server connection error: tonic::transport::Error(Transport, ConnectError(ConnectError("
    '"{}", 127.0.0.1:1, {})))'
)


@pytest.mark.anyio
async def test_an_address_where_nobody_answers_is_named_with_the_systems_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence of ours, not a page of the client's."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    with pytest.raises(TemporalUnreachable) as caught:
        await connect()
    assert str(caught.value).startswith("Temporal at 127.0.0.1:1 cannot be reached (Connection refused). Nothing was")
    assert caught.value.where == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (TONIC.format("tcp connect error", 'Os { code: 111, kind: ConnectionRefused, message: "refused" }'), "refused"),
        (TONIC.format("dns error", 'Custom { kind: Uncategorized, error: "no such host" }'), "no such host"),
        ("a first line\nand a second", "a first line"),
        ("x" * 500, "x" * 120 + "..."),
        ("", "RuntimeError"),
    ],
)
def test_of_the_clients_words_the_systems_reason_is_kept(words: str, reason: str) -> None:
    """Whatever it says, it is one short line."""
    assert module._reason(RuntimeError(words)) == reason


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Whatever a test starts ends with it."""
    with Processes() as block:
        yield block


@pytest.mark.temporal
async def test_a_namespace_that_is_not_there_is_said_at_once(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later questions would be answered as if the workflow were not there."""
    server = TemporalServer(processes, database=tmp_path / "temporal.db", log=tmp_path / "temporal.log")
    await server.start()
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nope")
    with pytest.raises(NotSetUp, match="has no namespace nope") as caught:
        await connect()
    assert "temporal operator namespace create --namespace nope" in str(caught.value)


@pytest.mark.temporal
async def test_a_worker_does_not_start_before_the_search_attributes_are_there_and_of_our_types(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes the same name with another type in silence, and what is pending would not be found."""
    server = TemporalServer(processes, database=tmp_path / "temporal.db", log=tmp_path / "temporal.log")
    await server.start()
    monkeypatch.setenv("TEMPORAL_ADDRESS", server.address)
    client = await connect()
    journal = f"sqlite:///{tmp_path / 'journal.db'}"
    await asyncio.to_thread(migrate, "journal", journal)
    mine = {
        "ORIGIN": "drill",
        "JOURNAL_DATABASE_URL": journal,
        "INVENTORY_URL": "http://nobody",
        "INVENTORY_TOKEN": "t",
    }
    for name, value in mine.items():
        monkeypatch.setenv(f"COUNTERFOIL_{name}", value)

    async def starts() -> None:
        await worker.run(
            WorkerSettings.read(), client, asyncio.Event(), started=lambda: pytest.fail("it has started to work")
        )

    with pytest.raises(NotSetUp, match=r"lacks the search attributes EffectKey, .*counterfoil setup"):
        await starts()
    other = {"UnknownSince": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=other)
    )
    for refused in (starts(), add_search_attributes(client)):
        with pytest.raises(NotSetUp, match="UnknownSince of namespace default have another type"):
            await refused


@pytest.mark.temporal
async def test_a_sweep_gives_the_result_of_the_run_it_asked_for(processes: Processes, tmp_path: Path) -> None:
    """What became pending before the call is in it, though an earlier sweep has run; two calls get one each."""
    async with running_stack(processes, tmp_path, stock={}, origin="drill", workers=1) as stack:
        assert await sweep_now(stack.client, "drill") == Swept()
        given_up = intent("drill", "INC-1", "reserve-filter")
        stack.journal.give_up(given_up, why="the test says so")
        assert await sweep_now(stack.client, "drill") == Swept(looked_at=1, voided=1)
        stack.journal.begin(intent("drill", "INC-2", "reserve-filter"), Mark(attempt_id="a", task_token="", worker={}))
        swept = await asyncio.gather(sweep_now(stack.client, "drill"), sweep_now(stack.client, "drill"))
        assert list(swept) == [Swept(looked_at=1, owned=1)] * 2
        with pytest.raises(NotSetUp, match="counterfoil setup"):
            await sweep_now(stack.client, "nobody")
        await stack.run("reconcile", "reconcile", "--json")
