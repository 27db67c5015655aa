"""Effect-Not-After: the provider judges the deadline."""

from services.conformance.bench import PAST, Bench, to_json
from services.conformance.capabilities import Capability, check
from services.conformance.expectations import expect, expect_answer

_NOT_AFTER = Capability.NOT_AFTER
_MISREAD = (
    "", "tomorrow", "2999-01-01", "2999-01-01T00:00:00", "2999-01-01 00:00:00Z", "2999-01-01T00:00:00+01:00",
    "2999-01-01T00:00:00-00:00", "2999-13-01T00:00:00Z", "2999-02-30T00:00:00Z", "2999-01-01T00:00:60Z",
    "2999-01-01T24:00:00Z", "0000-01-01T00:00:00Z",
    "29990101T000000Z", "32472144000", "2999-01-01T00:00:00.1234567890Z",
)  # fmt: skip
_READ = (
    "2999-01-01T00:00:00Z", "2999-01-01t00:00:00z", "2999-01-01T00:00:00+00:00", "2999-01-01T00:00:00.5Z",
    "2999-01-01T00:00:00.123456789Z",
)  # fmt: skip


@check(_NOT_AFTER, "is 412 `not-after-passed`, and this delivery did nothing and stored nothing.")
async def _a_request_after_its_deadline_does_nothing(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    late = expect_answer(await bench.reserve(sku, 2, key, not_after=PAST), 412, "not-after-passed")
    expect(await bench.balances(sku) == (10, 10, 0, 0), "a late request moved something", late)
    expect_answer(await bench.reserve(sku, 2, key), 201)
    expect(await bench.balances(sku) == (10, 8, 0, 2), "the same key in time takes its units once", late)


@check(
    _NOT_AFTER,
    "A deadline that has passed never hides what is known: a stored receipt is answered first.",
    Capability.DEDUPE,
)
async def _a_known_receipt_is_answered_after_the_deadline(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    made = expect_answer(await bench.reserve(sku, 2, key), 201)
    late = expect_answer(await bench.reserve(sku, 2, key, not_after=PAST), 201)
    expect(late.receipt == made.receipt, "a passed deadline hides the receipt", made, late)
    expect_answer(await bench.reserve(sku, 3, key, not_after=PAST), 422, "idempotency-key-reused")


@check(_NOT_AFTER, "400 `validation-failed`, before anything is looked up.")
async def _a_deadline_that_could_be_misread_is_refused(bench: Bench) -> None:
    sku = await bench.delivered(100)
    body = to_json({"lines": [{"sku": sku, "quantity": 1}]})
    key = ("Idempotency-Key", bench.key())
    expect_answer(await bench.call("POST", "/v1/reservations", [key], body), 400, "validation-failed")
    twice = [key, ("Effect-Not-After", _READ[0]), ("Effect-Not-After", _READ[0])]
    expect_answer(await bench.call("POST", "/v1/reservations", twice, body), 400, "validation-failed")
    for text in _MISREAD:
        headers = [key, ("Effect-Not-After", text)]
        expect_answer(await bench.call("POST", "/v1/reservations", headers, body), 400, "validation-failed")
    expect(await bench.balances(sku) == (100, 100, 0, 0), "a refused deadline moved something", bench.heard[-1])


@check(_NOT_AFTER, "with `T` and `Z` in either case, `+00:00` instead of `Z`, and a fraction of 1 to 9 digits")
async def _a_deadline_may_be_written_in_these_ways(bench: Bench) -> None:
    sku = await bench.delivered(100)
    for text in _READ:
        expect_answer(await bench.reserve(sku, 1, not_after=text), 201)


@check(_NOT_AFTER, "the same request with another deadline is the same request", Capability.DEDUPE)
async def _the_deadline_is_not_part_of_the_request(bench: Bench) -> None:
    sku, key = await bench.delivered(10), bench.key()
    made = expect_answer(await bench.reserve(sku, 2, key, not_after=_READ[0]), 201)
    again = expect_answer(await bench.reserve(sku, 2, key, not_after=_READ[-1]), 201)
    expect(again.receipt == made.receipt, "another deadline made another effect", made, again)


CHECKS = (
    _a_request_after_its_deadline_does_nothing,
    _a_known_receipt_is_answered_after_the_deadline,
    _a_deadline_that_could_be_misread_is_refused,
    _a_deadline_may_be_written_in_these_ways,
    _the_deadline_is_not_part_of_the_request,
)
