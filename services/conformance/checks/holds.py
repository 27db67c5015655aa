"""Units held for a time: confirm, release, expiry, and their races."""

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any

from services.conformance.bench import Bench
from services.conformance.capabilities import Capability, check
from services.conformance.exchanges import Exchange
from services.conformance.expectations import expect, expect_answer, moment

_HOLDS = Capability.HOLDS
_LONG = 900
# The shortest hold there is, and how much longer is waited for it: clocks tick alike, whatever they show.
_SHORT = 1
_SLACK_SECONDS = 0.2
# The service expires what is due about once a second by itself; so long is it waited for.
_EXPIRED_WITHIN_SECONDS = 15
_LOOK_SECONDS = 0.2


@check(_HOLDS, "of a committed reserve with `hold_seconds`: `created_at` + `hold_seconds`; else null")
async def _a_hold_holds_until_a_time(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = expect_answer(await bench.reserve(sku, 3, hold_seconds=_LONG), 201)
    begun, ends = moment(made.receipt["created_at"]), moment(made.receipt["expires_at"])
    right = begun is not None and ends == begun + timedelta(seconds=_LONG)
    expect(right, f"expires_at is {_LONG} seconds after created_at", made)
    expect(await bench.balances(sku) == (10, 7, 3, 0), "held units are neither available nor consumed", made)
    seen = await _reservation(bench, made.receipt)
    said = (seen.document["state"], seen.document["expires_at"])
    expect(said == ("held", made.receipt["expires_at"]), "the reservation is held, with its end", made, seen)
    plain = await bench.reserved(sku, 1, hold_seconds=None)
    expect(plain["expires_at"] is None, "null is no hold", bench.heard[-1])
    expect(await bench.balances(sku) == (10, 6, 3, 1), "a reserve without hold consumes", bench.heard[-1])


@check(_HOLDS, "the same key with another fingerprint is a mistake", Capability.DEDUPE)
async def _a_hold_of_another_length_is_another_request(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    made = await bench.reserved(sku, 3, key, hold_seconds=_LONG)
    expect_answer(await bench.reserve(sku, 3, key, hold_seconds=_LONG + 1), 422, "idempotency-key-reused")
    expect_answer(await bench.reserve(sku, 3, key), 422, "idempotency-key-reused")
    again = expect_answer(await bench.reserve(sku, 3, key, hold_seconds=_LONG), 201)
    expect(again.receipt == made, "the repetition of a hold is answered with its receipt", again)


@check(_HOLDS, "integer, 1 to 31,536,000, or null: hold the units so long instead of consuming them")
async def _a_hold_is_of_whole_seconds(bench: Bench) -> None:
    sku = await bench.delivered(10)
    for seconds in (0, -1, 31_536_001, 1.5, 1.0, "60", True):
        expect_answer(await bench.reserve(sku, 1, hold_seconds=seconds), 400, "validation-failed")
    expect_answer(await bench.reserve(sku, 1, hold_seconds=31_536_000), 201)


@check(_HOLDS, "keyed: a held reservation becomes consumed")
async def _a_confirm_consumes_what_is_held_once(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = await bench.reserved(sku, 3, hold_seconds=_LONG)
    confirmed = expect_answer(await bench.move(made["reservation_id"], "confirm"), 200)
    lines = [{"sku": sku, "requested": 3, "granted": 3}]
    said = (confirmed.receipt["kind"], confirmed.receipt["reservation_id"], confirmed.receipt["lines"])
    expect(
        said == ("inventory.confirm", made["reservation_id"], lines), "the receipt says what was confirmed", confirmed
    )
    expect(await bench.balances(sku) == (10, 7, 0, 3), "confirmed units are consumed", confirmed)
    seen = await _reservation(bench, made)
    said = tuple(seen.document[name] for name in ("state", "confirm_key", "confirm_receipt_id", "confirmed_at"))
    expected = ("consumed", *(confirmed.receipt[name] for name in ("key", "receipt_id", "created_at")))
    expect(said == expected, "the reservation names its confirm", confirmed, seen)
    expect_answer(await bench.move(made["reservation_id"], "confirm"), 409, "invalid-transition")
    expect_answer(await bench.move(made["reservation_id"], "release"), 200)
    expect_answer(await bench.move(made["reservation_id"], "confirm"), 409, "invalid-transition")
    expect(await bench.balances(sku) == (10, 10, 0, 0), "a release from consumed gives back", bench.heard[-1])
    expect_answer(await bench.move(f"{bench.run}-nothing", "confirm"), 404, "reservation-not-found")


@check(_HOLDS, "keyed: all units of a held or consumed reservation become available")
async def _a_release_ends_a_hold(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = await bench.reserved(sku, 3, hold_seconds=_LONG)
    released = expect_answer(await bench.move(made["reservation_id"], "release"), 200)
    expect(await bench.balances(sku) == (10, 10, 0, 0), "a release of a hold gives back", released)
    expect_answer(await bench.move(made["reservation_id"], "confirm"), 409, "invalid-transition")
    seen = await _reservation(bench, made)
    said = (seen.document["state"], seen.document["expires_at"])
    expect(said == ("released", made["expires_at"]), "a released hold keeps its end in view", seen)


@check(
    _HOLDS,
    "a receipt under the hold's key + `@expiry` of kind `expiry`, outcome `committed`, status 200",
    Capability.LOOKUP,
)
async def _a_hold_expires_by_itself_with_a_receipt(bench: Bench) -> None:
    sku = await bench.delivered(10)
    made = await bench.reserved(sku, 3, hold_seconds=_SHORT)
    seen = await _expired(bench, made)
    read = expect_answer(await bench.receipt(f"{made['key']}@expiry"), 200)
    expiry = read.receipt
    said = {name: expiry[name] for name in ("key", "kind", "outcome", "reservation_id", "lines", "http_status")}
    expected = {
        "key": f"{made['key']}@expiry",
        "kind": "expiry",
        "outcome": "committed",
        "reservation_id": made["reservation_id"],
        "lines": made["lines"],
        "http_status": 200,
    }
    expect(said == expected, f"the expiry's receipt should have {expected}", read)
    named = (seen.document["expiry_receipt_id"], seen.document["expired_at"])
    expect(named == (expiry["receipt_id"], expiry["created_at"]), "the reservation names its expiry", read, seen)
    expect(expiry["created_at"] >= made["expires_at"], "nothing expires before its time", read)
    expect(await bench.balances(sku) == (10, 10, 0, 0), "expired units are available", seen)


@check(_HOLDS, "| `expired` | 409 `hold-expired` | 409 `hold-expired` | - |")
async def _an_expired_hold_is_neither_confirmed_nor_released(bench: Bench) -> None:
    sku = await bench.delivered(3)
    made = await bench.reserved(sku, 3, hold_seconds=_SHORT)
    await _over()
    for move in ("confirm", "release"):
        late = expect_answer(await bench.move(made["reservation_id"], move), 409, "hold-expired")
        expect(late.outcome == "rejected", "the refusal is a stored receipt", late)
        said = (late.receipt["reservation_id"], late.receipt["lines"])
        expected = (made["reservation_id"], [{"sku": sku, "requested": 3, "granted": 0}])
        expect(said == expected, f"reservation_id and lines should be {expected}", late)
    seen = await _reservation(bench, made)
    expect(seen.document["state"] == "expired", "whoever meets a due hold has it expired", seen)
    # Another's reserve of the units that came back is not touched by a late confirm.
    await bench.reserved(sku, 3)
    expect_answer(await bench.move(made["reservation_id"], "confirm"), 409, "hold-expired")
    expect(await bench.balances(sku) == (3, 0, 0, 3), "a late confirm moved another's units", bench.heard[-1])


@check(_HOLDS, "so that nobody is refused because of a hold that is over")
async def _units_of_a_hold_that_is_over_can_be_had_at_once(bench: Bench) -> None:
    sku, name = await bench.delivered(3), bench.name()
    await bench.reserved(sku, 3, f"{name}-g1", hold_seconds=_SHORT)
    await _over()
    expect_answer(await bench.reserve(sku, 3), 201)
    expect(await bench.balances(sku) == (3, 0, 0, 3), "the units went from the hold to the reserve", bench.heard[-1])


@check(_HOLDS, "Several holds may end in one transaction: each has its receipt and its movements.", Capability.LOOKUP)
async def _holds_that_end_together_have_a_receipt_each(bench: Bench) -> None:
    sku = await bench.delivered(6)
    held = await asyncio.gather(*(bench.reserved(sku, quantity, hold_seconds=_SHORT) for quantity in (1, 2, 3)))
    await _over()
    taken = await bench.reserved(sku, 6)
    ends = [expect_answer(await bench.receipt(f"{one['key']}@expiry"), 200).receipt for one in held]
    lines = [(end["reservation_id"], end["lines"]) for end in ends]
    expect(
        lines == [(one["reservation_id"], one["lines"]) for one in held], "each expiry is of its hold", bench.heard[-1]
    )
    # On a slow machine the first of them may be over before the last has begun.
    versions = sorted(one["stock_versions"][sku] for one in [*held, *ends])
    moved = (versions, taken["stock_versions"][sku]) == ([2, 3, 4, 5, 6, 7], 8)
    expect(moved, "each expiry is a movement, before the one that needed it", *bench.heard[-3:])
    before = all(end["sequence"] < taken["sequence"] for end in ends)
    expect(before, "an expiry's sequence is below that of the call that needed it", *bench.heard[-3:])
    expect(await bench.balances(sku) == (6, 0, 0, 6), "all units went from the holds to the reserve", bench.heard[-1])


@check(_HOLDS, "A hold that is due but not yet expired is expired first (section 8).", Capability.SUPERSEDES)
async def _a_redo_over_a_hold_that_is_over_passes(bench: Bench) -> None:
    sku, name = await bench.delivered(3), bench.name()
    redo = partial(bench.reserve, sku, 3, supersedes=[f"{name}-g1"])
    await bench.reserved(sku, 3, f"{name}-g1", hold_seconds=_LONG)
    expect_answer(await redo(f"{name}-g2"), 409, "predecessor-committed")
    other = bench.name()
    expect_answer(await bench.deliver(sku, 3), 201)
    await bench.reserved(sku, 3, f"{other}-g1", hold_seconds=_SHORT)
    await _over()
    expect_answer(await bench.reserve(sku, 3, f"{other}-g2", supersedes=[f"{other}-g1"]), 201)
    expect(await bench.balances(sku) == (6, 0, 3, 3), "the redo took what the hold gave back", bench.heard[-1])


@check(_HOLDS, "under the same lock that confirm and release take")
async def _confirms_and_releases_at_once_end_in_one_state(bench: Bench) -> None:
    sku = await bench.delivered(10 * bench.rounds)
    for _ in range(bench.rounds):
        made = await bench.reserved(sku, 2, hold_seconds=_LONG)
        move = partial(bench.move, made["reservation_id"])
        confirm, release = await bench.together(partial(move, "confirm"), partial(move, "release"))
        expect_answer(release, 200)  # from held or from consumed
        said = (confirm.said, confirm.receipt.get("sequence", 0) < release.receipt["sequence"])
        agreed = said in {("200 committed", True), ("409 invalid-transition", False)}
        expect(agreed, "a confirm is done before the release or refused after it", confirm, release)
    left = await bench.balances(sku)
    expect(left == (10 * bench.rounds, 10 * bench.rounds, 0, 0), "every released unit is available", bench.heard[-1])


async def _over() -> None:
    await asyncio.sleep(_SHORT + _SLACK_SECONDS)


async def _reservation(bench: Bench, receipt: dict[str, Any]) -> Exchange:
    return expect_answer(await bench.get(f"/v1/reservations/{receipt['reservation_id']}"), 200)


async def _expired(bench: Bench, made: dict[str, Any]) -> Exchange:
    """The reservation, once it has expired without anybody's asking for its units."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _SHORT + _EXPIRED_WITHIN_SECONDS
    while True:
        seen = await _reservation(bench, made)
        if seen.document["state"] != "held":
            expect(seen.document["state"] == "expired", "a hold that is over is expired", seen)
            return seen
        expect(loop.time() < until, f"the hold is still held {_EXPIRED_WITHIN_SECONDS} seconds after its end", seen)
        await asyncio.sleep(_LOOK_SECONDS)


CHECKS = (
    _a_hold_holds_until_a_time,
    _a_hold_of_another_length_is_another_request,
    _a_hold_is_of_whole_seconds,
    _a_confirm_consumes_what_is_held_once,
    _a_release_ends_a_hold,
    _a_hold_expires_by_itself_with_a_receipt,
    _an_expired_hold_is_neither_confirmed_nor_released,
    _units_of_a_hold_that_is_over_can_be_had_at_once,
    _holds_that_end_together_have_a_receipt_each,
    _a_redo_over_a_hold_that_is_over_passes,
    _confirms_and_releases_at_once_end_in_one_state,
)
