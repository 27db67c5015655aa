"""Stock, ledger and reservations: every effect is whole, and the books agree."""

from functools import partial

from services.conformance.bench import Bench
from services.conformance.capabilities import Capability, check
from services.conformance.expectations import expect, expect_answer

_STOCK = Capability.STOCK


@check(_STOCK, "Every change of it is one movement in its ledger, written with its receipt in one transaction")
async def _a_delivery_and_a_reserve_move_what_they_say(bench: Bench) -> None:
    sku = await bench.delivered(10)
    lines = [{"sku": sku, "quantity": 1}, {"sku": sku, "quantity": 2}]
    made = expect_answer(await bench.post("/v1/reservations", {"lines": lines}), 201)
    summed = [{"sku": sku, "requested": 3, "granted": 3}]
    expect(made.receipt["lines"] == summed, "lines of one SKU are summed in the receipt", made)
    expect(made.receipt["stock_versions"] == {sku: 2}, "stock_versions is the SKU's version after its movement", made)
    expect(await bench.balances(sku) == (10, 7, 0, 3), "10 delivered and 3 consumed leave 7", made)
    ledger = expect_answer(await bench.get(f"/v1/ledger/{sku}"), 200)
    movements = [(one["kind"], one["quantity"], one["receipt_id"]) for one in ledger.document["movements"]]
    expect(movements[-1] == ("reserve", 3, made.receipt["receipt_id"]), "the movement names its receipt", made, ledger)


@check(_STOCK, "keyed: take these units, all lines or none")
async def _a_reserve_takes_all_lines_or_none(bench: Bench) -> None:
    plenty, scarce = await bench.delivered(10), await bench.delivered(1)
    lines = [{"sku": plenty, "quantity": 2}, {"sku": scarce, "quantity": 2}]
    refused = expect_answer(await bench.post("/v1/reservations", {"lines": lines}), 409, "insufficient-stock")
    expect(await bench.balances(plenty) == (10, 10, 0, 0), "a refused reserve moved one of its lines", refused)
    lines = [{"sku": plenty, "quantity": 2}, {"sku": bench.sku(), "quantity": 1}]
    refused = expect_answer(await bench.post("/v1/reservations", {"lines": lines}), 409, "unknown-sku")
    expect(await bench.balances(plenty) == (10, 10, 0, 0), "a refused reserve moved one of its lines", refused)


@check(_STOCK, "A reservation is confirmed, released and expired as a whole.")
async def _a_release_gives_all_back_once(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = await bench.reserved(sku, 4)
    released = expect_answer(await bench.move(made["reservation_id"], "release"), 200)
    expect(await bench.balances(sku) == (10, 10, 0, 0), "a release gives all units back", released)
    again = expect_answer(await bench.move(made["reservation_id"], "release"), 409, "invalid-transition")
    expect(again.outcome == "rejected", "a second release is a stored rejection", again)
    expect(await bench.balances(sku) == (10, 10, 0, 0), "a second release moved something", again)


@check(_STOCK, "`GET /v1/reservations/{id}` has all of these members; null what has not happened:")
async def _a_reservation_says_where_its_units_are(bench: Bench) -> None:
    sku, reference = await bench.delivered(10), bench.name()
    made = await bench.reserved(sku, 2, reference=reference)
    path = f"/v1/reservations/{made['reservation_id']}"
    seen = expect_answer(await bench.get(path), 200)
    expected = {
        **dict.fromkeys(
            (
                "expires_at", "confirm_key", "confirm_receipt_id", "confirmed_at", "release_key", "release_receipt_id",
                "released_at", "expiry_receipt_id", "expired_at",
            )
        ),
        "reservation_id": made["reservation_id"],
        "state": "consumed",
        "key": made["key"],
        "receipt_id": made["receipt_id"],
        "reference": reference,
        "lines": [{"sku": sku, "quantity": 2}],
        "created_at": made["created_at"],
    }  # fmt: skip
    expect(seen.document == expected, f"the reservation should be {expected}", seen)
    given = expect_answer(await bench.move(made["reservation_id"], "release"), 200).receipt
    seen = expect_answer(await bench.get(path), 200)
    expected |= {
        "state": "released",
        "release_key": given["key"],
        "release_receipt_id": given["receipt_id"],
        "released_at": given["created_at"],
    }
    expect(seen.document == expected, f"the released reservation should be {expected}", seen)


@check(
    _STOCK, "any text that is none is 404 `reservation-not-found`, and any text that is no SKU is 404 `sku-not-found`"
)
async def _what_is_not_there_is_said_to_be_missing(bench: Bench) -> None:
    for name in (f"{bench.run}-nothing", "%00", "reservation-0"):
        expect_answer(await bench.get(f"/v1/reservations/{name}"), 404, "reservation-not-found")
        expect_answer(await bench.move(name, "release"), 404, "reservation-not-found")
        expect_answer(await bench.get(f"/v1/stock/{name}"), 404, "sku-not-found")
        expect_answer(await bench.get(f"/v1/ledger/{name}"), 404, "sku-not-found")


@check(_STOCK, "404 `reservation-not-found` (not stored: the key stays free)")
async def _a_key_that_met_no_reservation_is_free(bench: Bench) -> None:
    sku, key = await bench.delivered(1), bench.key()
    expect_answer(await bench.move(f"{bench.run}-nothing", "release", key), 404, "reservation-not-found")
    expect_answer(await bench.reserve(sku, 1, key), 201)


@check(_STOCK, "Movements come in ascending order of version, those after n (default 0), at most 1,000")
async def _the_ledger_goes_on_after_a_version(bench: Bench) -> None:
    sku = await bench.delivered(5)
    for _ in range(3):
        await bench.reserved(sku, 1)
    page = expect_answer(await bench.get(f"/v1/ledger/{sku}?after_version=2"), 200)
    said = (page.document["next_after_version"], page.document["version"])
    expect([one["version"] for one in page.document["movements"]] == [3, 4], "versions 3 and 4 come after 2", page)
    expect(said == (4, 4), "next_after_version is the version at the end", page)
    for after in (4, 9):
        page = expect_answer(await bench.get(f"/v1/ledger/{sku}?after_version={after}"), 200)
        have = tuple(page.document[name] for name in ("movements", "next_after_version", "version"))
        expect(have == ([], after, 4), f"after version {after} nothing comes, and {after} stays", page)
    for query in ("after_version=x", "after_version=-1", "after_version=1&after_version=1", "after=1"):
        # The query before the SKU, which is not there.
        expect_answer(await bench.get(f"/v1/ledger/{bench.sku()}?{query}"), 400, "validation-failed")


@check(_STOCK, "received = available + held + consumed, none below zero, per SKU")
async def _of_many_callers_for_the_last_unit_one_gets_it(bench: Bench) -> None:
    sku = await bench.delivered(1)
    answers = await bench.together(*[partial(bench.reserve, sku, 1)] * bench.rounds)
    won = [answer for answer in answers if answer.status == 201]  # noqa: PLR2004
    lost = [answer for answer in answers if answer.said == "409 insufficient-stock"]
    expect(len(won) == 1, f"{len(won)} callers got the one unit", *won[:2])
    expect(len(lost) == len(answers) - 1, "the others are refused", *(a for a in answers if a not in (*won, *lost)))
    expect(await bench.balances(sku) == (1, 0, 0, 1), "one unit is consumed", *won)


@check(_STOCK, "per reservation, what was taken minus what was released or has expired is nothing or all of it")
async def _of_many_releases_under_many_keys_one_gives_back(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = await bench.reserved(sku, 3)
    answers = await bench.together(*[partial(bench.move, made["reservation_id"], "release")] * bench.rounds)
    said = sorted(answer.said for answer in answers)
    expected = ["200 committed", *["409 invalid-transition"] * (len(answers) - 1)]
    expect(said == expected, f"one release is done and the others are refused; it was {said}", *answers[:2])
    expect(await bench.balances(sku) == (10, 10, 0, 0), "the units came back once", *answers[:2])


CHECKS = (
    _a_delivery_and_a_reserve_move_what_they_say,
    _a_reserve_takes_all_lines_or_none,
    _a_release_gives_all_back_once,
    _a_reservation_says_where_its_units_are,
    _what_is_not_there_is_said_to_be_missing,
    _a_key_that_met_no_reservation_is_free,
    _the_ledger_goes_on_after_a_version,
    _of_many_callers_for_the_last_unit_one_gets_it,
    _of_many_releases_under_many_keys_one_gives_back,
)
