"""Closing a key: the void, and its race with the call."""

from functools import partial

from services.conformance.bench import Bench
from services.conformance.capabilities import Capability, check
from services.conformance.expectations import expect, expect_answer

_VOID = Capability.VOID
_LATE = 3  # requests that come after the void


@check(_VOID, "A late request under a voided key gets 410, however often and however late.")
async def _a_voided_key_is_closed_for_good(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    closed = expect_answer(await bench.void(key), 200)
    said = (closed.outcome, closed.receipt["kind"], closed.receipt["reason"], closed.receipt["key"])
    expect(said == ("voided", "void", "voided", key), "a void of an unused key makes its tombstone", closed)
    expect(not closed.replayed, "the void that closes a key is no replay", closed)
    for _ in range(_LATE):
        late = expect_answer(await bench.reserve(sku, 2, key), 410, "key-voided")
        expect(late.receipt == closed.receipt, "the 410 carries the tombstone", closed, late)
        expect(late.replayed, "the tombstone's 410 is a replay", late)
    expect_answer(await bench.deliver(sku, 1, key), 410, "key-voided")
    expect(await bench.balances(sku) == (10, 10, 0, 0), "something moved under a voided key", closed)


@check(_VOID, "It never touches stock, and can be repeated.")
async def _a_void_can_be_repeated(bench: Bench) -> None:
    key = bench.key()
    first = expect_answer(await bench.void(key), 200)
    again = expect_answer(await bench.void(key), 200)
    expect(again.receipt == first.receipt, "the second void answers the first one's tombstone", first, again)
    expect(again.replayed, "the second void is a replay", again)


@check(_VOID, "So a void that answers `committed` is not a failure: it is the outcome.")
async def _a_void_answers_what_the_key_came_to(bench: Bench) -> None:
    sku = await bench.delivered(10)
    for quantity, outcome in ((2, "committed"), (99, "rejected")):
        key = bench.key()
        made = await bench.reserve(sku, quantity, key)
        answer = expect_answer(await bench.void(key), 200)
        expect(made.outcome == answer.outcome == outcome, f"the void answers the {outcome} receipt", made, answer)
        expect(answer.receipt == made.receipt, "the void changes nothing about the receipt", made, answer)
        expect(answer.replayed, "a void of a used key is a replay", answer)
    expect(await bench.balances(sku) == (10, 8, 0, 2), "a void moved something", bench.heard[-1])


@check(_VOID, "PUT, its key in the path alone; the body is empty or `{}`.")
async def _a_void_needs_nothing_but_its_path(bench: Bench) -> None:
    path = f"/v1/receipts/{bench.key()}/void"
    expect_answer(await bench.call("PUT", path, body=b'{"reason":"over"}'), 400, "validation-failed")
    for body in (b"[]", b" "):
        expect_answer(await bench.call("PUT", path, body=body), 400, "validation-failed")
    bad = await bench.call("PUT", "/v1/receipts/short/void", body=b"[]")
    expect_answer(bad, 400, "idempotency-key-invalid")  # the key before the body
    other = [("Idempotency-Key", bench.key()), ("Effect-Not-After", "never"), ("Effect-Supersedes", "")]
    closed = expect_answer(await bench.call("PUT", path, other, b"{}"), 200)
    expect(closed.outcome == "voided", "headers of a keyed POST are not looked at", closed)
    for key in ("short", "%22" + bench.key() + "%22", f"{bench.key()}@expiry", "a" * 129):
        expect_answer(await bench.void(key), 400, "idempotency-key-invalid")


@check(_VOID, "Not found is no proof**, a void is.", Capability.LOOKUP)
async def _a_closed_key_is_found(bench: Bench) -> None:
    key = bench.key()
    expect_answer(await bench.receipt(key), 404, "receipt-not-found")
    closed = expect_answer(await bench.void(key), 200)
    read = expect_answer(await bench.receipt(key), 200)
    expect(read.receipt == closed.receipt, "GET answers the tombstone", closed, read)


@check(_VOID, "In one transaction it inserts a tombstone under the same unique key that a call inserts first")
async def _many_voids_at_once_are_one_tombstone(bench: Bench) -> None:
    key = bench.key()
    answers = await bench.together(*[partial(bench.void, key)] * bench.rounds)
    for answer in answers:
        expect_answer(answer, 200)
        same = answer.outcome == "voided" and answer.receipt == answers[0].receipt
        expect(same, "two voids have two tombstones", answers[0], answer)


@check(_VOID, "so exactly one of the two gets it")
async def _a_call_and_a_void_at_once_agree(bench: Bench) -> None:
    sku = await bench.delivered(10 * bench.rounds)
    taken = 0
    for number in range(bench.rounds):
        key = bench.key()
        calls = [partial(bench.reserve, sku, 2, key), partial(bench.void, key)]
        answers = await bench.together(*(calls if number % 2 else reversed(calls)))
        call, void = answers if number % 2 else reversed(answers)
        expect_answer(void, 200)
        agreed = call.receipt == void.receipt and (call.status, call.outcome) in {(201, "committed"), (410, "voided")}
        expect(agreed, "the call and the void say two things of one key", call, void)
        taken += 2 if call.outcome == "committed" else 0
    have = await bench.balances(sku)
    expect(have[3] == taken, f"{taken} units were said to be taken; it is {have[3]}", *bench.heard[-2:])


CHECKS = (
    _a_voided_key_is_closed_for_good,
    _a_void_can_be_repeated,
    _a_void_answers_what_the_key_came_to,
    _a_void_needs_nothing_but_its_path,
    _a_closed_key_is_found,
    _many_voids_at_once_are_one_tombstone,
    _a_call_and_a_void_at_once_agree,
)
