"""The stock keeper: one effect per key, whoever calls, how often, and in whatever order."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.services.inventory.conftest import Caller, connect, running
from tests.services.inventory.test_edge import assert_problem

G1, G2, G3 = (f"cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g{generation}" for generation in (1, 2, 3))
_skus = itertools.count(1)


def together(*calls: Callable[[], httpx.Response]) -> list[httpx.Response]:
    """All calls at once, each in a thread of its own."""
    barrier = Barrier(len(calls))

    def run(call: Callable[[], httpx.Response]) -> httpx.Response:
        barrier.wait(60)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def statuses(responses: list[httpx.Response]) -> Counter[int]:
    """How often each status came."""
    return Counter(response.status_code for response in responses)


def effects(caller: Caller, key: str, sku: str = "FILTER-A") -> int:
    """How often a key moved a SKU."""
    return sum(movement["key"] == key for movement in caller.ledger(sku))


def test_a_reserve_consumes_and_a_release_gives_all_of_it_back(caller: Caller) -> None:
    """The receipt, the reservation, the stock and the ledger say the same."""
    reserved = caller.reserve(2)
    assert reserved.status_code == 201
    assert reserved.json()["lines"] == [{"sku": "FILTER-A", "requested": 2, "granted": 2}]
    assert reserved.json()["stock_versions"] == {"FILTER-A": 2}
    stock = caller.stock()
    assert (stock["received"], stock["available"], stock["held"], stock["consumed"]) == (10, 8, 0, 2)
    released = caller.release("reservation-1")
    assert released.status_code == 200
    stock = caller.stock()
    assert (stock["received"], stock["available"], stock["held"], stock["consumed"]) == (10, 10, 0, 0)
    reservation = caller.http.get("/v1/reservations/reservation-1").json()
    assert reservation["state"] == "released"
    assert reservation["release_key"] == released.json()["key"]
    assert [movement["version"] for movement in caller.ledger()] == [1, 2, 3]


def test_a_reservation_takes_all_its_lines_or_none(caller: Caller) -> None:
    """I11: duplicate SKUs are summed; one short line refuses the sibling lines too."""
    caller.deliver(5, "HOSE-B")
    lines = [("HOSE-B", 2), ("FILTER-A", 9), ("HOSE-B", 4)]
    body = {"lines": [{"sku": sku, "quantity": quantity} for sku, quantity in lines]}
    refused = caller.post("/v1/reservations", body)
    assert_problem(refused, "insufficient-stock")
    assert refused.json()["receipt"]["lines"] == [
        {"sku": "FILTER-A", "requested": 9, "granted": 0},
        {"sku": "HOSE-B", "requested": 6, "granted": 0},
    ]
    assert (caller.available(), caller.available("HOSE-B")) == (10, 5)
    caller.deliver(1, "HOSE-B")
    granted = caller.post("/v1/reservations", body)
    assert granted.json()["lines"] == [
        {"sku": "FILTER-A", "requested": 9, "granted": 9},
        {"sku": "HOSE-B", "requested": 6, "granted": 6},
    ]
    assert granted.json()["stock_versions"] == {"FILTER-A": 2, "HOSE-B": 3}
    assert (caller.available(), caller.available("HOSE-B")) == (1, 0)


def test_a_key_is_for_one_request_only(caller: Caller) -> None:
    """I05: quantity 5 after 2 is 422, then 2 again is the replay; the wrong one leaves nothing."""
    key = caller.new_key()
    first = caller.reserve(2, key=key)
    assert_problem(caller.reserve(5, key=key), "idempotency-key-reused")
    again = caller.reserve(2, key=key)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert caller.available() == 8


def test_a_reused_key_is_422_on_every_route_and_in_every_state(caller: Caller) -> None:
    """I41, I44: another kind, another path, another body, after a commit or a rejection: 422 and nothing moved."""
    reserve, deliver, refused = caller.new_key(), caller.new_key(), caller.new_key()
    caller.reserve(key=reserve)
    caller.reserve(1, key=caller.new_key())
    caller.deliver(1, key=deliver)
    caller.reserve(100, key=refused)
    release = caller.new_key()
    caller.release("reservation-1", release)
    before = caller.stock()
    for response in (
        caller.release("reservation-1", reserve),
        caller.release("reservation-2", release),
        caller.post("/v1/reservations/reservation-1/release", {"reason": "late"}, release),
        caller.release("reservation-99", release),
        caller.deliver(2, key=deliver),
        caller.deliver(1, "HOSE-B", deliver),
        caller.reserve(1, key=deliver),
        caller.reserve(1, key=refused),
        caller.deliver(2, key=refused),
    ):
        assert response.status_code == 422
        assert_problem(response, "idempotency-key-reused")
    assert caller.stock() == before


def test_a_mismatch_is_422_also_for_the_loser_of_the_race(caller: Caller) -> None:
    """I08, I43: two requests race for a fresh key: one executes, the other is refused or replayed, never a 5xx."""
    for _ in range(5):
        key = caller.new_key()
        seen = statuses(together(*[partial(caller.reserve, 1, key=key)] * 2, partial(caller.deliver, 3, key=key)))
        assert set(seen) == {201, 422}
        assert effects(caller, key) == 1


def test_a_rejection_is_for_good(caller: Caller) -> None:
    """I50: a restock changes nothing for the key; another key gets the units."""
    for quantity, sku, name in ((11, "FILTER-A", "insufficient-stock"), (1, "HOSE-B", "unknown-sku")):
        key = caller.new_key()
        refused = caller.reserve(quantity, sku, key)
        assert refused.status_code == 409
        assert_problem(refused, name)
        assert refused.headers["receipt-outcome"] == "rejected"
        caller.deliver(20, sku)
        again = caller.reserve(quantity, sku, key)
        assert (again.status_code, again.content) == (409, refused.content)
        assert again.headers["receipt-outcome"] == "rejected"
        assert again.headers["idempotency-replayed"] == "true"
        assert caller.void(key).json()["outcome"] == "rejected"
        assert caller.reserve(quantity, sku).status_code == 201
        assert effects(caller, key, sku) == 0


def test_two_callers_for_the_last_unit_are_one_reservation(callers: Iterator[Caller]) -> None:
    """I10, I13, I16, I17: one is served and one is refused, never both and never below zero."""
    caller = next(callers)
    for _ in range(5):
        caller.deliver(1)
        assert statuses(together(*[lambda: caller.reserve(1)] * 2)) == {201: 1, 409: 1}
        assert caller.available() == 0


def test_32_callers_with_one_key_are_one_effect(caller: Caller) -> None:
    """I04: duplicates wait for the one that executes; none of them sees request-in-progress."""
    key = caller.new_key()
    responses = together(*[lambda: caller.reserve(2, key=key)] * 32)
    assert statuses(responses) == {201: 32}
    assert len({response.content for response in responses}) == 1
    assert Counter(response.headers["idempotency-replayed"] for response in responses) == {"false": 1, "true": 31}
    assert effects(caller, key) == 1
    assert caller.available() == 8


def test_50_parallel_changes_are_the_sum_of_the_ledger(caller: Caller) -> None:
    """I14: single units in and out at once: versions without a gap, balances equal to their sums."""
    caller.deliver(15)  # with the ten there are enough for every reservation, whatever the order
    calls = [lambda: caller.deliver(1), lambda: caller.reserve(1)] * 25
    assert statuses(together(*calls)) == {201: 50}
    stock, ledger = caller.stock(), caller.ledger()
    assert [movement["version"] for movement in ledger] == list(range(1, stock["version"] + 1))
    for bucket in ("received", "available", "held", "consumed"):
        assert sum(movement[bucket] for movement in ledger) == stock[bucket]


def test_a_delivery_counts_once_however_often_it_comes(caller: Caller) -> None:
    """I52: one key, one change of the quantity, at any time later."""
    key = caller.new_key()
    first = caller.deliver(7, key=key)
    assert first.status_code == 201
    assert [caller.deliver(7, key=key).content for _ in range(3)] == [first.content] * 3
    assert caller.available() == 17
    assert effects(caller, key) == 1


def test_a_second_release_under_another_key_is_refused_for_good(caller: Caller) -> None:
    """I19, I20, I59: the units come back once; the first key replays, every other one is invalid-transition."""
    caller.reserve(2)
    key, other = caller.new_key(), caller.new_key()
    first = caller.release("reservation-1", key)
    assert first.status_code == 200
    refused = caller.release("reservation-1", other)
    assert refused.status_code == 409
    assert_problem(refused, "invalid-transition")
    assert refused.json()["receipt"]["reservation_id"] == "reservation-1"
    assert caller.release("reservation-1", other).content == refused.content
    assert caller.release("reservation-1", key).content == first.content
    assert caller.available() == 10


def test_racing_releases_give_back_once(caller: Caller) -> None:
    """I19, I59: eight at once, one 200."""
    caller.reserve(3)
    assert statuses(together(*[lambda: caller.release("reservation-1")] * 8)) == {200: 1, 409: 7}
    assert caller.available() == 10


def test_a_released_reservation_s_key_takes_no_new_stock(caller: Caller) -> None:
    """I31: the same key again is the original receipt, also after the release."""
    key = caller.new_key()
    first = caller.reserve(2, key=key)
    caller.release("reservation-1")
    again = caller.reserve(2, key=key)
    assert (again.status_code, again.content) == (201, first.content)
    assert caller.available() == 10


def test_a_void_closes_a_key_for_good(caller: Caller) -> None:
    """I28: an unknown key is voided at once; every later use is 410, also by another kind, and moves nothing."""
    key = caller.new_key()
    voided = caller.void(key)
    assert voided.status_code == 200
    assert (voided.json()["kind"], voided.json()["outcome"], voided.json()["http_status"]) == ("void", "voided", 410)
    assert (voided.json()["request"], voided.json()["fingerprint"]) == (None, None)
    assert voided.headers["idempotency-replayed"] == "false"
    for late in (caller.reserve(key=key), caller.reserve(5, key=key), caller.deliver(key=key)):
        assert late.status_code == 410
        assert_problem(late, "key-voided")
        assert late.json()["receipt"] == voided.json()
        assert late.headers["receipt-outcome"] == "voided"
        assert late.headers["idempotency-replayed"] == "true"
    again = caller.void(key)
    assert (again.status_code, again.content) == (200, voided.content)
    assert again.headers["idempotency-replayed"] == "true"
    assert caller.receipt(key).content == voided.content
    assert caller.stock()["version"] == 1


def test_three_voids_at_once_are_one_tombstone(caller: Caller) -> None:
    """I26: all of them are 200 with the same receipt."""
    responses = together(*[lambda: caller.void("cancelled-key-000001")] * 3)
    assert statuses(responses) == {200: 3}
    assert len({response.content for response in responses}) == 1


def test_a_void_loses_to_what_is_committed(caller: Caller) -> None:
    """The answer is the receipt that owns the key; nothing is taken back."""
    key = caller.new_key()
    first = caller.reserve(key=key)
    voided = caller.void(key)
    assert (voided.status_code, voided.content) == (200, first.content)
    assert voided.headers["receipt-outcome"] == "committed"
    assert caller.available() == 8


def test_a_race_of_use_and_void_has_one_winner_for_everybody(caller: Caller) -> None:
    """I02, I38: both answers and the receipt name one outcome, and stock moved if and only if that is committed."""
    caller.deliver(100)
    outcomes = set()
    for _ in range(12):
        key = caller.new_key()
        used, voided = together(partial(caller.reserve, 1, key=key), partial(caller.void, key))
        assert (used.status_code, voided.status_code) in {(201, 200), (410, 200)}
        outcome = caller.receipt(key).json()["outcome"]
        assert used.headers["receipt-outcome"] == voided.headers["receipt-outcome"] == outcome
        assert effects(caller, key) == (outcome == "committed")
        outcomes.add(outcome)
    assert outcomes <= {"committed", "voided"}


def supersedes(*keys: str) -> dict[str, str]:
    """The header of a redo."""
    return {"Effect-Supersedes": ", ".join(keys)}


def test_a_redo_closes_the_generations_that_never_came(caller: Caller) -> None:
    """Newest first, in the same transaction: an older request that is still under way executes nothing."""
    redo = caller.reserve(key=G3, headers=supersedes(G1, G2))
    assert redo.status_code == 201
    assert redo.json()["supersedes"] == [G2, G1]
    receipts = caller.http.get("/v1/receipts?after=1").json()["receipts"]
    assert [(receipt["key"], receipt["outcome"]) for receipt in receipts] == [
        (G2, "voided"),
        (G1, "voided"),
        (G3, "committed"),
    ]
    assert caller.reserve(key=G1).status_code == 410
    assert caller.reserve(key=G2, headers=supersedes(G1)).status_code == 410
    assert caller.available() == 8


def test_a_redo_that_is_rejected_closes_them_all_the_same(caller: Caller) -> None:
    """Its own rejection is no licence for an older generation to land."""
    assert caller.reserve(100, key=G2, headers=supersedes(G1)).status_code == 409
    assert caller.receipt(G1).json()["outcome"] == "voided"


def test_a_redo_of_what_is_committed_is_refused_for_good(caller: Caller) -> None:
    """I29: the refusal shows the receipt in the way, stays after its release, and leaves its reservation alone."""
    committed = caller.reserve(key=G1)
    refused = caller.reserve(key=G3, headers=supersedes(G2, G1))
    assert refused.status_code == 409
    assert_problem(refused, "predecessor-committed")
    assert refused.json()["predecessor"] == committed.json()
    assert refused.json()["receipt"]["reason"] == "predecessor-committed"
    assert caller.receipt(G2).json()["outcome"] == "voided"
    assert caller.available() == 8
    caller.release("reservation-1")
    assert caller.reserve(key=G3, headers=supersedes(G2, G1)).content == refused.content
    assert caller.available() == 10


def test_what_was_released_rejected_or_voided_does_not_stand_in_the_way(caller: Caller) -> None:
    """Three former generations that did nothing that lasts."""
    caller.reserve(key=G1)
    caller.release("reservation-1")
    caller.reserve(100, key=G2)
    caller.void(G3)
    redo = caller.reserve(key="cf1-zs6scstaeluf4cmx6acngur7kkjgm6h2-g4", headers=supersedes(G3, G2, G1))
    assert redo.status_code == 201
    assert caller.available() == 8


@pytest.mark.parametrize("kind", ["delivery", "release"])
def test_what_cannot_be_taken_back_stands_in_the_way_of_its_redo(caller: Caller, kind: str) -> None:
    """A delivery and a release have landed for good."""
    caller.reserve()
    call: Callable[..., httpx.Response] = (
        (lambda key, **more: caller.post("/v1/deliveries", {"sku": "FILTER-A", "quantity": 1}, key, **more))
        if kind == "delivery"
        else (lambda key, **more: caller.release("reservation-1", key, **more))
    )
    assert call(G1).is_success
    version = caller.stock()["version"]
    assert_problem(call(G2, headers=supersedes(G1)), "predecessor-committed")
    assert caller.stock()["version"] == version


def test_a_redo_that_is_late_or_finds_nothing_to_release_closes_nothing(caller: Caller) -> None:
    """412 and 404 store nothing, so the former generations stay open too."""
    late = {**supersedes(G1), "Effect-Not-After": "2026-05-01T00:00:00Z"}
    assert caller.reserve(key=G2, headers=late).status_code == 412
    assert caller.release("reservation-99", G2, headers=supersedes(G1)).status_code == 404
    assert caller.receipt(G1).status_code == 404
    assert caller.receipt(G2).status_code == 404
    assert caller.http.get("/v1/receipts").json()["watermark"] == 1


def test_a_race_of_two_generations_lands_once(caller: Caller) -> None:
    """Whichever comes first, the other is closed or refused."""
    for number in range(8):
        older, newer = (f"raced-effect-{number:04d}-g{generation}" for generation in (1, 2))
        responses = together(
            partial(caller.reserve, 1, key=older),
            partial(caller.reserve, 1, key=newer, headers=supersedes(older)),
        )
        assert sum(response.status_code == 201 for response in responses) == 1
        assert effects(caller, older) + effects(caller, newer) == 1


def test_a_reservation_is_there_after_a_restart(database_url: str) -> None:
    """I07: the exact retry after a commit and a restart is the replay, byte for byte."""
    answers = []
    for _ in range(2):
        with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
            caller = Caller(http)
            caller.deliver(key="delivery-key-00000001")
            answers.append(caller.reserve(key=G1).content)
            assert caller.available() == 8
    assert answers[0] == answers[1]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["deliver", "reserve", "release", "void", "again"]),
        st.integers(1, 12),
    ),
    max_size=12,
)


@given(OPERATIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_balances_are_what_a_small_model_says(caller: Caller, operations: list[tuple[str, int]]) -> None:
    """Whatever comes in whatever order: received = available + held + consumed, and one effect per key."""
    sku = f"SKU-{next(_skus)}"
    received = consumed = 0
    open_reservations: list[tuple[str, int]] = []
    closed: list[str] = []
    sent: list[tuple[Callable[[], httpx.Response], httpx.Response]] = []
    caller.deliver(1, sku)
    received += 1

    def send(call: Callable[[], httpx.Response]) -> httpx.Response:
        response = call()
        sent.append((call, response))
        return response

    for name, number in operations:
        key = caller.new_key()
        available = received - consumed
        if name == "deliver":
            assert send(partial(caller.deliver, number, sku, key)).status_code == 201
            received += number
        elif name == "reserve":
            response = send(partial(caller.reserve, number, sku, key))
            assert response.status_code == (201 if number <= available else 409)
            if number <= available:
                consumed += number
                open_reservations.append((response.json()["reservation_id"], number))
        elif name == "release" and (open_reservations or closed):
            names = [reservation for reservation, _ in open_reservations] + closed
            chosen = names[number % len(names)]
            response = send(partial(caller.release, chosen, key))
            assert response.status_code == (409 if chosen in closed else 200)
            consumed -= sum(quantity for reservation, quantity in open_reservations if reservation == chosen)
            open_reservations = [each for each in open_reservations if each[0] != chosen]
            closed = [*{*closed, chosen}]
        elif name == "void":
            caller.void(key)
            assert caller.reserve(number, sku, key).status_code == 410
        elif name == "again" and sent:
            call, first = sent[number % len(sent)]
            assert call().content == first.content
    stock = caller.stock(sku)
    assert (stock["received"], stock["available"], stock["consumed"]) == (received, received - consumed, consumed)
    ledger: list[dict[str, Any]] = caller.ledger(sku)
    assert [movement["version"] for movement in ledger] == list(range(1, len(ledger) + 1))
    assert max(Counter(movement["key"] for movement in ledger).values()) == 1
