"""Calls that go together get what they get one after the other."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.database import open_engine
from services.inventory.contract import Answer, Call, KeyedCall, Kind, Outcome, VoidCall, fingerprint
from services.inventory.loading import NotTogether
from services.inventory.problems import Problem, Refused
from services.inventory.stock import StockKeeper
from services.inventory.verification.run import verify
from tests.services.inventory.conftest import NOW, Clock

_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\.[0-9]{6}Z")
_KEYS = [f"any-batch-{number:06d}-g1" for number in range(12)]
keys = st.sampled_from(_KEYS)
skus = st.sampled_from(("FILTER-A", "FILTER-B", "HOSE-C"))
lines = st.dictionaries(skus, st.integers(1, 4), min_size=1, max_size=2)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """One call of any kind; some come too late, some redo, many share their keys."""
    kind = draw(st.sampled_from([*Kind]))
    key = draw(keys)
    if kind in {Kind.VOID, Kind.EXPIRY}:
        return VoidCall(tenant="", key=key)
    request: dict[str, Any] = {}
    quantities: dict[str, int] = {}
    reservation = None
    hold = None
    if kind is Kind.DELIVER:
        sku, quantity = draw(skus), draw(st.integers(1, 9))
        request, quantities = {"quantity": quantity, "sku": sku}, {sku: quantity}
    elif kind is Kind.RESERVE:
        quantities = dict(sorted(draw(lines).items()))
        request = {"lines": [{"quantity": quantity, "sku": sku} for sku, quantity in quantities.items()]}
        hold = draw(st.sampled_from([None, 3600]))
        request |= {} if hold is None else {"hold_seconds": hold}
    else:
        reservation = f"reservation-{draw(st.integers(1, 4))}"
    path = {} if reservation is None else {"id": reservation}
    return KeyedCall(
        tenant="",
        key=key,
        kind=kind,
        request=request,
        fingerprint=fingerprint(kind, path, request),
        not_after=NOW + timedelta(hours=1 if draw(st.integers(0, 9)) else -1),
        supersedes=tuple(sorted(draw(st.sets(keys, max_size=2)) - {key}, reverse=True)),
        quantities=quantities,
        reservation_id=reservation,
        hold_seconds=hold,
    )


def execute(keeper: StockKeeper, tenant: str, batch: Sequence[Call], went: list[int]) -> list[Answer | Refused]:
    """Together, or each alone where they cannot go together: what the queue does; how many went is told."""
    own = [replace(call, tenant=tenant) for call in batch]
    try:
        answers = keeper.execute(tenant, own)
    except NotTogether:
        return [answer for call in own for answer in _alone(keeper, call)]
    went.append(len(batch))
    return answers


def _alone(keeper: StockKeeper, call: Call) -> list[Answer | Refused]:
    try:
        return [keeper.perform(call)]
    except Refused as refused:
        return [refused]


def said(answer: Answer | Refused) -> Any:
    """What a caller hears, but for the time."""
    if isinstance(answer, Refused):
        return answer.problem, answer.detail, json.dumps(answer.members)
    return answer.http_status, _TIME.sub("a time", answer.body.decode()), answer.outcome, answer.replayed


def test_calls_that_go_together_get_what_they_get_one_after_the_other(database_url: str) -> None:
    """Status, body, outcome and whether it is a repetition; and both halves verify."""
    engine = open_engine(database_url)
    keeper = StockKeeper(engine, Clock())
    numbers = iter(range(1_000_000))
    went: list[int] = []

    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(calls(), min_size=1, max_size=8), min_size=1, max_size=6))
    def same(batches: list[list[Call]]) -> None:
        number = next(numbers)
        for batch in batches:
            together = execute(keeper, f"together-{number}", batch, went)
            alone = [answer for call in batch for answer in execute(keeper, f"alone-{number}", [call], [])]
            assert list(map(said, together)) == list(map(said, alone))

    same()
    assert sum(size > 1 for size in went) > 50
    found = verify(engine)
    assert found.violation is None, found.violation.sentence
    engine.dispose()


def test_a_batch_with_a_late_call_that_a_closed_redo_names_comes_to_its_end(database_url: str) -> None:
    """The newest closes the middle one, which then closes nothing: they go alone, and the late one is 412."""
    first, second, third = _KEYS[:3]
    request = {"quantity": 1, "sku": "FILTER-A"}
    newest = KeyedCall(
        tenant="acme",
        key=third,
        kind=Kind.DELIVER,
        request=request,
        fingerprint=fingerprint(Kind.DELIVER, {}, request),
        not_after=NOW + timedelta(hours=1),
        supersedes=(second,),
        quantities={"FILTER-A": 1},
    )
    middle = replace(newest, key=second, supersedes=(first,))
    late = replace(newest, key=first, supersedes=(), not_after=NOW - timedelta(hours=1))
    looks = iter(range(100))

    def clock() -> datetime:
        next(looks)  # a batch that never ends fails here
        return NOW

    engine = open_engine(database_url)
    went: list[int] = []
    answers = execute(StockKeeper(engine, clock), "acme", [newest, middle, late], went)
    assert went == []
    assert [answer.problem if isinstance(answer, Refused) else answer.outcome for answer in answers] == [
        Outcome.COMMITTED,
        Outcome.VOIDED,
        Problem.NOT_AFTER_PASSED,
    ]
    engine.dispose()


def test_a_call_that_guesses_a_reservation_made_before_it_in_the_batch_finds_it(database_url: str) -> None:
    """Nobody has been told of it yet, but it is there: they go alone, and what is consumed cannot be confirmed."""
    reserve = {"lines": [{"quantity": 1, "sku": "FILTER-A"}]}
    made = KeyedCall(
        tenant="acme",
        key=_KEYS[1],
        kind=Kind.RESERVE,
        request=reserve,
        fingerprint=fingerprint(Kind.RESERVE, {}, reserve),
        not_after=NOW + timedelta(hours=1),
        supersedes=(),
        quantities={"FILTER-A": 1},
    )
    deliver = {"quantity": 1, "sku": "FILTER-A"}
    stock = replace(made, key=_KEYS[0], kind=Kind.DELIVER, request=deliver,
                    fingerprint=fingerprint(Kind.DELIVER, {}, deliver))  # fmt: skip
    first = replace(made, key=_KEYS[2], kind=Kind.CONFIRM, request={}, quantities={}, reservation_id="reservation-1",
                    fingerprint=fingerprint(Kind.CONFIRM, {"id": "reservation-1"}, {}))  # fmt: skip
    engine = open_engine(database_url)
    went: list[int] = []
    answers = execute(StockKeeper(engine, Clock()), "acme", [stock, made, first], went)
    assert went == []
    assert [answer.http_status if isinstance(answer, Answer) else answer.problem for answer in answers] == [
        201,
        201,
        409,
    ]
    engine.dispose()


@pytest.mark.parametrize("dialect", ["sqlite"])
def test_a_database_that_cannot_be_had_is_waited_for_once_and_not_by_each_alone(database_url: str) -> None:
    """Another process is writing: all of the batch are told so, and nothing was executed for any of them."""
    engine, other = open_engine(database_url), open_engine(database_url)

    def impatient(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA busy_timeout=10").close()

    sa.event.listen(engine, "connect", impatient)
    keeper = StockKeeper(engine, Clock())
    together: list[Call] = [VoidCall(tenant="acme", key=key) for key in _KEYS[:2]]
    with other.connect() as connection:
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        with pytest.raises(Refused) as refused:
            keeper.execute("acme", together)
        assert refused.value.problem is Problem.OVERLOADED
        with pytest.raises(Refused):
            keeper.perform(together[0])
    assert [answer.replayed for answer in keeper.execute("acme", together) if isinstance(answer, Answer)] == [False] * 2
    engine.dispose()
    other.dispose()
