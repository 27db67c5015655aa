"""Holds: units that are set aside until a confirm, a release, or the end of their time."""

from collections.abc import Iterator

from services.effects.keys import fingerprint
from tests.services.inventory.conftest import Caller, Service, connect, running
from tests.services.inventory.test_edge import assert_problem


def test_a_hold_sets_units_aside_and_a_confirm_takes_them(caller: Caller) -> None:
    """Available -> held -> consumed: each a movement, a receipt and a state of the reservation."""
    held = caller.hold(3).json()
    assert caller.stock() == {
        "sku": "FILTER-A", "received": 10, "available": 7, "held": 3, "consumed": 0, "version": 2,
    }  # fmt: skip
    reservation = caller.http.get(f"/v1/reservations/{held['reservation_id']}").json()
    assert (reservation["state"], reservation["expires_at"]) == ("held", held["expires_at"])
    assert held["expires_at"] > held["created_at"]
    confirmed = caller.confirm(held["reservation_id"])
    assert (confirmed.status_code, confirmed.headers["receipt-outcome"]) == (200, "committed")
    receipt = confirmed.json()
    assert (receipt["kind"], receipt["reservation_id"], receipt["lines"]) == (
        "inventory.confirm", held["reservation_id"], [{"sku": "FILTER-A", "requested": 3, "granted": 3}],
    )  # fmt: skip
    assert (caller.stock()["held"], caller.stock()["consumed"]) == (0, 3)
    reservation = caller.http.get(f"/v1/reservations/{held['reservation_id']}").json()
    assert (reservation["state"], reservation["confirm_key"]) == ("consumed", receipt["key"])
    assert [movement["kind"] for movement in caller.ledger()] == ["delivery", "hold", "confirm"]
    assert caller.confirm(held["reservation_id"], receipt["key"]).content == confirmed.content


def test_a_hold_and_what_was_confirmed_can_be_released_once(caller: Caller) -> None:
    """From either state the units come back; every other way out is an invalid transition, for good."""
    for confirmed in (False, True):
        reservation = caller.hold(3).json()["reservation_id"]
        if confirmed:
            assert caller.confirm(reservation).status_code == 200
        assert caller.release(reservation).status_code == 200
        assert caller.available() == 10
        for late in (caller.confirm(reservation), caller.release(reservation)):
            assert_problem(late, "invalid-transition")
    taken = caller.reserve().json()["reservation_id"]
    assert_problem(caller.confirm(taken), "invalid-transition")


def test_a_hold_that_is_over_is_nobodys_and_its_late_confirm_and_release_are_refused(
    service: Service, callers: Iterator[Caller]
) -> None:
    """I23: A's hold ends, B takes the units, A's confirm and release come late: hold-expired, and B is untouched."""
    caller = next(callers)
    caller.deliver(2)
    held = caller.hold(2).json()
    assert_problem(caller.reserve(2), "insufficient-stock")
    service.end_hold(caller, held)
    taken = caller.reserve(2)
    assert taken.status_code == 201
    for late in (caller.confirm(held["reservation_id"]), caller.release(held["reservation_id"])):
        assert_problem(late, "hold-expired")
        assert late.json()["receipt"]["outcome"] == "rejected"
    assert (caller.stock()["available"], caller.stock()["consumed"]) == (0, 2)
    assert [movement["kind"] for movement in caller.ledger()] == ["delivery", "hold", "expiry", "reserve"]
    assert caller.http.get(f"/v1/reservations/{taken.json()['reservation_id']}").json()["state"] == "consumed"


def test_the_end_of_a_hold_is_an_effect_with_a_receipt_that_names_its_parent(service: Service, caller: Caller) -> None:
    """Found by its key, by a look-up and in the feed; nobody can close or use that key."""
    held = caller.hold(3).json()
    service.end_hold(caller, held)
    assert_problem(caller.confirm(held["reservation_id"]), "hold-expired")
    key = f"{held['key']}@expiry"
    receipt = caller.receipt(key).json()
    assert (receipt["kind"], receipt["outcome"], receipt["fingerprint"]) == ("expiry", "committed", None)
    assert receipt["lines"] == [{"sku": "FILTER-A", "requested": 3, "granted": 3}]
    reservation = caller.http.get(f"/v1/reservations/{held['reservation_id']}").json()
    assert (reservation["state"], reservation["expiry_receipt_id"]) == ("expired", receipt["receipt_id"])
    assert caller.http.post("/v1/receipts/lookup", json={"keys": [key]}).json()["receipts"] == {key: receipt}
    assert receipt in caller.http.get("/v1/receipts").json()["receipts"]
    for other in (caller.void(key), caller.hold(1, key=key)):
        assert_problem(other, "idempotency-key-invalid")
    assert caller.available() == 10


def test_what_is_due_is_ended_by_the_service_itself(database_url: str) -> None:
    """Nobody has to ask: housekeeping ends it once, and what is not due stays."""
    with running(database_url, {"token": "acme"}) as service, connect(service.url, "token") as http:
        caller = Caller(http)
        caller.deliver()
        due, kept = caller.hold(3).json(), caller.hold(4).json()
        service.end_hold(caller, due)
        for _ in range(2):
            service.housekeeping()
        assert caller.stock()["available"] == 6
        states = [http.get(f"/v1/reservations/{one['reservation_id']}").json()["state"] for one in (due, kept)]
        assert states == ["expired", "held"]


def test_a_move_refused_for_its_former_generation_says_which_reservation_it_left_alone(caller: Caller) -> None:
    """In its receipt, as every refused move does: it is found by SKU, and its fingerprint can be computed from it."""
    held, other = caller.hold(2).json(), caller.hold(3).json()
    name = held["reservation_id"]
    assert caller.release(other["reservation_id"], key="effect-0000000001-g1").status_code == 200
    headers = {"Effect-Supersedes": "effect-0000000001-g1"}
    refused = caller.release(name, key="effect-0000000001-g2", headers=headers)
    assert_problem(refused, "predecessor-committed")
    receipt = refused.json()["receipt"]
    assert receipt["reservation_id"] == name
    assert receipt["lines"] == [{"sku": "FILTER-A", "requested": 2, "granted": 0}]
    assert receipt["fingerprint"] == fingerprint("inventory.release", {"id": name}, {})
    assert receipt in caller.http.get("/v1/receipts", params={"sku": "FILTER-A"}).json()["receipts"]
    assert caller.http.get(f"/v1/reservations/{name}").json()["state"] == "held"


def test_a_redo_passes_over_a_hold_that_is_over_and_not_over_one_that_stands(service: Service, caller: Caller) -> None:
    """Committed is not "still held": what went back does not stand in the way."""
    held = caller.hold(2, key="effect-0000000001-g1").json()
    headers = {"Effect-Supersedes": "effect-0000000001-g1"}
    refused = caller.reserve(1, key="effect-0000000001-g2", headers=headers)
    assert_problem(refused, "predecessor-committed")
    assert refused.json()["predecessor"] == held
    service.end_hold(caller, held)
    headers = {"Effect-Supersedes": "effect-0000000001-g2, effect-0000000001-g1"}
    assert caller.reserve(1, key="effect-0000000001-g3", headers=headers).status_code == 201
    assert (caller.stock()["available"], caller.stock()["held"]) == (9, 0)
