"""Where Temporal is, and what is said when it is not there."""

import pytest
from temporalio.service import RPCError, RPCStatusCode

from services import temporal as module
from services.temporal import NotSetUp, TemporalUnreachable, connect

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


@pytest.mark.anyio
async def test_a_namespace_that_is_not_there_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later questions would be answered as if the workflow were not there."""

    class Service:
        async def describe_namespace(self, _request: object) -> None:
            raise RPCError("Namespace nope is not found.", RPCStatusCode.NOT_FOUND, b"")

    class Connected:
        workflow_service = Service()

        @classmethod
        async def connect(cls, **_config: object) -> "Connected":
            return cls()

    monkeypatch.setattr(module, "Client", Connected)
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nope")
    with pytest.raises(NotSetUp, match="has no namespace nope") as caught:
        await connect()
    assert "temporal operator namespace create --namespace nope" in str(caught.value)
