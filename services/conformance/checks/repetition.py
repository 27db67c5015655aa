"""The same key again: one effect, the stored answer, and refusals that stay."""

from functools import partial

from services.conformance.bench import Bench, to_json
from services.conformance.capabilities import Capability, check
from services.conformance.exchanges import Exchange
from services.conformance.expectations import expect, expect_answer

_DEDUPE, _REPLAY, _REJECTIONS = Capability.DEDUPE, Capability.REPLAY, Capability.REJECTIONS


@check(_DEDUPE, "of any number of requests and voids under a key, at once or years apart, one decides")
async def _a_repeated_request_moves_nothing(bench: Bench) -> None:
    sku, key, back = bench.sku(), bench.key(), bench.key()
    arrival = bench.key()
    first = expect_answer(await bench.deliver(sku, 10, arrival), 201)
    _same(first, await bench.deliver(sku, 10, arrival))
    first = expect_answer(await bench.reserve(sku, 3, key), 201)
    _same(first, await bench.reserve(sku, 3, key))
    expect(await bench.balances(sku) == (10, 7, 0, 3), "a repeated request moved something", first)
    reservation = first.receipt["reservation_id"]
    first = expect_answer(await bench.move(reservation, "release", back), 200)
    _same(first, await bench.move(reservation, "release", back))
    expect(await bench.balances(sku) == (10, 10, 0, 0), "a repeated release moved something", first)


def _same(first: Exchange, again: Exchange) -> None:
    held = again.status == first.status and again.receipt == first.receipt
    expect(held, f"the repetition should be answered with {first.receipt.get('receipt_id')}", first, again)


@check(_DEDUPE, "422 means a reused key and nothing else.")
async def _another_request_under_a_used_key_is_refused(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    first = expect_answer(await bench.reserve(sku, 2, key), 201)
    reused = expect_answer(await bench.reserve(sku, 5, key), 422, "idempotency-key-reused")
    expect(not reused.replayed, "a refusal that is not stored is no replay", reused)
    expect_answer(await bench.deliver(sku, 2, key), 422, "idempotency-key-reused")
    expect_answer(await bench.move(first.receipt["reservation_id"], "release", key), 422, "idempotency-key-reused")
    _same(first, await bench.reserve(sku, 2, key))
    expect(await bench.balances(sku) == (10, 8, 0, 2), "a refused reuse moved something", first)


@check(_DEDUPE, "Members that are absent and members that are null are one request.")
async def _one_request_may_be_written_in_several_ways(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    first = expect_answer(await bench.reserve(sku, 2, key), 201)
    _same(first, await bench.reserve(sku, 2, key, reference=None))
    spaced = f'\n{{ "reference" : null, "lines" : [ {{ "quantity" : 2, "sku" : "{sku}" }} ] }}\n'
    _same(first, await bench.post("/v1/reservations", spaced.encode(), key))
    lines = [{"sku": sku, "quantity": 1}, {"sku": sku, "quantity": 1}]
    other = await bench.post("/v1/reservations", {"lines": lines}, key)
    expect_answer(other, 422, "idempotency-key-reused")  # lines are taken as given


@check(_DEDUPE, 'The quotation marks are not part of the key: `"K"` and `K` are one key.')
async def _a_key_is_the_same_quoted_or_bare(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    first = expect_answer(await bench.reserve(sku, 2, key), 201)
    deadline = dict(first.sent_headers)["Effect-Not-After"]
    headers = [("Idempotency-Key", key), ("Effect-Not-After", deadline)]
    _same(first, await bench.call("POST", "/v1/reservations", headers, first.sent))


@check(_DEDUPE, "a tenant's key has one receipt")
async def _many_requests_at_once_are_one_effect(bench: Bench) -> None:
    sku, key = await bench.delivered(1000), bench.key()
    answers = await bench.together(*[partial(bench.reserve, sku, 2, key)] * bench.rounds)
    for answer in answers:
        expect_answer(answer, 201)
        _same(answers[0], answer)
    fresh = sum(not answer.replayed for answer in answers)
    expect(fresh == 1, f"one of them was first; {fresh} say so", *answers[:2])
    expect(await bench.balances(sku) == (1000, 998, 0, 2), "two units were taken once", *answers[:2])


@check(_DEDUPE, "the same key with another fingerprint is a mistake")
async def _two_requests_at_once_under_one_key_are_one_effect(bench: Bench) -> None:
    sku, key = await bench.delivered(1000), bench.key()
    calls = [partial(bench.reserve, sku, 1 + number % 2, key) for number in range(bench.rounds)]
    answers = await bench.together(*calls)
    won = [answer for answer in answers if answer.status == 201]  # noqa: PLR2004
    others = [answer for answer in answers if answer not in won]
    for answer in won:
        _same(won[0], answer)
    for answer in others:
        expect_answer(answer, 422, "idempotency-key-reused")
    expect(bool(won) and len({answer.sent for answer in won}) == 1, "one of both requests was executed", *won[:2])
    taken = won[0].receipt["lines"][0]["granted"]
    expect(await bench.balances(sku) == (1000, 1000 - taken, 0, taken), "it was executed once", *won[:1])


@check(_REPLAY, "The answer is replayed** with its status and its bytes", _DEDUPE)
async def _a_committed_answer_comes_again_byte_for_byte(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    _bytes_again(
        await bench.reserve(sku, 2, key, reference="ä\u2028☂"), await bench.reserve(sku, 2, key, reference="ä\u2028☂")
    )


@check(_REPLAY, "A stored problem is replayed byte for byte", _DEDUPE, _REJECTIONS)
async def _a_rejected_answer_comes_again_byte_for_byte(bench: Bench) -> None:
    sku, key = await bench.delivered(1), bench.key()
    _bytes_again(await bench.reserve(sku, 2, key), await bench.reserve(sku, 2, key))


@check(_REPLAY, "Every later request under that key gets the same bytes again.", Capability.VOID)
async def _a_closed_key_answers_the_same_bytes_each_time(bench: Bench) -> None:
    sku, key = await bench.delivered(1), bench.key()
    await bench.void(key)
    first, again = await bench.reserve(sku, 1, key), await bench.reserve(sku, 1, key)
    expect(first.body == again.body, "the second 410 differs from the first", first, again)
    first, again = await bench.void(key), await bench.void(key)
    expect(first.body == again.body, "the third void differs from the second", first, again)


@check(_REPLAY, "every later answer that shows it repeats that text byte for byte", _DEDUPE, Capability.LOOKUP)
async def _reading_a_receipt_gives_the_bytes_that_the_call_was_given(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    made = expect_answer(await bench.reserve(sku, 2, key), 201)
    again, read = await bench.reserve(sku, 2, key), await bench.receipt(key)
    expect(made.body == again.body == read.body, "the call, its repetition and GET differ", made, again, read)


def _bytes_again(first: Exchange, again: Exchange) -> None:
    expect(again.status == first.status, f"it was {first.status} first and then {again.status}", first, again)
    expect(again.body == first.body, "the body differs from the first one", first, again)
    outcomes = [exchange.headers.get("receipt-outcome") for exchange in (first, again)]
    expect(outcomes[0] == outcomes[1], "Receipt-Outcome differs from the first one", first, again)
    expect((first.replayed, again.replayed) == (False, True), "Idempotency-Replayed is false, then true", first, again)
    ids = [exchange.headers.get("x-request-id") for exchange in (first, again)]
    expect(ids[0] != ids[1], "X-Request-Id is of one response", first, again)


@check(_REJECTIONS, "A refused key stays refused after a restock", _DEDUPE)
async def _a_key_refused_for_lack_of_stock_stays_refused(bench: Bench) -> None:
    sku, key = await bench.delivered(1), bench.key()
    first = expect_answer(await bench.reserve(sku, 2, key), 409, "insufficient-stock")
    expect_answer(await bench.deliver(sku, 10), 201)
    _same(first, await bench.reserve(sku, 2, key))
    expect(await bench.balances(sku) == (11, 11, 0, 0), "the refused key took something", first)
    expect_answer(await bench.reserve(sku, 2), 201)


@check(_REJECTIONS, 'otherwise "refused" and "never came" would look alike', _DEDUPE)
async def _a_key_refused_for_an_unknown_sku_stays_refused(bench: Bench) -> None:
    sku, key = bench.sku(), bench.key()
    first = expect_answer(await bench.reserve(sku, 1, key), 409, "unknown-sku")
    expect_answer(await bench.deliver(sku, 10), 201)
    _same(first, await bench.reserve(sku, 1, key))
    expect_answer(await bench.post("/v1/reservations", to_json({"lines": [{"sku": sku, "quantity": 1}]})), 201)


CHECKS = (
    _a_repeated_request_moves_nothing,
    _another_request_under_a_used_key_is_refused,
    _one_request_may_be_written_in_several_ways,
    _a_key_is_the_same_quoted_or_bare,
    _many_requests_at_once_are_one_effect,
    _two_requests_at_once_under_one_key_are_one_effect,
    _a_committed_answer_comes_again_byte_for_byte,
    _a_rejected_answer_comes_again_byte_for_byte,
    _a_closed_key_answers_the_same_bytes_each_time,
    _reading_a_receipt_gives_the_bytes_that_the_call_was_given,
    _a_key_refused_for_lack_of_stock_stays_refused,
    _a_key_refused_for_an_unknown_sku_stays_refused,
)
