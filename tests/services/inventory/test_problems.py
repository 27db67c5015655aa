"""Every type of problem, as a caller meets it."""

from collections.abc import Callable

import httpx
import pytest
import sqlalchemy as sa

from services.inventory.problems import RETRIABLE, STATUS, Problem, document
from tests.services.inventory.conftest import Caller, connect, running
from tests.services.inventory.test_edge import assert_problem


def voided(caller: Caller) -> httpx.Response:
    """The use of a key that is closed."""
    caller.void("closed-key-00000001")
    return caller.reserve(key="closed-key-00000001")


def reused(caller: Caller) -> httpx.Response:
    """The use of a key for another request."""
    caller.reserve(1, key="used-key-0000000001")
    return caller.reserve(2, key="used-key-0000000001")


def twice_released(caller: Caller) -> httpx.Response:
    """A second release."""
    reservation = caller.reserve(1).json()["reservation_id"]
    caller.release(reservation)
    return caller.release(reservation)


def overtaken(caller: Caller) -> httpx.Response:
    """A redo of what is committed."""
    caller.reserve(1, key="effect-0000000001-g1")
    headers = {"Effect-Supersedes": "effect-0000000001-g1"}
    return caller.reserve(1, key="effect-0000000001-g2", headers=headers)


def late(caller: Caller) -> httpx.Response:
    """A request after its deadline."""
    return caller.reserve(headers={"Effect-Not-After": "2026-05-01T00:00:00Z"})


MEETINGS: dict[Problem, Callable[[Caller], httpx.Response]] = {
    Problem.VALIDATION_FAILED: lambda caller: caller.post("/v1/deliveries", {}),
    Problem.IDEMPOTENCY_KEY_MISSING: lambda caller: caller.http.post("/v1/deliveries", json={}),
    Problem.IDEMPOTENCY_KEY_INVALID: lambda caller: caller.receipt("short"),
    Problem.UNAUTHORIZED: lambda caller: caller.http.get("/v1/receipts", headers={"Authorization": "Bearer x"}),
    Problem.FORBIDDEN: lambda caller: caller.reserve(headers=caller.reading),
    Problem.RECEIPT_NOT_FOUND: lambda caller: caller.receipt("unknown-key-0000001"),
    Problem.RESERVATION_NOT_FOUND: lambda caller: caller.release("reservation-999"),
    Problem.SKU_NOT_FOUND: lambda caller: caller.http.get("/v1/stock/UNKNOWN"),
    Problem.NOT_FOUND: lambda caller: caller.http.get("/v1/unknown"),
    Problem.METHOD_NOT_ALLOWED: lambda caller: caller.http.delete("/v1/receipts"),
    Problem.INSUFFICIENT_STOCK: lambda caller: caller.reserve(11),
    Problem.UNKNOWN_SKU: lambda caller: caller.reserve(1, "UNKNOWN"),
    Problem.INVALID_TRANSITION: twice_released,
    Problem.PREDECESSOR_COMMITTED: overtaken,
    Problem.KEY_VOIDED: voided,
    Problem.NOT_AFTER_PASSED: late,
    Problem.PAYLOAD_TOO_LARGE: lambda caller: caller.http.post("/v1/deliveries", content=b" " * 70_000),
    Problem.IDEMPOTENCY_KEY_REUSED: reused,
}
STORED = {
    Problem.INSUFFICIENT_STOCK,
    Problem.UNKNOWN_SKU,
    Problem.INVALID_TRANSITION,
    Problem.PREDECESSOR_COMMITTED,
    Problem.KEY_VOIDED,
}
# Met where the database fails, or time passes: below, and in the tests of the edge, of holds and of housekeeping.
ELSEWHERE = {
    Problem.REQUEST_IN_PROGRESS,
    Problem.INTERNAL,
    Problem.OVERLOADED,
    Problem.HOLD_EXPIRED,
    Problem.KEY_EXPIRED,
}


def test_every_problem_is_met_by_a_test() -> None:
    """No type is only on paper."""
    assert set(MEETINGS) | ELSEWHERE == set(Problem) == set(STATUS)


@pytest.mark.parametrize("problem", MEETINGS)
def test_a_problem_has_its_status_its_type_and_its_receipt(caller: Caller, problem: Problem) -> None:
    """The type is the switch; those that are stored carry their receipt, the others none."""
    response = MEETINGS[problem](caller)
    assert response.status_code == STATUS[problem]
    assert_problem(response, problem.value)
    assert ("retry-after" in response.headers) == (problem in RETRIABLE)
    assert ("receipt" in response.json()) == (problem in STORED)
    outcome = response.json()["receipt"]["outcome"] if problem in STORED else "none"
    assert response.headers["receipt-outcome"] == outcome
    if problem in STORED:
        receipt = response.json()["receipt"]
        assert caller.receipt(receipt["key"]).json() == receipt
        assert receipt["http_status"] == response.status_code


@pytest.mark.parametrize(("state", "problem"), [("55P03", Problem.REQUEST_IN_PROGRESS), ("40P01", Problem.OVERLOADED)])
def test_a_rival_that_holds_on_is_told_apart_from_a_failure(database_url: str, state: str, problem: Problem) -> None:
    """I04, I43: a lock timeout is 409 with Retry-After, a deadlock that stays one is 503; neither is a 5xx of ours."""
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        caller.deliver()
        listener = fail(service.engine, "UPDATE stock", state, times=100)
        key = caller.new_key()
        response = caller.reserve(key=key)
        assert_problem(response, problem.value)
        assert response.headers["retry-after"] == "1"
        sa.event.remove(service.engine, "before_cursor_execute", listener)
        assert caller.receipt(key).status_code == 404
        assert caller.reserve(key=key).status_code == 201
        assert caller.available() == 8


def test_a_deadlock_is_retried_inside(database_url: str) -> None:
    """The victim's transaction runs again, and its caller hears nothing of it."""
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        caller.deliver()
        fail(service.engine, "UPDATE stock", "40P01", times=2)
        assert caller.reserve().status_code == 201
        assert caller.available() == 8
        assert [movement["version"] for movement in caller.ledger()] == [1, 2]


def fail(engine: sa.Engine, statement: str, state: str, times: int) -> Callable[..., None]:
    """Let a statement fail as PostgreSQL's driver does, so often."""
    left = [times]

    class DriverError(engine.dialect.loaded_dbapi.OperationalError):  # type: ignore[misc,name-defined]
        sqlstate = state

    def listener(_connection: object, _cursor: object, text: str, *_: object) -> None:
        if text.startswith(statement) and left[0]:
            left[0] -= 1
            raise sa.exc.OperationalError(text, None, DriverError("lock"))

    sa.event.listen(engine, "before_cursor_execute", listener)
    return listener


def test_a_document_says_what_happened_and_where_to_look() -> None:
    """Type, title, status and detail always, members after them."""
    assert list(document(Problem.KEY_VOIDED, "Closed.", receipt={})) == ["type", "title", "status", "detail", "receipt"]
